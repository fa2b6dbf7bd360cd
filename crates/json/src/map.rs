//! The members of an object, sorted by key.
//!
//! Promise: each key occurs once, and iteration follows the order of the keys' bytes, so that equal
//! objects print as equal bytes. Nearly all objects of an API are small: a sorted list finds a
//! member as fast as a tree of nodes, with few allocations instead of one per node. Large objects
//! use a tree, so that no sequence of changes takes quadratic time.
//!
//! A clone shares the members until one of the two changes, so a write that copies an object to
//! change one field copies only the objects around that field, and equality of shared members is
//! known at once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::{fmt, slice, vec};

use super::{MemberKey, Name, Value};
use crate::wide;

/// The members of an object, sorted by key.
#[derive(Clone)]
pub struct Map(Members);

#[derive(Clone)]
enum Members {
    None,
    /// At most [`FEW_MAX`] members.
    Few(Arc<Vec<Member>>),
    /// A map that once had more.
    Many(Arc<BTreeMap<MemberKey, Value>>),
}

type Member = (MemberKey, Value);

/// The largest number of members that are one list.
const FEW_MAX: usize = 256;

/// Up to this many members are searched linearly.
const SCANNED_MAX: usize = 24;

impl Map {
    /// No members.
    pub const fn new() -> Map {
        Map(Members::None)
    }

    /// No members, with capacity for some.
    pub fn with_capacity(capacity: usize) -> Map {
        Map(Members::Few(Arc::new(Vec::with_capacity(capacity.min(FEW_MAX)))))
    }

    /// Members that are sorted and have distinct keys.
    pub(crate) fn sorted(members: Vec<Member>) -> Map {
        Map(match members.len() {
            0 => Members::None,
            1..=FEW_MAX => Members::Few(Arc::new(members)),
            _ => Members::Many(Arc::new(members.into_iter().collect())),
        })
    }

