//! The width of a request: how many seats it takes, estimated before it runs (S7.6, S7.7).
//!
//! River: route, query, cache → **width** → queues. Lists and streaming lists take a seat for each
//! 100 kB; writes take seats for the watchers that they will wake, for a time after they have
//! finished. Everything else takes one.

use headwater_api::query::Query;
use headwater_cache::Cache;

use super::Nanos;
use super::limits::list_bytes;
use super::queues::Width;
use crate::request::route::{ResourcePath, Verb};

const BYTES_PER_SEAT: u64 = 100_000;

/// A list from the cache is streamed: it holds no more than this at a time.
const CACHED_LIST_MAX: u64 = 1_000_000;

/// The most seats of a list.
const LIST_MAX: u32 = 100;

/// The most seats of a write.
const WRITE_MAX: u32 = 10;

const WATCHERS_PER_SEAT: usize = 10;

/// How long the events of a write are delivered.
const EVENT_TIME: Nanos = 5_000_000;

/// The width of a request on a level where one request may take `most` seats.
pub(super) fn width(
    cache: &Cache,
    resource: &ResourcePath,
    verb: Verb,
    query: &Query,
    most: Option<u32>,
) -> Width {
    if !resource.kind.allows("watch") {
        return Width::of(1); // it is not stored, or nothing is listed
    }
    match verb {
        Verb::List => Width::of(list(cache, resource, query, false, most)),
        Verb::Watch if query.is_set("sendInitialEvents") => {
            Width::of(list(cache, resource, query, true, most))
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => write(cache, resource, most),
        _ => Width::of(1),
    }
}

fn list(
    cache: &Cache,
    resource: &ResourcePath,
    query: &Query,
    is_watch: bool,
    most: Option<u32>,
) -> u32 {
    let most = most.unwrap_or(LIST_MAX).min(LIST_MAX);
    let selects = |name| query.text(name);
    if !resource.name.is_empty() || has_name(selects("fieldSelector")) {
        return 1;
    }
    let snapshot = cache.snapshot(&cache.resource(&resource.kind.prefix));
    let limit = query.integer("limit").ok().flatten().filter(|limit| *limit > 0);
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    let namespace = &resource.namespace;
    let all = list_bytes(&snapshot, namespace, None);
    let page = list_bytes(&snapshot, namespace, limit);
    let is_selective = !selects("fieldSelector").is_empty() || !selects("labelSelector").is_empty();
    let bytes = match is_watch || is_from_cache(query) {
        true => page.min(CACHED_LIST_MAX),
        false if is_selective => page.max(all / 2),
        false => page,
    };
    u32::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX).clamp(1, most)
}

/// Whether a list shows the current state. The others read history.
fn is_from_cache(query: &Query) -> bool {
    let (version, matches) = (query.text("resourceVersion"), query.text("resourceVersionMatch"));
    let is_at_version = !matches!(version, "" | "0");
    match matches {
        "Exact" => false,
        "" if !query.text("continue").is_empty() => false,
        "" => !(is_at_version && query.text("limit").parse().is_ok_and(|limit: i64| limit > 0)),
        _ => true,
    }
}

fn has_name(selector: &str) -> bool {
    selector.split(',').any(|term| {
        let name = term.strip_prefix("metadata.name=");
        name.is_some_and(|name| !name.trim_start_matches('=').is_empty())
    })
}

fn write(cache: &Cache, resource: &ResourcePath, most: Option<u32>) -> Width {
    let watched = cache.resource(&resource.kind.prefix);
    // Few resources have many watchers, so most writes do not count them.
    if resource.subresource == "token" || !watched.may_have_watchers(WATCHERS_PER_SEAT) {
        return Width::of(1);
    }
    fan_out(watched.audience(&resource.namespace, &resource.name), most)
}

/// The width of a write that wakes so many watchers.
fn fan_out(watchers: usize, most: Option<u32>) -> Width {
    if watchers < WATCHERS_PER_SEAT {
        return Width::of(1);
    }
    let most = most.unwrap_or(WRITE_MAX).clamp(1, WRITE_MAX);
    let wanted = u32::try_from(watchers.div_ceil(WATCHERS_PER_SEAT)).unwrap_or(u32::MAX);
    let final_seats = wanted.min(most);
    // The same work on fewer seats takes longer.
    let extra = EVENT_TIME * Nanos::from(wanted) / Nanos::from(final_seats);
    Width { seats: 1, final_seats, extra }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_from_cache(query: &str, expected: bool) {
        assert_eq!(is_from_cache(&Query::parse(query).unwrap()), expected, "{query}");
    }

    /// S7.6
    #[test]
    fn lists_of_the_current_state_come_from_the_cache() {
        check_from_cache("", true);
        check_from_cache("limit=500", true);
        check_from_cache("resourceVersion=0&limit=500", true);
        check_from_cache("resourceVersion=7", true);
        check_from_cache("resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=1", true);
        check_from_cache("resourceVersion=7&limit=500", false);
        check_from_cache("resourceVersion=7&resourceVersionMatch=Exact", false);
        check_from_cache("continue=abc&limit=500", false);
    }

    #[test]
    fn a_list_of_one_name_is_like_a_get() {
        assert!(has_name("metadata.name=x"));
        assert!(has_name("spec.nodeName=n,metadata.name==x"));
        assert!(!has_name("metadata.name!=x"));
        assert!(!has_name("metadata.name="));
        assert!(!has_name("metadata.namespace=x"));
    }

    /// S7.7
    #[test]
    fn the_seats_of_a_write_grow_with_its_watchers() {
        assert_eq!(fan_out(9, None), Width::of(1));
        let width = |final_seats, extra| Width { seats: 1, final_seats, extra };
        assert_eq!(fan_out(10, None), width(1, 5_000_000));
        assert_eq!(fan_out(95, None), width(10, 5_000_000));
        assert_eq!(fan_out(1_000, None), width(10, 50_000_000), "reshaped to ten seats");
        assert_eq!(fan_out(1_000, Some(4)), width(4, 125_000_000));
    }
}
