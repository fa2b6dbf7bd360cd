//! The scheduler's own picture of the cluster: rooms and who is in them.
//!
//! River: informers → **cache** → decisions.
//! Promise: what was decided counts from the moment it was, long before a watch tells of it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::Node;

use super::amount::Amounts;
use super::ask::{Ask, Port};
use super::budgets::Budgets;
use super::reason::Happened;

/// A node and the pods on it.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// `None` while only pods say that there is such a node.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) have: Amounts,
    pub(crate) pods_max: usize,
    pub(crate) used: Amounts,
    /// CPU and memory in use, for scoring.
    pub(crate) counted: (i64, i64),
    pub(crate) pods: BTreeMap<Key, Arc<Ask>>,
    /// How many pods each controller has here, by its UID.
    owners: HashMap<String, usize>,
}

/// All rooms.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    rooms: BTreeMap<String, Room>,
    placed: HashMap<Key, Place>,
    /// Pods that wait for others to leave a room.
    nominated: BTreeMap<Key, (String, Arc<Ask>)>,
    /// Pods in rooms that keep others at a distance.
    distant: BTreeMap<Key, String>,
    pub(crate) budgets: Budgets,
}

#[derive(Debug)]
struct Place {
    room: String,
    is_assumed: bool,
}

impl Room {
    fn enter(&mut self, ask: &Arc<Ask>) {
        self.used.add(&ask.requests);
        self.counted.0 += ask.counted.0;
        self.counted.1 += ask.counted.1;
        if let Some(owner) = ask.pod.controller_uid() {
            *self.owners.entry(owner.to_owned()).or_default() += 1;
        }
        self.pods.insert(ask.key.clone(), Arc::clone(ask));
    }

    fn leave(&mut self, key: &Key) -> Option<Arc<Ask>> {
        let ask = self.pods.remove(key)?;
        self.used.subtract(&ask.requests);
        self.counted.0 -= ask.counted.0;
        self.counted.1 -= ask.counted.1;
        if let Some(owner) = ask.pod.controller_uid()
            && let Some(count) = self.owners.get_mut(owner)
        {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(owner);
            }
        }
        Some(ask)
    }

    pub(crate) fn name(&self) -> &str {
        self.node.as_deref().map_or("", Cached::name)
    }

    /// A label of the node.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.node.as_ref()?.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn owned_by(&self, uid: &str) -> usize {
        self.owners.get(uid).copied().unwrap_or(0)
    }

    pub(crate) fn takes(&self, port: &Port) -> bool {
        self.pods.values().flat_map(|ask| &ask.ports).any(|taken| taken.clashes(port))
    }

    /// The same room without some of its pods, to see what would be.
    pub(crate) fn without(&self, gone: impl Fn(&Ask) -> bool) -> Room {
        let mut room = Room {
            node: self.node.clone(),
            have: self.have.clone(),
            pods_max: self.pods_max,
            ..Room::default()
        };
        self.pods.values().filter(|ask| !gone(ask)).for_each(|ask| room.enter(ask));
        room
    }

    /// Puts a pod back in, to see whether it can stay.
    pub(crate) fn with(&mut self, ask: &Arc<Ask>) {
        self.enter(ask);
    }

    pub(crate) fn again_without(&mut self, key: &Key) {
        self.leave(key);
    }
}

