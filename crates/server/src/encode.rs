//! Encoding: objects, lists and events in the representation a client asked for.
//!
//! River: snapshot, events → **encode** → HTTP body. The whole object as JSON is copied from shared
//! bytes; the other representations are made from it, and events at most once each.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use headwater_api::accept::{Encoding, IncludeObject, MetaVersion, Representation, Shape};
use headwater_api::object::frame;
use headwater_api::{EventType, Object, Revision, Status};
use headwater_cache::{Event, Filter, Snapshot};
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::body::{self, CHUNK, Response};
use crate::object::{canonical, tree, wire};
use crate::read::Page;
use crate::registry::Served;
use crate::route::Resource;
use crate::server::{Call, Server};
use crate::write::from_storage;
use crate::{status, table};

/// One object as an answer.
pub(crate) fn one(
    server: &Server,
    call: &Call,
    kind: &Served,
    code: StatusCode,
    object: &Object,
) -> Result<Response, Status> {
    let object = converted(kind, object)?;
    let bytes = match call.representation.shape {
        Shape::Whole => object.bytes(),
        Shape::Metadata { version } => metadata(version, &object),
        Shape::Table { version, include } => {
            let table = Table { kind, version, include, now: server.now() };
            let mut out = BytesMut::new();
            table.begin(&list_metadata(object.revision(), "", None), true, &mut out);
            table.row(&object, &mut out);
            out.put_slice(b"]}");
            out.freeze()
        }
    };
    Ok(json_answer(call, code, bytes))
}

/// A tree as an answer: what is not stored, such as a Scale or a review.
pub(crate) fn value(call: &Call, code: StatusCode, value: &Value) -> Response {
    json_answer(call, code, Bytes::from(value.to_string()))
}

fn json_answer(call: &Call, code: StatusCode, json: Bytes) -> Response {
    if call.representation.encoding == Encoding::Yaml {
        return yaml(code, &json);
    }
    let chunks = futures::stream::iter([json, Bytes::from_static(b"\n")]);
    // Two chunks that are at hand: this never waits.
    futures::executor::block_on(body::json_chunks(code, call.finish, chunks))
}

fn yaml(code: StatusCode, json: &[u8]) -> Response {
    let text = tree(json).ok().and_then(|value| serde_saphyr::to_string(&value).ok());
    match text {
        Some(text) => body::answer(code, "application/yaml", body::full(text)),
        None => status::response(&status::internal("the answer cannot be written as YAML")),
    }
}

/// An error as an answer, in the encoding the client asked for.
pub(crate) fn status(call: &Call, status: &Status) -> Response {
    let mut response = status::response(status);
    if Encoding::for_errors(call.header(header::ACCEPT)) == Encoding::Yaml {
        let made = yaml(response.status(), &status.to_json());
        *response.body_mut() = made.into_body();
        body::set(&mut response, header::CONTENT_TYPE, "application/yaml");
    }
    response
}

/// All warnings together may take this much; beyond it each is cut (S1.44).
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;

/// Adds `Warning` headers, each text once (S1.44).
pub(crate) fn warn(response: &mut Response, warnings: &[String]) {
    static WARNING: HeaderName = HeaderName::from_static("warning");
    let total: usize = warnings.iter().map(String::len).sum();
    let mut seen: Vec<&str> = Vec::new();
    let mut sent = 0;
    for text in warnings {
        let mut cut = text.as_str();
        if total > WARNINGS_MAX {
            let end = (0..=cut.len().min(WARNING_MAX)).rev().find(|at| cut.is_char_boundary(*at));
            cut = &cut[..end.unwrap_or(0)];
        }
        sent += cut.len();
        if seen.contains(&cut) || sent > WARNINGS_MAX {
            continue;
        }
        seen.push(cut);
        let escaped = cut.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append(WARNING.clone(), value);
        }
    }
}

/// An object in the form of the request: the stored one, or one made from it.
pub(crate) enum Seen<'a> {
    Same(&'a Object),
    Made(Box<Object>),
}

impl std::ops::Deref for Seen<'_> {
    type Target = Object;

    fn deref(&self) -> &Object {
        match self {
            Seen::Same(object) => object,
            Seen::Made(object) => object,
        }
    }
}

