//! Tables as bytes: list bodies in pieces, and watch frames.

use bytes::{BufMut, Bytes, BytesMut};
use headwater_json::{Value, json};
use jiff::Timestamp;

use super::cells::row_conditions;
use super::{Column, partial, row};
use crate::accept::{IncludeObject, MetaVersion};
use crate::frame::{EventType, FRAME_END};
use crate::object::{ManagedFields, Object};
use crate::revision::Revision;

/// Metadata of a list.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListMeta<'a> {
    /// The revision of the content.
    pub revision: Revision,
    /// The token of the next page; empty for the last page.
    pub continue_token: &'a str,
    /// The number of remaining items, if known.
    pub remaining: Option<u64>,
    /// The text of the shard selector; empty for a list of everything.
    pub shard: &'a str,
}

/// A kind's table as one client requested it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The kind's columns.
    pub columns: &'a [Column],
    /// Version of the `meta.k8s.io` types.
    pub version: MetaVersion,
    /// What a row contains in addition to its cells.
    pub include: IncludeObject,
    /// Whether the objects of rows contain their managed fields.
    pub managed_fields: ManagedFields,
}

/// Whether a table defines its columns. In a watch only the first one does (S4.51).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headings {
    /// `columnDefinitions` is a list.
    Shown,
    /// `columnDefinitions` is null.
    Omitted,
}

impl View<'_> {
    /// Writes everything before the first row.
    pub fn write_head(&self, buffer: &mut BytesMut, meta: &ListMeta<'_>, headings: Headings) {
        buffer.put_slice(br#"{"kind":"Table","apiVersion":""#);
        buffer.put_slice(self.version.api_version().as_bytes());
        buffer.put_slice(br#"","metadata":{"resourceVersion":""#);
        buffer.put_slice(meta.revision.to_string().as_bytes());
        buffer.put_slice(b"\"");
        if !meta.continue_token.is_empty() {
            buffer.put_slice(br#","continue":"#);
            put_json(buffer, &meta.continue_token.into());
        }
        if let Some(remaining) = meta.remaining {
            buffer.put_slice(format!(r#","remainingItemCount":{remaining}"#).as_bytes());
        }
        if !meta.shard.is_empty() {
            buffer.put_slice(br#","shardInfo":"#);
            put_json(buffer, &json!({ "selector": meta.shard }));
        }
        buffer.put_slice(br#"},"columnDefinitions":"#);
        let definitions = match headings {
            Headings::Shown => definitions(self.columns),
            Headings::Omitted => Value::Null,
        };
        put_json(buffer, &definitions);
        buffer.put_slice(br#","rows":["#);
    }

    /// Writes the row of an object. The caller writes the commas between rows.
    pub fn write_row(&self, buffer: &mut BytesMut, object: &Object, now: Timestamp) {
        // Stored objects are valid JSON; an invalid one still has a row.
        let value: Value = serde_json::from_slice(object.as_slice()).unwrap_or_default();
        self.write_cells(buffer, &value, now);
        match self.include {
            IncludeObject::Metadata => {
                partial::write(buffer, self.version, object, self.managed_fields);
            }
            IncludeObject::Object => {
                object.parts(self.managed_fields).iter().for_each(|part| buffer.put_slice(part));
            }
            IncludeObject::None => buffer.put_slice(b"null"),
        }
        buffer.put_slice(b"}");
    }

    /// Writes everything after the last row.
    pub fn write_tail(&self, buffer: &mut BytesMut) {
        buffer.put_slice(b"]}");
    }

    /// Writes one object as a table with one row, at its own revision.
    pub fn write_object(&self, buffer: &mut BytesMut, object: &Object, now: Timestamp) {
        let meta = ListMeta { revision: object.revision(), ..ListMeta::default() };
        self.write_head(buffer, &meta, Headings::Shown);
        self.write_row(buffer, object, now);
        self.write_tail(buffer);
    }

    /// The watch frame of a change: a table with one row, at the revision of the object.
    pub fn event_frame(
        &self,
        event: EventType,
        object: &Object,
        headings: Headings,
        now: Timestamp,
    ) -> Bytes {
        let mut buffer = self.open_frame(event, object.revision(), headings);
        self.write_row(&mut buffer, object, now);
        self.close_frame(buffer)
    }

    /// The frame of a bookmark: the row of an object that only has a revision. The `mark` that ends
    /// the initial events always includes it, because clients read its annotation (S4.53). `whole`
    /// is the complete object, for clients that request that.
    pub fn bookmark_frame(
        &self,
        revision: Revision,
        mark: bool,
        headings: Headings,
        whole: Option<&[u8]>,
    ) -> Bytes {
        let mut buffer = self.open_frame(EventType::Bookmark, revision, headings);
        self.write_cells(&mut buffer, &json!({}), Timestamp::UNIX_EPOCH);
        if let Some(whole) = whole {
            buffer.put_slice(whole);
        } else if self.include == IncludeObject::None && !mark {
            buffer.put_slice(b"null");
        } else {
            let metadata = partial::bookmark_metadata(revision, mark);
            partial::write_around(&mut buffer, self.version, [metadata.as_bytes(), b""]);
        }
        buffer.put_slice(b"}");
        self.close_frame(buffer)
    }

    fn open_frame(&self, event: EventType, revision: Revision, headings: Headings) -> BytesMut {
        let mut buffer = BytesMut::with_capacity(1024);
        buffer.put_slice(event.prefix().as_bytes());
        let meta = ListMeta { revision, ..ListMeta::default() };
        self.write_head(&mut buffer, &meta, headings);
        buffer
    }

    fn close_frame(&self, mut buffer: BytesMut) -> Bytes {
        self.write_tail(&mut buffer);
        buffer.put_slice(FRAME_END.as_bytes());
        buffer.freeze()
    }

    fn write_cells(&self, buffer: &mut BytesMut, object: &Value, now: Timestamp) {
        buffer.put_slice(br#"{"cells":"#);
        put_json(buffer, &Value::Array(row(self.columns, object, now)));
        if let Some(conditions) = row_conditions(object) {
            buffer.put_slice(br#","conditions":"#);
            put_json(buffer, &conditions);
        }
        buffer.put_slice(br#","object":"#);
    }
}

fn definitions(columns: &[Column]) -> Value {
    let definition = |column: &Column| {
        json!({
            "name": column.name, "type": column.kind, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    columns.iter().map(definition).collect()
}

fn put_json(buffer: &mut BytesMut, value: &Value) {
    buffer.put_slice(&headwater_json::to_vec(value));
}