impl Cache {
    /// The rooms that pods can be placed in, beginning after a name and going round.
    pub(crate) fn rooms_after<'a>(&'a self, last: &str) -> impl Iterator<Item = &'a Room> {
        let after = self.rooms.range::<str, _>((Excluded(last), Unbounded));
        let before = self.rooms.range::<str, _>((Unbounded, Included(last)));
        after.chain(before).map(|(_, room)| room).filter(|room| room.node.is_some())
    }

    pub(crate) fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.rooms.values().filter(|room| room.node.is_some())
    }

    pub(crate) fn room(&self, name: &str) -> Option<&Room> {
        self.rooms.get(name)
    }

    /// Pods in rooms that keep others at a distance, with their rooms.
    pub(crate) fn distant(&self) -> impl Iterator<Item = (&Arc<Ask>, &Room)> {
        self.distant.iter().filter_map(|(key, name)| {
            let room = self.rooms.get(name)?;
            Some((room.pods.get(key)?, room))
        })
    }

    /// Pods that wait for others to leave a room.
    pub(crate) fn nominated<'a>(&'a self, room: &str) -> impl Iterator<Item = &'a Arc<Ask>> {
        self.nominated.values().filter(move |(name, _)| name == room).map(|(_, ask)| ask)
    }

    pub(crate) fn has_nominated(&self) -> bool {
        !self.nominated.is_empty()
    }

    pub(crate) fn nominate(&mut self, ask: &Arc<Ask>, room: &str) {
        self.nominated.insert(ask.key.clone(), (room.to_owned(), Arc::clone(ask)));
    }

    pub(crate) fn withdraw(&mut self, key: &Key) {
        self.nominated.remove(key);
    }

    /// A node is there; what happened to it that pods look at.
    pub(crate) fn set_node(&mut self, node: &Arc<Node>) -> Happened {
        let room = self.rooms.entry(node.name().to_owned()).or_default();
        let before = room.node.replace(Arc::clone(node));
        let matters = before.is_none_or(|before| !looks_the_same(&before, node));
        if !matters {
            return Happened::NOTHING;
        }
        let status = node.status.as_ref();
        let all = status.and_then(|status| status.allocatable.as_ref());
        room.have = all.map(Amounts::of).unwrap_or_default();
        let pods = room.have.others.remove("pods").unwrap_or(0);
        room.pods_max = usize::try_from(pods).unwrap_or(0);
        Happened::NODE
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(room) = self.rooms.get_mut(name) {
            room.node = None;
            if room.pods.is_empty() {
                self.rooms.remove(name);
            }
        }
    }

    /// A pod is on a node, as the server says; what that means for others.
    pub(crate) fn place(&mut self, ask: &Arc<Ask>, room: &str) -> Happened {
        let known = self.placed.get(&ask.key).filter(|place| place.room == room);
        let is_news = known.is_none_or(|place| place.is_assumed);
        let there = self.rooms.get(room).and_then(|room| room.pods.get(&ask.key));
        let is_same = there.is_some_and(|there| there.weighs_the_same(ask));
        self.settle(ask, room, false);
        match (is_news, is_same) {
            (true, _) => Happened::POD_PLACED,
            (false, true) => Happened::NOTHING,
            (false, false) => Happened::POD_PLACED | Happened::POD_GONE,
        }
    }

    /// A pod will be on a node, if the server agrees.
    pub(crate) fn assume(&mut self, ask: &Arc<Ask>, room: &str) {
        self.settle(ask, room, true);
        self.nominated.remove(&ask.key);
    }

    fn settle(&mut self, ask: &Arc<Ask>, room: &str, is_assumed: bool) {
        self.remove_pod(&ask.key);
        self.rooms.entry(room.to_owned()).or_default().enter(ask);
        let place = Place { room: room.to_owned(), is_assumed };
        self.placed.insert(ask.key.clone(), place);
        if !ask.apart.is_empty() {
            self.distant.insert(ask.key.clone(), room.to_owned());
        }
    }

    /// What was assumed did not come true.
    pub(crate) fn forget(&mut self, key: &Key) {
        if self.is_assumed(key) {
            self.remove_pod(key);
        }
    }

    pub(crate) fn is_assumed(&self, key: &Key) -> bool {
        self.placed.get(key).is_some_and(|place| place.is_assumed)
    }

    /// The pod that is in a room under this key.
    pub(crate) fn placed(&self, key: &Key) -> Option<&Arc<Ask>> {
        self.rooms.get(&self.placed.get(key)?.room)?.pods.get(key)
    }

    /// A pod is gone; whether it was in a room.
    pub(crate) fn remove_pod(&mut self, key: &Key) -> bool {
        let Some(place) = self.placed.remove(key) else { return false };
        self.distant.remove(key);
        if let Some(room) = self.rooms.get_mut(&place.room) {
            room.leave(key);
            if room.pods.is_empty() && room.node.is_none() {
                self.rooms.remove(&place.room);
            }
        }
        true
    }
}

/// Whether pods would decide the same about both.
fn looks_the_same(before: &Node, after: &Node) -> bool {
    let allocatable =
        |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
    let wanted = |node: &Node| {
        let spec = node.spec.as_ref();
        spec.map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
    };
    before.metadata.labels == after.metadata.labels
        && before.metadata.uid == after.metadata.uid
        && wanted(before) == wanted(after)
        && allocatable(before) == allocatable(after)
}
