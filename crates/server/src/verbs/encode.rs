//! Encoding of objects, lists and events in the representation that the client accepts.
//!
//! River: snapshot, events → **encode** → HTTP body. Complete objects are sent as JSON from
//! shared bytes; other representations are derived from them, and events at most once each.

mod bookmark;
mod chunk;
pub(crate) mod gzip;
mod yaml;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use headwater_api::accept::{Encoding, IncludeObject, MetaVersion, Representation, Shape};
use headwater_api::frame::{self, FRAME_END};
use headwater_api::table::{Headings, ListMeta, View, partial};
use headwater_api::{Clock, EventType, Object, Revision, Status};
use headwater_cache::{EventBatch, Selection, WatchEvent};
use headwater_json::{Value, json};
use http::StatusCode;
use http::header::{self};
use jiff::Timestamp;

use self::chunk::{Chunk, PIECE_MIN};
use self::yaml::YamlChunks;
use crate::answer::body::{self, CHUNK, Data, Response};
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::kinds::versions::{ConvertedObject, converted};
use crate::object::tree;
use crate::request::call::Call;
use crate::request::flow::limits::ListPlace;
use crate::server::Server;
use crate::verbs::read::ListPage;
use crate::verbs::write::Written;
use crate::work::INLINE_MAX;

/// The response with one object.
pub(crate) fn one(
    server: &Server,
    call: &Call,
    kind: &Served,
    code: StatusCode,
    object: &Object,
) -> Response {
    let bytes = match call.representation.shape {
        Shape::Whole => object.bytes(),
        Shape::Metadata { version } => {
            let mut out = BytesMut::new();
            partial::write(&mut out, version, object);
            out.freeze()
        }
        Shape::Table { version, include } => {
            let mut out = BytesMut::new();
            view(kind, version, include).write_object(&mut out, object, server.now());
            out.freeze()
        }
    };
    json_answer(call, code, bytes)
}

/// The response to a write.
pub(crate) fn written(
    server: &Server,
    call: &Call,
    kind: &Served,
    written: &Written,
) -> Result<Response, Status> {
    let Written { code, answer } = written;
    if matches!(call.representation.shape, Shape::Whole) && !kind.is_converted() {
        return Ok(json_answer(call, *code, answer.bytes()?));
    }
    let object = answer.object()?;
    let seen = converted(kind, &object)?;
    Ok(one(server, call, kind, *code, &seen))
}

/// The response with a tree that is not stored, such as a Scale or a review.
pub(crate) fn value(call: &Call, code: StatusCode, value: &Value) -> Response {
    json_answer(call, code, headwater_json::to_vec(value).into())
}

fn json_answer(call: &Call, code: StatusCode, json: Bytes) -> Response {
    if call.representation.encoding == Encoding::Yaml {
        return yaml(code, &json);
    }
    let chunks = [json.into(), "\n".into()].into_iter();
    body::json_chunks(code, call.finish, chunks)
}

fn yaml(code: StatusCode, json: &[u8]) -> Response {
    match tree(json) {
        Ok(value) => {
            let text = headwater_schema::yaml::to_string(&value);
            body::answer(code, "application/yaml", body::full(text))
        }
        Err(status) => status::response(&status),
    }
}

/// The response to a failed request, in the encoding that the client accepts.
pub(crate) fn status(call: &Call, status: &Status) -> Response {
    let mut response = status::response(status);
    if Encoding::for_errors(call.header(header::ACCEPT)) == Encoding::Yaml {
        let made = yaml(response.status(), &status.to_json());
        *response.body_mut() = made.into_body();
        body::set(&mut response, header::CONTENT_TYPE, "application/yaml");
    }
    response
}

/// The table view of a kind.
fn view(kind: &Served, version: MetaVersion, include: IncludeObject) -> View<'_> {
    View { columns: kind.columns(), version, include }
}

/// Shows the headings in the first table of a stream only (S4.51).
fn headings(sent: &mut bool) -> Headings {
    if std::mem::replace(sent, true) { Headings::Omitted } else { Headings::Shown }
}

/// Whether an answer is computed from the stored bytes, and is not the bytes themselves.
pub(crate) fn is_derived(call: &Call, kind: &Served) -> bool {
    let Representation { encoding, shape, .. } = &call.representation;
    *encoding == Encoding::Yaml
        || *shape != Shape::Whole
        || kind.is_converted()
        || kind.conversion().is_some()
        || call.finish.pretty
}

