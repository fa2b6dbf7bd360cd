//! Sharded lists and watches (S5.40, S5.41).

use std::collections::BTreeSet;

use headwater_json::json;

use crate::api::{Answer, Api, CMS, config_map, escaped, labelled, version, word};

const LOW: &str = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
const HIGH: &str = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')";

fn shard(selector: &str) -> String {
    format!("shardSelector={}", escaped(selector))
}

fn names(list: &Answer) -> BTreeSet<String> {
    list.names().split_whitespace().map(str::to_owned).collect()
}

/// ConfigMaps `m00` to `m39`.
async fn forty() -> Api {
    let api = Api::start().await;
    for index in 0..40 {
        let labels = if index % 2 == 0 { "half=even" } else { "half=odd" };
        api.create(CMS, &labelled(&format!("m{index:02}"), labels)).await;
    }
    api
}

/// S5.40, S5.41
#[tokio::test(start_paused = true)]
async fn two_shards_are_the_collection_and_say_what_they_are() {
    let api = forty().await;
    let mut all = BTreeSet::new();
    for selector in [LOW, HIGH] {
        let list = api.get(&format!("{CMS}?{}", shard(&selector.replace(' ', "")))).await;
        assert_eq!(list.json()["metadata"]["shardInfo"], json!({ "selector": selector }));
        let part = names(&list);
        assert!((5..35).contains(&part.len()), "{part:?}");
        assert!(all.is_disjoint(&part));
        all.extend(part);
        let table = format!(
            "GET {CMS}?{}\nAccept: application/json;as=Table;g=meta.k8s.io;v=v1",
            shard(selector)
        );
        let table = api.send(&table, "").await.json();
        assert_eq!(table["metadata"]["shardInfo"]["selector"], selector);
    }
    assert_eq!(all.len(), 40);
    let both = format!("{LOW} || {HIGH}");
    assert_eq!(names(&api.get(&format!("{CMS}?{}", shard(&both))).await), all);
    assert!(api.get(CMS).await.json()["metadata"].get("shardInfo").is_none());
    // All objects of a namespace are in one shard.
    let [low, high] = [LOW, HIGH].map(|selector| shard(&selector.replace("uid", "namespace")));
    let counts = [
        names(&api.get(&format!("{CMS}?{low}")).await).len(),
        names(&api.get(&format!("{CMS}?{high}")).await).len(),
    ];
    assert!(counts == [40, 0] || counts == [0, 40], "{counts:?}");
    for bad in ["x", "shardRange(object.metadata.name, '0x0000000000000000', '0x8000000000000000')"]
    {
        api.get(&format!("{CMS}?{}", shard(bad))).await.fails(400, "BadRequest", "");
        api.get(&format!("{CMS}?watch=true&{}", shard(bad))).await.fails(400, "BadRequest", "");
    }
}

/// S5.41
#[tokio::test(start_paused = true)]
async fn the_pages_of_a_shard_are_consistent() {
    let api = forty().await;
    let whole = api.get(&format!("{CMS}?{}", shard(LOW))).await;
    let mut pages = BTreeSet::new();
    let mut token = String::new();
    loop {
        let query = format!("{CMS}?limit=3&continue={}&{}", escaped(&token), shard(LOW));
        let page = api.get(&query).await;
        assert_eq!(page.version(), whole.version());
        assert_eq!(page.json()["metadata"]["shardInfo"]["selector"], LOW);
        assert!(page.json()["metadata"].get("remainingItemCount").is_none());
        pages.extend(names(&page));
        token = page.token();
        if token.is_empty() {
            break;
        }
        // Later objects are not in the remaining pages.
        api.create(CMS, &config_map(&format!("z{}", pages.len()))).await;
    }
    assert_eq!(pages, names(&whole));
}

/// S5.40, S5.41
#[tokio::test(start_paused = true)]
async fn a_sharded_watch_has_the_events_of_its_objects() {
    let api = forty().await;
    let low = names(&api.get(&format!("{CMS}?{}", shard(LOW))).await);
    let evens = |names: &BTreeSet<String>| {
        let is_even = |name: &&String| name[1..].parse::<u32>().unwrap().is_multiple_of(2);
        names.iter().filter(is_even).count()
    };
    let target = format!("{CMS}?watch=true&allowWatchBookmarks=true&labelSelector=half%3Deven");
    let mut watch = api.watch(&format!("{target}&{}", shard(LOW))).await;
    for _ in 0..evens(&low) {
        let event = watch.next().await.unwrap();
        assert!(low.contains(event["object"]["metadata"]["name"].as_str().unwrap()), "{event}");
    }
    assert_eq!(watch.take(1).await, "MARK");
    for index in 0..40 {
        let body = json!({ "data": { "v": "2" } });
        api.merge(&format!("{CMS}/m{index:02}"), &body).await.is(200, "");
    }
    let mut last = String::new();
    for _ in 0..evens(&low) {
        let event = watch.next().await.unwrap();
        assert!(word(&event).starts_with("MODIFIED/m"), "{event}");
        assert!(low.contains(event["object"]["metadata"]["name"].as_str().unwrap()), "{event}");
        last = version(&event["object"]);
    }
    // A bookmark covers the changes in other shards.
    let bookmark = watch.next().await.unwrap();
    assert_eq!(word(&bookmark), "BOOKMARK");
    assert!(version(&bookmark["object"]).parse::<u64>().unwrap() > last.parse::<u64>().unwrap());
    // Entering and leaving by label, within the shard.
    let name = low.iter().find(|name| name[1..].parse::<u32>().unwrap() % 2 == 1).unwrap();
    for (label, expected) in [("even", "ADDED"), ("odd", "DELETED")] {
        let body = json!({ "metadata": { "labels": { "half": label } } });
        api.merge(&format!("{CMS}/{name}"), &body).await.is(200, "");
        assert_eq!(watch.take(1).await, format!("{expected}/{name}"));
    }
}

/// S5.40
#[tokio::test(start_paused = true)]
async fn the_objects_of_one_shard_can_be_deleted() {
    let api = forty().await;
    let [low, high] = [LOW, HIGH].map(|selector| format!("{CMS}?{}", shard(selector)));
    let kept = names(&api.get(&high).await);
    api.delete(&low).await.is(200, "");
    assert_eq!(names(&api.get(CMS).await), kept);
}
