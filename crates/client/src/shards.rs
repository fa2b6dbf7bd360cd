//! Sharding: the copies of a program share the shards of a collection.
//!
//! River: member leases, shard leases → **sharding** → a factory for each shard → controllers.
//! Every copy renews a lease as a member and computes from the members and the present holders who
//! should hold which shard; a lease for each shard decides who does.
//! Promise: the work on a shard runs in one copy at a time, as with one leader (see [`crate::leader`]);
//! every shard is held while a copy lives; copies hold the same number, give or take one; a copy that
//! joins or dies moves no more shards than that requires.

mod plan;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::{Clock, SystemClock, clock};
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::error::Error;
use crate::factory::Factory;
use crate::indexer::Snapshot;
use crate::key::Key;
use crate::leader::{Elector, Lease, Timing};
use crate::object::Cached;

use self::plan::{Claims, owners};

/// Shares the shards of a collection among the copies of a program.
///
/// ```no_run
/// use headwater_client::{Factory, manager::Manager, shards::Sharding};
///
/// # async fn example(factory: Factory) -> Result<(), headwater_client::Error> {
/// let sharding = Sharding::new(factory, "shop-operator", 16).namespace("shop");
/// sharding
///     .run_until(async { tokio::signal::ctrl_c().await.ok(); }, |factory, stop| async move {
///         // Informers of this factory hold one shard. Open them, make controllers, run them:
///         Manager::new(factory).run_until(stop.cancelled_owned()).await
///     })
///     .await
/// # }
/// ```
#[must_use = "nothing happens before `run_until`"]
pub struct Sharding {
    factory: Factory,
    calls: Calls,
    name: String,
    namespace: String,
    identity: String,
    count: u32,
    timing: Timing,
    clock: Arc<dyn Clock>,
}

/// The label of all leases of one sharding.
const LABEL: &str = "headwater.dev/sharding";
/// The maximum number of shards: each is a lease that is renewed.
const COUNT_MAX: u32 = 1024;

impl Sharding {
    /// A number of shards, which all copies must agree on, under a name. The identity is the host
    /// name by default; it must differ between copies.
    pub fn new(factory: Factory, name: impl Into<String>, count: u32) -> Sharding {
        let calls = Calls::new(factory.client().clone());
        Sharding {
            factory,
            calls,
            name: name.into(),
            namespace: "default".to_owned(),
            identity: std::env::var("HOSTNAME").unwrap_or_default(),
            count,
            timing: Timing::default(),
            clock: Arc::new(SystemClock),
        }
    }

