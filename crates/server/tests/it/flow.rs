//! Priority and fairness: who waits, who is rejected, and the objects that say so (S7).

use std::time::Duration;

use headwater_cache::Options as CacheOptions;
use headwater_json::{Value, json};
use headwater_server::{Limits, Settings};
use tokio::time::Instant;

use crate::api::{Answer, Api, Asking, CMS, PODS, SlowRequest, config_map, pod};

const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// A request that every user may send, and that runs until its body has arrived.
const REVIEW: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";

const SCHEMA_UID: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL_UID: &str = "x-kubernetes-pf-prioritylevel-uid";

/// A server with 200 seats.
async fn start(fairness: bool) -> Api {
    let limits = Limits { reads_max: 100, writes_max: 100, fairness, ..Limits::default() };
    Api::with(Settings { limits, ..Settings::default() }, CacheOptions::default()).await
}

/// Creates a level without borrowing or lending, and a schema for users of the group `team`. Of 200
/// seats, one share is one seat, and five are four.
async fn make_level(api: &Api, shares: u32, response: Value) {
    let level = json!({
        "metadata": { "name": "team" },
        "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": response,
        }},
    });
    api.create(&format!("{FLOW}/prioritylevelconfigurations"), &level).await;
    let schema = json!({
        "metadata": { "name": "team" },
        "spec": {
            "priorityLevelConfiguration": { "name": "team" }, "matchingPrecedence": 50,
            "distinguisherMethod": { "type": "ByUser" },
            "rules": [{
                "subjects": [{ "kind": "Group", "group": { "name": "team" } }],
                "resourceRules": [{
                    "verbs": ["create"], "apiGroups": ["authentication.k8s.io"],
                    "resources": ["*"], "clusterScope": true,
                }],
            }],
        },
    });
    api.create(&format!("{FLOW}/flowschemas"), &schema).await;
    // A consistent read waits until the cache has received the writes.
    api.get(&format!("{FLOW}/flowschemas/team")).await.is(200, "");
}

fn queue() -> Value {
    json!({ "type": "Queue", "queuing": { "queues": 64, "handSize": 6, "queueLengthLimit": 50 } })
}

fn slow(user: &Asking<'_>) -> SlowRequest {
    user.send_slowly(REVIEW, "{}")
}

