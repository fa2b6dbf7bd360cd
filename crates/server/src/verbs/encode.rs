//! Encoding of objects, lists and events in the representation that the client accepts.
//!
//! River: snapshot, events → **encode** → HTTP body. Complete objects are sent as JSON from
//! shared bytes; other representations are derived from them, and events at most once each.

mod bookmark;
mod chunk;
pub(crate) mod frames;
pub(crate) mod gzip;
mod protobuf;
mod yaml;

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::future::ready;
use futures::stream::{self, BoxStream};
use headwater_api::accept::{Encoding, IncludeObject, MetaVersion, Representation, Shape};
use headwater_api::object::ManagedFields;
use headwater_api::table::{Headings, ListMeta, View, partial};
use headwater_api::{Object, Status};
use headwater_cache::Selection;
use headwater_json::{Value, json};
use http::StatusCode;
use http::header::{self};
use jiff::Timestamp;

use self::chunk::{Chunk, PIECE_MIN};
use self::protobuf::ProtobufList;
use self::yaml::YamlChunks;
use crate::answer::body::{self, CHUNK, Data, Finish, Response};
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::kinds::versions::{ConvertedObject, converted};
use crate::object::tree;
use crate::request::call::Call;
use crate::request::flow::limits::ListPlace;
use crate::request::observe::ListMetrics;
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
    let Representation { shape, managed_fields, .. } = call.representation;
    let bytes = match shape {
        Shape::Whole if managed_fields == ManagedFields::Kept => object.bytes(),
        Shape::Whole => object.parts(managed_fields).concat().into(),
        Shape::Metadata { version } => {
            let mut out = BytesMut::new();
            partial::write(&mut out, version, object, managed_fields);
            out.freeze()
        }
        Shape::Table { version, include } => {
            let mut out = BytesMut::new();
            let view = view(kind, version, include, managed_fields);
            view.write_object(&mut out, object, server.now());
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
    if call.representation.is_stored() && !kind.is_converted() {
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
    in_encoding(call.representation.encoding, code, call.finish, json)
}

/// A response with a JSON document in an encoding. What has no message stays JSON.
fn in_encoding(encoding: Encoding, code: StatusCode, finish: Finish, json: Bytes) -> Response {
    match encoding {
        Encoding::Yaml => return yaml(code, &json),
        Encoding::Protobuf => {
            if let Some(body) = protobuf::body(&json) {
                return body::complete(code, encoding.content_type(), finish, body.into());
            }
        }
        Encoding::Json => {}
    }
    let chunks = [json.into(), "\n".into()].into_iter();
    body::json_chunks(code, finish, chunks)
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

/// The response with a Status that reports success.
pub(crate) fn success(call: &Call, code: StatusCode, status: &Status) -> Response {
    let encoding = call.representation.encoding;
    in_encoding(encoding, code, Finish::default(), status.to_json().into())
}

/// The response to a failed request, in the encoding that the client accepts.
pub(crate) fn status(accept: &str, status: &Status) -> Response {
    let mut response = status::response(status);
    let encoding = Encoding::for_errors(accept);
    if encoding != Encoding::Json {
        let code = response.status();
        let made = in_encoding(encoding, code, Finish::default(), status.to_json().into());
        *response.body_mut() = made.into_body();
        body::set(&mut response, header::CONTENT_TYPE, encoding.content_type());
    }
    response
}

/// The table view of a kind.
fn view(
    kind: &Served,
    version: MetaVersion,
    include: IncludeObject,
    managed_fields: ManagedFields,
) -> View<'_> {
    View { columns: kind.columns(), version, include, managed_fields }
}

/// Whether an answer is computed from the stored bytes, and is not the bytes themselves.
pub(crate) fn is_derived(call: &Call, kind: &Served) -> bool {
    let Representation { encoding, shape, .. } = &call.representation;
    *encoding != Encoding::Json
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
        managed_fields: call.representation.managed_fields,
        continue_token: page.continue_token,
        now: server.now(),
        objects: page.selection,
        counted: ListMetrics::new(server.metrics(), kind),
        state: ChunkState::Head,
        _place: place,
    };
    let encoding = call.representation.encoding;
    if encoding != Encoding::Json || !chunks.is_of_stored_bytes() {
        let is_long = chunks.reads_more_than(INLINE_MAX);
        let derived: BoxStream<'static, Data> = match encoding {
            Encoding::Json => stream::iter(chunks).boxed(),
            Encoding::Yaml => stream::iter(YamlChunks::new(chunks)).boxed(),
            Encoding::Protobuf => match ProtobufList::new(chunks) {
                Some(list) => stream::iter(list).boxed(),
                None => return status::response(&protobuf::no_messages(kind)),
            },
        };
        let derived = if is_long { server.work().compute(derived).boxed() } else { derived };
        let finish = call.finish;
        return match encoding {
            Encoding::Json => body::json_stream(finish, derived).await,
            Encoding::Yaml => {
                let plain = Finish::default();
                body::derived_stream(encoding.content_type(), plain, derived).await
            }
            Encoding::Protobuf => {
                // Steps that only measure give nothing.
                let sent = derived.filter(|chunk| ready(chunk.has_remaining()));
                body::derived_stream(encoding.content_type(), finish, sent).await
            }
        };
    }
    // Compressed blocks are shared by lists of the same text.
    let is_shared = call.representation.is_stored() && !kind.custom;
    if call.finish.gzip && !call.finish.pretty && is_shared {
        let first = chunks.objects.ahead();
        let size: usize = first.iter().map(|object| object.item_tail().len()).sum();
        if size > body::GZIP_ABOVE {
            let blocks = gzip::Gzipped::new(chunks, server.blocks().clone());
            let body = body::stream(stream::iter(blocks));
            return body::gzipped(StatusCode::OK, body::JSON, body);
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
    managed_fields: ManagedFields,
    continue_token: String,
    now: Timestamp,
    objects: Selection,
    counted: ListMetrics,
    state: ChunkState,
    _place: Option<ListPlace>,
}

#[derive(Clone, Copy)]
enum ChunkState {
    Head,
    Items { is_first: bool },
    End,
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.counted.sent(&self.objects);
    }
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

    /// Whether items are the stored bytes of their objects, or two parts of them.
    fn is_of_stored_bytes(&self) -> bool {
        self.shape == Shape::Whole && !self.kind.is_converted()
    }

    /// An item of stored bytes.
    fn piece(&self, object: &Object, is_first: bool, chunk: &mut Chunk) {
        let whole = object.bytes();
        let [before, after] = match self.kind.custom {
            true => object.parts(self.managed_fields),
            false => object.item_parts(self.managed_fields),
        };
        let opening: &[u8] = match (self.kind.custom, is_first) {
            (true, true) => b"",
            (true, false) => b",",
            (false, true) => b"{",
            (false, false) => b",{",
        };
        match self.managed_fields {
            // The parts are adjacent: one piece.
            ManagedFields::Kept => {
                let start = whole.len() - before.len() - after.len();
                chunk.push(opening, whole.slice(start..));
            }
            ManagedFields::Dropped => {
                chunk.push(opening, whole.slice_ref(before));
                chunk.push(b"", whole.slice_ref(after));
            }
        }
    }

    fn head(&self, out: &mut BytesMut) {
        if let Shape::Table { version, include } = self.shape {
            let shard = self.shard();
            let meta = ListMeta {
                revision: self.objects.snapshot().revision(),
                continue_token: &self.continue_token,
                remaining: self.remaining().map(|count| count as u64),
                shard: shard.as_deref().unwrap_or_default(),
            };
            let view = view(&self.kind, version, include, self.managed_fields);
            return view.write_head(out, &meta, Headings::Shown);
        }
        let (kind, api_version) = self.type_meta();
        let metadata = self.list_meta();
        let head = format!(
            "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":["
        );
        out.put_slice(head.as_bytes());
    }

    /// The number of objects after the limit, if it is known.
    fn remaining(&self) -> Option<usize> {
        self.objects.rest().and_then(|rest| rest.count)
    }

    fn shard(&self) -> Option<String> {
        self.objects.filtered_by().shard.as_ref().map(ToString::to_string)
    }

    /// The kind and the version of the list, if it is no table.
    fn type_meta(&self) -> (String, String) {
        match self.shape {
            Shape::Metadata { version } => {
                ("PartialObjectMetadataList".to_owned(), version.api_version().to_owned())
            }
            _ => (self.kind.list_kind.to_string(), self.kind.api_version()),
        }
    }

    /// The metadata of the list.
    fn list_meta(&self) -> Value {
        let revision = self.objects.snapshot().revision();
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        // Lists of custom resources always have the key (S3.10).
        if self.kind.custom || !self.continue_token.is_empty() {
            metadata["continue"] = self.continue_token.clone().into();
        }
        if let Some(remaining) = self.remaining() {
            metadata["remainingItemCount"] = remaining.into();
        }
        if let Some(shard) = self.shard() {
            metadata["shardInfo"] = json!({ "selector": shard });
        }
        metadata
    }

    fn item(&self, object: &Object, out: &mut BytesMut) {
        // Stored objects are convertible; the stored version is the last resort.
        let seen = converted(&self.kind, object).unwrap_or(ConvertedObject::Stored(object));
        let managed = self.managed_fields;
        let mut put = |parts: [&[u8]; 2]| parts.iter().for_each(|part| out.put_slice(part));
        match self.shape {
            Shape::Whole if self.kind.custom => put(seen.parts(managed)),
            Shape::Whole => {
                put([b"{", b""]);
                put(seen.item_parts(managed));
            }
            Shape::Metadata { version } => partial::write(out, version, &seen, managed),
            Shape::Table { version, include } => {
                view(&self.kind, version, include, managed).write_row(out, &seen, self.now);
            }
        }
    }
}

/// A document in a chosen encoding.
pub(crate) fn plain(call: &Call, encoding: Encoding, document: &Value) -> Response {
    let json = headwater_json::to_vec(document).into();
    in_encoding(encoding, StatusCode::OK, call.finish, json)
}