/// An object in the form of the request.
pub(crate) fn converted<'a>(kind: &Served, object: &'a Object) -> Result<Seen<'a>, Status> {
    if !kind.is_converted() {
        return Ok(Seen::Same(object));
    }
    let mut value = tree(object.as_slice())?;
    from_storage(kind, &mut value);
    Ok(Seen::Made(Box::new(wire(kind, &canonical(&value), object.revision())?)))
}

/// The `metadata` of a list.
pub(crate) fn list_metadata(
    revision: Revision,
    continue_token: &str,
    remaining: Option<usize>,
) -> Value {
    let mut metadata = json!({ "resourceVersion": revision.to_string() });
    if !continue_token.is_empty() {
        metadata["continue"] = continue_token.into();
    }
    if let Some(remaining) = remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

/// `PartialObjectMetadata`: the metadata is copied, nothing is parsed.
fn metadata(version: MetaVersion, object: &Object) -> Bytes {
    let mut out = BytesMut::with_capacity(object.metadata().len() + 96);
    put_metadata(version, object.metadata(), &mut out);
    out.freeze()
}

fn put_metadata(version: MetaVersion, metadata: &[u8], out: &mut BytesMut) {
    out.put_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
    out.put_slice(version.api_version().as_bytes());
    out.put_slice(b"\",\"metadata\":");
    out.put_slice(metadata);
    out.put_slice(b"}");
}

/// Tables of one kind.
struct Table<'a> {
    kind: &'a Served,
    version: MetaVersion,
    include: IncludeObject,
    now: Timestamp,
}

impl Table<'_> {
    /// Everything before the rows. Later events of a watch leave out the columns (S4.51).
    fn begin(&self, metadata: &Value, columns: bool, out: &mut BytesMut) {
        let columns = match columns {
            true => serde_json::to_string(&table::columns(self.kind)).unwrap_or_default(),
            false => "null".to_owned(),
        };
        let api_version = self.version.api_version();
        let head = format!(
            "{{\"kind\":\"Table\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"columnDefinitions\":{columns},\"rows\":["
        );
        out.put_slice(head.as_bytes());
    }

    /// One row. Cells are computed from the object, so this is the one place that reads one.
    fn row(&self, object: &Object, out: &mut BytesMut) {
        let value = tree(object.as_slice()).unwrap_or_default();
        let cells = Value::Array(table::row(self.kind, &value, self.now));
        out.put_slice(format!("{{\"cells\":{cells},\"object\":").as_bytes());
        match self.include {
            IncludeObject::Metadata => put_metadata(self.version, object.metadata(), out),
            IncludeObject::Object => out.put_slice(object.as_slice()),
            IncludeObject::None => out.put_slice(b"null"),
        }
        out.put_slice(b"}");
    }
}

/// A list as an answer.
pub(crate) async fn list(
    server: &Server,
    call: &Call,
    resource: &Resource,
    snapshot: &Snapshot,
    page: Page,
    filter: Filter,
) -> Response {
    let kind = Arc::clone(&resource.kind);
    let mut metadata = list_metadata(snapshot.revision(), &page.continue_token, page.remaining);
    if kind.custom && page.continue_token.is_empty() {
        metadata["continue"] = "".into(); // custom resources show the key always (S3.10)
    }
    let source = match page.is_complete {
        true => Source::All { snapshot: snapshot.clone(), after: page.after, filter },
        false => Source::Page(page.objects.into_iter()),
    };
    let chunks = Chunks {
        kind,
        shape: call.representation.shape,
        metadata,
        now: server.now(),
        source,
        state: ChunkState::Head,
    };
    if call.representation.encoding == Encoding::Yaml {
        let json: Vec<u8> = chunks.flatten().collect();
        return yaml(StatusCode::OK, &json);
    }
    body::json_chunks(StatusCode::OK, call.finish, futures::stream::iter(chunks)).await
}

/// Where the items of a list come from.
enum Source {
    /// The objects of one page.
    Page(std::vec::IntoIter<Arc<Object>>),
    /// Everything that matches, read from the snapshot as the client takes it.
    All { snapshot: Snapshot, after: Option<String>, filter: Filter },
}