/// The response with a list.
pub(crate) async fn list(
    server: &Server,
    call: &Call,
    kind: &Arc<Served>,
    page: ListPage,
    place: Option<ListPlace>,
) -> Response {
    let mut chunks = Chunks {
        kind: Arc::clone(kind),
        shape: call.representation.shape,
        continue_token: page.continue_token,
        now: server.now(),
        objects: page.selection,
        state: ChunkState::Head,
        _place: place,
    };
    let (is_yaml, is_stored) =
        (call.representation.encoding == Encoding::Yaml, chunks.is_of_stored_bytes());
    if is_yaml || !is_stored {
        let is_long = chunks.reads_more_than(INLINE_MAX);
        let derived: BoxStream<'static, Data> = match is_yaml {
            true => stream::iter(YamlChunks::new(chunks)).boxed(),
            false => stream::iter(chunks).boxed(),
        };
        let derived = if is_long { server.work().compute(derived).boxed() } else { derived };
        return match is_yaml {
            true => body::yaml_stream(StatusCode::OK, derived).await,
            false => body::json_stream(StatusCode::OK, call.finish, derived).await,
        };
    }
    if call.finish.gzip && !call.finish.pretty && !kind.custom {
        let first = chunks.objects.ahead();
        let size: usize = first.iter().map(|object| object.item_tail().len()).sum();
        if size > body::GZIP_ABOVE {
            let blocks = gzip::Gzipped::new(chunks, server.blocks().clone());
            let body = body::stream(stream::iter(blocks));
            return body::gzipped(StatusCode::OK, body);
        }
    }
    body::json_chunks(StatusCode::OK, call.finish, chunks)
}

/// Derived chunks are made from about this many stored bytes at most: their own size says little about
/// the time that they take.
const READ_MAX: usize = 256 << 10;

/// The body of a list, chunk by chunk: only one chunk is in memory.
struct Chunks {
    kind: Arc<Served>,
    shape: Shape,
    continue_token: String,
    now: Timestamp,
    objects: Selection,
    state: ChunkState,
    _place: Option<ListPlace>,
}

#[derive(Clone, Copy)]
enum ChunkState {
    Head,
    Items { is_first: bool },
    End,
}

impl Iterator for Chunks {
    type Item = Data;

    fn next(&mut self) -> Option<Data> {
        let (takes_pieces, mut chunk) = (self.is_of_stored_bytes(), Chunk::default());
        let mut read = 0;
        loop {
            match self.state {
                ChunkState::End => return chunk.some(),
                ChunkState::Head => {
                    self.head(chunk.written(0));
                    self.state = ChunkState::Items { is_first: true };
                }
                ChunkState::Items { is_first } => {
                    let left = self.objects.ahead().len();
                    let Some(object) = self.objects.next() else {
                        chunk.written(0).put_slice(b"]}\n");
                        self.state = ChunkState::End;
                        continue;
                    };
                    self.state = ChunkState::Items { is_first: false };
                    let size = object.as_slice().len();
                    if takes_pieces && size >= PIECE_MIN {
                        self.piece(&object, is_first, &mut chunk);
                    } else {
                        let out = chunk.written(left * (size + 1));
                        if !is_first {
                            out.put_slice(b",");
                        }
                        self.item(&object, out);
                    }
                    read += if takes_pieces { 0 } else { size };
                    if chunk.len() >= CHUNK || read >= READ_MAX {
                        return chunk.some();
                    }
                }
            }
        }
    }
}

impl Chunks {
    /// Whether the objects have more bytes together.
    fn reads_more_than(&mut self, most: usize) -> bool {
        let mut sum = 0;
        self.objects.ahead().iter().any(|object| {
            sum += object.as_slice().len();
            sum > most
        })
    }

    /// Whether items are the stored bytes of their objects.
    fn is_of_stored_bytes(&self) -> bool {
        self.shape == Shape::Whole && !self.kind.is_converted()
    }

    /// An item of stored bytes.
    fn piece(&self, object: &Object, is_first: bool, chunk: &mut Chunk) {
        let whole = object.bytes();
        let tail = || whole.slice_ref(object.item_tail());
        match (self.kind.custom, is_first) {
            (true, true) => chunk.push(b"", whole),
            (true, false) => chunk.push(b",", whole),
            (false, true) => chunk.push(b"{", tail()),
            (false, false) => chunk.push(b",{", tail()),
        }
    }

    fn head(&self, out: &mut BytesMut) {
        let revision = self.objects.snapshot().revision();
        let remaining = self.objects.rest().and_then(|rest| rest.count);
        let (kind, api_version) = match self.shape {
            Shape::Whole => (self.kind.list_kind.to_string(), self.kind.api_version()),
            Shape::Metadata { version } => {
                ("PartialObjectMetadataList".to_owned(), version.api_version().to_owned())
            }
            Shape::Table { version, include } => {
                let meta = ListMeta {
                    revision,
                    continue_token: &self.continue_token,
                    remaining: remaining.map(|count| count as u64),
                };
                return view(&self.kind, version, include).write_head(out, &meta, Headings::Shown);
            }
        };
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        // Lists of custom resources always have the key (S3.10).
        if self.kind.custom || !self.continue_token.is_empty() {
            metadata["continue"] = self.continue_token.clone().into();
        }
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        let head = format!(
            "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":["
        );
        out.put_slice(head.as_bytes());
    }

    fn item(&self, object: &Object, out: &mut BytesMut) {
        // Stored objects are convertible; the stored version is the last resort.
        let seen = converted(&self.kind, object).unwrap_or(ConvertedObject::Stored(object));
        match self.shape {
            Shape::Whole if self.kind.custom => out.put_slice(seen.as_slice()),
            Shape::Whole => {
                out.put_slice(b"{");
                out.put_slice(seen.item_tail());
            }
            Shape::Metadata { version } => partial::write(out, version, &seen),
            Shape::Table { version, include } => {
                view(&self.kind, version, include).write_row(out, &seen, self.now);
            }
        }
    }
}

/// Frames of one watch.
#[derive(Clone)]
pub(crate) struct Frames {
    pub(crate) kind: Arc<Served>,
    pub(crate) representation: Representation,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the column definitions were sent: only the first event has them (S4.51).
    pub(crate) columns_sent: bool,
}

impl Frames {
    /// The frame of a change; `made` is its object if a webhook converted it.
    pub(crate) fn event(&mut self, event: &WatchEvent, made: Option<&Arc<Object>>) -> Bytes {
        let made = made.filter(|made| !Arc::ptr_eq(made, event.object()));
        let Some(key) = self.key(made.is_some()) else { return event.frame() };
        let headings = headings(&mut self.columns_sent);
        event.encoded(key ^ u64::from(headings == Headings::Shown), |object, event| {
            self.frame(event, made.map_or(object, |made| made), headings)
        })
    }

