//! The edits that turn one JSON text into another.
//!
//! River: two versions of an object → **edits** → delta watches. The texts are compared as JSON, so
//! that a changed member costs its own size and not that of everything around it; the result are
//! ranges of bytes, so that applying it needs no JSON at all.
//! Promise: the edits of two UTF-8 texts, applied to the first, give the second byte for byte,
//! whatever the texts are. They are in order, do not overlap and split no character.

use std::ops::Range;

use crate::scan::{Malformed, Scanner, Span};

/// A replaced range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The range in the old text.
    pub old: Range<usize>,
    /// The range in the new text that replaces it.
    pub new: Range<usize>,
}

/// Values nested deeper than this are compared as text: each level reads its value once more.
const COMPARED_DEPTH_MAX: u32 = 16;

/// Edits that are closer are joined: naming the bytes between them would take as many.
const GAP_MIN: usize = 6;

/// The edits that turn `old` into `new`.
///
/// ```
/// use headwater_json::edit;
///
/// let (old, new) = (br#"{"a":1,"t":"12:00"}"#, br#"{"a":1,"b":2,"t":"12:30"}"#);
/// let edits = edit::between(old, new);
/// let texts: Vec<&[u8]> = edits.iter().map(|edit| &new[edit.new.clone()]).collect();
/// assert_eq!(texts, [&br#"b":2,""#[..], b"3"]);
/// ```
pub fn between(old: &[u8], new: &[u8]) -> Vec<Edit> {
    let mut comparison = Comparison { old, new, edits: Vec::new() };
    comparison.value(whole(old), whole(new), 0);
    comparison.edits
}

fn whole(text: &[u8]) -> Range<usize> {
    0..text.len()
}

struct Comparison<'a> {
    old: &'a [u8],
    new: &'a [u8],
    edits: Vec<Edit>,
}

/// The items of an object or array: the keys of members, and the ranges of their values.
type Items<'a> = Vec<(&'a [u8], Range<usize>)>;

type ReadItems = fn(&[u8], Range<usize>) -> Option<Items<'_>>;
type PairItems = fn(&Side<'_>, &Side<'_>) -> Vec<(usize, usize)>;

impl Comparison<'_> {
    fn value(&mut self, old: Range<usize>, new: Range<usize>, depth: u32) {
        let (before, after) = (&self.old[old.clone()], &self.new[new.clone()]);
        if before == after {
            return;
        }
        let opening = before.first().filter(|first| after.first() == Some(first));
        let (read, pair): (ReadItems, PairItems) = match opening {
            Some(b'{') if depth < COMPARED_DEPTH_MAX => (members, paired_members),
            Some(b'[') if depth < COMPARED_DEPTH_MAX => (elements, paired_elements),
            _ => return self.replace(old, new),
        };
        match (read(self.old, old.clone()), read(self.new, new.clone())) {
            (Some(before), Some(after)) => {
                let pairs = pair(
                    &Side { text: self.old, items: &before },
                    &Side { text: self.new, items: &after },
                );
                let values = pairs.iter().map(|(a, b)| (before[*a].1.clone(), after[*b].1.clone()));
                self.items(old, new, values, depth + 1);
            }
            _ => self.replace(old, new),
        }
    }

    /// Compares paired values with each other, and the text between the pairs.
    fn items(
        &mut self,
        old: Range<usize>,
        new: Range<usize>,
        pairs: impl Iterator<Item = (Range<usize>, Range<usize>)>,
        depth: u32,
    ) {
        let (mut old_at, mut new_at) = (old.start, new.start);
        for (a, b) in pairs {
            self.replace(old_at..a.start, new_at..b.start);
            (old_at, new_at) = (a.end, b.end);
            self.value(a, b, depth);
        }
        self.replace(old_at..old.end, new_at..new.end);
    }

    /// Replaces one range by another, without the bytes that both begin or end with.
    fn replace(&mut self, mut old: Range<usize>, mut new: Range<usize>) {
        let (before, after) = (&self.old[old.clone()], &self.new[new.clone()]);
        let same = before.iter().zip(after).take_while(|(a, b)| a == b).count();
        let same = character_start(after, character_start(before, same));
        (old.start, new.start) = (old.start + same, new.start + same);
        let (before, after) = (&before[same..], &after[same..]);
        let same = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
        let same = before.len() - character_end(before, before.len() - same);
        (old.end, new.end) = (old.end - same, new.end - same);
        if !old.is_empty() || !new.is_empty() {
            self.push(Edit { old, new });
        }
    }

    fn push(&mut self, edit: Edit) {
        if let Some(last) = self.edits.last_mut()
            && edit.old.start - last.old.end < GAP_MIN
        {
            last.old.end = edit.old.end;
            last.new.end = edit.new.end;
            return;
        }
        self.edits.push(edit);
    }
}

/// The largest offset up to `at` that is not inside a character.
fn character_start(text: &[u8], at: usize) -> usize {
    (0..=at).rev().find(|at| is_boundary(text, *at)).unwrap_or(0)
}

/// The smallest offset from `at` on that is not inside a character.
fn character_end(text: &[u8], at: usize) -> usize {
    (at..text.len()).find(|at| is_boundary(text, *at)).unwrap_or(text.len())
}

fn is_boundary(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|byte| byte & 0xC0 != 0x80)
}

fn members(text: &[u8], range: Range<usize>) -> Option<Items<'_>> {
    let mut found = Items::new();
    let mut scanner = Scanner::at(text, u32::try_from(range.start).ok()?);
    let read = scanner.object::<Malformed>(|key, at| {
        found.push((key.of(text), bytes_of(at.value()?)));
        Ok(())
    });
    (read.is_ok() && scanner.offset() == range.end).then_some(found)
}

