//! Leader election, with a fake server on a paused clock and with a real server.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::Clock;
use headwater_client::calls::Calls;
use headwater_client::leader::{Elector, Lease, Timing};
use headwater_client::{Error, Key};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::support::*;

/// A server with one lease that can be made to fail.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    down: Arc<Mutex<bool>>,
}

impl Server {
    fn client(&self) -> (Fake, kube::Client) {
        let server = self.clone();
        Fake::client(move |call| {
            if *server.down.lock().unwrap() {
                return Err(());
            }
            let mut lease = server.lease.lock().unwrap();
            let version = lease.as_ref().map_or(0, |known| {
                known["metadata"]["resourceVersion"].as_str().unwrap().parse::<u32>().unwrap()
            });
            match (call.method.as_str(), lease.as_mut()) {
                ("GET", None) => refused(404, "NotFound"),
                ("GET", Some(known)) => ok(known.clone()),
                ("POST", Some(_)) => refused(409, "AlreadyExists"),
                ("POST", None) => {
                    let mut made = call.body.clone();
                    made["metadata"]["resourceVersion"] = "1".into();
                    *lease = Some(made.clone());
                    ok(made)
                }
                ("PATCH", Some(known)) => {
                    if call.body["metadata"]["resourceVersion"]
                        != known["metadata"]["resourceVersion"]
                    {
                        return refused(409, "Conflict");
                    }
                    for (name, value) in call.body["spec"].as_object().unwrap() {
                        known["spec"][name] = value.clone();
                    }
                    known["metadata"]["resourceVersion"] = (version + 1).to_string().into();
                    ok(known.clone())
                }
                _ => refused(405, "MethodNotAllowed"),
            }
        })
    }

    fn spec(&self, field: &str) -> Value {
        self.lease.lock().unwrap().as_ref().unwrap()["spec"][field].clone()
    }
}

fn lease(identity: &str) -> Lease {
    Lease::named("op").namespace("n").identity(identity).clock(Arc::new(Ticking))
}

/// A clock that never returns the same time twice.
struct Ticking;

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        static TICKS: AtomicI64 = AtomicI64::new(0);
        Timestamp::from_second(TICKS.fetch_add(1, Ordering::Relaxed)).unwrap()
    }
}

/// C25.1
#[tokio::test(start_paused = true)]
async fn a_candidate_with_bad_times_or_without_identity_is_refused() {
    let calls = || Calls::new(nobody());
    assert!(Elector::new(calls(), lease("a")).is_ok());
    let bad = Timing { lease: 5 * SECOND, ..Timing::default() };
    assert!(matches!(Elector::new(calls(), lease("a").timing(bad)), Err(Error::Invalid(_))));
    assert!(matches!(Elector::new(calls(), lease("")), Err(Error::Invalid(_))));
}

/// C25.3, C25.4, C25.5, C25.6, C25.9
#[tokio::test(start_paused = true)]
async fn a_standby_takes_over_when_the_holder_stops_renewing() {
    const OBSERVED: Duration = Duration::from_secs(60);
    const LOOK: Duration = Duration::from_millis(100);
    let Timing { lease: lease_time, retry, .. } = Timing::default();
    let retry_max = Timing::default().retry_max();
    let server = Server::default();
    let (first_calls, first_client) = server.client();
    let (second_calls, second_client) = server.client();
    let first =
        Elector::new(Calls::new(first_client), lease("first").release_on_stop(false)).unwrap();
    let leaders = Journal::default();
    let list = leaders.clone();
    let second = Elector::new(Calls::new(second_client), lease("second"))
        .unwrap()
        .on_new_leader(move |name| list.note(name));
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let mut parts = JoinSet::new();
    let journal = Journal::default();
    let (a, b) = (journal.clone(), journal.clone());
    let stop = stop_first.clone();
    parts.spawn(async move {
        let work = |leadership: headwater_client::leader::Leadership| async move {
            a.note("first leads");
            leadership.ended().cancelled().await;
        };
        first.while_leading(stop, work).await.map(drop)
    });
    quiet().await;
    assert_eq!(server.spec("leaseTransitions"), 0);
    let acquired = server.spec("acquireTime");
    let stop = stop_second.clone();
    parts.spawn(async move {
        let work = |leadership: headwater_client::leader::Leadership| async move {
            b.note("second leads");
            leadership.ended().cancelled().await;
        };
        second.while_leading(stop, work).await.map(drop)
    });
    sleep(OBSERVED).await;
    assert_eq!(journal.take(), ["first leads"]);
    assert_eq!(server.spec("acquireTime"), acquired, "renewing keeps it");
    let renewals = first_calls.calls();
    let patches = renewals.iter().filter(|call| call.method == "PATCH").count();
    assert_eq!(patches as u128, OBSERVED.as_millis() / retry.as_millis(), "one each period");
    assert!(
        renewals.iter().filter(|call| call.method == "GET").count() <= 1,
        "no read before a write"
    );
    // The first immediately, the others with random delays.
    let attempts = second_calls.calls().len() as u128 - 1;
    let (few, many) = (OBSERVED.as_millis() / retry_max.as_millis(), patches as u128);
    assert!((few..=many).contains(&attempts), "{retry:?} to {retry_max:?} apart: {attempts}");
    stop_first.cancel();
    let before = Instant::now();
    while journal.len() == 0 {
        sleep(LOOK).await;
    }
    let silence = before.elapsed();
    // When the holder stops, its last renewal may be one retry period old. The standby reads it up
    // to one retry period later, waits for the lease duration, and may have just started another
    // retry period then. Timers round up to milliseconds, and the test polls.
    let shortest = lease_time - retry;
    let longest = lease_time + 2 * retry_max + LOOK + Duration::from_millis(10);
    assert!((shortest..=longest).contains(&silence), "{silence:?}: {shortest:?} to {longest:?}");
    assert_eq!(server.spec("leaseTransitions"), 1);
    assert_ne!(server.spec("acquireTime"), acquired);
    assert_eq!(leaders.take(), ["first", "second"]);
}