    /// The namespace of the leases.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Sharding {
        self.namespace = namespace.into();
        self
    }

    /// The identity of this copy: part of the name of a lease, different in every copy.
    pub fn identity(mut self, identity: impl Into<String>) -> Sharding {
        self.identity = identity.into();
        self
    }

    /// The timing of the elections.
    pub fn timing(mut self, timing: Timing) -> Sharding {
        self.timing = timing;
        self
    }

    /// The clock for the time stamps of the leases.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Sharding {
        self.clock = clock;
        self
    }

    /// Runs `work` for every shard that this copy holds, with a factory of that shard, until `stop`
    /// completes. Work must end soon after its token is cancelled; if the lease of its shard is lost,
    /// its future is dropped.
    ///
    /// # Errors
    /// The first error of work, which ends the work on all shards of this copy. [`Error::Invalid`]
    /// for a number of shards below 1 or above 1,024, an inconsistent timing, or no identity.
    pub async fn run_until<F>(
        self,
        stop: impl Future<Output = ()>,
        work: impl Fn(Factory, CancellationToken) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        if self.count == 0 || self.count > COUNT_MAX {
            return Err(Error::Invalid(format!("{} shards: must be 1 to {COUNT_MAX}", self.count)));
        }
        self.elector(0)?; // refuses what is invalid
        let mut running = RunningShards {
            sharding: Arc::new(self),
            claims: Claims::default(),
            held: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        let done = tokio::select! {
            biased;
            () = stop => Ok(()),
            done = running.follow(work) => done,
        };
        let ended = running.end().await;
        done.and(ended)
    }

    fn elector(&self, index: u32) -> Result<Elector, Error> {
        let lease = Lease::named(self.lease_name(index))
            .namespace(&self.namespace)
            .identity(&self.identity)
            .timing(self.timing)
            .label(LABEL, &self.name)
            .clock(Arc::clone(&self.clock));
        Elector::new(self.calls.clone(), lease)
    }

    fn lease_name(&self, index: u32) -> String {
        format!("{}-shard-{index}-of-{}", self.name, self.count)
    }

    fn key(&self, index: u32) -> Key {
        Key::namespaced(&self.namespace, &self.lease_name(index))
    }

    fn member_name(&self) -> String {
        format!("{}-member-{}", self.name, self.identity)
    }

    /// Renews the lease of this copy as a member.
    async fn join(&self) -> Result<(), Error> {
        let leases = self.calls.of::<LeaseObject>();
        let spec = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.lease.as_secs(),
            "renewTime": clock::rfc3339_micro(self.clock.now()),
        });
        let name = self.member_name();
        let patch = json!({ "spec": spec });
        match leases.merge(&Key::namespaced(&self.namespace, &name), &patch).await {
            Err(error) if error.is_not_found() => {}
            done => return done.map(drop),
        }
        let labels = json!({ LABEL: self.name });
        let made = json!({
            "metadata": { "name": name, "namespace": self.namespace, "labels": labels },
            "spec": spec,
        });
        let made: LeaseObject = serde_json::from_value(made).map_err(|error| {
            Error::Invalid(format!("the lease of a member cannot be made: {error}"))
        })?;
        leases.create(&made).await.map(drop)
    }

    /// Leaves at once, so that others need not wait.
    async fn leave(&self) {
        let key = Key::namespaced(&self.namespace, &self.member_name());
        let _ = self.calls.of::<LeaseObject>().delete(&key).await;
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({}/{} as {})", self.namespace, self.name, self.identity)
    }
}

/// The shards that this copy holds or waits for.
struct RunningShards {
    sharding: Arc<Sharding>,
    claims: Claims,
    held: BTreeMap<u32, CancellationToken>,
    tasks: JoinSet<(u32, Result<(), Error>)>,
}

/// How long a first look at the leases may take.
const FIRST_LOOK: Duration = Duration::from_secs(60);
/// The lease of a member that is silent for this many durations is deleted.
const FORGOTTEN_AFTER: u32 = 4;

impl RunningShards {
    /// Holds the shards that this copy should hold, until work fails.
    async fn follow<F>(
        &mut self,
        work: impl Fn(Factory, CancellationToken) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let sharding = Arc::clone(&self.sharding);
        let factory = Factory::new(sharding.factory.client().clone());
        let leases = factory
            .informer::<LeaseObject>()
            .namespace(&sharding.namespace)
            .labels(format!("{LABEL}={}", sharding.name))
            .open()?;
        let caches = CancellationToken::new();
        let _stop = caches.clone().drop_guard();
        let look = async {
            factory.synced(FIRST_LOOK).await?;
            loop {
                self.round(&leases.snapshot(), &work).await?;
                let round = sleep(sharding.timing.retry);
                tokio::select! {
                    () = round => {}
                    Some(ended) = self.tasks.join_next() => self.ended(ended)?,
                }
            }
        };
        tokio::select! {
            ran = factory.run(caches.clone()) => ran,
            failed = look => failed,
        }
    }