    /// Members in any order. The last one of several with the same key wins.
    fn of(mut members: Vec<Member>) -> Map {
        if members.len() <= FEW_MAX && !members.is_sorted_by(|one, other| one.0 < other.0) {
            members.sort_by(|one, other| one.0.cmp(&other.0));
            members.dedup_by(|later, kept| {
                let is_same = later.0 == kept.0;
                if is_same {
                    std::mem::swap(&mut later.1, &mut kept.1);
                }
                is_same
            });
        }
        Map::sorted(members)
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Members::None => 0,
            Members::Few(members) => members.len(),
            Members::Many(members) => members.len(),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether both share their members: then they are equal. Equal maps need not share them.
    #[inline]
    pub fn is_same(&self, other: &Map) -> bool {
        match (&self.0, &other.0) {
            (Members::None, Members::None) => true,
            (Members::Few(one), Members::Few(other)) => Arc::ptr_eq(one, other),
            (Members::Many(one), Members::Many(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The value of a key.
    #[inline(always)]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(wide::begin(key), key)
    }

    /// The value of a name.
    #[inline]
    pub fn named(&self, name: Name) -> Option<&Value> {
        self.find(name.begin(), name.as_str())
    }

    /// The value of a key, given the key's first eight bytes as a number.
    fn find(&self, begin: u64, key: &str) -> Option<&Value> {
        match &self.0 {
            Members::None => None,
            Members::Few(members) => position(members, begin, key).map(|at| &members[at].1),
            Members::Many(members) => members.get(key),
        }
    }

    /// The value of a key, mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.find_mut(wide::begin(key), key)
    }

    fn find_mut(&mut self, begin: u64, key: &str) -> Option<&mut Value> {
        match &mut self.0 {
            Members::None => None,
            Members::Few(members) => {
                let at = position(members, begin, key)?;
                Some(&mut Arc::make_mut(members)[at].1)
            }
            Members::Many(members) => match members.contains_key(key) {
                true => Arc::make_mut(members).get_mut(key),
                false => None,
            },
        }
    }

    /// Whether the key exists.
    #[inline(always)]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a member and returns its previous value.
    pub fn insert(&mut self, key: MemberKey, value: Value) -> Option<Value> {
        let at = match &mut self.0 {
            Members::None => 0,
            Members::Few(members) => match place(members, &key) {
                Ok(at) => {
                    let old = &mut Arc::make_mut(members)[at].1;
                    return Some(std::mem::replace(old, value));
                }
                Err(at) => at,
            },
            Members::Many(members) => return Arc::make_mut(members).insert(key, value),
        };
        self.put(at, key, value);
        None
    }

    /// Inserts a member at its position.
    fn put(&mut self, at: usize, key: MemberKey, value: Value) -> &mut Value {
        match &mut self.0 {
            Members::None => self.0 = Members::Few(Arc::default()),
            Members::Few(few) if few.len() == FEW_MAX => {
                let all = std::mem::take(Arc::make_mut(few)).into_iter().collect();
                self.0 = Members::Many(Arc::new(all));
            }
            Members::Few(_) | Members::Many(_) => {}
        }
        match &mut self.0 {
            Members::None => unreachable!("it has members now"),
            Members::Few(members) => {
                let members = Arc::make_mut(members);
                members.insert(at, (key, value));
                &mut members[at].1
            }
            Members::Many(members) => Arc::make_mut(members).entry(key).or_insert(value),
        }
    }

    /// Removes a member and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        match &mut self.0 {
            Members::None => None,
            Members::Few(members) => {
                let at = position(members, wide::begin(key), key)?;
                Some(Arc::make_mut(members).remove(at).1)
            }
            Members::Many(members) => match members.contains_key(key) {
                true => Arc::make_mut(members).remove(key),
                false => None,
            },
        }
    }

    /// The entry of a key, occupied or vacant.
    pub fn entry(&mut self, key: impl Into<MemberKey>) -> Entry<'_> {
        let key = key.into();
        let place = match &self.0 {
            Members::None => Err(0),
            Members::Few(members) => place(members, &key),
            Members::Many(members) if members.contains_key(&key) => Ok(0),
            Members::Many(_) => Err(0),
        };
        let at = match place {
            Ok(at) => at,
            Err(at) => return Entry::Vacant(Vacant { map: self, at, key }),
        };
        Entry::Occupied(match &mut self.0 {
            Members::None => unreachable!("the key was found above"),
            Members::Few(members) => &mut Arc::make_mut(members)[at].1,
            Members::Many(members) => {
                Arc::make_mut(members).get_mut(&key).expect("it was found above")
            }
        })
    }

    /// Removes the members for which `wanted` is false.
    pub fn retain(&mut self, mut wanted: impl FnMut(&MemberKey, &mut Value) -> bool) {
        match &mut self.0 {
            Members::None => {}
            Members::Few(members) => {
                Arc::make_mut(members).retain_mut(|(key, value)| wanted(key, value));
            }
            Members::Many(members) => Arc::make_mut(members).retain(wanted),
        }
    }

    /// Moves all members of another map into this one.
    pub fn append(&mut self, other: &mut Map) {
        self.extend(std::mem::take(other));
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        *self = Map::new();
    }

    /// All members, by key.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            Members::None => Iter::Few([].iter()),
            Members::Few(members) => Iter::Few(members.iter()),
            Members::Many(members) => Iter::Many(members.iter()),
        }
    }

    /// All members, by key, with mutable values.
    #[inline]
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        match &mut self.0 {
            Members::None => IterMut::Few([].iter_mut()),
            Members::Few(members) => IterMut::Few(Arc::make_mut(members).iter_mut()),
            Members::Many(members) => IterMut::Many(Arc::make_mut(members).iter_mut()),
        }
    }

    /// The keys.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = &MemberKey> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The values, by key.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = &Value> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The values, by key, mutable.
    #[inline]
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.iter_mut().map(|(_, value)| value)
    }
}