/// Objects that are looked at before a chunk is sent, at most.
const LOOK_MAX: usize = 512;

impl Source {
    /// Some of the next objects; empty at the end.
    fn some(&mut self) -> Vec<Arc<Object>> {
        match self {
            Source::Page(objects) => objects.by_ref().take(LOOK_MAX).collect(),
            Source::All { snapshot, after, filter } => {
                let objects: Vec<Arc<Object>> =
                    snapshot.select(filter, after.as_deref()).take(LOOK_MAX).cloned().collect();
                if let Some(last) = objects.last() {
                    *after = Some(last.key().to_owned());
                }
                objects
            }
        }
    }
}

/// The body of a list, chunk by chunk: however long it is, one chunk is in memory.
struct Chunks {
    kind: Arc<Served>,
    shape: Shape,
    metadata: Value,
    now: Timestamp,
    source: Source,
    state: ChunkState,
}

enum ChunkState {
    Head,
    /// Objects that are not written yet.
    Items {
        pending: std::vec::IntoIter<Arc<Object>>,
        first: bool,
    },
    End,
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        loop {
            match &mut self.state {
                ChunkState::End => return (!out.is_empty()).then(|| out.freeze()),
                ChunkState::Head => {
                    self.head(&mut out);
                    self.state = ChunkState::Items { pending: Vec::new().into_iter(), first: true };
                }
                ChunkState::Items { pending, first } => {
                    let Some(object) = pending.next() else {
                        let some = self.source.some();
                        if some.is_empty() {
                            out.put_slice(b"]}\n");
                            self.state = ChunkState::End;
                        } else {
                            out.reserve(CHUNK + CHUNK / 4);
                            *pending = some.into_iter();
                        }
                        continue;
                    };
                    if !std::mem::take(first) {
                        out.put_slice(b",");
                    }
                    self.item(&object, &mut out);
                    if out.len() >= CHUNK {
                        return Some(out.freeze());
                    }
                }
            }
        }
    }
}

impl Chunks {
    fn table(&self) -> Option<Table<'_>> {
        match self.shape {
            Shape::Table { version, include } => {
                Some(Table { kind: &self.kind, version, include, now: self.now })
            }
            Shape::Whole | Shape::Metadata { .. } => None,
        }
    }

    fn head(&self, out: &mut BytesMut) {
        let (kind, api_version) = match self.shape {
            Shape::Whole => (self.kind.list_kind.to_string(), self.kind.api_version()),
            Shape::Metadata { version } => {
                ("PartialObjectMetadataList".to_owned(), version.api_version().to_owned())
            }
            Shape::Table { .. } => {
                return self.table().into_iter().for_each(|table| {
                    table.begin(&self.metadata, true, out);
                });
            }
        };
        let head = format!(
            "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{},\"items\":[",
            self.metadata
        );
        out.put_slice(head.as_bytes());
    }

    fn item(&self, object: &Object, out: &mut BytesMut) {
        // An object that cannot be converted was accepted by us, so it can be: the stored form
        // is a last resort.
        let seen = converted(&self.kind, object).unwrap_or(Seen::Same(object));
        match self.shape {
            Shape::Whole if self.kind.custom => out.put_slice(seen.as_slice()),
            Shape::Whole => {
                out.put_slice(b"{");
                out.put_slice(seen.item_tail());
            }
            Shape::Metadata { version } => put_metadata(version, seen.metadata(), out),
            Shape::Table { .. } => {
                self.table().into_iter().for_each(|table| table.row(&seen, out));
            }
        }
    }
}

/// Frames of one watch.
#[derive(Clone)]
pub(crate) struct Frames {
    pub(crate) kind: Arc<Served>,
    pub(crate) representation: Representation,
    pub(crate) server: Server,
    /// Column definitions were sent: they come with the first event only (S4.51).
    pub(crate) columns_sent: bool,
}

