//! A server that starts from a recording.

use std::time::Duration;

use futures::TryStreamExt;
use headwater_json::json;
use headwater_recording::{RecordedChange, RecordedKind, RecordingLine, RecordingWriter};
use headwater_testing::TestServer;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};

/// A recording of one map whose value changes every second, with its last bytes cut off.
fn recording(cut: usize) -> tempfile::NamedTempFile {
    let time = |second| Timestamp::from_second(1_000 + second).unwrap();
    let begin = RecordingLine::Begin { time: time(0), server: "test".into() };
    let mut writer = RecordingWriter::new(Vec::new(), &begin).unwrap();
    let kind = RecordedKind {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
        namespaced: true,
    };
    writer.push(&RecordingLine::Kind(kind)).unwrap();
    for second in 1..=5_i64 {
        let event = match second {
            1 => headwater_api::EventType::Added,
            _ => headwater_api::EventType::Modified,
        };
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": {"second": second.to_string()},
            "metadata": {"name": "clock", "namespace": "shop", "uid": "7b0f0b4e-0000-0000-0000-000000000001",
                "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "4711"},
        });
        let change = RecordedChange { time: time(second), kind: 0, event, initial: false, object };
        writer.push(&RecordingLine::Change(change)).unwrap();
    }
    writer.push(&RecordingLine::End { time: time(9) }).unwrap();
    let mut bytes = writer.finish().unwrap();
    bytes.truncate(bytes.len() - cut);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[tokio::test]
async fn a_recording_becomes_the_state_of_a_server_with_its_history() {
    let file = recording(0);
    let server = TestServer::from_recording(file.path()).await;
    let maps = Api::<ConfigMap>::namespaced(server.client(), "shop");
    let found = maps.get("clock").await.unwrap();
    assert_eq!(found.data.unwrap()["second"], "5");
    assert_eq!(found.metadata.uid.unwrap(), "7b0f0b4e-0000-0000-0000-000000000001");
    let created = found.metadata.creation_timestamp.unwrap().0.to_string();
    assert_eq!(created, "2026-01-01T00:00:00Z");
    let watch = WatchParams::default().timeout(1);
    let events: Vec<_> = maps.watch(&watch, "1").await.unwrap().try_collect().await.unwrap();
    let seconds: Vec<String> = events
        .into_iter()
        .filter_map(|event| match event {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                Some(map.data.unwrap()["second"].clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(seconds, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn later_changes_can_be_left_out() {
    let file = recording(0);
    let server = TestServer::from_recording_until(file.path(), Duration::from_secs(3)).await;
    let maps = Api::<ConfigMap>::all(server.client());
    let found = maps.list(&ListParams::default().fields("metadata.name=clock")).await.unwrap();
    assert_eq!(found.items[0].data.as_ref().unwrap()["second"], "3");
}

#[tokio::test]
#[should_panic(expected = "it was cut off after byte")]
async fn a_truncated_recording_is_refused() {
    let file = recording(1);
    TestServer::from_recording(file.path()).await;
}