/// The position of a key.
#[inline(always)]
fn position(members: &[Member], begin: u64, key: &str) -> Option<usize> {
    if members.len() > SCANNED_MAX {
        return members.binary_search_by(|(other, _)| other.order(begin, key)).ok();
    }
    for (at, (other, _)) in members.iter().enumerate() {
        // Most lookups are for absent keys.
        if other.begin() >= begin {
            match other.order(begin, key) {
                Ordering::Less => {}
                Ordering::Equal => return Some(at),
                Ordering::Greater => return None,
            }
        }
    }
    None
}

/// The position of a key, or the position at which to insert it.
fn place(members: &[Member], key: &MemberKey) -> Result<usize, usize> {
    match members.last() {
        Some((last, _)) if last >= key => members.binary_search_by(|(other, _)| other.cmp(key)),
        _ => Err(members.len()),
    }
}

/// The entry of a key.
pub enum Entry<'a> {
    /// The key has a value.
    Occupied(&'a mut Value),
    /// The key is absent.
    Vacant(Vacant<'a>),
}

/// The entry of an absent key.
pub struct Vacant<'a> {
    map: &'a mut Map,
    at: usize,
    key: MemberKey,
}

impl<'a> Entry<'a> {
    /// The value; inserts this one if the key is absent.
    pub fn or_insert(self, value: Value) -> &'a mut Value {
        self.or_insert_with(|| value)
    }

    /// The value; inserts the result of `make` if the key is absent.
    pub fn or_insert_with(self, make: impl FnOnce() -> Value) -> &'a mut Value {
        match self {
            Entry::Occupied(value) => value,
            Entry::Vacant(Vacant { map, at, key }) => map.put(at, key, make()),
        }
    }

    /// Changes the value if the key has one.
    pub fn and_modify(mut self, change: impl FnOnce(&mut Value)) -> Entry<'a> {
        if let Entry::Occupied(value) = &mut self {
            change(value);
        }
        self
    }
}