    /// Renews the membership, then begins and ends work as the leases say.
    async fn round<F>(
        &mut self,
        leases: &Snapshot<LeaseObject>,
        work: &(impl Fn(Factory, CancellationToken) -> F + Clone + Send + Sync + 'static),
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let sharding = Arc::clone(&self.sharding);
        if let Err(error) = sharding.join().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(?sharding, error, "cannot renew the membership; retrying");
        }
        let now = Instant::now();
        let versions = leases
            .iter()
            .map(|(key, lease)| (key.name().to_owned(), lease.resource_version().to_string()));
        self.claims.observe(&versions.collect(), now);
        let (members, forgotten) = self.members(leases, now);
        if members.first() == Some(&sharding.identity) {
            for name in forgotten {
                let key = Key::namespaced(&sharding.namespace, &name);
                let _ = sharding.calls.of::<LeaseObject>().delete(&key).await;
            }
        }
        let holders: Vec<Option<String>> =
            (0..sharding.count).map(|index| holder(leases, &sharding.key(index))).collect();
        let wanted = owners(&members, &holders);
        for (index, owner) in (0..).zip(wanted) {
            if owner.as_ref() != Some(&sharding.identity) {
                self.held.get(&index).inspect(|stop| stop.cancel());
            } else if let Entry::Vacant(free) = self.held.entry(index) {
                let stop = free.insert(CancellationToken::new()).clone();
                let run = lead(Arc::clone(&sharding), index, stop, work.clone());
                self.tasks.spawn(async move { (index, run.await) });
            }
        }
        Ok(())
    }

    /// The members that live, this copy included, and the leases of those that have been dead for
    /// long.
    fn members(
        &self,
        leases: &Snapshot<LeaseObject>,
        now: Instant,
    ) -> (BTreeSet<String>, Vec<String>) {
        let Sharding { name, timing, identity, .. } = &*self.sharding;
        let (prefix, mut forgotten) = (format!("{name}-member-"), Vec::new());
        let mut members = BTreeSet::from([identity.clone()]);
        for (key, _) in leases.iter() {
            let Some(member) = key.name().strip_prefix(&prefix) else { continue };
            let silent = self.claims.silent_for(key.name(), now);
            if silent < timing.lease {
                members.insert(member.to_owned());
            } else if silent >= timing.lease * FORGOTTEN_AFTER && member != identity {
                forgotten.push(key.name().to_owned());
            }
        }
        (members, forgotten)
    }

    /// The work on a shard ended: it was given up, or it failed.
    fn ended(
        &mut self,
        ended: Result<(u32, Result<(), Error>), tokio::task::JoinError>,
    ) -> Result<(), Error> {
        match ended {
            Ok((index, result)) => {
                self.held.remove(&index);
                result
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Ok(()), // nothing aborts these tasks
            },
        }
    }

    /// Ends the work on all shards, then leaves.
    async fn end(mut self) -> Result<(), Error> {
        self.held.values().for_each(CancellationToken::cancel);
        let mut first = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            first = first.and(self.ended(ended));
        }
        self.sharding.leave().await;
        first
    }
}

/// Who holds a lease.
fn holder(leases: &Snapshot<LeaseObject>, key: &Key) -> Option<String> {
    let holder = leases.get(key)?.spec.as_ref()?.holder_identity.clone();
    holder.filter(|holder| !holder.is_empty())
}

/// Works on a shard whenever this copy holds its lease, until `stop`.
async fn lead<F>(
    sharding: Arc<Sharding>,
    index: u32,
    stop: CancellationToken,
    work: impl Fn(Factory, CancellationToken) -> F + Send + Sync + 'static,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    while !stop.is_cancelled() {
        let factory = sharding.factory.shard(index, sharding.count)?;
        let elector = sharding.elector(index)?;
        let led = elector
            .while_leading(stop.clone(), |leadership| work(factory, leadership.ended().clone()))
            .await;
        match led {
            Ok(None | Some(Ok(()))) => return Ok(()),
            Ok(Some(Err(error))) => return Err(error),
            Err(Error::LostLeadership) => {
                tracing::warn!(?sharding, index, "lost a shard; its work was dropped");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