fn elements(text: &[u8], range: Range<usize>) -> Option<Items<'_>> {
    let mut found = Items::new();
    let mut scanner = Scanner::at(text, u32::try_from(range.start).ok()?);
    let read = scanner.array::<Malformed>(|at| {
        found.push((&[], bytes_of(at.value()?)));
        Ok(())
    });
    (read.is_ok() && scanner.offset() == range.end).then_some(found)
}

fn bytes_of(span: Span) -> Range<usize> {
    span.start as usize..span.end as usize
}

/// The items of one of the two texts.
struct Side<'a> {
    text: &'a [u8],
    items: &'a Items<'a>,
}

impl Side<'_> {
    fn value(&self, index: usize) -> &[u8] {
        &self.text[self.items[index].1.clone()]
    }
}

/// Pairs members with equal keys. Sorted members are all paired, and so are unsorted ones up to the
/// first that only one object has: `kind`, `apiVersion` and `metadata`, which come first in objects
/// of the API.
fn paired_members(old: &Side<'_>, new: &Side<'_>) -> Vec<(usize, usize)> {
    let (mut pairs, mut a, mut b) = (Vec::new(), 0, 0);
    while let (Some((before, _)), Some((after, _))) = (old.items.get(a), new.items.get(b)) {
        match before.cmp(after) {
            std::cmp::Ordering::Equal => {
                pairs.push((a, b));
                (a, b) = (a + 1, b + 1);
            }
            std::cmp::Ordering::Less => a += 1,
            std::cmp::Ordering::Greater => b += 1,
        }
    }
    pairs
}

/// Pairs the elements that both arrays begin and end with, and those between them by position.
fn paired_elements(old: &Side<'_>, new: &Side<'_>) -> Vec<(usize, usize)> {
    let (a, b) = (old.items.len(), new.items.len());
    let short = a.min(b);
    let first = (0..short).take_while(|at| old.value(*at) == new.value(*at)).count();
    let is_same_from_end = |back: &usize| old.value(a - 1 - back) == new.value(b - 1 - back);
    let last = (0..short - first).take_while(is_same_from_end).count();
    let from_start = (0..short - last).map(|at| (at, at));
    from_start.chain((0..last).rev().map(|back| (a - 1 - back, b - 1 - back))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::any::values;
    use crate::to_vec;

    fn apply(old: &[u8], new: &[u8], edits: &[Edit]) -> Vec<u8> {
        let (mut made, mut at) = (Vec::new(), 0);
        for edit in edits {
            made.extend_from_slice(&old[at..edit.old.start]);
            made.extend_from_slice(&new[edit.new.clone()]);
            std::str::from_utf8(&new[edit.new.clone()]).expect("no character is split");
            at = edit.old.end;
        }
        made.extend_from_slice(&old[at..]);
        made
    }

    #[track_caller]
    fn check(old: &str, new: &str, expected: &[(&str, &str)]) {
        let edits = between(old.as_bytes(), new.as_bytes());
        let texts: Vec<(&str, &str)> =
            edits.iter().map(|edit| (&old[edit.old.clone()], &new[edit.new.clone()])).collect();
        assert_eq!(texts, expected);
        assert_eq!(apply(old.as_bytes(), new.as_bytes(), &edits), new.as_bytes());
    }

    #[test]
    fn a_change_costs_its_own_size() {
        check(r#"{"a":1,"b":[1,2,3]}"#, r#"{"a":1,"b":[1,2,3]}"#, &[]);
        check(r#"{"a":"12:00:05Z"}"#, r#"{"a":"12:31:05Z"}"#, &[("00", "31")]);
        check(
            r#"{"a":{"x":"one","y":true},"b":"unchanged","c":"x"}"#,
            r#"{"a":{"x":"two","y":true},"b":"unchanged","d":"y"}"#,
            &[("one", "two"), (r#"c":"x"#, r#"d":"y"#)],
        );
        check(
            r#"[{"name":"a","n":1},{"name":"b","n":2}]"#,
            r#"[{"name":"a","n":1},{"name":"new","n":0},{"name":"b","n":2}]"#,
            &[("", r#"{"name":"new","n":0},"#)],
        );
        check(r#"{"n":null,"o":{}}"#, r#"{"o":{}}"#, &[(r#"n":null,""#, "")]);
    }

    #[test]
    fn characters_are_not_split() {
        check(r#"{"a":"é"}"#, r#"{"a":"è"}"#, &[("é", "è")]);
        check(r#"{"a":"\u00e9 ü"}"#, r#"{"a":"\u00e8 ý"}"#, &[("9 ü", "8 ý")]);
    }

    #[test]
    fn deep_values_are_compared_as_text() {
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(500), "]".repeat(500));
        check(&deep("1"), &deep("2"), &[("1", "2")]);
    }

    proptest! {
        #[test]
        fn the_edits_of_any_trees_give_the_second(
            old in values("[ab\"<é]{0,3}", "[a-c]{1,2}"),
            new in values("[ab\"<é]{0,3}", "[a-c]{1,2}"),
        ) {
            let (old, new) = (to_vec(&old), to_vec(&new));
            prop_assert_eq!(apply(&old, &new, &between(&old, &new)), new);
        }

        #[test]
        fn the_edits_of_any_texts_give_the_second(
            old in r#"[\[\]{}:,"\\a0é ]{0,40}|.*"#,
            new in r#"[\[\]{}:,"\\a0é ]{0,40}|.*"#,
        ) {
            let edits = between(old.as_bytes(), new.as_bytes());
            prop_assert_eq!(apply(old.as_bytes(), new.as_bytes(), &edits), new.as_bytes());
        }
    }
}