/// An iterator over members, by key.
#[derive(Clone)]
pub enum Iter<'a> {
    /// Over a list.
    Few(slice::Iter<'a, Member>),
    /// Over a tree.
    Many(btree_map::Iter<'a, MemberKey, Value>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a MemberKey, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Few(members) => members.next().map(|(key, value)| (key, value)),
            Iter::Many(members) => members.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Iter::Few(members) => members.size_hint(),
            Iter::Many(members) => members.size_hint(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// An iterator over members, by key, with mutable values.
pub enum IterMut<'a> {
    /// Over a list.
    Few(slice::IterMut<'a, Member>),
    /// Over a tree.
    Many(btree_map::IterMut<'a, MemberKey, Value>),
}

impl<'a> Iterator for IterMut<'a> {
    type Item = (&'a MemberKey, &'a mut Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            IterMut::Few(members) => members.next().map(|(key, value)| (&*key, value)),
            IterMut::Many(members) => members.next(),
        }
    }
}

/// An owning iterator over members, by key.
pub enum IntoIter {
    /// Over a list.
    Few(vec::IntoIter<Member>),
    /// Over a tree.
    Many(btree_map::IntoIter<MemberKey, Value>),
}

impl Iterator for IntoIter {
    type Item = (MemberKey, Value);

    fn next(&mut self) -> Option<Member> {
        match self {
            IntoIter::Few(members) => members.next(),
            IntoIter::Many(members) => members.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            IntoIter::Few(members) => members.size_hint(),
            IntoIter::Many(members) => members.size_hint(),
        }
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a MemberKey, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map {
    type Item = (&'a MemberKey, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}

impl IntoIterator for Map {
    type Item = (MemberKey, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        match self.0 {
            Members::None => IntoIter::Few(Vec::new().into_iter()),
            Members::Few(members) => IntoIter::Few(Arc::unwrap_or_clone(members).into_iter()),
            Members::Many(members) => IntoIter::Many(Arc::unwrap_or_clone(members).into_iter()),
        }
    }
}

impl<K: Into<MemberKey>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Map {
        Map::of(members.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

impl<K: Into<MemberKey>, V: Into<Value>, const N: usize> From<[(K, V); N]> for Map {
    fn from(members: [(K, V); N]) -> Map {
        members.into_iter().collect()
    }
}

impl<K: Into<MemberKey>, V: Into<Value>> Extend<(K, V)> for Map {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, more: I) {
        for (key, value) in more {
            self.insert(key.into(), value.into());
        }
    }
}

impl Default for Map {
    fn default() -> Map {
        Map::new()
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Map) -> bool {
        if self.is_same(other) {
            return true;
        }
        match (&self.0, &other.0) {
            (Members::Few(one), Members::Few(other)) => **one == **other,
            _ => self.len() == other.len() && self.iter().eq(other),
        }
    }
}

impl Eq for Map {}

impl Hash for Map {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|member| member.hash(state));
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An operation on a map, with a key and a value.
    type Step = (u8, String, i32);

    proptest! {
        /// Agrees with the standard library's map, small or large.
        #[test]
        fn any_sequence_of_operations_agrees_with_a_btree_map(
            start in 0..400_usize,
            steps in proptest::collection::vec((0..6_u8, "[0-9]{1,3}", any::<i32>()), 0..60),
        ) {
            let members = (0..start).map(|number| ((number * 7 % 400).to_string(), number));
            let mut map: Map = members.clone().collect();
            let mut model: BTreeMap<String, Value> =
                members.map(|(key, number)| (key, number.into())).collect();
            for step in steps {
                prop_assert_eq!(take(&mut map, &step), take_model(&mut model, &step));
                prop_assert_eq!(map.get(&step.1), model.get(&step.1));
            }
            let found: Vec<(String, Value)> =
                map.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
            prop_assert_eq!(&found, &model.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(&map, &model.into_iter().collect::<Map>());
        }
    }

    #[test]
    fn a_change_of_a_clone_leaves_the_original_as_it_is() {
        for count in [0, 3, 300] {
            let map: Map = (0..count).map(|number| (number.to_string(), number)).collect();
            let printed = format!("{map:?}");
            let changes: [fn(&mut Map); 7] = [
                |map| drop(map.insert("x".into(), 1.into())),
                |map| drop(map.insert("1".into(), 7.into())),
                |map| drop(map.remove("1")),
                |map| drop(map.get_mut("1").map(Value::take)),
                |map| map.iter_mut().for_each(|(_, value)| *value = Value::Null),
                |map| map.retain(|_, _| false),
                |map| drop(map.entry("1").or_insert(Value::Null).take()),
            ];
            for change in changes {
                let mut clone = map.clone();
                assert!(clone.is_same(&map));
                change(&mut clone);
                assert_eq!(format!("{map:?}"), printed);
                assert_eq!(
                    map,
                    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
                );
            }
        }
    }

    fn take(map: &mut Map, (step, key, number): &Step) -> Option<Value> {
        let value = Value::from(*number);
        match step {
            0 | 1 => return map.insert(key.into(), value),
            2 => return map.remove(key),
            3 => return Some(map.entry(key).or_insert(value).clone()),
            4 => map.extend([(key.as_str(), value.clone()), ("b", value)]),
            _ => map.retain(|other, _| other.len() != key.len()),
        }
        None
    }

    fn take_model(map: &mut BTreeMap<String, Value>, (step, key, number): &Step) -> Option<Value> {
        let value = Value::from(*number);
        match step {
            0 | 1 => return map.insert(key.clone(), value),
            2 => return map.remove(key),
            3 => return Some(map.entry(key.clone()).or_insert(value).clone()),
            4 => map.extend([(key.clone(), value.clone()), ("b".to_owned(), value)]),
            _ => map.retain(|other, _| other.len() != key.len()),
        }
        None
    }

    #[test]
    fn the_last_of_members_with_the_same_key_wins() {
        let map: Map = [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)].into();
        assert_eq!(map, [("a", 4), ("b", 5)].into());
    }
}