/// The columns of a level's row: waiting, executing, dispatched, rejected, timed out, cancelled.
async fn level(api: &Api, name: &str) -> [u64; 6] {
    let text = dump(api, "dump_priority_levels").await;
    let row = text.lines().map(cells).find(|row| row[0] == name);
    let numbers: Vec<u64> = row.unwrap()[4..].iter().map(|cell| cell.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

async fn dump(api: &Api, page: &str) -> String {
    api.get(&format!("/debug/api_priority_and_fairness/{page}")).await.is(200, "").text()
}

fn cells(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

/// Waits until a level has so many waiting requests.
async fn until_waiting(api: &Api, name: &str, count: u64) {
    while level(api, name).await[0] != count {
        tokio::task::yield_now().await;
    }
}

#[track_caller]
fn is_rejected(answer: &Answer, retry_after: &str) {
    assert_eq!(answer.code, 429);
    assert_eq!(answer.text(), "Too many requests, please try again later.\n");
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("retry-after"), retry_after);
    assert_eq!(answer.header("cache-control"), "no-cache, private");
}

/// S7.11, S7.12, S7.13
#[tokio::test(start_paused = true)]
async fn a_level_without_queues_rejects_requests_beyond_its_seats() {
    let api = start(true).await;
    make_level(&api, 0, json!({ "type": "Reject" })).await;
    let joe = api.as_user("joe", &["team"]);
    let mut first = slow(&joe);
    first.runs().await;
    let rejected = joe.send(REVIEW, "{}").await;
    is_rejected(&rejected, "1");
    let schema = api.get(&format!("{FLOW}/flowschemas/team")).await.json();
    assert_eq!(rejected.header(SCHEMA_UID), schema["metadata"]["uid"]);
    assert_ne!(rejected.header(LEVEL_UID), "");
    joe.send("GET /api", "").await.is(200, ""); // of another schema
    assert_eq!(first.finish().await.code, 201);
    joe.send(REVIEW, "{}").await.is(201, "");
    assert_eq!(level(&api, "team").await, [0, 0, 2, 1, 0, 0]);
    let metrics = api.get("/metrics").await.text();
    for line in [
        "apiserver_flowcontrol_rejected_requests_total{priority_level=\"team\",\
         flow_schema=\"team\",reason=\"concurrency-limit\"} 1\n",
        "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"team\",\
         flow_schema=\"team\"} 2\n",
        "apiserver_flowcontrol_current_executing_seats{priority_level=\"team\",\
         flow_schema=\"team\"} 0\n",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"workload-low\"} 82\n",
        "apiserver_dropped_requests_total{request_kind=\"mutating\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }
    assert!(metrics.contains("resource=\"selfsubjectreviews\",subresource=\"\",scope=\"cluster\",component=\"apiserver\",code=\"429\"} 1"));
}

/// S7.9
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_seat() {
    let api = start(true).await;
    make_level(&api, 1, queue()).await;
    let (joe, jane) = (api.as_user("joe", &["team"]), api.as_user("jane", &["team"]));
    let mut first = slow(&joe);
    first.runs().await;
    let mut second = slow(&jane);
    until_waiting(&api, "team", 1).await;
    assert!(!second.is_running());
    let rows = dump(&api, "dump_requests?includeRequestDetails=1").await;
    let rows: Vec<Vec<&str>> = rows.lines().map(cells).filter(|row| row[0] == "team").collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((rows[0][1], rows[0][3], rows[0][4], rows[0][6]), ("team", "-1", "joe", "1"));
    assert_eq!(
        (rows[1][1], rows[1][3], rows[1][4], rows[1][9]),
        ("team", "0", "jane", "0001-01-01T00:00:00Z")
    );
    assert_eq!(rows[1][10..12], ["jane", "create"]);
    assert_eq!(rows[1][15..17], ["authentication.k8s.io/v1", "selfsubjectreviews"]);
    let queues = dump(&api, "dump_queues").await;
    let team: Vec<Vec<&str>> = queues.lines().map(cells).filter(|row| row[0] == "team").collect();
    assert_eq!(team.len(), 64);
    assert_eq!(team.iter().filter(|row| row[2] == "1").count(), 1, "one request waits");
    assert_eq!(team.iter().filter(|row| row[4] == "1").count(), 1, "one seat is in use");
    assert_eq!(first.finish().await.code, 201);
    second.runs().await;
    assert_eq!(second.finish().await.code, 201);
}

/// S7.10
#[tokio::test(start_paused = true)]
async fn a_request_waits_at_most_a_quarter_of_its_deadline() {
    let api = start(true).await;
    make_level(&api, 1, queue()).await;
    let joe = api.as_user("joe", &["team"]);
    for (request, seconds) in [(REVIEW.to_owned(), 15), (format!("{REVIEW}?timeout=8s"), 2)] {
        let mut first = slow(&joe);
        first.runs().await;
        let began = Instant::now();
        is_rejected(&joe.send(&request, "{}").await, "1");
        assert_eq!(began.elapsed().as_secs(), seconds);
        first.abandon().await;
    }
    assert_eq!(level(&api, "team").await, [0, 0, 2, 2, 2, 0]);
}

/// S7.9
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_the_queue() {
    let api = start(true).await;
    make_level(&api, 1, queue()).await;
    let joe = api.as_user("joe", &["team"]);
    let mut first = slow(&joe);
    first.runs().await;
    let second = slow(&joe);
    until_waiting(&api, "team", 1).await;
    second.abandon().await;
    assert_eq!(level(&api, "team").await, [0, 1, 1, 1, 0, 1]);
    first.abandon().await;
    assert_eq!(level(&api, "team").await, [0, 0, 1, 1, 0, 1], "it gave its seat back");
    joe.send(REVIEW, "{}").await.is(201, "");
}

/// Sends two hundred requests of one user that do not end by themselves, then one of each of fifty
/// others. Returns how many of the first user run, and how many of them have to end until all others
/// have their answers.
async fn flood(api: &Api) -> (usize, usize) {
    let hog = api.as_user("hog", &["team"]);
    let mut flood: Vec<SlowRequest> = (0..200).map(|_| slow(&hog)).collect();
    settled(|| flood.iter().filter(|request| request.is_running()).count()).await;
    let run = flood.iter().filter(|request| request.is_running()).count();
    let mut others = Vec::new();
    for number in 0..50 {
        let user = api.as_user(&format!("user-{number}"), &["team"]);
        let request = slow(&user);
        settled(|| request.is_running()).await;
        others.push(request);
    }
    let mut ended = 0;
    loop {
        let (running, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(SlowRequest::is_running);
        others = rest;
        let progressed = !running.is_empty();
        for request in running {
            assert_eq!(request.finish().await.code, 201);
        }
        settled(|| others.iter().filter(|request| request.is_running()).count()).await;
        if others.is_empty() {
            break;
        }
        if progressed {
            continue;
        }
        let next = flood.iter().position(|r| r.is_running() && !r.is_answered());
        flood.swap_remove(next.expect("the flood has all seats")).abandon().await;
        ended += 1;
        settled(|| others.iter().filter(|request| request.is_running()).count()).await;
    }
    for request in flood {
        request.abandon().await;
    }
    (run, ended)
}

/// Waits until a value no longer changes.
async fn settled<T: PartialEq>(read: impl Fn() -> T) {
    let (mut last, mut same) = (read(), 0);
    while same < 500 {
        tokio::task::yield_now().await;
        let now = read();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
}

/// R31, B281, S7.9: the load test of `headwater bench fairness`, counted in seats.
#[tokio::test(start_paused = true)]
async fn a_user_with_two_hundred_connections_has_its_share_and_delays_nobody() {
    let api = start(true).await;
    make_level(&api, 5, queue()).await;
    let (run, ended) = flood(&api).await;
    assert_eq!(run, 4, "all seats, while nobody else wants one");
    // One of each of its six queues in every round. There is one round if no others share a queue;
    // their queues are random, but six in one queue are out of the question. First come, first
    // served would be 196.
    assert!(ended <= 36, "fifty others were served after {ended} requests of the flood");
}

/// The control of the test above.
#[tokio::test(start_paused = true)]
async fn without_fairness_the_same_user_takes_everything() {
    let api = start(false).await;
    let hog = api.as_user("hog", &["team"]);
    let flood: Vec<SlowRequest> = (0..200).map(|_| slow(&hog)).collect();
    settled(|| flood.iter().filter(|request| request.is_running()).count()).await;
    assert_eq!(flood.iter().filter(|request| request.is_running()).count(), 100);
    is_rejected(&api.as_user("user", &["team"]).send(REVIEW, "{}").await, "1");
}

/// S7.4: health, leader election and administrators do not wait for others.
#[tokio::test(start_paused = true)]
async fn health_and_leader_election_are_never_rejected() {
    let api = start(true).await;
    let mut flood = Vec::new();
    for user in 0..40 {
        let user = api.as_user(&format!("user-{user}"), &[]);
        flood.extend((0..20).map(|_| slow(&user)));
    }
    settled(|| flood.iter().filter(|request| request.is_running()).count()).await;
    assert!(level(&api, "global-default").await[0] > 500);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
    let leader = api.as_user("system:kube-scheduler", &[]);
    let began = Instant::now();
    for _ in 0..100 {
        api.as_anonymous().send("GET /healthz", "").await.is(200, "ok");
        assert_ne!(leader.send(&format!("GET {lease}"), "").await.code, 429);
        api.get(CMS).await.is(200, "");
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody waited");
}

/// S7.7: of the exempt level, as seen by the request for the page itself.
async fn executing(api: &Api) -> u64 {
    level(api, "exempt").await[1] - 1
}

/// S7.7
#[tokio::test(start_paused = true)]
async fn a_watch_holds_its_seat_until_its_initial_events_are_sent() {
    let api = start(true).await;
    api.config_maps(&["a", "b"]).await;
    let version = api.get(CMS).await.version();
    let plain = api.watch(&format!("{CMS}?watch=true&resourceVersion={version}")).await;
    assert_eq!(executing(&api).await, 0, "a watch without initial events");
    let initial =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut listing = api.watch(&format!("{CMS}?watch=true&{initial}")).await;
    assert_eq!(executing(&api).await, 1);
    assert_eq!(listing.take(3).await, "ADDED/a ADDED/b MARK");
    assert_eq!(executing(&api).await, 0);
    let unread = api.watch(&format!("{CMS}?watch=true&{initial}")).await;
    assert_eq!(executing(&api).await, 1);
    tokio::time::sleep(Duration::from_secs(75)).await;
    assert_eq!(executing(&api).await, 0, "a client that does not read keeps no seat");
    drop((plain, unread));
}

/// S7.6
#[tokio::test(start_paused = true)]
async fn a_list_holds_its_seats_until_it_is_sent() {
    let api = start(true).await;
    for number in 0..50 {
        let mut object = config_map(&format!("large-{number}"));
        object["data"] = json!({ "text": "x".repeat(10_000) });
        api.create(CMS, &object).await;
    }
    let list = api.open(CMS).await;
    assert_eq!(executing(&api).await, 1);
    let rows = dump(&api, "dump_requests").await;
    let row = rows.lines().map(cells).find(|row| row[6] != "1" && row[0] == "exempt").unwrap();
    assert_eq!(row[6], "6", "half a megabyte: {rows}");
    drop(list);
    assert_eq!(executing(&api).await, 0);
    let list = api.open(CMS).await;
    tokio::time::sleep(Duration::from_secs(75)).await;
    assert_eq!(executing(&api).await, 0, "a client that does not read keeps no seat");
    drop(list);
    let rows = dump(&api, "dump_requests").await;
    assert!(rows.lines().skip(1).all(|row| cells(row)[6] == "1"), "{rows}");
    let page = api.open(&format!("{CMS}?limit=20")).await;
    let rows = dump(&api, "dump_requests").await;
    assert!(rows.lines().any(|row| cells(row)[6] == "3"), "a fifth of a megabyte: {rows}");
    drop(page);
}

/// S7.7: writes of objects with many watchers.
#[tokio::test(start_paused = true)]
async fn a_write_with_many_watchers_occupies_seats_afterwards() {
    let api = start(true).await;
    let mut watches = Vec::new();
    for _ in 0..100 {
        let mut watch = api.watch(&format!("{CMS}?watch=true")).await;
        assert!(watch.is_silent(Duration::from_millis(1)).await, "it has begun");
        watches.push(watch);
    }
    let seats = async || {
        let rows = dump(&api, "dump_queues").await;
        rows.lines().map(cells).filter(|row| row[0] == "exempt").count()
    };
    assert_eq!(seats().await, 0, "the exempt level has no queues");
    api.create(CMS, &config_map("a")).await;
    let text = api.get("/metrics").await.text();
    let width = "apiserver_flowcontrol_work_estimated_seats_sum{priority_level=\"exempt\"";
    let line = text.lines().find(|line| line.starts_with(width)).unwrap();
    let (_, sum) = line.rsplit_once(' ').unwrap();
    let count = text
        .lines()
        .find(|line| line.starts_with(&width.replace("_sum", "_count")))
        .and_then(|line| line.rsplit_once(' '))
        .unwrap()
        .1;
    let (sum, count): (f64, f64) = (sum.parse().unwrap(), count.parse().unwrap());
    assert_eq!(sum - count, 9.0, "one request took ten seats");
}

/// S7.8
#[tokio::test(start_paused = true)]
async fn requests_that_last_as_long_as_the_client_wants_are_not_classified() {
    let api = start(true).await;
    api.create(PODS, &pod("p", "")).await;
    let exec = api.get(&format!("{PODS}/p/exec")).await;
    assert_eq!((exec.code, exec.header(SCHEMA_UID)), (400, ""));
    assert_ne!(api.get(&format!("{PODS}/p")).await.header(SCHEMA_UID), "");
}

/// S7.14
#[tokio::test(start_paused = true)]
async fn without_fairness_two_plain_limits_apply() {
    let limits = Limits { reads_max: 1, writes_max: 1, fairness: false, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let api = Api::with(settings, CacheOptions::default()).await;
    let joe = api.as_user("joe", &[]);
    let mut first = slow(&joe);
    first.runs().await;
    let rejected = joe.send(REVIEW, "{}").await;
    is_rejected(&rejected, "1");
    assert_eq!(rejected.header(SCHEMA_UID), "");
    joe.send("GET /api", "").await.is(200, "");
    api.config_maps(&["a"]).await; // administrators are not limited
    assert_eq!(first.finish().await.code, 201);
    joe.send(REVIEW, "{}").await.is(201, "");
    api.get("/debug/api_priority_and_fairness/dump_queues").await.is(404, "");
}

/// S7.15
///
/// A server without load.
#[tokio::test(start_paused = true)]
async fn the_debug_pages_have_the_tables_of_the_reference() {
    let api = start(true).await;
    let text = dump(&api, "dump_priority_levels").await;
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, \
         ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, \
         CancelledRequests"
    );
    assert_eq!(
        lines.next().unwrap(),
        "catch-all,         0,            true,   false,       0,               0,                 \
         0,                  0,                0,                0"
    );
    assert!(lines.next().unwrap().starts_with("exempt,            0,            false,  false, "));
    assert_eq!(lines.count(), 6);
    let text = dump(&api, "dump_queues").await;
    assert_eq!(
        text.lines().next().unwrap(),
        "PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR, \
         InitialSeatsSum, MaxSeatsSum, TotalWorkSum"
    );
    assert!(text.contains("global-default,    0,      0,               0,                 0,          0.00000000ss,  0,               0,           0.00000000ss\n"), "{text}");
    let text = dump(&api, "dump_requests").await;
    assert!(text.starts_with("PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,"), "{text}");
    api.get("/debug/api_priority_and_fairness/other").await.is(404, "404 page not found");
}

/// Waits until an object satisfies a condition.
async fn until(api: &Api, target: &str, is: impl Fn(&Value) -> bool) -> Value {
    loop {
        let answer = api.get(target).await;
        if answer.code == 200 && is(&answer.json()) {
            return answer.json();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// S7.2
#[tokio::test(start_paused = true)]
async fn a_schema_without_its_level_is_dangling() {
    let api = start(true).await;
    let exempt = api.get(&format!("{FLOW}/flowschemas/exempt")).await.json();
    let condition = &exempt["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Dangling"), &json!("False")));
    assert_eq!(condition["reason"], "Found");
    make_level(&api, 1, queue()).await;
    let target = format!("{FLOW}/flowschemas/team");
    let is = |status: &'static str| {
        move |schema: &Value| schema["status"]["conditions"][0]["status"] == status
    };
    until(&api, &target, is("False")).await;
    let level = format!("{FLOW}/prioritylevelconfigurations/team");
    api.delete(&level).await.is(200, "");
    let schema = until(&api, &target, is("True")).await;
    let condition = &schema["status"]["conditions"][0];
    assert_eq!(condition["reason"], "NotFound");
    assert_eq!(
        condition["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"team\" but there \
         is no such object"
    );
    // It is skipped: the next schema decides.
    let answer = api.as_user("joe", &["team"]).send(REVIEW, "{}").await;
    let default = api.get(&format!("{FLOW}/flowschemas/global-default")).await.json();
    assert_eq!(answer.header(SCHEMA_UID), default["metadata"]["uid"]);
}

/// S7.4
#[tokio::test(start_paused = true)]
async fn the_objects_that_every_server_has_are_repaired() {
    let api = start(true).await;
    let levels = format!("{FLOW}/prioritylevelconfigurations");
    let catch_all = format!("{levels}/catch-all");
    let shares = |object: &Value| object["spec"]["limited"]["nominalConcurrencyShares"].clone();
    let change =
        |shares: u32| json!({ "spec": { "limited": { "nominalConcurrencyShares": shares } } });

    // Mandatory: restored whatever is changed.
    api.merge(&catch_all, &change(77)).await.is(200, "");
    until(&api, &catch_all, |object| shares(object) == 5).await;
    api.merge(&catch_all, &json!({ "metadata": { "annotations": null } })).await.is(200, "");
    until(&api, &catch_all, |object| {
        object["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] == "true"
    })
    .await;
    let uid = api.get(&catch_all).await.json()["metadata"]["uid"].clone();
    api.delete(&catch_all).await.is(200, "");
    until(&api, &catch_all, |object| object["metadata"]["uid"] != uid).await;

    // The shares of the exempt level are the administrator's.
    let exempt = format!("{levels}/exempt");
    let body = json!({ "spec": { "exempt": { "nominalConcurrencyShares": 7 } } });
    api.merge(&exempt, &body).await.is(200, "");

    // Suggested: only while annotated.
    let low = format!("{levels}/workload-low");
    api.merge(&low, &change(1)).await.is(200, "");
    until(&api, &low, |object| shares(object) == 100).await;
    let annotations = json!({ "apf.kubernetes.io/autoupdate-spec": "false" });
    api.merge(&low, &json!({ "metadata": { "annotations": annotations } })).await.is(200, "");
    api.merge(&low, &change(2)).await.is(200, "");

    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = api.get(&levels).await;
    assert_eq!(shares(&api.get(&low).await.json()), 2);
    let kept = api.get(&exempt).await.json();
    assert_eq!(kept["spec"]["exempt"]["nominalConcurrencyShares"], 7);
    // Nothing is written without a reason.
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!(api.get(&levels).await.version(), before.version());
}

/// S7.5: the limits follow the demand.
#[tokio::test(start_paused = true)]
async fn a_busy_level_borrows_seats_within_ten_seconds() {
    let api = start(true).await;
    let limit = async || {
        let text = api.get("/metrics").await.text();
        let name = "apiserver_flowcontrol_current_limit_seats{priority_level=\"global-default\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.parse::<u32>().unwrap()
    };
    let before = limit().await;
    let mut flood = Vec::new();
    for user in 0..40 {
        let user = api.as_user(&format!("user-{user}"), &[]);
        flood.extend((0..5).map(|_| slow(&user)));
    }
    settled(|| flood.iter().filter(|request| request.is_running()).count()).await;
    assert_eq!(flood.iter().filter(|request| request.is_running()).count(), before as usize);
    tokio::time::sleep(Duration::from_millis(11_000)).await;
    let after = limit().await;
    assert!(after > 2 * before, "{before} became {after}");
    settled(|| flood.iter().filter(|request| request.is_running()).count()).await;
    assert_eq!(flood.iter().filter(|request| request.is_running()).count(), after as usize);
}
