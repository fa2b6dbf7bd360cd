//! The figures of `headwater top`: the difference of two readings, as tables.
//!
//! River: readings → **figures** → the terminal. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use headwater_json::Value;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::layout::{ScreenPart, ScreenTable, TopScreen};
use super::samples::{Samples, quantile};
use crate::style::Emphasis;

/// What was read of a server at one time.
pub(super) struct Reading {
    pub(super) server: String,
    pub(super) time: Timestamp,
    pub(super) at: Instant,
    pub(super) samples: Samples,
    /// `None` if the server does not list them.
    pub(super) watchers: Option<Vec<Value>>,
    pub(super) requests: Vec<Value>,
}

/// What happened between two readings.
pub(super) struct Figures<'a> {
    before: &'a Reading,
    after: &'a Reading,
    seconds: f64,
}

/// The most rows of each list.
const HOTTEST: usize = 20;

/// A latency that deserves attention, in seconds.
const SLOW: f64 = 1.0;

impl<'a> Figures<'a> {
    pub(super) fn between(before: &'a Reading, after: &'a Reading) -> Figures<'a> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
        Figures { before, after, seconds }
    }

    /// Everything as a screen.
    pub(super) fn screen(&self) -> TopScreen {
        let time = self.after.time.to_zoned(TimeZone::system()).strftime("%H:%M:%S");
        TopScreen {
            title: format!("headwater top   {}   {time}", self.after.server),
            state: "",
            trouble: None,
            head: self.overview(),
            tables: vec![self.verbs(), self.kinds(), self.users(), self.behind()],
        }
    }

    /// The rate of a counter over all its samples.
    fn rate(&self, name: &str) -> f64 {
        let sum = |reading: &Reading| reading.samples.sum(name, |_| true);
        ((sum(self.after) - sum(self.before)) / self.seconds).max(0.0)
    }

    fn rates(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let before = self.before.samples.by(name, label);
        let rate = |(key, now): (String, f64)| {
            let earlier = before.get(&key).copied().unwrap_or_default();
            (key, ((now - earlier) / self.seconds).max(0.0))
        };
        self.after.samples.by(name, label).into_iter().map(rate).collect()
    }

    /// The rates of a family by the values of two labels.
    fn rates_of(&self, name: &str, labels: (&str, &str)) -> BTreeMap<(String, String), f64> {
        let before = self.before.samples.by_both(name, labels);
        let rate = |(key, now): ((String, String), f64)| {
            let earlier = before.get(&key).copied().unwrap_or_default();
            (key, ((now - earlier) / self.seconds).max(0.0))
        };
        self.after.samples.by_both(name, labels).into_iter().map(rate).collect()
    }

    fn now(&self, name: &str) -> f64 {
        self.after.samples.sum(name, |_| true)
    }

    fn overview(&self) -> Vec<(&'static str, Vec<ScreenPart>)> {
        let errors: f64 = self
            .rates("apiserver_request_total", "code")
            .into_iter()
            .filter(|(code, _)| code.starts_with(['4', '5']))
            .map(|(_, rate)| rate)
            .fold(0.0, |sum, rate| sum + rate);
        let kinds = self.after.samples.by("apiserver_current_inflight_requests", "request_kind");
        let kind = |name: &str| kinds.get(name).copied().unwrap_or_default();
        let waiting = self.now("apiserver_flowcontrol_current_inqueue_requests");
        let is_damaged = self.now("headwater_store_damage") > 0.0;
        let watches = |label: &dyn Fn(&str) -> String| label("verb") == "WATCH";
        let plain = ScreenPart::plain;
        let mut store = vec![
            plain(format!("{:.0} objects", self.objects().values().fold(0.0, |a, b| a + b))),
            plain(format!(
                "changes {:.0}/s",
                self.rate("apiserver_watch_cache_events_received_total")
            )),
        ];
        if is_damaged {
            store.push(ScreenPart::emphasised("DAMAGED, see the log", Emphasis::Removed, true));
        }
        vec![
            (
                "requests",
                vec![
                    plain(format!("{:.0}/s", self.rate("apiserver_request_total"))),
                    ScreenPart::emphasised(
                        format!("errors {errors:.1}/s"),
                        Emphasis::Removed,
                        errors > 0.0,
                    ),
                    plain(format!("reading {:.0}", kind("readOnly"))),
                    plain(format!("writing {:.0}", kind("mutating"))),
                    ScreenPart::emphasised(
                        format!("waiting {waiting:.0}"),
                        Emphasis::Changed,
                        waiting > 0.0,
                    ),
                ],
            ),
            (
                "watches",
                vec![
                    plain(format!(
                        "{:.0}",
                        self.after.samples.sum("apiserver_longrunning_requests", watches)
                    )),
                    plain(format!("events {:.0}/s", self.rate("apiserver_watch_events_total"))),
                    plain(format!("{}/s", bytes(self.rate("apiserver_watch_events_sizes_sum")))),
                ],
            ),
            ("store", store),
            (
                "process",
                vec![
                    plain(format!("cpu {:.0} %", self.rate("process_cpu_seconds_total") * 100.0)),
                    plain(format!("memory {}", bytes(self.now("process_resident_memory_bytes")))),
                    plain(format!("files {:.0}", self.now("process_open_fds"))),
                ],
            ),
        ]
    }

    /// The number of objects by `plural.group`. kube-apiserver has two families, one of them since
    /// 1.34.
    fn objects(&self) -> BTreeMap<String, f64> {
        let samples = &self.after.samples;
        let known = samples.by("apiserver_storage_objects", "resource");
        let newer = samples.by_both("apiserver_resource_objects", ("resource", "group"));
        let mut all: BTreeMap<String, f64> = newer
            .into_iter()
            .map(|((plural, group), count)| (named(&plural, &group), count))
            .collect();
        for (name, count) in known {
            all.entry(name).or_insert(count);
        }
        all.retain(|_, count| *count > 0.0); // -1 means that it is not known
        all
    }

    fn verbs(&self) -> ScreenTable {
        const NAME: &str = "apiserver_request_sli_duration_seconds_bucket";
        let rates = self.rates("apiserver_request_total", "verb");
        let before = self.before.samples.buckets(NAME, "verb");
        let after = self.after.samples.buckets(NAME, "verb");
        let mut rows = Vec::new();
        for (verb, rate) in rates.into_iter().filter(|(_, rate)| *rate > 0.0) {
            let buckets = after.get(&verb).map(Vec::as_slice).unwrap_or_default();
            let earlier = before.get(&verb).map(Vec::as_slice).unwrap_or_default();
            let at = |share| match quantile(earlier, buckets, share) {
                None => ScreenPart::plain("-"),
                Some(bound) => {
                    ScreenPart::emphasised(seconds(bound), Emphasis::Changed, bound > SLOW)
                }
            };
            let (p50, p99) = (at(0.5), at(0.99));
            rows.push(vec![
                ScreenPart::plain(verb),
                ScreenPart::plain(format!("{rate:.1}")),
                p50,
                p99,
            ]);
        }
        let columns = &[("VERB", 0), ("PER SECOND", 12), ("P50", 12), ("P99", 12)];
        ScreenTable { columns, rows, empty: "no requests" }
    }

    fn kinds(&self) -> ScreenTable {
        type ByKind = BTreeMap<(String, String), f64>;
        let labels = ("resource", "group");
        let requests = self.rates_of("apiserver_request_total", labels);
        let events = self.rates_of("apiserver_watch_events_total", labels);
        let samples = &self.after.samples;
        let mut watchers: ByKind = samples.by_both("headwater_watchers", labels);
        if watchers.is_empty() {
            watchers = samples.by_both("apiserver_longrunning_requests", labels);
        }
        let objects = self.objects();
        let value =
            |all: &ByKind, kind: &(String, String)| all.get(kind).copied().unwrap_or_default();
        let heat = |kind: &(String, String)| value(&requests, kind) + value(&events, kind);
        let mut kinds: Vec<&(String, String)> = requests.keys().chain(events.keys()).collect();
        kinds.sort();
        kinds.dedup();
        kinds.retain(|kind| !kind.0.is_empty() && heat(kind) > 0.0);
        kinds.sort_by(|a, b| heat(b).total_cmp(&heat(a)));
        let row = |kind: &(String, String)| {
            let name = named(&kind.0, &kind.1);
            let objects = objects.get(&name).copied().unwrap_or_default();
            vec![
                ScreenPart::plain(name),
                ScreenPart::plain(format!("{:.1}", value(&requests, kind))),
                ScreenPart::plain(format!("{:.1}", value(&events, kind))),
                ScreenPart::plain(format!("{:.0}", value(&watchers, kind))),
                ScreenPart::plain(format!("{objects:.0}")),
            ]
        };
        ScreenTable {
            columns: &[
                ("HOTTEST KINDS", 0),
                ("REQUESTS/S", 12),
                ("EVENTS/S", 12),
                ("WATCHERS", 12),
                ("OBJECTS", 12),
            ],
            rows: kinds.into_iter().take(HOTTEST).map(row).collect(),
            empty: "no requests and no events",
        }
    }

    /// The users with the most open watches and requests.
    fn users(&self) -> ScreenTable {
        let mut users: BTreeMap<&str, (u32, u32, u64)> = BTreeMap::new();
        let user = |object: &'a Value| object["spec"]["user"].as_str().unwrap_or("-");
        for watcher in self.after.watchers.iter().flatten() {
            let counts = users.entry(user(watcher)).or_default();
            counts.0 += 1;
            counts.2 += pending(watcher);
        }
        for request in &self.after.requests {
            users.entry(user(request)).or_default().1 += 1;
        }
        let mut users: Vec<_> = users.into_iter().collect();
        users.sort_by_key(|(_, (watches, requests, _))| std::cmp::Reverse(watches + requests));
        let row = |(name, (watches, requests, unread)): (&str, (u32, u32, u64))| {
            vec![
                ScreenPart::plain(name),
                ScreenPart::plain(watches.to_string()),
                ScreenPart::plain(requests.to_string()),
                ScreenPart::emphasised(unread.to_string(), Emphasis::Changed, unread > 0),
            ]
        };
        ScreenTable {
            columns: &[("USERS", 0), ("WATCHES", 12), ("REQUESTS", 12), ("UNREAD", 12)],
            rows: users.into_iter().take(HOTTEST).map(row).collect(),
            empty: self.without_watchers(),
        }
    }

    /// The watchers that are furthest behind; the server lists these first.
    fn behind(&self) -> ScreenTable {
        let mut watchers: Vec<&Value> = self.after.watchers.iter().flatten().collect();
        watchers.sort_by_key(|watcher| std::cmp::Reverse(pending(watcher)));
        let row = |watcher: &Value| {
            let text = |value: &Value| {
                value.as_str().filter(|it| !it.is_empty()).unwrap_or("-").to_owned()
            };
            let (spec, status) = (&watcher["spec"], &watcher["status"]);
            let unread = pending(watcher);
            let client = format!("{} {}", text(&spec["resource"]), text(&spec["client"]));
            vec![
                ScreenPart::plain(client),
                ScreenPart::emphasised(text(&status["lag"]), Emphasis::Changed, unread > 0),
                ScreenPart::emphasised(unread.to_string(), Emphasis::Changed, unread > 0),
                ScreenPart::emphasised(
                    text(&status["readsFrom"]),
                    Emphasis::Changed,
                    status["readsFrom"] == "history",
                ),
                ScreenPart::plain(text(&spec["user"])),
            ]
        };
        ScreenTable {
            columns: &[
                ("WATCHERS", 0),
                ("LAG", 10),
                ("UNREAD", 10),
                ("READS FROM", 12),
                ("USER", 32),
            ],
            rows: watchers.into_iter().take(HOTTEST).map(row).collect(),
            empty: self.without_watchers(),
        }
    }

    fn without_watchers(&self) -> &'static str {
        match self.after.watchers {
            Some(_) => "no watchers",
            None => {
                "the server does not show its watchers; only Headwater can, to users who may list them"
            }
        }
    }
}

