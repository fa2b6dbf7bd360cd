//! The debug pages of flow control: its levels, queues and requests, as tables of text.
//!
//! River: levels → **dump** → `/debug/api_priority_and_fairness/`. Columns are separated by a comma
//! and spaces, as in Kubernetes.

use headwater_api::query::Query;
use http::Method;
use jiff::{SignedDuration, Timestamp};

use super::level::{LevelWork, RequestDetails};
use super::queues::{Discipline, Width};
use super::{FlowControl, Nanos};
use crate::kinds::registry::Registry;
use crate::lock::lock;
use crate::request::flow::classify::Flow;
use crate::request::route::{self, Target};

impl FlowControl {
    /// A page by its name; `None` if there is no such page.
    pub(crate) fn dump(
        &self,
        page: &str,
        details: bool,
        registry: &Registry,
        now: Timestamp,
    ) -> Option<String> {
        if self.plain.is_some() {
            return None;
        }
        let mut table = Table::default();
        table.rows.push(match page {
            "dump_priority_levels" => row(LEVELS),
            "dump_queues" => row(QUEUES),
            "dump_requests" if details => [REQUESTS, DETAILS].iter().flat_map(|c| row(c)).collect(),
            "dump_requests" => row(REQUESTS),
            _ => return None,
        });
        for (name, level) in &lock(&self.known).by_name {
            let mut work = level.work();
            let elapsed = level.now();
            work.queues.advance(elapsed);
            match page {
                "dump_priority_levels" => table.rows.push(level_row(name, &work)),
                "dump_queues" => table.rows.extend(queue_rows(name, &work)),
                _ => {
                    let clock = DumpClock { now, elapsed };
                    let registry = details.then_some(registry);
                    table.rows.extend(request_rows(name, &work, clock, registry));
                }
            }
        }
        Some(table.text())
    }
}

const LEVELS: &[&str] = &[
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];

const QUEUES: &[&str] = &[
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];

const REQUESTS: &[&str] = &[
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];

