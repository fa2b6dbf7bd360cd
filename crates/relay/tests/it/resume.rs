//! Interruptions: a relay, or its upstream, that stops and starts again.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use crate::world::{
    ADMIN, ALICE, Lines, RelayChoices, TestRelay, Upstream, eventually, named, names, version,
};

const MAPS: &str = "/api/v1/configmaps";

fn from(position: u64) -> String {
    format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={position}")
}

/// The versions of the next events.
async fn versions(watch: &mut Lines, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    while found.len() < count {
        let event = watch.next().await;
        if event["type"] != "BOOKMARK" {
            found.push(version(&event["object"]));
        }
    }
    found
}

/// How a watch ends: with an ERROR event of this code, or without.
async fn end(mut watch: Lines) -> Option<u64> {
    while let Some(line) = watch.line().await {
        let event: Value = serde_json::from_slice(&line).unwrap();
        if event["type"] == "ERROR" {
            return event["object"]["code"].as_u64();
        }
    }
    None
}

/// R97
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_starts_again_lists_nothing_and_its_clients_resume() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let choices = RelayChoices {
        data_dir: Some(folder.path().to_owned()),
        log_max: Some(3_000),
        ..RelayChoices::default()
    };
    direct.put_map("a", "before", "x").await;
    let start = async |choices: &RelayChoices| {
        TestRelay::start(upstream.config(false).await, named(&["configmaps"]), choices.clone())
            .await
    };
    let relay = start(&choices).await;
    let through = relay.client(ADMIN).await;
    let mut positions = vec![version(&through.ok(Method::GET, MAPS, None).await)];
    assert_eq!(relay.sent("list"), 1);
    let mut written = Vec::new();
    relay.stop().await;
    let generations = || {
        let files = std::fs::read_dir(folder.path().join("core_configmaps")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("state-")).count()
    };
    for round in 0..5 {
        // While it is down.
        written.push(direct.put_map("a", &format!("m{round}"), "down").await);
        let relay = start(&choices).await;
        let through = relay.client(ADMIN).await;
        // And while it is up: enough for the journal to begin new generations.
        for n in 0..20 {
            written.push(direct.put_map("b", &format!("m{n}"), &format!("{round}-{n}")).await);
        }
        for position in positions.iter().rev().take(1) {
            let expected: Vec<u64> =
                written.iter().copied().filter(|version| version > position).collect();
            let mut watch = through.watch(&from(*position)).await;
            assert_eq!(versions(&mut watch, expected.len()).await, expected, "{round}");
        }
        let (here, there) = (through.get(MAPS).await.1, direct.get(MAPS).await.1);
        assert_eq!(here["items"], there["items"], "{round}");
        assert_eq!(relay.sent("list"), 0, "{round}");
        positions.push(*written.last().unwrap());
        // Two generations are kept.
        eventually(async || (generations() == 2).then_some(())).await;
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_starts_from_its_disk_before_its_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::start().await;
    let choices =
        RelayChoices { data_dir: Some(folder.path().to_owned()), ..RelayChoices::default() };
    let resources = named(&["configmaps"]);
    let relay =
        TestRelay::start(upstream.config(false).await, resources.clone(), choices.clone()).await;
    let position = version(&relay.client(ADMIN).await.ok(Method::GET, MAPS, None).await);
    relay.stop().await;
    upstream.stop().await;
    let relay = TestRelay::start(upstream.config(false).await, resources, choices).await;
    upstream.start_again(true).await;
    let written = upstream.client(ADMIN).await.put_map("a", "m", "x").await;
    let through = relay.client(ADMIN).await;
    let mut watch = through.watch(&from(position)).await;
    assert_eq!(versions(&mut watch, 1).await, [written]);
    assert_eq!(relay.sent("list"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_survive_a_restart_of_the_upstream() {
    let mut upstream = Upstream::start().await;
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps"]),
        RelayChoices::default(),
    )
    .await;
    let through = relay.client(ADMIN).await;
    let position = version(&through.ok(Method::GET, MAPS, None).await);
    let mut watch = through.watch(&from(position)).await;
    for round in 0..3 {
        upstream.stop().await;
        upstream.start_again(true).await;
        let direct = upstream.client(ADMIN).await;
        let mut written = Vec::new();
        for n in 0..5 {
            written.push(direct.put_map("a", &format!("m{n}"), &format!("{round}-{n}")).await);
        }
        assert_eq!(versions(&mut watch, written.len()).await, written);
        let list = eventually(async || {
            let (code, list) = through.get(MAPS).await;
            (code == 200).then_some(list)
        });
        assert!(version(&list.await) >= *written.last().unwrap());
    }
    assert_eq!(relay.sent("list"), 1);
}

/// B289
#[tokio::test(flavor = "multi_thread")]
async fn readers_keep_the_last_state_while_the_upstream_is_unreachable() {
    let mut upstream = Upstream::start().await;
    let choices =
        RelayChoices { keep_reviews: Duration::from_secs(3600), ..RelayChoices::default() };
    let written = upstream.client(ADMIN).await.put_map("a", "m", "x").await;
    let relay =
        TestRelay::start(upstream.config(false).await, named(&["configmaps"]), choices).await;
    let through = relay.client(ADMIN).await;
    let any = format!("{MAPS}?resourceVersion=0");
    let position = version(&through.ok(Method::GET, MAPS, None).await);
    assert!(position >= written);
    through.ok(Method::GET, &any, None).await;
    let mut watch = through.watch(&from(position)).await;

    upstream.stop().await;
    let last = through.ok(Method::GET, &any, None).await;
    assert_eq!(names(&last), ["m"]);
    assert_eq!(through.get(MAPS).await.0, 503, "a consistent read");
    assert_eq!(relay.client(ALICE).await.get(&any).await.0, 401, "a token that nobody confirmed");

    upstream.start_again(true).await;
    let direct = upstream.client(ADMIN).await;
    let mut written = Vec::new();
    for n in 0..5 {
        written.push(direct.put_map("a", &format!("m{n}"), "x").await);
    }
    assert_eq!(versions(&mut watch, written.len()).await, written);
}

/// The same name, another cluster: what clients know is worth nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_behind_the_same_name_expires_every_watch() {
    let folder = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::start().await;
    let choices =
        RelayChoices { data_dir: Some(folder.path().to_owned()), ..RelayChoices::default() };
    let direct = upstream.client(ADMIN).await;
    direct.put_map("a", "of-the-first", "x").await;
    let relay =
        TestRelay::start(upstream.config(false).await, named(&["configmaps"]), choices).await;
    let through = relay.client(ADMIN).await;
    let position = version(&through.ok(Method::GET, MAPS, None).await);
    let watch = through.watch(&from(position)).await;

    upstream.stop().await;
    upstream.start_again(false).await;
    let direct = upstream.client(ADMIN).await;
    let rules = serde_json::json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    direct.grant("relay", None, &rules).await;
    let space = serde_json::json!({ "metadata": { "name": "a" } });
    direct.ok(Method::POST, "/api/v1/namespaces", Some(space)).await;
    // More writes than the first cluster had, so that its revisions exist here too.
    let mut newest = 0;
    while newest <= position {
        newest = direct.put_map("a", "of-the-second", &newest.to_string()).await;
    }
    assert_eq!(end(watch).await, Some(410));
    let list = eventually(async || {
        let (code, list) = through.get(MAPS).await;
        (code == 200 && names(&list).contains(&"of-the-second")).then_some(list)
    })
    .await;
    assert!(!names(&list).contains(&"of-the-first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_that_the_upstream_has_dropped_is_410_and_never_a_hole() {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let relay = TestRelay::start(
        upstream.config(false).await,
        named(&["configmaps"]),
        RelayChoices::default(),
    )
    .await;
    let through = relay.client(ADMIN).await;
    let position = version(&through.ok(Method::GET, MAPS, None).await);
    let watch = through.watch(&from(position)).await;
    upstream.proxy.cut();
    let mut newest = 0;
    for n in 0..10 {
        newest = direct.put_map("a", "m", &n.to_string()).await;
    }
    direct.ok(Method::POST, &format!("/debug/headwater/compact?revision={newest}"), None).await;
    upstream.proxy.heal();
    // The watch ends without any of the changes; resuming it is refused.
    assert_eq!(end(watch).await, None);
    eventually(async || {
        let watch = through.watch(&from(position)).await;
        (end(watch).await == Some(410)).then_some(())
    })
    .await;
    let (here, there) = (through.get(MAPS).await.1, direct.get(MAPS).await.1);
    assert_eq!(here["items"], there["items"]);
}
