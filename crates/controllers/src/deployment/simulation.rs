//! Simulated rollouts with random strategies: each completes and respects its limits throughout.
//!
//! Pods are simulated by two rules: a set has its desired number of pods at once, each becomes
//! available some time later; when a set shrinks, unavailable pods are removed first.

use std::sync::Arc;

use headwater_api::random::Random;
use headwater_client::Cached;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::time;

use super::rollout::{Rollout, SetWrite, limits, max_unavailable};
use super::sets::{ReplicaSets, available, replicas, revision, spec};
use super::status::{SyncResult, is_complete, status};
use super::tests::{deployment, with};

/// A rollout that takes more passes than this is stuck.
const PASSES_MAX: usize = 500;

struct World {
    deployment: Deployment,
    sets: Vec<Arc<ReplicaSet>>,
    created: i64,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let random = Random::seeded(seed);
        let (surge, unavailable) = (random.between(0, 4), random.between(0, 4));
        let recreate = random.between(0, 5) == 0;
        let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        let strategy = match recreate {
            true => json!({"type": "Recreate"}),
            false => json!({"type": "RollingUpdate", "rollingUpdate": rolling}),
        };
        let size = i32::try_from(random.between(1, 12)).unwrap();
        let deployment = with(
            deployment(size, "v1"),
            json!({"spec": {"strategy": strategy, "revisionHistoryLimit": 2}}),
        );
        World { deployment, sets: Vec::new(), created: 0, random }
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.between(0, 100) < percent
    }

    fn choose_image(&mut self) {
        let image = format!("v{}", self.random.between(1, 5));
        let containers = json!([{"name": "c", "image": image}]);
        let change = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        self.deployment = with(self.deployment.clone(), change);
    }

    fn choose_size(&mut self) {
        let size = self.random.between(0, 12);
        self.deployment = with(self.deployment.clone(), json!({"spec": {"replicas": size}}));
    }

    /// One pass of the controller; returns whether it wrote anything.
    fn pass(&mut self) -> bool {
        let sets = ReplicaSets::of(&self.deployment, &self.sets);
        let counted =
            status(&self.deployment, &sets, &SyncResult::StatusOnly, jiff::Timestamp::UNIX_EPOCH);
        let rollout = Rollout {
            deployment: &self.deployment,
            sets: &sets,
            old_pods_run: sets.old.iter().any(|set| super::sets::counts(set).replicas > 0),
            is_complete: is_complete(&self.deployment, &counted),
        };
        let writes = rollout.writes();
        let wrote = !writes.is_empty();
        for write in writes {
            self.apply(write);
        }
        wrote
    }

    fn apply(&mut self, write: SetWrite) {
        match write {
            SetWrite::Create(mut set) => {
                self.created += 1;
                let time = time::after(jiff::Timestamp::UNIX_EPOCH, self.created);
                set.metadata.creation_timestamp = Some(Time(time));
                let known = self.sets.iter().any(|known| known.name() == set.name());
                assert!(!known, "a set is created once");
                self.sets.push(Arc::new(*set));
            }
            SetWrite::Update { set, size, annotations } => {
                self.change(set.name(), |set| {
                    set.spec.as_mut().unwrap().replicas = Some(size);
                    set.metadata.annotations = Some(annotations);
                });
            }
            SetWrite::Delete(gone) => {
                assert_eq!(replicas(&gone), 0);
                self.sets.retain(|set| set.name() != gone.name());
            }
        }
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut ReplicaSet)) {
        let set = self.sets.iter_mut().find(|set| set.name() == name).unwrap();
        change(Arc::make_mut(set));
    }

    /// Lets the pods follow the sizes of their sets.
    fn pods(&mut self) {
        let names: Vec<String> = self.sets.iter().map(|set| set.name().to_owned()).collect();
        for name in names {
            let arrivals = i32::try_from(self.random.between(0, 4)).unwrap();
            self.change(&name, |set| {
                let wanted = replicas(set);
                let now = (available(set) + arrivals).min(wanted);
                let status = set.status.get_or_insert_default();
                (status.replicas, status.available_replicas) = (wanted, Some(now));
            });
        }
    }

    fn total(&self) -> i32 {
        self.sets.iter().map(|set| replicas(set)).sum()
    }

    fn available(&self) -> i32 {
        self.sets.iter().map(|set| available(set).min(replicas(set))).sum()
    }

    fn is_rolled_out(&self) -> bool {
        let sets = ReplicaSets::of(&self.deployment, &self.sets);
        let desired = limits(&self.deployment).desired;
        let full = |set: &Arc<ReplicaSet>| replicas(set) == desired && available(set) == desired;
        sets.new.as_ref().is_some_and(full) && sets.old_active().next().is_none()
    }

    /// Runs passes until no write is due; calls `check` after each.
    fn settle(&mut self, mut check: impl FnMut(&mut World)) {
        for _ in 0..PASSES_MAX {
            let wrote = self.pass();
            check(self);
            self.pods();
            if !wrote && self.is_rolled_out() && !self.pass() {
                return;
            }
        }
        panic!("{:?} never ends: {:?}", spec(&self.deployment).strategy, self.sizes());
    }

    fn sizes(&self) -> Vec<(String, i32, i32)> {
        let each = self.sets.iter();
        each.map(|set| (set.name().to_owned(), replicas(set), available(set))).collect()
    }
}

#[test]
fn a_rollout_respects_its_limits_even_if_another_one_overtakes_it() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.settle(|_| ());
        let most = limits(&world.deployment).max;
        let unavailable = max_unavailable(spec(&world.deployment));
        let recreate = super::rollout::is_recreate(spec(&world.deployment));
        let least = limits(&world.deployment).desired - unavailable;
        for _ in 0..4 {
            world.choose_image();
            world.settle(|world| {
                assert!(world.total() <= most, "seed {seed}: {:?} > {most}", world.sizes());
                let enough = recreate || world.available() >= least;
                assert!(enough, "seed {seed}: {:?} < {least}", world.sizes());
                if world.chance(10) {
                    world.choose_image();
                }
            });
            let sets = ReplicaSets::of(&world.deployment, &world.sets);
            let newest = sets.all().map(|set| revision(set)).max();
            assert_eq!(sets.new.as_ref().map(|set| revision(set)), newest, "seed {seed}");
            assert!(sets.old.len() <= 2, "seed {seed}: {:?}", world.sizes());
        }
    }
}

#[test]
fn a_rollout_that_is_scaled_midway_completes() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.settle(|_| ());
        for _ in 0..4 {
            world.choose_image();
            let mut changes = 5;
            world.settle(|world| {
                if changes > 0 && world.chance(30) {
                    changes -= 1;
                    world.choose_size();
                }
            });
            assert_eq!(world.total(), limits(&world.deployment).desired, "seed {seed}");
        }
    }
}
