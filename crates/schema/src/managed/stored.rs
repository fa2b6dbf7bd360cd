//! Sets as they are stored: the text that [`Fields::write`] writes, read whole or only walked along
//! what somebody asks about.
//!
//! Promise: text is never taken for granted. Where it is not as we write it, a walk says so and the set
//! is read; what cannot be read says nothing.

use std::borrow::Cow;

use super::fields::{Fields, Node, Step};
use headwater_json::scan::{container_end, unescape};
use headwater_json::wide;

impl<'a> Fields<'a> {
    /// A set that we wrote: it is sorted and has its one spelling. Not even that is taken for
    /// granted, but what is not so is nothing.
    pub(super) fn stored(text: &'a str) -> Option<Fields<'a>> {
        let mut reader = Reader { text, at: 0 };
        let node = reader.node()?;
        (reader.at == text.len()).then_some(node.below)
    }

    /// How a set that we wrote stands to another one; none if it has to be read to know.
    pub(super) fn meet_stored(text: &str, other: &Fields<'_>) -> Option<Meeting> {
        let mut reader = Reader { text, at: 0 };
        let (_, meeting) = reader.meet(other)?;
        (reader.at == text.len()).then_some(meeting)
    }

    /// A set that we wrote without what is in another one, as we write it; none if it has to be read
    /// to know.
    pub(super) fn subtract_stored(text: &str, other: &Fields<'_>) -> Option<String> {
        let mut reader = Reader { text, at: 0 };
        let mut left = String::with_capacity(text.len());
        reader.less(other, false, &mut left)?;
        if left.is_empty() {
            left.push_str("{}");
        }
        (reader.at == text.len()).then_some(left)
    }
}

/// How one set stands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// They have something in common.
    pub(super) touches: bool,
    /// All of the other is in the one.
    pub(super) covers: bool,
    /// All of the one is in the other.
    pub(super) within: bool,
}

impl Meeting {
    /// Takes note of a place that both have something to say about: whether it is in the one set,
    /// and how the two stand below it; whether it is in the other.
    fn add(&mut self, (ours, below): (bool, Meeting), theirs: bool) {
        self.touches |= below.touches || (ours && theirs);
        self.covers &= below.covers && (ours || !theirs);
        self.within &= below.within && (theirs || !ours);
    }
}

/// Reads a set in the form in which [`Fields::write`] writes it: nothing but keys and braces.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn node(&mut self) -> Option<Node<'a>> {
        let mut node = Node::default();
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            node.member = true;
            return Some(node);
        }
        loop {
            let key = self.key()?;
            self.take(b':')?;
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

    /// Walks a node along what another set has below the same place: whether the node itself
    /// belongs to its set, and how the two stand to each other below it. None if the text is not as
    /// we write it where it was looked at.
    fn meet(&mut self, other: &Fields<'_>) -> Option<(bool, Meeting)> {
        let mut meeting = Meeting { touches: false, covers: true, within: true };
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some((true, Meeting { covers: other.is_empty(), ..meeting }));
        }
        let (mut member, mut last) = (false, None);
        let mut theirs = other.0.iter().peekable();
        loop {
            let key = self.key()?;
            self.take(b':')?;
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

    /// Copies a node without what another set has below the same place, and without itself if that
    /// `takes` it. Whether anything is left; if not, nothing was copied.
    fn less(&mut self, other: &Fields<'_>, takes: bool, out: &mut String) -> Option<bool> {
        let start = out.len();
        out.push('{');
        self.take(b'{')?;
        let (mut member, mut any, mut last) = (!takes, false, None);
        let mut theirs = other.0.iter().peekable();
        let mut is_open = self.take(b'}').is_none();
        member &= !is_open;
        while is_open {
            let from = self.at;
            let key = self.key()?;
            self.take(b':')?;
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
                        out.push_str(&self.text[from..self.at]);
                        self.less(&node.below, node.member, out)?
                    }
                    None => {
                        self.skip()?;
                        out.push_str(&self.text[from..self.at]);
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

    /// Steps over a node.
    fn skip(&mut self) -> Option<()> {
        self.at = container_end(self.text.as_bytes(), self.at)?;
        Some(())
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.text.as_bytes().get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn key(&mut self) -> Option<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut escaped = false;
        loop {
            self.at += wide::quote(bytes.get(self.at..)?);
            match bytes.get(self.at)? {
                b'"' => break,
                _ => {
                    escaped = true;
                    self.at += 2;
                }
            }
        }
        let raw = self.text.get(start..self.at)?;
        self.at += 1;
        if !escaped {
            return Some(Cow::Borrowed(raw));
        }
        // Quotes are all that is escaped in the keys of nearly every element.
        let plain = raw.replace("\\\"", "\"");
        if plain.contains('\\') {
            return unescape(raw.as_bytes()).map(|text| Cow::Owned(text.into_owned()));
        }
        Some(Cow::Owned(plain))
    }
}
