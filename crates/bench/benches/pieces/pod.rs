//! The pod that all pieces use: 3 KB as sent, 6 KB as stored.

use std::sync::Arc;

use headwater_api::{EventType, Kind, Object, Revision, kind};
use headwater_json as json;
use headwater_schema::decode::Format;
use headwater_schema::managed::{self, Builtin, Write};
use headwater_schema::{decode, defaults};

/// As a client sends it.
pub(crate) const BODY: &[u8] = include_bytes!("../../../schema/benches/pod.json");

pub(crate) fn kind() -> Kind {
    kind::builtin().into_iter().find(|kind| kind.plural == "pods").expect("there are pods")
}

pub(crate) fn write() -> Write<'static> {
    Write {
        manager: "kubectl-create",
        subresource: "",
        api_version: "v1",
        now: jiff::Timestamp::UNIX_EPOCH,
        ignored: &["status"],
    }
}

/// As it is stored: with defaults and managed fields.
pub(crate) fn stored() -> Vec<u8> {
    let kind = kind();
    let mut value = decode::object(&kind, Format::Json, BODY).expect("it is a pod").value;
    defaults::apply(&kind, &mut value, None);
    defaults::prepare_for_create(&kind, &mut value);
    let structure = Builtin::of(&kind).expect("pods are built in");
    managed::track_update(None, &mut value, &write(), structure).expect("it can be tracked");
    managed::unpack(&mut value);
    let mut bytes = Vec::new();
    json::push_value(&mut bytes, &value);
    bytes
}

/// The stored bytes of the `index`-th pod, which has its own name and first label (stored keys are
/// sorted).
pub(crate) fn stored_as(stored: &[u8], index: usize) -> Vec<u8> {
    let text = std::str::from_utf8(stored).expect("JSON is text");
    let text = text.replacen("\"name\":\"web-frontend-7d4b9c6f58-", "\"name\":\"pod-", 1);
    let text = text.replacen("\"name\":\"pod-", &format!("\"name\":\"pod-{index:05}-"), 1);
    let label = format!("\"labels\":{{\"account\":\"o{index:05}\",");
    text.replacen("\"labels\":{", &label, 1).into_bytes()
}

/// Pods in order of their names.
pub(crate) fn objects(count: usize) -> Vec<Arc<Object>> {
    let (stored, kind) = (stored(), kind());
    let object = |index| {
        let (bytes, revision) = (stored_as(&stored, index), Revision(1 + index as u64));
        let object = Object::decode(&bytes, revision, EventType::Added, &kind.fields);
        Arc::new(object.expect("it is an object"))
    };
    (0..count).map(object).collect()
}
