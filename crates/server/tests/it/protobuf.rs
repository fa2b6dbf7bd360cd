//! Responses as protobuf are those in JSON, in the envelopes and frames of Kubernetes.

use bytes::Bytes;
use headwater_json::{Value, json};
use headwater_schema::protobuf::{document, envelope, object};

use crate::api::{Answer, Api, CMS, PODS, config_map, labelled, pod};
use crate::custom::{WIDGETS, World, widget};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The fields of a message that are messages, texts or bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            number |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return number;
            }
        }
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let number = varint(&mut message);
        if key & 7 == 2 {
            let (value, rest) = message.split_at(number as usize);
            fields.push((key >> 3, value));
            message = rest;
        }
    }
    fields
}

fn find(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(found, _)| *found == number).map(|(_, v)| v).collect()
}

/// The object of a body, with its kind.
fn read(body: &[u8]) -> Value {
    assert!(body.ends_with(&[0x1a, 0, 0x22, 0]));
    document(body).unwrap()
}

/// Whether everything in `small` is in `large`, which has zero values too.
#[track_caller]
fn contains(large: &Value, small: &Value) {
    match (large, small) {
        (Value::Object(large), Value::Object(small)) => {
            for (key, value) in small {
                let empty = Value::Null;
                let is_empty = value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(headwater_json::Map::is_empty);
                match large.get(key) {
                    None if is_empty => {}
                    found => contains(found.unwrap_or(&empty), value),
                }
            }
        }
        (Value::Array(large), Value::Array(small)) => {
            assert_eq!(large.len(), small.len());
            large.iter().zip(small).for_each(|(large, small)| contains(large, small));
        }
        (large, small) => assert_eq!(large, small),
    }
}

#[track_caller]
fn is_protobuf(answer: &Answer, code: u16) {
    assert_eq!((answer.code, answer.header("content-type")), (code, PROTOBUF), "{}", answer.text());
}

