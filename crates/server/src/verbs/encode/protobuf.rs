//! Objects, lists and events as protobuf messages.
//!
//! River: stored bytes → **protobuf** → HTTP body. The length of a list precedes it, so its items are
//! encoded before the first byte is sent: the first ones are kept, and the others are encoded again when
//! they are sent.
//! Promise: a list of any size needs bounded memory, and is encoded in steps of bounded length.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use headwater_api::accept::{MetaVersion, Shape};
use headwater_api::frame::EventType;
use headwater_api::object::ManagedFields;
use headwater_api::{Object, Status};
use headwater_cache::Selection;
use headwater_schema::protobuf::encode;
use headwater_schema::types::{Type, Types};

use super::{Chunks, READ_MAX};
use crate::answer::body::{CHUNK, Data};
use crate::answer::status;
use crate::kinds::registry::Served;

/// The encoded items of a list that are kept from measuring until they are sent.
const KEPT_MAX: usize = 1 << 20;

/// A complete body from the JSON text of an object; none if its kind has no message.
pub(super) fn body(json: &[u8]) -> Option<Vec<u8>> {
    encode::body(json).inspect_err(|error| tracing::debug!("no protobuf body: {error}")).ok()
}

/// The frame of an event, from the JSON text of its object.
pub(super) fn frame(event: EventType, json: &[u8]) -> Bytes {
    encode::event(event.as_str(), &body(json).unwrap_or_default()).into()
}

/// 500: a kind is negotiated as protobuf only if it has messages.
pub(super) fn no_messages(kind: &Served) -> Status {
    status::internal(format!("{} has no protobuf messages", kind.resource()))
}

/// The body of a list.
pub(super) struct ProtobufList {
    list: Chunks,
    of: &'static Type,
    numbers: FieldNumbers,
    /// The objects whose items are not kept.
    unkept: Selection,
    /// Encoded items, in order.
    kept: Vec<u8>,
    /// The length of the list's message.
    length: usize,
    /// The encoded metadata of the list.
    metadata: Vec<u8>,
    step: ListStep,
    text: BytesMut,
}

/// The fields of a list's message.
#[derive(Clone, Copy)]
struct FieldNumbers {
    metadata: u32,
    items: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum ListStep {
    Measure,
    Head,
    Items,
    End,
}

impl ProtobufList {
    /// None if its items have no messages.
    pub(super) fn new(list: Chunks) -> Option<ProtobufList> {
        let types = Types::builtin();
        let of = match list.shape {
            Shape::Metadata { .. } => types.named("meta/v1.PartialObjectMetadata")?,
            _ => types.of(&list.kind)?,
        };
        let numbers = match list.shape {
            Shape::Metadata { version: MetaVersion::V1Beta1 } => {
                FieldNumbers { metadata: 2, items: 1 }
            }
            _ => FieldNumbers { metadata: 1, items: 2 },
        };
        let list_meta = headwater_json::to_vec(&list.list_meta());
        let mut metadata = Vec::new();
        encode::field(
            numbers.metadata,
            types.named("meta/v1.ListMeta")?,
            &list_meta,
            &mut metadata,
        )
        .ok()?;
        Some(ProtobufList {
            of,
            numbers,
            unkept: list.objects.clone(),
            kept: Vec::new(),
            length: metadata.len(),
            metadata,
            step: ListStep::Measure,
            text: BytesMut::new(),
            list,
        })
    }

    /// Adds the item of an object. Stored objects can be encoded; one that cannot adds nothing.
    fn item(&mut self, object: &Object, out: &mut Vec<u8>) {
        let text = match self.list.is_of_stored_bytes() {
            true if self.list.managed_fields == ManagedFields::Kept => {
                Cow::Borrowed(object.as_slice())
            }
            _ => {
                self.text.clear();
                self.list.item(object, &mut self.text);
                Cow::Borrowed(&self.text[..])
            }
        };
        let start = out.len();
        if let Err(error) = encode::field(self.numbers.items, self.of, &text, out) {
            tracing::error!(key = object.key(), "an object cannot be encoded: {error}");
            out.truncate(start);
        }
    }

    /// Encodes some of the items, for their lengths.
    fn measure(&mut self) {
        let (mut read, mut item) = (0, Vec::new());
        while read < READ_MAX {
            let Some(object) = self.list.objects.next() else {
                self.step = ListStep::Head;
                return;
            };
            read += object.as_slice().len();
            item.clear();
            self.item(&object, &mut item);
            self.length += item.len();
            // Kept items are the first ones.
            if self.kept.len() == self.length - item.len() - self.metadata.len()
                && self.kept.len() < KEPT_MAX
            {
                self.kept.extend_from_slice(&item);
                self.unkept.next();
            }
        }
    }

    fn head(&mut self) -> Vec<u8> {
        let (kind, api_version) = self.list.type_meta();
        let mut head = Vec::with_capacity(self.kept.len() + 256);
        encode::envelope_start(&api_version, &kind, self.length, &mut head);
        if self.numbers.metadata < self.numbers.items {
            head.extend_from_slice(&self.metadata);
        }
        head.append(&mut self.kept);
        self.step = ListStep::Items;
        head
    }

    /// The items that were not kept.
    fn items(&mut self) -> Vec<u8> {
        let (mut read, mut out) = (0, Vec::new());
        while read < READ_MAX && out.len() < CHUNK {
            let Some(object) = self.unkept.next() else {
                if self.numbers.items < self.numbers.metadata {
                    out.extend_from_slice(&self.metadata);
                }
                out.extend_from_slice(&encode::ENVELOPE_END);
                self.step = ListStep::End;
                break;
            };
            read += object.as_slice().len();
            self.item(&object, &mut out);
        }
        out
    }
}

impl Iterator for ProtobufList {
    type Item = Data;

    /// The next part of the body; empty while the list is measured.
    fn next(&mut self) -> Option<Data> {
        Some(match self.step {
            ListStep::Measure => {
                self.measure();
                Data::default()
            }
            ListStep::Head => self.head().into(),
            ListStep::Items => self.items().into(),
            ListStep::End => return None,
        })
    }
}
