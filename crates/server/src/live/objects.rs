//! Open watches and requests in flight as objects.
//!
//! River: watches, flow control → **objects** → the store of live resources. Pure: what is given is
//! described.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use headwater_cache::{Backlog, ReadSource};
use headwater_json::{Value, json};
use headwater_store::Key;
use jiff::{SignedDuration, Timestamp};

use super::watches::{OpenWatch, OpenWatches};
use crate::kinds::live::{GROUP, VERSION, prefix};
use crate::object::canonical;
use crate::request::flow::in_flight::RequestInFlight;

/// A watch that has not begun has read nothing and waits for nothing.
const NOT_BEGUN: Backlog = Backlog { source: ReadSource::View, events: 0, age: Duration::ZERO };

/// The open watches as objects, at most `limit`: those furthest behind.
pub(super) fn watchers(watches: &OpenWatches, limit: usize) -> BTreeMap<Key, Bytes> {
    let mut seen: Vec<_> = watches
        .all()
        .into_iter()
        .map(|watch| {
            let backlog =
                watch.vantage().map_or(NOT_BEGUN, |vantage| vantage.backlog(watch.position()));
            (watch, backlog)
        })
        .collect();
    seen.sort_by_key(|(watch, backlog)| (Reverse(backlog.events), watch.number));
    seen.truncate(limit);
    let described = seen.iter().map(|(watch, backlog)| {
        let name = format!("w{}", watch.number);
        object("watchers", &name, &watcher(&name, watch, *backlog))
    });
    described.collect()
}

fn watcher(name: &str, watch: &OpenWatch, backlog: Backlog) -> Value {
    let client = watch.user_agent.split(' ').next().unwrap_or_default();
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "Watcher",
        "metadata": { "name": name, "creationTimestamp": seconds(watch.opened) },
        "spec": {
            "user": watch.identity.user.as_str(),
            "client": client,
            "userAgent": &*watch.user_agent,
            "address": watch.address.to_string(),
            "resource": watch.kind.resource(),
            "namespace": &*watch.namespace,
            "selector": &*watch.selector,
        },
        "status": {
            "readsFrom": match backlog.source {
                ReadSource::View => "view",
                ReadSource::Window => "window",
                ReadSource::Store => "history",
            },
            "position": watch.position().to_string(),
            "pendingEvents": backlog.events,
            "lag": short(backlog.age),
            "events": watch.events(),
            "bytes": watch.bytes(),
        },
    })
}

/// The requests in flight as objects.
pub(super) fn requests(requests: &[RequestInFlight], now: Timestamp) -> BTreeMap<Key, Bytes> {
    let described =
        requests.iter().map(|request| object("requests", &request.name, &in_flight(request, now)));
    described.collect()
}

fn in_flight(request: &RequestInFlight, now: Timestamp) -> Value {
    let since = SignedDuration::try_from(request.since).unwrap_or_default();
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "Request",
        "metadata": {
            "name": request.name.as_str(),
            "creationTimestamp": seconds(now.checked_sub(since).unwrap_or(now)),
        },
        "spec": {
            "user": request.user.as_str(),
            "verb": request.verb,
            "path": request.path.as_str(),
            "priorityLevel": request.level.as_str(),
            "flowSchema": request.schema.as_str(),
            "seats": request.seats,
        },
        "status": {
            "state": if request.is_waiting { "Waiting" } else { "Running" },
            "time": short(request.since),
        },
    })
}

fn object(plural: &str, name: &str, value: &Value) -> (Key, Bytes) {
    (Key::in_collection(&prefix(plural), name), canonical(value).into())
}

/// A time as objects have it: without fractions of a second.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// A duration with two significant figures or so: `0s`, `12ms`, `3.4s`, `2m10s`.
fn short(time: Duration) -> String {
    match (time.as_millis(), time.as_secs()) {
        (0, _) => "0s".to_owned(),
        (millis, 0) => format!("{millis}ms"),
        (millis, 1..10) => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        (_, seconds @ 10..60) => format!("{seconds}s"),
        (_, seconds @ 60..3_600) => format!("{}m{}s", seconds / 60, seconds % 60),
        (_, seconds) => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, expected) in [
            (0, "0s"),
            (12, "12ms"),
            (3_450, "3.4s"),
            (59_900, "59s"),
            (130_000, "2m10s"),
            (7_260_000, "2h1m"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), expected);
        }
    }
}