/// `plural.group`
fn named(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

fn pending(watcher: &Value) -> u64 {
    watcher["status"]["pendingEvents"].as_u64().unwrap_or_default()
}

fn bytes(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.1} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count if count >= 1e3 => format!("{:.1} kB", count / 1e3),
        count => format!("{count:.0} B"),
    }
}

/// The upper bound of a bucket.
fn seconds(bound: f64) -> String {
    match bound {
        bound if bound.is_infinite() => "over the top".to_owned(),
        bound if bound < 1.0 => format!("≤ {:.0} ms", bound * 1e3),
        bound => format!("≤ {bound:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headwater_json::json;

    use super::super::layout::ScreenSize;
    use super::*;
    use crate::style::Paint;

    fn reading(at: Instant, requests: u32, watchers: Option<Vec<Value>>) -> Reading {
        let text = format!(
            "apiserver_request_total{{verb=\"LIST\",resource=\"pods\",code=\"200\"}} {requests}\n\
             apiserver_request_sli_duration_seconds_bucket{{verb=\"LIST\",le=\"0.05\"}} {requests}\n\
             apiserver_request_sli_duration_seconds_bucket{{verb=\"LIST\",le=\"+Inf\"}} {requests}\n\
             process_resident_memory_bytes 50000000\napiserver_storage_objects{{resource=\"pods\"}} 7\n\
             apiserver_watch_events_total{{group=\"coordination.k8s.io\",resource=\"leases\"}} {requests}\n"
        );
        Reading {
            server: "127.0.0.1:6443".to_owned(),
            time: Timestamp::UNIX_EPOCH,
            at,
            samples: Samples::parse(&text),
            watchers,
            requests: Vec::new(),
        }
    }

    #[test]
    fn rates_are_differences_of_two_readings() {
        let start = Instant::now();
        let watcher = json!({"spec": {"user": "jane", "client": "kubectl/v1", "resource": "pods"},
            "status": {"pendingEvents": 3, "lag": "2s", "readsFrom": "window"}});
        let before = reading(start, 100, Some(Vec::new()));
        let after = reading(start + Duration::from_secs(10), 200, Some(vec![watcher]));
        let text = lines(&before, &after);
        for expected in [
            "10/s",
            "50.0 MB",
            "7 objects",
            "≤ 50 ms",
            "jane",
            "pods kubectl/v1",
            "2s",
            "errors 0.0/s",
            "leases.coordination.k8s.io",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("-0"), "{text}");
    }

    #[test]
    fn a_server_that_hides_its_watchers_is_no_server_without_watchers() {
        let start = Instant::now();
        let (one, none) = (reading(start, 1, None), reading(start, 1, Some(Vec::new())));
        assert!(lines(&one, &one).contains("only Headwater can"));
        assert!(lines(&none, &none).contains("no watchers"));
    }

    fn lines(before: &Reading, after: &Reading) -> String {
        let size = ScreenSize { width: 200, height: 100 };
        Figures::between(before, after).screen().lines(size, Paint::with(false)).join("\n")
    }
}
