//! The figures of `headwater top`: the difference of two readings, as lines.
//!
//! River: readings → **figures** → the terminal. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use headwater_json::Value;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::samples::{Samples, quantile};

/// What was read of a server at one time.
pub(super) struct Reading {
    pub(super) server: String,
    pub(super) time: Timestamp,
    pub(super) at: Instant,
    pub(super) samples: Samples,
    pub(super) watchers: Vec<Value>,
    pub(super) requests: Vec<Value>,
}

/// What happened between two readings.
pub(super) struct Figures<'a> {
    before: &'a Reading,
    after: &'a Reading,
    seconds: f64,
}

/// The rows of each list.
const HOTTEST: usize = 8;

impl<'a> Figures<'a> {
    pub(super) fn between(before: &'a Reading, after: &'a Reading) -> Figures<'a> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
        Figures { before, after, seconds }
    }

    /// Lines that fit a width, at most `height`.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut lines = self.overview();
        lines.push(String::new());
        lines.extend(self.verbs());
        lines.push(String::new());
        lines.extend(self.kinds());
        lines.push(String::new());
        lines.extend(self.users());
        lines.push(String::new());
        lines.extend(self.behind());
        lines.truncate(height);
        lines.iter().map(|line| line.chars().take(width).collect()).collect()
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

    fn now(&self, name: &str) -> f64 {
        self.after.samples.sum(name, |_| true)
    }

    fn overview(&self) -> Vec<String> {
        let time = self.after.time.to_zoned(TimeZone::system()).strftime("%H:%M:%S");
        let errors: f64 = self
            .rates("apiserver_request_total", "code")
            .into_iter()
            .filter(|(code, _)| code.starts_with(['4', '5']))
            .map(|(_, rate)| rate)
            .sum();
        let kinds = self.after.samples.by("apiserver_current_inflight_requests", "request_kind");
        let kind = |name: &str| kinds.get(name).copied().unwrap_or_default();
        let waiting = self.now("apiserver_flowcontrol_current_inqueue_requests");
        let damage = match self.now("headwater_store_damage") > 0.0 {
            true => "  DAMAGED, see the log",
            false => "",
        };
        vec![
            format!("headwater top   {}   {time}", self.after.server),
            format!(
                "requests  {:.0}/s  errors {:.1}/s  reading {:.0}  writing {:.0}  waiting {waiting:.0}",
                self.rate("apiserver_request_total"),
                errors,
                kind("readOnly"),
                kind("mutating"),
            ),
            format!(
                "watches   {:.0}  events {:.0}/s  {}/s",
                self.now("headwater_watchers"),
                self.rate("apiserver_watch_events_total"),
                bytes(self.rate("apiserver_watch_events_sizes_sum")),
            ),
            format!(
                "store     {:.0} objects  changes {:.0}/s{damage}",
                self.now("apiserver_storage_objects"),
                self.rate("apiserver_watch_cache_events_received_total"),
            ),
            format!(
                "process   cpu {:.0} %  memory {}  files {:.0}  connections {:.0}",
                self.rate("process_cpu_seconds_total") * 100.0,
                bytes(self.now("process_resident_memory_bytes")),
                self.now("process_open_fds"),
                self.now("headwater_connections"),
            ),
        ]
    }

    fn verbs(&self) -> Vec<String> {
        const NAME: &str = "apiserver_request_sli_duration_seconds_bucket";
        let rates = self.rates("apiserver_request_total", "verb");
        let before = self.before.samples.buckets(NAME, "verb");
        let mut lines = vec![row(&["VERB", "PER SECOND", "P50", "P99"])];
        for (verb, buckets) in self.after.samples.buckets(NAME, "verb") {
            let earlier = before.get(&verb).map(Vec::as_slice).unwrap_or_default();
            let rate = rates.get(&verb).copied().unwrap_or_default();
            let at = |share| quantile(earlier, &buckets, share).map_or("-".to_owned(), seconds);
            if rate > 0.0 {
                lines.push(row(&[&verb, &format!("{rate:.1}"), &at(0.5), &at(0.99)]));
            }
        }
        lines
    }

    fn kinds(&self) -> Vec<String> {
        let requests = self.rates("apiserver_request_total", "resource");
        let events = self.rates("apiserver_watch_events_total", "resource");
        let watchers = self.after.samples.by("headwater_watchers", "resource");
        let objects = self.after.samples.by("apiserver_storage_objects", "resource");
        let value =
            |all: &BTreeMap<String, f64>, name: &str| all.get(name).copied().unwrap_or_default();
        let mut names: Vec<&String> = requests.keys().chain(events.keys()).collect();
        names.sort();
        names.dedup();
        let heat = |name: &str| value(&requests, name) + value(&events, name);
        names.retain(|name| !name.is_empty() && heat(name) > 0.0);
        names.sort_by(|a, b| heat(b).total_cmp(&heat(a)));
        let mut lines =
            vec![row(&["HOTTEST KINDS", "REQUESTS/S", "EVENTS/S", "WATCHERS", "OBJECTS"])];
        lines.extend(names.into_iter().take(HOTTEST).map(|name| {
            let plain = name.split('.').next().unwrap_or(name);
            let objects = value(&objects, name).max(value(&objects, plain));
            row(&[
                name,
                &format!("{:.1}", value(&requests, name)),
                &format!("{:.1}", value(&events, name)),
                &format!("{:.0}", value(&watchers, name).max(value(&watchers, plain))),
                &format!("{objects:.0}"),
            ])
        }));
        lines
    }

    /// The users with the most open watches and requests.
    fn users(&self) -> Vec<String> {
        let mut users: BTreeMap<&str, (u32, u32, u64)> = BTreeMap::new();
        let user = |object: &'a Value| object["spec"]["user"].as_str().unwrap_or("-");
        for watcher in &self.after.watchers {
            let counts = users.entry(user(watcher)).or_default();
            counts.0 += 1;
            counts.2 += watcher["status"]["pendingEvents"].as_u64().unwrap_or_default();
        }
        for request in &self.after.requests {
            users.entry(user(request)).or_default().1 += 1;
        }
        let mut users: Vec<_> = users.into_iter().collect();
        users.sort_by_key(|(_, (watches, requests, _))| std::cmp::Reverse(watches + requests));
        let mut lines = vec![row(&["USERS", "WATCHES", "REQUESTS", "UNREAD EVENTS"])];
        lines.extend(users.into_iter().take(HOTTEST).map(|(name, (watches, requests, unread))| {
            row(&[name, &watches.to_string(), &requests.to_string(), &unread.to_string()])
        }));
        lines
    }

    /// The watchers that are furthest behind; the server lists these first.
    fn behind(&self) -> Vec<String> {
        let mut watchers: Vec<&Value> = self.after.watchers.iter().collect();
        watchers.sort_by_key(|watcher| {
            std::cmp::Reverse(watcher["status"]["pendingEvents"].as_u64().unwrap_or_default())
        });
        let mut lines = vec![row(&["WATCHERS", "RESOURCE", "LAG", "UNREAD", "READS FROM"])];
        lines.extend(watchers.into_iter().take(HOTTEST).map(|watcher| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let (spec, status) = (&watcher["spec"], &watcher["status"]);
            let unread = status["pendingEvents"].as_u64().unwrap_or_default().to_string();
            row(&[
                &text(&spec["client"]),
                &text(&spec["resource"]),
                &text(&status["lag"]),
                &unread,
                &text(&status["readsFrom"]),
            ])
        }));
        lines
    }
}

