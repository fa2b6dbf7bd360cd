//! Many readers: through two levels of relays with cuts and restarts, and what they cost the upstream.

use std::time::Duration;

use headwater_api::Revision;
use headwater_testkit::history::{
    ClientRecord, EndBounds, EventKind, History, WatchItem, WatchRecord, WatchStart,
};
use http::{Method, Request};
use kube::client::Body;
use tokio::task::JoinSet;

use crate::world::{
    ADMIN, ApiClient, RelayChoices, TestRelay, Upstream, eventually, named, version,
};

const MAPS: &str = "/api/v1/configmaps";

/// Reads watches of one client until it has everything up to a revision, which may be set later.
async fn read(
    client: ApiClient,
    start: u64,
    goal: tokio::sync::watch::Receiver<u64>,
) -> (ClientRecord, usize) {
    let mut record = ClientRecord::default();
    let (mut position, mut relists) = (start, 0);
    loop {
        let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={position}");
        let opened = client.try_watch(&path).await;
        let Some(mut lines) = opened else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut stream =
            WatchRecord { start: WatchStart::After(Revision(position)), seen: Vec::new() };
        loop {
            if position >= *goal.borrow() {
                record.streams.push(stream);
                return (record, relists);
            }
            let line = tokio::time::timeout(Duration::from_millis(500), lines.line()).await;
            let Ok(line) = line else { continue };
            let Some(item) = line.and_then(|line| WatchItem::parse(&line)) else { break };
            match &item {
                WatchItem::Event(event) => position = event.revision.0,
                WatchItem::Bookmark(revision) => position = revision.0,
                WatchItem::Error(_) => relists += 1,
                WatchItem::InitialEventsEnd(_) => {}
            }
            let is_end = matches!(item, WatchItem::Error(_));
            stream.seen.push(item);
            if is_end {
                break;
            }
        }
        record.streams.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reader_behind_two_relays_receives_exactly_the_history() {
    const READERS: usize = 100;
    const WRITES: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let start = direct.put_map("a", "first", "x").await;
    let near_choices = RelayChoices {
        keep_reviews: Duration::from_secs(60),
        data_dir: Some(folder.path().to_owned()),
        log_max: Some(20_000),
        ..RelayChoices::default()
    };
    let far_choices =
        RelayChoices { keep_reviews: Duration::from_secs(60), ..RelayChoices::default() };
    let resources = named(&["configmaps"]);
    let near =
        TestRelay::start(upstream.config(false).await, resources.clone(), near_choices).await;
    // The far relay is a client of the near one, over a proxy of its own.
    let link = headwater_testkit::proxy::Proxy::start(near.port()).await;
    let far_config = near.config_by(&link, "relay-token").await;
    let far = TestRelay::start(far_config, resources, far_choices).await;

    let (goal, reached) = tokio::sync::watch::channel(u64::MAX);
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let relay = if n % 4 == 0 { &near } else { &far };
        readers.spawn(read(relay.client(ADMIN).await, start, reached.clone()));
    }
    let mut all = JoinSet::new();
    all.spawn(read(direct.clone(), start, reached.clone()));
    for n in 0..WRITES {
        let name = format!("m{}", n % 37);
        match n % 11 {
            10 => {
                let path = format!("/api/v1/namespaces/a/configmaps/{name}");
                direct.call(Method::DELETE, &path, None).await;
            }
            _ => {
                direct.put_map("a", &name, &n.to_string()).await;
            }
        }
        match n % 97 {
            20 => upstream.proxy.cut(),
            35 => upstream.proxy.heal(),
            50 => link.cut(),
            70 => link.heal(),
            90 => upstream.proxy.cut_after(3_000),
            96 => upstream.proxy.heal(),
            _ => {}
        }
    }
    upstream.proxy.heal();
    link.heal();
    let last = direct.put_map("a", "last", "x").await;
    goal.send_replace(last);

    // The history is what a reader of the upstream itself saw.
    let (witness, _) = all.join_next().await.unwrap().unwrap();
    let mut history = History::default();
    let first =
        direct.get(&format!("{MAPS}?resourceVersion={start}&resourceVersionMatch=Exact")).await.1;
    for object in first["items"].as_array().unwrap() {
        let body = headwater_testkit::history::ObjectBody::new({
            let mut object = object.clone();
            object["kind"] = "ConfigMap".into();
            object["apiVersion"] = "v1".into();
            object
        });
        history.record(Revision(version(object)), &body.key(), Some(body.clone()));
    }
    for item in witness.streams.iter().flat_map(|stream| &stream.seen) {
        if let WatchItem::Event(event) = item {
            assert!(event.kind != EventKind::Added || event.revision > Revision(start));
            history.witness(event).unwrap();
        }
    }
    let expected = history.expect(Box::new(|_| true));
    let ends = EndBounds { complete_to: Revision(last), compacted: Revision::ZERO };
    let (mut events, mut streams) = (0, 0);
    while let Some(reader) = readers.join_next().await {
        let (record, errors) = reader.unwrap();
        assert_eq!(errors, 0, "nobody is sent away");
        streams += record.streams.len();
        events += record.check(&expected, ends).unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert!(events >= READERS * WRITES * 9 / 10, "{events}");
    assert!(streams >= READERS, "{streams}");
    assert_eq!((near.sent("list"), far.sent("list")), (1, 1));
}

/// N readers of two relays cost the upstream what two clients cost.
#[tokio::test(flavor = "multi_thread")]
async fn readers_of_two_relays_cost_the_upstream_two_watches() {
    const READERS: usize = 300;
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    let start = direct.put_map("a", "first", "x").await;
    let choices = RelayChoices { keep_reviews: Duration::from_secs(60), ..RelayChoices::default() };
    let mut relays = Vec::new();
    for _ in 0..2 {
        let config = upstream.config(false).await;
        relays.push(TestRelay::start(config, named(&["configmaps"]), choices.clone()).await);
    }
    for relay in &relays {
        eventually(async || (relay.sent("watch") > 0).then_some(())).await;
    }
    let before =
        (upstream.requests("LIST", "configmaps"), upstream.requests("WATCH", "configmaps"));
    let (goal, reached) = tokio::sync::watch::channel(u64::MAX);
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let client = relays[n % 2].client(ADMIN).await;
        let reached = reached.clone();
        readers.spawn(async move {
            client.ok(Method::GET, &format!("{MAPS}?resourceVersion=0"), None).await;
            read(client, start, reached).await
        });
    }
    let mut last = 0;
    for n in 0..50 {
        last = direct.put_map("a", "m", &n.to_string()).await;
    }
    goal.send_replace(last);
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    let after = (upstream.requests("LIST", "configmaps"), upstream.requests("WATCH", "configmaps"));
    assert_eq!(after.0, before.0, "lists");
    assert!(after.1 - before.1 <= 2, "watches: {before:?} {after:?}");
    // One token, three questions: they are asked once, not once for each reader.
    for relay in &relays {
        assert!(relay.sent("token_review") <= 2, "{}", relay.sent("token_review"));
        assert!(relay.sent("access_review") <= 6, "{}", relay.sent("access_review"));
    }
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    assert_eq!(relays[0].client(ADMIN).await.send(request).await.status(), 200);
}