impl Frames {
    /// The frame of a change.
    pub(crate) fn event(&mut self, event: &Event) -> Bytes {
        if let Some(key) = self.key() {
            let columns = !std::mem::replace(&mut self.columns_sent, true);
            return event.encoded(key ^ u64::from(columns), |object, event| {
                self.frame(event, object, columns)
            });
        }
        event.frame()
    }

    /// The frame of an object of the initial state.
    pub(crate) fn initial(&mut self, object: &Object) -> Bytes {
        if self.key().is_none() {
            return object.frame(EventType::Added);
        }
        let columns = !std::mem::replace(&mut self.columns_sent, true);
        self.frame(EventType::Added, object, columns)
    }

    /// What tells this representation from others; `None` is the stored bytes. Its last bit is
    /// left for "with column definitions".
    fn key(&self) -> Option<u64> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        if self.representation.shape == Shape::Whole && !self.kind.is_converted() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&self.kind.group, &self.kind.version, self.representation.shape).hash(&mut hasher);
        Some((hasher.finish() | 2) & !1)
    }

    fn frame(&self, event: EventType, object: &Object, columns: bool) -> Bytes {
        let seen = converted(&self.kind, object).unwrap_or(Seen::Same(object));
        match self.representation.shape {
            Shape::Whole => frame(event, seen.as_slice()),
            Shape::Metadata { version } => frame(event, &metadata(version, &seen)),
            Shape::Table { version, include } => {
                let now = self.server.now();
                let table = Table { kind: &self.kind, version, include, now };
                let mut out = BytesMut::new();
                table.begin(&list_metadata(seen.revision(), "", None), columns, &mut out);
                table.row(&seen, &mut out);
                out.put_slice(b"]}");
                frame(event, &out)
            }
        }
    }

    /// A bookmark; `mark` is the end of the initial events (S4.10, S4.11, S4.53).
    pub(crate) fn bookmark(&mut self, revision: Revision, mark: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if mark {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = match self.representation.shape {
            Shape::Whole => self.whole_bookmark(&metadata),
            Shape::Metadata { version } => {
                let mut out = BytesMut::new();
                put_metadata(version, metadata.to_string().as_bytes(), &mut out);
                out.freeze()
            }
            Shape::Table { version, include } => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let now = self.server.now();
                let table = Table { kind: &self.kind, version, include, now };
                let mut out = BytesMut::new();
                table.begin(&list_metadata(revision, "", None), columns, &mut out);
                out.put_slice(b"{\"cells\":");
                let cells = Value::Array(table::bookmark_cells(&self.kind));
                out.put_slice(cells.to_string().as_bytes());
                out.put_slice(b",\"object\":");
                put_metadata(version, metadata.to_string().as_bytes(), &mut out);
                out.put_slice(b"}]}");
                out.freeze()
            }
        };
        frame(EventType::Bookmark, &object)
    }

    /// The zero value of the kind: structs that are always written show up empty.
    fn whole_bookmark(&self, metadata: &Value) -> Bytes {
        let kind = &self.kind;
        let (name, api_version) = (&kind.kind.kind, kind.api_version());
        let rest: String = zero(kind).into_iter().map(|(k, v)| format!(",\"{k}\":{v}")).collect();
        let text = format!(
            "{{\"kind\":\"{name}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata}{rest}}}"
        );
        Bytes::from(text)
    }
}

/// Members that the zero value of a kind has besides its type and metadata.
fn zero(kind: &Served) -> Vec<(&'static str, &'static str)> {
    if kind.custom {
        return Vec::new();
    }
    let mut members = Vec::new();
    if kind.traits.generation || kind.has_status() {
        members.push(("spec", "{}"));
    }
    if kind.has_status() {
        members.push(("status", "{}"));
    }
    members
}

/// The last frame of a stream that cannot go on.
pub(crate) fn error_frame(status: &Status) -> Bytes {
    frame(EventType::Error, &status.to_json())
}

/// A document in a chosen encoding.
pub(crate) fn plain(call: &Call, encoding: Encoding, document: &Value) -> Response {
    match encoding {
        Encoding::Json => value(call, StatusCode::OK, document),
        Encoding::Yaml => yaml(StatusCode::OK, document.to_string().as_bytes()),
    }
}
