//! `PartialObjectMetadata`: only the metadata of an object (S4.52).
//!
//! Promise: the bytes of the metadata are copied; nothing is parsed.

use bytes::{BufMut, Bytes, BytesMut};

use crate::accept::MetaVersion;
use crate::frame::{EventType, FRAME_END};
use crate::object::{ManagedFields, Object};
use crate::revision::Revision;

/// Writes the metadata of an object.
pub fn write(buffer: &mut BytesMut, version: MetaVersion, object: &Object, managed: ManagedFields) {
    write_around(buffer, version, object.metadata_parts(managed));
}

/// The watch frame of a change.
pub fn event_frame(
    event: EventType,
    version: MetaVersion,
    object: &Object,
    managed: ManagedFields,
) -> Bytes {
    framed(event, version, object.metadata_parts(managed))
}

/// The object of a bookmark; `mark` for the one that ends the initial events.
pub fn bookmark(version: MetaVersion, revision: Revision, mark: bool) -> Bytes {
    let mut buffer = BytesMut::new();
    write_around(&mut buffer, version, [bookmark_metadata(revision, mark).as_bytes(), b""]);
    buffer.freeze()
}

/// The metadata of a bookmark.
pub(super) fn bookmark_metadata(revision: Revision, mark: bool) -> String {
    let annotations =
        if mark { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(r#"{{"resourceVersion":"{revision}"{annotations}}}"#)
}

pub(super) fn write_around(buffer: &mut BytesMut, version: MetaVersion, metadata: [&[u8]; 2]) {
    buffer.put_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
    buffer.put_slice(version.api_version().as_bytes());
    buffer.put_slice(br#"","metadata":"#);
    metadata.iter().for_each(|part| buffer.put_slice(part));
    buffer.put_slice(b"}");
}

fn framed(event: EventType, version: MetaVersion, metadata: [&[u8]; 2]) -> Bytes {
    let mut buffer = BytesMut::with_capacity(metadata[0].len() + metadata[1].len() + 128);
    buffer.put_slice(event.prefix().as_bytes());
    write_around(&mut buffer, version, metadata);
    buffer.put_slice(FRAME_END.as_bytes());
    buffer.freeze()
}