#[tokio::test(start_paused = true)]
async fn objects_and_errors_are_those_in_json() {
    let api = Api::start().await;
    let request = format!("POST {PODS}\nContent-Type: application/json\nAccept: {PROTOBUF}");
    let made = api.send(&request, pod("a", "").to_string()).await;
    is_protobuf(&made, 201);
    let target = format!("{PODS}/a");
    let expected = api.get(&target).await.json();
    contains(&read(&made.body), &expected);
    let got = api.accept(&target, PROTOBUF).await;
    is_protobuf(&got, 200);
    assert_eq!(got.body, made.body);
    // What was received can be sent.
    let request = format!("PUT {target}\nContent-Type: {PROTOBUF}\nAccept: {PROTOBUF}");
    is_protobuf(&api.send(&request, got.body.clone()).await, 200);
    assert_eq!(api.get(&target).await.json(), expected);

    let missing = api.accept(&format!("{PODS}/none"), PROTOBUF).await;
    is_protobuf(&missing, 404);
    let as_json = api.get(&format!("{PODS}/none")).await.json();
    contains(&read(&missing.body), &as_json);
    // The user has no rights at all, or is not known.
    let nobody = api.as_anonymous().send(&format!("GET {PODS}\nAccept: {PROTOBUF}"), "").await;
    is_protobuf(&nobody, 403);
    assert_eq!(read(&nobody.body)["reason"], "Forbidden");
    let request = format!("DELETE {CMS}/none\nAccept: {PROTOBUF}");
    is_protobuf(&api.send(&request, "").await, 404);
    is_protobuf(&api.accept("/apis/apps", PROTOBUF).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_that_in_json_however_long_it_is() {
    let api = Api::start().await;
    for size in [0, 3, 40] {
        for at in 0..size {
            let mut body = labelled(&format!("n{size}-{at:02}"), "a=b");
            body["data"] = json!({ "x": "y".repeat(100_000) });
            api.create(CMS, &body).await;
        }
        let expected = api.get(CMS).await.json();
        for accept in ["identity", "gzip"] {
            let request = format!("GET {CMS}\nAccept: {PROTOBUF}\nAccept-Encoding: {accept}");
            let answer = api.send(&request, "").await;
            is_protobuf(&answer, 200);
            let body: Bytes = match answer.header("content-encoding") {
                "gzip" => {
                    let mut plain = Vec::new();
                    let mut decoder = flate2::read::GzDecoder::new(&answer.body[..]);
                    std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
                    plain.into()
                }
                _ => answer.body.clone(),
            };
            let envelope = envelope(&body).unwrap();
            assert_eq!((envelope.api_version, envelope.kind), ("v1", "ConfigMapList"));
            let items = find(envelope.raw, 2);
            let wanted = expected["items"].as_array().unwrap();
            assert_eq!(items.len(), wanted.len());
            for (item, wanted) in items.iter().zip(wanted) {
                contains(&object("", "v1", "ConfigMap", item).unwrap(), wanted);
            }
            let version = expected["metadata"]["resourceVersion"].as_str().unwrap();
            assert_eq!(find(find(envelope.raw, 1)[0], 2), [version.as_bytes()]);
        }
    }
    // The same metadata alone; in `v1beta1` the fields have other numbers.
    for (version, [metadata, items]) in [("v1", [1, 2]), ("v1beta1", [2, 1])] {
        let form = format!("as=PartialObjectMetadataList;g=meta.k8s.io;v={version}");
        let answer = api.accept(CMS, &format!("{PROTOBUF};{form},application/json")).await;
        is_protobuf(&answer, 200);
        let envelope = envelope(&answer.body).unwrap();
        assert_eq!(envelope.api_version, format!("meta.k8s.io/{version}"));
        assert_eq!(find(envelope.raw, metadata).len(), 1);
        let names: Vec<&[u8]> = find(envelope.raw, items)
            .into_iter()
            .map(|item| {
                assert_eq!(fields(item).len(), 1);
                find(find(item, 1)[0], 1)[0]
            })
            .collect();
        assert_eq!(names.len(), 43);
        assert_eq!(names[0], b"n3-00");
    }
}

/// The events of a stream: type, and the body of the object.
fn events(mut stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut events = Vec::new();
    while let Some((length, rest)) = stream.split_first_chunk() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        stream = rest;
        let kind = String::from_utf8(find(frame, 1)[0].to_vec()).unwrap();
        events.push((kind, find(find(frame, 2)[0], 1)[0].to_vec()));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_frames_with_their_lengths() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    let initial = "allowWatchBookmarks=true&sendInitialEvents=true\
                   &resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let answer = api.accept(&format!("{CMS}?watch=true&{initial}"), PROTOBUF).await;
    assert_eq!(answer.header("content-type"), format!("{PROTOBUF};stream=watch"));
    let found = events(&answer.body);
    let words: Vec<&str> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(words, ["ADDED", "BOOKMARK"]);
    contains(&read(&found[0].1), &api.get(&format!("{CMS}/a")).await.json());
    let bookmark = read(&found[1].1);
    assert_eq!(bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let after = bookmark["metadata"]["resourceVersion"].as_str().unwrap();
    api.config_maps(&["b", "c"]).await;
    api.delete(&format!("{CMS}/a")).await.is(200, "");
    let rest = format!("{CMS}?watch=true&timeoutSeconds=1&resourceVersion={after}");
    let found = events(&api.accept(&rest, PROTOBUF).await.body);
    let words: Vec<&str> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(words, ["ADDED", "ADDED", "DELETED"]);
    contains(&read(&found[1].1), &api.get(&format!("{CMS}/c")).await.json());
    // An error is an event too.
    let old = format!("{CMS}?watch=true&resourceVersion=1");
    api.compact(after).await;
    let answer = api.accept(&old, PROTOBUF).await;
    let found = events(&answer.body);
    assert_eq!(found[0].0, "ERROR");
    assert_eq!(envelope(&found[0].1).unwrap().kind, "Status");
}

#[tokio::test(start_paused = true)]
async fn custom_objects_are_json_and_their_metadata_may_be_protobuf() {
    let world = World::with_widgets(|_| {}).await;
    world.create(WIDGETS, &widget("a", json!({}))).await;
    world.create(CMS, &config_map("a")).await;
    let target = format!("{WIDGETS}/a");
    let refused = world.accept(&target, PROTOBUF).await;
    is_protobuf(&refused, 406);
    let answer = world.accept(&target, &format!("{PROTOBUF},application/json")).await;
    assert_eq!((answer.code, answer.header("content-type")), (200, "application/json"));
    let form = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    for target in [target, format!("{CMS}/a")] {
        let answer = world.accept(&target, &format!("{form},application/json")).await;
        is_protobuf(&answer, 200);
        let envelope = envelope(&answer.body).unwrap();
        assert_eq!(envelope.kind, "PartialObjectMetadata");
        assert_eq!(find(find(envelope.raw, 1)[0], 1), [b"a"]);
    }
    let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    assert_eq!(world.accept(CMS, &table).await.code, 406);
}
