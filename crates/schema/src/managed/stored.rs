//! Stored sets: parsing the text of [`FieldSet::write`], and walks over it along given paths.
//!
//! Promise: the text is not trusted. If a walk meets unexpected text, the set is parsed instead; text
//! that cannot be parsed is an empty set.

use std::borrow::Cow;

use super::fields::{FieldSet, Node, Step};
use headwater_json::scan::Scanner;

impl<'a> FieldSet<'a> {
    /// Parses a stored set, which is sorted and canonical. Anything else is an empty set.
    pub(super) fn stored(text: &'a str) -> Option<FieldSet<'a>> {
        let mut reader = Reader::new(text);
        let node = reader.node()?;
        reader.is_at_end().then_some(node.below)
    }

    /// The relation of a stored set to another one; `None` if it must be parsed to know.
    pub(super) fn meet_stored(text: &str, other: &FieldSet<'_>) -> Option<Meeting> {
        let mut reader = Reader::new(text);
        let (_, meeting) = reader.meet(other)?;
        reader.is_at_end().then_some(meeting)
    }

    /// The text of a stored set without the fields of another one; `None` if it must be parsed to know.
    pub(super) fn subtract_stored(text: &str, other: &FieldSet<'_>) -> Option<String> {
        let mut reader = Reader::new(text);
        let mut left = String::with_capacity(text.len());
        reader.less(other, false, &mut left)?;
        if left.is_empty() {
            left.push_str("{}");
        }
        reader.is_at_end().then_some(left)
    }

    /// The text of a stored set with the fields of another one; `None` if it must be parsed to know.
    pub(super) fn union_stored(text: &str, other: &FieldSet<'_>) -> Option<String> {
        if text == "{}" {
            return None; // here it is an empty set; elsewhere it is a field
        }
        let mut reader = Reader::new(text);
        let mut both = Vec::with_capacity(text.len() + 64);
        reader.more(other, false, &mut both)?;
        reader.is_at_end().then(|| String::from_utf8(both).ok())?
    }
}

/// The relation of two sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// They intersect.
    pub(super) touches: bool,
    /// The first is a superset of the second.
    pub(super) covers: bool,
    /// The first is a subset of the second.
    pub(super) within: bool,
}

impl Meeting {
    /// Adds a node that both sets have: whether it is in the first set, the relation of the
    /// descendants, and whether it is in the second set.
    fn add(&mut self, (ours, below): (bool, Meeting), theirs: bool) {
        self.touches |= below.touches || (ours && theirs);
        self.covers &= below.covers && (ours || !theirs);
        self.within &= below.within && (theirs || !ours);
    }
}