    /// The frames of some changes as one chunk; `made` are their objects if a webhook converted them.
    pub(crate) fn events(&mut self, events: &EventBatch, made: &[Arc<Object>]) -> Data {
        let key = self.key(false);
        // The first frame may define columns, and converted objects belong to this watch alone.
        if !made.is_empty() || (key.is_some() && !self.columns_sent) {
            let frames =
                events.iter().enumerate().map(|(at, event)| self.event(event, made.get(at)));
            return frames.collect::<Vec<Bytes>>().concat().into();
        }
        events.joined(key.unwrap_or_default(), |event| self.event(event, None)).into()
    }

    /// The frames of objects of the initial state as one chunk. A webhook has already converted
    /// them, if the kind has one.
    pub(crate) fn initial(&mut self, objects: &[Arc<Object>]) -> Data {
        let (is_stored, mut chunk) = (self.key(false).is_none(), Chunk::default());
        let prefix = EventType::Added.prefix();
        for (index, object) in objects.iter().enumerate() {
            let size = object.as_slice().len();
            let room = (objects.len() - index) * (size + prefix.len() + FRAME_END.len());
            if is_stored && size >= PIECE_MIN && object.event() == EventType::Added {
                chunk.push(b"", object.natural_frame());
            } else if is_stored && size >= PIECE_MIN {
                chunk.push(prefix.as_bytes(), object.bytes());
                chunk.written(0).put_slice(FRAME_END.as_bytes());
            } else if is_stored {
                let out = chunk.written(room);
                out.put_slice(prefix.as_bytes());
                out.put_slice(object.as_slice());
                out.put_slice(FRAME_END.as_bytes());
            } else {
                let headings = headings(&mut self.columns_sent);
                chunk.written(0).put_slice(&self.frame(EventType::Added, object, headings));
            }
        }
        chunk.some().unwrap_or_default()
    }

    /// The key of this representation among shared encodings; `None` is the stored bytes. Its last
    /// bit is reserved for "with column definitions".
    fn key(&self, is_made: bool) -> Option<u64> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let is_stored = !is_made && !self.kind.is_converted();
        if self.representation.shape == Shape::Whole && is_stored {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&self.kind.group, &self.kind.version, self.representation.shape).hash(&mut hasher);
        Some((hasher.finish() | 2) & !1)
    }

    fn frame(&self, event: EventType, object: &Object, headings: Headings) -> Bytes {
        let seen = converted(&self.kind, object).unwrap_or(ConvertedObject::Stored(object));
        match self.representation.shape {
            Shape::Whole => frame::encode(event, seen.as_slice()),
            Shape::Metadata { version } => partial::event_frame(event, version, &seen),
            Shape::Table { version, include } => {
                let view = view(&self.kind, version, include);
                view.event_frame(event, &seen, headings, self.clock.now())
            }
        }
    }

    /// A bookmark; `mark` is the end of the initial events (S4.10, S4.11, S4.53).
    pub(crate) fn bookmark(&mut self, revision: Revision, mark: bool) -> Bytes {
        match self.representation.shape {
            Shape::Whole => {
                frame::encode(EventType::Bookmark, &bookmark::object(&self.kind, revision, mark))
            }
            Shape::Metadata { version } => partial::bookmark_frame(version, revision, mark),
            Shape::Table { version, include } => {
                let headings = headings(&mut self.columns_sent);
                let whole = (include == IncludeObject::Object)
                    .then(|| bookmark::object(&self.kind, revision, mark));
                let view = view(&self.kind, version, include);
                view.bookmark_frame(revision, mark, headings, whole.as_deref())
            }
        }
    }
}

/// The ERROR frame that ends a stream.
pub(crate) fn error_frame(status: &Status) -> Bytes {
    frame::encode(EventType::Error, &status.to_json())
}

/// A document in a chosen encoding.
pub(crate) fn plain(call: &Call, encoding: Encoding, document: &Value) -> Response {
    match encoding {
        Encoding::Json => value(call, StatusCode::OK, document),
        Encoding::Yaml => yaml(StatusCode::OK, document.to_string().as_bytes()),
    }
}