const DETAILS: &[&str] =
    &["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

/// The time of a running server, to show past moments as dates.
#[derive(Clone, Copy)]
struct DumpClock {
    now: Timestamp,
    elapsed: Nanos,
}

impl DumpClock {
    fn date(self, at: Nanos) -> String {
        let ago = i64::try_from(self.elapsed.saturating_sub(at)).unwrap_or(i64::MAX);
        let then = self.now.checked_sub(SignedDuration::from_nanos(ago));
        then.unwrap_or(self.now).to_string()
    }
}

type Row = Vec<String>;

fn row(columns: &[&str]) -> Row {
    columns.iter().map(|column| (*column).to_owned()).collect()
}

fn level_row(name: &str, work: &LevelWork) -> Row {
    let active = work.queues.report().filter(|queue| queue.waiting().len() > 0).count();
    vec![
        name.to_owned(),
        active.to_string(),
        work.queues.is_idle().to_string(),
        work.is_quiescing.to_string(),
        work.queues.waiting().to_string(),
        work.queues.running().to_string(),
        work.tally.dispatched.to_string(),
        work.tally.rejected.to_string(),
        work.tally.timed_out.to_string(),
        work.tally.cancelled.to_string(),
    ]
}

/// All queues of a level; those that are not in use are empty.
fn queue_rows(name: &str, work: &LevelWork) -> Vec<Row> {
    let mut used = work.queues.report().peekable();
    let rows = (0..work.queues.count()).map(|index| {
        let queue = used.next_if(|queue| queue.index == index);
        let widths = || queue.iter().flat_map(|queue| queue.waiting().map(|(_, width, _)| width));
        let initial: u64 = widths().map(|width| u64::from(width.seats)).sum();
        let most: u64 = widths().map(|width| u64::from(width.most())).sum();
        let number = |of: fn(&super::queues::QueueReport<'_>) -> u64| queue.as_ref().map_or(0, of);
        let seconds = |of: fn(&super::queues::QueueReport<'_>) -> f64| {
            format!("{:.8}ss", queue.as_ref().map_or(0.0, of))
        };
        vec![
            name.to_owned(),
            index.to_string(),
            number(|queue| queue.waiting().len() as u64).to_string(),
            number(|queue| queue.running() as u64).to_string(),
            number(|queue| queue.seats_in_use()).to_string(),
            seconds(|queue| queue.next()),
            initial.to_string(),
            most.to_string(),
            seconds(|queue| queue.work_waiting()),
        ]
    });
    // A level may have millions of queues; only those in use are interesting then.
    rows.take(QUEUES_MAX).collect()
}

/// The most queues that are listed of a level.
const QUEUES_MAX: usize = 10_000;

/// Requests that run, then those that wait in each queue.
fn request_rows(
    name: &str,
    work: &LevelWork,
    clock: DumpClock,
    registry: Option<&Registry>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |flow: &Flow, details: &RequestDetails, place: [String; 2], width, times| {
        let described = Described::new(details, registry);
        let mut row = vec![name.to_owned(), flow.schema.clone()];
        row.extend(place);
        row.push(flow.distinguish(&details.identity, &described.namespace).to_owned());
        row.extend(shape(width, times));
        if registry.is_some() {
            row.extend(described.columns(details));
        }
        rows.push(row);
    };
    for running in work.running.values() {
        let queue =
            running.seated.queue().map_or_else(|| "-1".to_owned(), |queue| queue.to_string());
        let began = clock.date(running.began);
        let times = [began.clone(), began];
        add(&running.flow, &running.details, [queue, "-1".to_owned()], running.seated.width, times);
    }
    if work.settings.discipline == Discipline::Exempt {
        return rows;
    }
    for queue in work.queues.report() {
        for (at, (ticket, width, arrived)) in queue.waiting().enumerate() {
            let Some(waiting) = work.waiting.get(&ticket) else { continue };
            let place = [queue.index.to_string(), at.to_string()];
            let times = [clock.date(arrived), "0001-01-01T00:00:00Z".to_owned()];
            add(&waiting.flow, &waiting.details, place, width, times);
        }
    }
    rows
}

/// The columns from the time of arrival to the time of the start.
fn shape(width: Width, [arrived, began]: [String; 2]) -> [String; 5] {
    let (seats, final_seats) = (width.seats.to_string(), width.final_seats.to_string());
    [arrived, seats, final_seats, milliseconds(width.extra), began]
}

fn milliseconds(time: Nanos) -> String {
    match time {
        0 => "0s".to_owned(),
        time => format!("{}ms", time as f64 / 1e6),
    }
}

/// What a request is about. Parsed again for the page, so that requests need not keep it.
#[derive(Default)]
struct Described {
    namespace: String,
    name: String,
    version: String,
    resource: String,
    subresource: String,
}

impl Described {
    fn new(details: &RequestDetails, registry: Option<&Registry>) -> Described {
        let Some(registry) = registry else {
            return Described { namespace: namespace(details.uri.path()), ..Described::default() };
        };
        let route = route::route(registry, &Method::GET, details.uri.path(), &Query::default());
        let Target::Resource(resource) = route.target else { return Described::default() };
        Described {
            version: resource.kind.api_version(),
            resource: resource.kind.plural.to_string(),
            namespace: resource.namespace,
            name: resource.name,
            subresource: resource.subresource,
        }
    }

    fn columns(self, details: &RequestDetails) -> [String; 8] {
        [
            details.identity.user.clone(),
            details.verb.as_str().to_owned(),
            details.uri.path().to_owned(),
            self.namespace,
            self.name,
            self.version,
            self.resource,
            self.subresource,
        ]
    }
}

/// The namespace in a path.
fn namespace(path: &str) -> String {
    let rest = path.split_once("/namespaces/").map(|(_, rest)| rest);
    let namespace = rest.and_then(|rest| rest.split_once('/')).map(|(namespace, _)| namespace);
    namespace.unwrap_or_default().to_owned()
}

/// A table of text. Each column is as wide as its longest cell, and eight at least.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
}

impl Table {
    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell =
            |row: &Row, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let longest = self.rows.iter().map(|row| cell(row, column)).max().unwrap_or(0);
                (longest + ",".len() + 1).max(8)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            for (column, content) in row.iter().enumerate() {
                text.push_str(content);
                if column + 1 < row.len() {
                    text.push(',');
                    let padding = widths[column] - content.chars().count() - 1;
                    text.extend(std::iter::repeat_n(' ', padding));
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_after_their_commas() {
        let rows = vec![row(&["Name", "Index", "Sum"]), row(&["workload-low", "7", "0.5ss"])];
        let text = Table { rows }.text();
        assert_eq!(text, "Name,         Index,  Sum\nworkload-low, 7,      0.5ss\n");
    }

    #[test]
    fn the_namespace_of_a_path_separates_flows() {
        assert_eq!(namespace("/api/v1/namespaces/a/pods"), "a");
        assert_eq!(namespace("/api/v1/namespaces/a"), "");
        assert_eq!(namespace("/api/v1/nodes"), "");
    }
}
