//! The plan of a sharding: who is alive, and who should hold which shard. Pure functions.
//!
//! Promise: with the same members and holders every copy computes the same plan; shares differ by at
//! most one; a shard moves only if its holder is gone or holds more than its share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Which leases change: one that does not change for its duration belongs to a dead copy. Time stamps
/// in leases are never compared with a clock.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, (String, Instant)>);

impl Claims {
    /// Records the versions of all leases.
    pub(super) fn observe(&mut self, leases: &BTreeMap<String, String>, now: Instant) {
        self.0.retain(|name, _| leases.contains_key(name));
        for (name, version) in leases {
            let known = self.0.entry(name.clone()).or_insert_with(|| (version.clone(), now));
            if known.0 != *version {
                *known = (version.clone(), now);
            }
        }
    }

    /// How long a lease has not changed.
    pub(super) fn silent_for(&self, name: &str, now: Instant) -> Duration {
        self.0.get(name).map_or(Duration::MAX, |(_, since)| now.saturating_duration_since(*since))
    }
}

/// Who should hold each shard, given who holds it now; all `None` without members.
pub(super) fn owners(
    members: &BTreeSet<String>,
    holders: &[Option<String>],
) -> Vec<Option<String>> {
    let Some(first) = members.first() else { return vec![None; holders.len()] };
    let (share, mut larger) = (holders.len() / members.len(), holders.len() % members.len());
    let mut held: BTreeMap<&str, usize> =
        members.iter().map(|member| (member.as_str(), 0)).collect();
    let mut keep = |holder: &Option<String>| {
        let (name, count) = holder.as_ref().and_then(|holder| {
            members.get(holder).and_then(|name| Some((name, held.get_mut(name.as_str())?)))
        })?;
        if *count == share && larger > 0 {
            larger -= 1; // one of the members with one shard more
        } else if *count >= share {
            return None;
        }
        *count += 1;
        Some(name.clone())
    };
    let mut owners: Vec<Option<String>> = holders.iter().map(&mut keep).collect();
    for owner in owners.iter_mut().filter(|owner| owner.is_none()) {
        // The first of those that hold least.
        let least = held.iter_mut().min_by_key(|(_, count)| **count);
        *owner = Some(least.map_or(first.clone(), |(name, count)| {
            *count += 1;
            (*name).to_owned()
        }));
    }
    owners
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(members: &str, holders: &str) -> String {
        let members = members.chars().map(String::from).collect();
        let holder = |name: char| (name != '-').then(|| name.to_string());
        let holders: Vec<_> = holders.chars().map(holder).collect();
        owners(&members, &holders).into_iter().map(|owner| owner.unwrap_or("-".into())).collect()
    }

    #[test]
    fn shards_move_only_as_far_as_needed() {
        assert_eq!(plan("", "--"), "--");
        assert_eq!(plan("a", "----"), "aaaa");
        assert_eq!(plan("abcd", "----"), "abcd");
        assert_eq!(plan("ab", "aaaa"), "aabb", "one joins");
        assert_eq!(plan("abc", "aabb"), "aabc", "one more joins");
        assert_eq!(plan("acd", "abcd"), "aacd", "one died");
        assert_eq!(plan("ab", "baab"), "baab", "nothing to do");
        assert_eq!(plan("abcde", "abcd"), "abcd", "the fifth has nothing to do");
    }

    proptest! {
        #[test]
        fn shares_are_equal_and_plans_stable(
            members in prop::collection::btree_set("[a-f]", 1..6),
            holders in prop::collection::vec(prop::option::of("[a-h]"), 1..20),
        ) {
            let plan = owners(&members, &holders);
            let count = |member: &String| plan.iter().filter(|owner| owner.as_ref() == Some(member)).count();
            let counts: Vec<usize> = members.iter().map(count).collect();
            prop_assert_eq!(counts.iter().sum::<usize>(), holders.len());
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            prop_assert_eq!(&owners(&members, &plan), &plan, "a plan that was carried out stays");
        }
    }

    #[test]
    fn a_lease_that_changes_is_alive() {
        let (mut claims, start) = (Claims::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let leases = |version: &str| BTreeMap::from([("x".to_owned(), version.to_owned())]);
        claims.observe(&leases("1"), at(0));
        claims.observe(&leases("2"), at(5));
        claims.observe(&leases("2"), at(9));
        assert_eq!(claims.silent_for("x", at(9)), Duration::from_secs(4));
        claims.observe(&BTreeMap::new(), at(10));
        assert_eq!(claims.silent_for("x", at(10)), Duration::MAX);
    }
}
