//! Hand-written messages; `tests/it/protobuf.rs` has messages as Go clients write them.

use headwater_json::json;
use proptest::prelude::*;

use super::*;

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    message.extend_from_slice(bytes);
    message
}

fn body(parts: &[Vec<u8>]) -> Vec<u8> {
    [MAGIC.to_vec(), parts.concat()].concat()
}

#[test]
fn the_envelope_names_its_content() {
    let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let body = body(&[field(1, &type_meta), field(2, b"xyz"), field(4, b"application/json")]);
    let expected = Envelope { api_version: "v1", kind: "ConfigMap", raw: b"xyz" };
    assert_eq!(envelope(&body), Ok(expected));
}

#[test]
fn bodies_without_an_envelope_are_rejected_as_in_kubernetes() {
    assert_eq!(envelope(b""), Err(Error::Empty));
    assert_eq!(envelope(b"k8s\0"), Err(Error::EmptyBody));
    assert_eq!(envelope(b"k8s\0\x0a\xff"), Err(Error::Truncated));
    assert_eq!(
        envelope(b"not protobuf").unwrap_err().to_string(),
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    );
}

#[test]
fn a_config_map_is_decoded() {
    let metadata = field(1, b"p");
    let entry = [field(1, b"k"), field(2, b"v")].concat();
    let empty = field(1, b"e");
    let binary = [field(1, b"b"), field(2, b"\xff\x00")].concat();
    let raw = [field(1, &metadata), field(2, &entry), field(2, &empty), field(3, &binary)].concat();
    assert_eq!(
        object("", "v1", "ConfigMap", &raw),
        Ok(json!({"metadata": {"name": "p"}, "data": {"k": "v", "e": ""},
            "binaryData": {"b": "/wA="}}))
    );
}

#[test]
fn nesting_has_a_limit_and_is_safe_there() {
    // JSONSchemaProps.not is field 28: each level wraps the last one.
    let mut schema = Vec::new();
    for _ in 0..600 {
        let mut outer = vec![0xe2, 0x01];
        let mut length = schema.len();
        while length >= 0x80 {
            outer.push(length as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend_from_slice(&schema);
        schema = outer;
    }
    let types = Types::builtin();
    let of = types.named("apiextensions/v1.JSONSchemaProps").unwrap();
    let not = of.wire.iter().find(|field| field.name == Some("not")).unwrap();
    assert_eq!(not.number, 28);
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        let read = Decoder { types, depth: 0, messages: 0 }.message(of, &schema, &mut Map::new());
        assert_eq!(read, Err(Error::Depth));
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn a_small_message_cannot_use_much_memory() {
    let containers = field(2, b"").repeat(NESTED_MAX);
    let mut reader = Decoder { types: Types::builtin(), depth: 0, messages: 0 };
    let spec = reader.types.named("core/v1.PodSpec").unwrap();
    assert_eq!(reader.message(spec, &containers, &mut Map::new()), Err(Error::Messages));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(0_u8.., 0..64), pick in prop::arbitrary::any::<prop::sample::Index>()) {
        let kinds = headwater_api::kind::builtin();
        let kind = pick.get(&kinds);
        let _ = envelope(&bytes);
        let _ = object(&kind.group, &kind.version, &kind.kind, &bytes);
        let _ = crate::decode::object(kind, crate::decode::Format::Protobuf, &bytes);
    }
}
