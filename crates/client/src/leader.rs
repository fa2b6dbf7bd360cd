//! Leader election with a Lease: one of several replicas works.
//!
//! River: lease → **leader election** → manager.
//! Promise: two replicas never lead at the same time if their clock rates differ by less than the
//! margin of the timing; work ends before the lease is released; a standby keeps its caches filled,
//! so that it takes over without a list.

mod machine;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use headwater_api::{Clock, SystemClock, clock};
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::error::Error;
use crate::key::Key;
use crate::object::Cached;
use crate::random::Random;

pub use self::machine::Timing;
use self::machine::{Election, Intent, JITTER, Record};

/// A lease to hold: its name, the identity of this replica and the timing.
#[derive(Clone)]
pub struct Lease {
    name: String,
    namespace: String,
    identity: String,
    timing: Timing,
    release_on_stop: bool,
    labels: BTreeMap<String, String>,
    clock: Arc<dyn Clock>,
}

impl Lease {
    /// A lease with this name in the namespace `default`. The identity is the host name by default;
    /// it must differ between replicas.
    pub fn named(name: impl Into<String>) -> Lease {
        Lease {
            name: name.into(),
            namespace: "default".to_owned(),
            identity: std::env::var("HOSTNAME").unwrap_or_default(),
            timing: Timing::default(),
            release_on_stop: true,
            labels: BTreeMap::new(),
            clock: Arc::new(SystemClock),
        }
    }

    /// The namespace of the lease.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Lease {
        self.namespace = namespace.into();
        self
    }

    /// The identity of this replica; it must differ between replicas.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<String>) -> Lease {
        self.identity = identity.into();
        self
    }

    /// The timing of the election.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Lease {
        self.timing = timing;
        self
    }

    /// Whether to release the lease at stop, so that another replica need not wait; true by
    /// default.
    #[must_use]
    pub fn release_on_stop(mut self, yes: bool) -> Lease {
        self.release_on_stop = yes;
        self
    }

    /// The labels of the lease, if this replica creates it.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Lease {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// The clock for the time stamps of the lease.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Lease {
        self.clock = clock;
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}/{} as {})", self.namespace, self.name, self.identity)
    }
}

/// A candidate for a lease.
pub struct Elector {
    calls: Calls,
    lease: Lease,
    random: Random,
    machine: Arc<Mutex<Election>>,
    observers: Vec<Observer>,
}

type Observer = Box<dyn Fn(&str) + Send + Sync>;

/// The health of a candidate. Cheap to clone.
#[derive(Clone)]
pub struct LeaderHealth {
    machine: Arc<Mutex<Election>>,
}

impl LeaderHealth {
    /// Whether this replica leads.
    pub fn is_leading(&self) -> bool {
        lock(&self.machine).is_leading(Instant::now())
    }

    /// Fails if this replica leads and has not renewed for the lease duration plus a tolerance.
    ///
    /// # Errors
    /// [`Error::LostLeadership`].
    pub fn check(&self, tolerance: Duration) -> Result<(), Error> {
        match lock(&self.machine).is_overdue(Instant::now(), tolerance) {
            true => Err(Error::LostLeadership),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for LeaderHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderHealth").field("leading", &self.is_leading()).finish()
    }
}

fn lock(machine: &Mutex<Election>) -> MutexGuard<'_, Election> {
    machine.lock().expect("no code panics while it is held")
}

/// The leadership of this replica.
#[derive(Clone, Debug)]
pub struct Leadership {
    lost: CancellationToken,
}