/// A line of a table: the first column is wide.
fn row(cells: &[&str]) -> String {
    let clean = |cell: &str| cell.chars().filter(|c| !c.is_control()).collect::<String>();
    let mut line = String::new();
    for (at, cell) in cells.iter().enumerate() {
        let width = if at == 0 { 44 } else { 14 };
        let cell: String = clean(cell).chars().take(width - 2).collect();
        line += &format!("{cell:<width$}");
    }
    line.trim_end().to_owned()
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

    use super::*;

    fn reading(at: Instant, requests: u32, watchers: Vec<Value>) -> Reading {
        let text = format!(
            "apiserver_request_total{{verb=\"LIST\",resource=\"pods\",code=\"200\"}} {requests}\n\
             apiserver_request_sli_duration_seconds_bucket{{verb=\"LIST\",le=\"0.05\"}} {requests}\n\
             apiserver_request_sli_duration_seconds_bucket{{verb=\"LIST\",le=\"+Inf\"}} {requests}\n\
             process_resident_memory_bytes 50000000\napiserver_storage_objects{{resource=\"pods\"}} 7\n"
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
        let before = reading(start, 100, Vec::new());
        let after = reading(start + Duration::from_secs(10), 200, vec![watcher]);
        let text = Figures::between(&before, &after).lines(200, 100).join("\n");
        for expected in
            ["requests  10/s", "50.0 MB", "7 objects", "≤ 50 ms", "jane", "kubectl/v1", "2s"]
        {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn lines_fit_the_screen() {
        let start = Instant::now();
        let one = reading(start, 1, Vec::new());
        let lines = Figures::between(&one, &one).lines(20, 5);
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.chars().count() <= 20));
    }
}