/// C25.4, C25.8, C25.11
#[tokio::test(start_paused = true)]
async fn work_is_cancelled_when_leadership_is_lost() {
    let server = Server::default();
    let (_fake, client) = server.client();
    let elector = Elector::new(Calls::new(client), lease("a")).unwrap();
    let health = elector.health();
    let dropped = Arc::new(Notify::new());
    let signal = Arc::clone(&dropped);
    let mut parts = JoinSet::new();
    parts.spawn(elector.while_leading(CancellationToken::new(), move |_| async move {
        let _guard = Signal(signal);
        std::future::pending::<()>().await;
    }));
    sleep(5 * SECOND).await;
    assert!(health.is_leading());
    assert!(health.check(SECOND).is_ok());
    *server.down.lock().unwrap() = true;
    let before = Instant::now();
    dropped.notified().await;
    let took = before.elapsed();
    assert!((8 * SECOND..=10 * SECOND).contains(&took), "within the renew deadline: {took:?}");
    let ended = parts.join_next().await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::LostLeadership)));
    assert!(!health.is_leading());
}

struct Signal(Arc<Notify>);

impl Drop for Signal {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// C25.7, C25.8
#[tokio::test(start_paused = true)]
async fn the_lease_is_released_only_after_the_work_has_ended() {
    let server = Server::default();
    let (_fake, client) = server.client();
    let elector = Elector::new(Calls::new(client), lease("a")).unwrap();
    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
    let view = server.clone();
    parts.spawn(elector.while_leading(stop.clone(), move |leadership| async move {
        leadership.ended().cancelled().await;
        sleep(20 * SECOND).await; // cleaning up takes longer than the lease
        assert_eq!(view.spec("holderIdentity"), "a", "still ours while we work");
        "done"
    }));
    sleep(5 * SECOND).await;
    stop.cancel();
    let ended = parts.join_next().await.unwrap().unwrap();
    assert_eq!(ended.unwrap(), Some("done"));
    assert_eq!(
        (server.spec("holderIdentity"), server.spec("leaseDurationSeconds")),
        (json!(""), json!(1))
    );
    let (_fake, client) = server.client();
    let next = Elector::new(Calls::new(client), lease("b")).unwrap();
    let before = Instant::now();
    let stop = CancellationToken::new();
    next.while_leading(stop.clone(), |_| async {}).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO, "another need not wait");
}

/// S11.22
/// C25.6 over HTTP
#[tokio::test]
async fn a_lease_is_held_and_released_on_a_real_server() {
    let api = Api::start().await;
    let calls = Calls::new(api.client.clone());
    let key = Key::namespaced("default", "op");
    let elector = Elector::new(calls.clone(), Lease::named("op").identity("me")).unwrap();
    let stop = CancellationToken::new();
    let inside = calls.clone();
    let held = key.clone();
    let holder = elector
        .while_leading(stop, |_| async move {
            let lease = inside.of::<LeaseObject>().get(&held).await.unwrap().unwrap();
            lease.spec.unwrap().holder_identity.unwrap()
        })
        .await
        .unwrap();
    assert_eq!(holder.as_deref(), Some("me"));
    let lease = calls.of::<LeaseObject>().get(&key).await.unwrap().unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}