impl Leadership {
    /// Cancelled when leadership is lost, or at stop.
    pub fn ended(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Elector {
    /// A candidate for a lease.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the timing is inconsistent or there is no identity.
    pub fn new(calls: Calls, lease: Lease) -> Result<Elector, Error> {
        if let Some(problem) = lease.timing.problem() {
            return Err(Error::Invalid(problem));
        }
        if lease.identity.is_empty() {
            return Err(Error::Invalid(
                "the lease has no identity; set HOSTNAME or Lease::identity".to_owned(),
            ));
        }
        let machine = Election::new(&lease.identity, lease.timing);
        Ok(Elector {
            calls,
            lease,
            random: Random::from_entropy(),
            machine: Arc::new(Mutex::new(machine)),
            observers: Vec::new(),
        })
    }

    /// Calls `observer` for each new leader, including the first.
    #[must_use]
    pub fn on_new_leader(mut self, observer: impl Fn(&str) + Send + Sync + 'static) -> Elector {
        self.observers.push(Box::new(observer));
        self
    }

    /// The health of this candidate.
    pub fn health(&self) -> LeaderHealth {
        LeaderHealth { machine: Arc::clone(&self.machine) }
    }

    /// Waits for leadership, then runs `work`. When leadership is lost, the future of `work` is
    /// dropped. At stop, the token of [`Leadership`] is cancelled, `work` is awaited, and then the
    /// lease is released.
    ///
    /// # Errors
    /// [`Error::LostLeadership`] if leadership was lost. The result is `None` if `stop` was
    /// cancelled before leadership was acquired.
    pub async fn while_leading<F: Future>(
        self,
        stop: CancellationToken,
        work: impl FnOnce(Leadership) -> F,
    ) -> Result<Option<F::Output>, Error> {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            () = self.acquire() => {}
        }
        let ended = stop.child_token();
        let working = work(Leadership { lost: ended.clone() });
        let output = {
            let mut working = pin!(working);
            tokio::select! {
                biased;
                output = &mut working => Ok(output),
                () = self.keep() => Err(Error::LostLeadership),
            }
        };
        ended.cancel();
        if output.is_ok() && self.lease.release_on_stop {
            self.release().await;
        }
        lock(&self.machine).give_up();
        output.map(Some)
    }

    fn calls(&self) -> crate::calls::Collection<LeaseObject> {
        self.calls.of::<LeaseObject>()
    }

    fn key(&self) -> Key {
        Key::namespaced(&self.lease.namespace, &self.lease.name)
    }

    /// Tries until this replica holds the lease.
    async fn acquire(&self) {
        loop {
            if self.try_once().await {
                return;
            }
            let retry = self.lease.timing.retry;
            sleep(retry + self.random.part_of(retry, JITTER)).await;
        }
    }

    /// Renews the lease until the deadline passes without success.
    async fn keep(&self) {
        loop {
            let lost_at = lock(&self.machine).lost_at().unwrap_or_else(Instant::now);
            let again = async {
                sleep(self.lease.timing.retry).await;
                while !self.renew().await {
                    sleep(self.lease.timing.retry).await;
                }
            };
            tokio::select! {
                biased;
                () = again => {}
                () = sleep_until(lost_at) => return,
            }
        }
    }

    /// Renews once: first with the known version, then after a read.
    async fn renew(&self) -> bool {
        let known = lock(&self.machine).record().cloned();
        if let Some(record) = known.filter(|record| record.holder == self.lease.identity)
            && self.write(&record, record.transitions).await
        {
            return true;
        }
        self.try_once().await
    }

    /// Reads the lease and acts on it; returns whether this replica holds it.
    async fn try_once(&self) -> bool {
        let Ok(read) = self.calls().get(&self.key()).await else { return false };
        let record = read.as_ref().map(record_of);
        let (intent, new_leader) = {
            let mut machine = lock(&self.machine);
            machine.observe(record.clone(), Instant::now());
            (machine.intent(Instant::now()), machine.new_leader())
        };
        if let Some(leader) = new_leader {
            self.notify_observers(&leader);
        }
        match (intent, record) {
            (Intent::Create, _) => self.create().await,
            (Intent::TakeOver { transitions }, Some(record)) => {
                self.write(&record, transitions).await
            }
            (Intent::Renew, Some(record)) => self.write(&record, record.transitions).await,
            _ => false,
        }
    }

    fn notify_observers(&self, leader: &str) {
        for observer in &self.observers {
            observer(leader);
        }
    }

    async fn create(&self) -> bool {
        let started = Instant::now();
        let now = clock::rfc3339_micro(self.lease.clock.now());
        let object = json!({
            "metadata": {
                "name": self.lease.name,
                "namespace": self.lease.namespace,
                "labels": self.lease.labels,
            },
            "spec": self.spec(&now, &now, 0),
        });
        let Ok(object) = serde_json::from_str(&object.to_string()) else { return false };
        let made = self.calls().create(&object).await;
        self.finish_write(made, started)
    }

    /// Writes this replica as the holder, if the lease has not changed.
    async fn write(&self, known: &Record, transitions: u32) -> bool {
        let started = Instant::now();
        let now = clock::rfc3339_micro(self.lease.clock.now());
        let renewing = known.holder == self.lease.identity;
        let acquired = if renewing { known.acquired.clone() } else { now.clone() };
        let patch = json!({
            "metadata": {"resourceVersion": known.version},
            "spec": self.spec(&acquired, &now, transitions),
        });
        let written = self.calls().merge(&self.key(), &patch).await;
        self.finish_write(written, started)
    }

    fn finish_write(&self, written: Result<LeaseObject, Error>, started: Instant) -> bool {
        let Ok(object) = written else { return false };
        let mut machine = lock(&self.machine);
        machine.succeeded(record_of(&object), started);
        let new_leader = machine.new_leader();
        drop(machine);
        if let Some(leader) = new_leader {
            self.notify_observers(&leader);
        }
        true
    }

    fn spec(&self, acquired: &str, renewed: &str, transitions: u32) -> Value {
        json!({
            "holderIdentity": self.lease.identity,
            "leaseDurationSeconds": self.lease.timing.lease.as_secs(),
            "acquireTime": acquired,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        })
    }

    /// Releases the lease, so that another replica can acquire it at once.
    async fn release(&self) {
        let Some(known) = lock(&self.machine).record().cloned() else { return };
        let now = clock::rfc3339_micro(self.lease.clock.now());
        let patch = json!({
            "metadata": {"resourceVersion": known.version},
            "spec": {
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": now,
                "acquireTime": now,
                "leaseTransitions": known.transitions,
            },
        });
        let release = async { self.calls().merge(&self.key(), &patch).await.map(drop) };
        if !matches!(timeout(self.lease.timing.retry, release).await, Ok(Ok(()))) {
            tracing::warn!(lease = ?self.lease, "cannot release the lease; other replicas wait until it expires");
        }
    }
}

fn record_of(object: &LeaseObject) -> Record {
    let spec = object.spec.clone().unwrap_or_default();
    let time = |time: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>| {
        time.map(|time| clock::rfc3339_micro(time.0)).unwrap_or_default()
    };
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        lease_seconds: spec.lease_duration_seconds.and_then(|s| u32::try_from(s).ok()).unwrap_or(0),
        transitions: spec.lease_transitions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        acquired: time(spec.acquire_time),
        renewed: time(spec.renew_time),
        version: object.resource_version().to_string(),
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elector({:?})", self.lease)
    }
}