/// A reader of the text of [`FieldSet::write`], which has only keys and braces.
struct Reader<'a> {
    text: &'a str,
    at: Scanner<'a>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Reader<'a> {
        Reader { text, at: Scanner::new(text.as_bytes()) }
    }

    fn is_at_end(&self) -> bool {
        self.at.offset() == self.text.len()
    }

    fn node(&mut self) -> Option<Node<'a>> {
        let mut node = Node::default();
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            node.member = true;
            return Some(node);
        }
        loop {
            let key = self.key()?;
            let below = self.node()?;
            if key == "." {
                node.member = true;
            } else if let Some(step) = Step::read(key)?
                && node.below.0.last().is_none_or(|(last, _)| *last < step)
            {
                node.below.0.push((step, below));
            }
            if self.take(b',').is_none() {
                self.take(b'}')?;
                return Some(node);
            }
        }
    }

    /// Walks a node along the same node of another set. Returns whether the node itself belongs to its
    /// set, and the relation of the descendants; `None` if the text is not canonical.
    fn meet(&mut self, other: &FieldSet<'_>) -> Option<(bool, Meeting)> {
        let mut meeting = Meeting { touches: false, covers: true, within: true };
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some((true, Meeting { covers: other.is_empty(), ..meeting }));
        }
        let (mut member, mut last) = (false, None);
        let mut theirs = other.0.iter().peekable();
        loop {
            let key = self.key()?;
            if key == "." {
                member = true;
                self.skip()?;
            } else {
                let step = Step::read(key)??;
                while theirs.next_if(|(their, _)| *their < step).is_some() {
                    meeting.covers = false;
                }
                match theirs.next_if(|(their, _)| *their == step) {
                    Some((_, node)) => meeting.add(self.meet(&node.below)?, node.member),
                    None => {
                        self.skip()?;
                        meeting.within = false;
                    }
                }
                if last.is_some_and(|last| last >= step) {
                    return None;
                }
                last = Some(step);
            }
            if self.take(b',').is_none() {
                self.take(b'}')?;
                meeting.covers &= theirs.next().is_none();
                return Some((member, meeting));
            }
        }
    }

    /// Copies a node without the descendants that another set has, and without itself if the other set
    /// `takes` it. Returns whether anything remains; if not, nothing was copied.
    fn less(&mut self, other: &FieldSet<'_>, takes: bool, out: &mut String) -> Option<bool> {
        let start = out.len();
        out.push('{');
        self.take(b'{')?;
        let (mut member, mut any, mut last) = (!takes, false, None);
        let mut theirs = other.0.iter().peekable();
        let mut is_open = self.take(b'}').is_none();
        member &= !is_open;
        while is_open {
            let from = self.at.offset();
            let key = self.key()?;
            let copied = out.len();
            if copied > start + 1 {
                out.push(',');
            }
            if key == "." {
                self.skip()?;
                // It comes first.
                (copied == start + 1).then_some(())?;
                member = !takes;
                out.push_str(if member { r#"".":{}"# } else { "" });
            } else {
                let step = Step::read(key)??;
                while theirs.next_if(|(their, _)| *their < step).is_some() {}
                let is_left = match theirs.next_if(|(their, _)| *their == step) {
                    Some((_, node)) => {
                        out.push_str(&self.text[from..self.at.offset()]);
                        self.less(&node.below, node.member, out)?
                    }
                    None => {
                        self.skip()?;
                        out.push_str(&self.text[from..self.at.offset()]);
                        true
                    }
                };
                any |= is_left;
                if !is_left {
                    out.truncate(copied);
                }
                if last.is_some_and(|last| last >= step) {
                    return None;
                }
                last = Some(step);
            }
            is_open = self.take(b',').is_some();
            if !is_open {
                self.take(b'}')?;
            }
        }
        match (any, member) {
            (true, _) => out.push('}'),
            (false, true) => {
                out.truncate(start);
                out.push_str("{}");
            }
            (false, false) => out.truncate(start),
        }
        Some(any || member)
    }

    /// Copies a node with the descendants of another set, and as a member if the other set `adds` it.
    fn more(&mut self, other: &FieldSet<'_>, adds: bool, out: &mut Vec<u8>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            other.write_node(true, out);
            return Some(());
        }
        out.push(b'{');
        let start = out.len();
        let mut theirs = other.0.iter().peekable();
        let mut last = None;
        loop {
            let from = self.at.offset();
            let key = self.key()?;
            let is_first = out.len() == start;
            if key == "." {
                self.skip()?;
                (is_first && self.at.peek() == Some(b',')).then_some(())?;
                out.extend_from_slice(br#"".":{}"#);
            } else {
                if is_first && adds {
                    out.extend_from_slice(br#"".":{}"#);
                }
                let step = Step::read(key)??;
                while let Some((their, node)) = theirs.next_if(|(their, _)| *their < step) {
                    push_comma(out, start);
                    node.write(their, out);
                }
                push_comma(out, start);
                out.extend_from_slice(&self.text.as_bytes()[from..self.at.offset()]);
                match theirs.next_if(|(their, _)| *their == step) {
                    Some((_, node)) => self.more(&node.below, node.member, out)?,
                    None => {
                        let from = self.at.offset();
                        self.skip()?;
                        out.extend_from_slice(&self.text.as_bytes()[from..self.at.offset()]);
                    }
                }
                if last.is_some_and(|last| last >= step) {
                    return None;
                }
                last = Some(step);
            }
            if self.take(b',').is_none() {
                break;
            }
        }
        self.take(b'}')?;
        for (their, node) in theirs {
            push_comma(out, start);
            node.write(their, out);
        }
        out.push(b'}');
        Some(())
    }

    /// Skips a node.
    fn skip(&mut self) -> Option<()> {
        (self.at.peek() == Some(b'{')).then_some(())?;
        self.at.value().ok().map(drop)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.at.expect(byte).ok()
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Option<Cow<'a, str>> {
        let span = self.at.string().ok()?;
        self.take(b':')?;
        let key = self.text.get(span.start as usize..span.end as usize)?;
        match key.as_bytes().contains(&b'\\') {
            true => self.at.text(span).ok(),
            false => Some(Cow::Borrowed(key)),
        }
    }
}

/// Separates a member from those since `start`, if there are any.
fn push_comma(out: &mut Vec<u8>, start: usize) {
    if out.len() > start {
        out.push(b',');
    }
}
