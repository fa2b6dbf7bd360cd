//! Objects as the upstream sends them, and as a cache keeps them.
//!
//! River: list item, watch event → **text** → store change.
//! Promise: what passes has a name, the right scope and a revision, and can be decoded; anything else is
//! an error that names its reason.

use bytes::Bytes;
use headwater_api::canonical;
use headwater_api::{EventType, Kind, Object, Revision};
use headwater_client::ResourceVersion;
use headwater_json::Value;
use headwater_store::key::is_segment;

/// An object of the upstream.
#[derive(Debug)]
pub(crate) struct ReceivedObject {
    /// `namespace/name` or `name`.
    pub(crate) key: String,
    pub(crate) revision: Revision,
    /// In the form in which a cache reads it.
    pub(crate) stored: Bytes,
}

/// Reads an object of a kind. Items of lists may leave out their kind.
pub(crate) fn receive(text: &[u8], kind: &Kind) -> Result<ReceivedObject, String> {
    let parsed = headwater_json::parse(text);
    let mut value = parsed.map_err(|error| format!("an object is not JSON: {error}"))?.value;
    for (member, expected) in [("kind", kind.kind.to_string()), ("apiVersion", kind.api_version())]
    {
        match value.get(member).and_then(Value::as_str) {
            Some(found) if found == expected => {}
            None | Some("") if value.is_object() => value[member] = expected.into(),
            found => return Err(format!("{member} is {found:?} instead of {expected:?}")),
        }
    }
    let member = |name: &str| value["metadata"][name].as_str().unwrap_or_default();
    let (name, namespace) = (member("name"), member("namespace"));
    if !is_segment(name) || (!namespace.is_empty() && !is_segment(namespace)) {
        return Err(format!("an object has the name {name:?} and the namespace {namespace:?}"));
    }
    if kind.namespaced == namespace.is_empty() {
        return Err(format!("the object {name} has the namespace {namespace:?}"));
    }
    let key = match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    let revision = revision(member("resourceVersion"))
        .ok_or_else(|| format!("{key} has no numeric resourceVersion"))?;
    let stored = canonical(&value);
    Object::decode(&stored, revision, EventType::Added, &kind.fields)
        .map_err(|error| format!("{key} cannot be decoded: {error}"))?;
    Ok(ReceivedObject { key, revision, stored: stored.into() })
}

/// A resourceVersion as a revision; `None` if it is not a number above zero.
pub(crate) fn revision(text: &str) -> Option<Revision> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_number && *number > 0)?;
    Some(Revision(number))
}

/// The same of a version on a list or a bookmark.
pub(crate) fn revision_of(version: &ResourceVersion) -> Option<Revision> {
    revision(&version.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Kind {
        let mut kinds = headwater_api::kind::builtin().into_iter();
        kinds.find(|kind| kind.plural == "pods" && kind.group.is_empty()).unwrap()
    }

    #[test]
    fn an_object_is_kept_without_its_version_and_with_its_kind() {
        let text = br#"{"metadata":{"namespace":"a","name":"b","resourceVersion":"7"},"spec":{}}"#;
        let received = receive(text, &pods()).unwrap();
        assert_eq!((received.key.as_str(), received.revision), ("a/b", Revision(7)));
        let stored = String::from_utf8(received.stored.to_vec()).unwrap();
        assert!(stored.starts_with(r#"{"kind":"Pod","apiVersion":"v1","metadata":"#), "{stored}");
        assert!(!stored.contains("resourceVersion"), "{stored}");
    }

    #[test]
    fn what_no_server_should_send_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"metadata":{"name":"b","resourceVersion":"7"}}"#,
            r#"{"metadata":{"namespace":"a/b","name":"b","resourceVersion":"7"}}"#,
            r#"{"metadata":{"namespace":"a","name":"..","resourceVersion":"7"}}"#,
            r#"{"metadata":{"namespace":"a","name":"b"}}"#,
            r#"{"metadata":{"namespace":"a","name":"b","resourceVersion":"0"}}"#,
            r#"{"metadata":{"namespace":"a","name":"b","resourceVersion":"x"}}"#,
            r#"{"kind":"Node","metadata":{"namespace":"a","name":"b","resourceVersion":"7"}}"#,
            r#"{"metadata":{"namespace":"a","name":"b","resourceVersion":"7","labels":{"x":3}}}"#,
        ] {
            assert!(receive(bad.as_bytes(), &pods()).is_err(), "{bad}");
        }
    }
}
