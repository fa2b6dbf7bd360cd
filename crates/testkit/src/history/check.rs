//! Checks one watch, and all watches of one client.

use headwater_api::Revision;

use super::{
    EventKind, ExpectedEvents, Guarantee, ObjectBody, Violation, WatchEvent, WatchItem,
    WatchRecord, WatchStart,
};

/// All watches of one client, in order: each but the first resumes the previous one.
#[derive(Clone, Debug, Default)]
pub struct ClientRecord {
    /// In the order in which they were opened.
    pub streams: Vec<WatchRecord>,
}

/// Bounds that the end of a watch must respect.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndBounds {
    /// All events up to this revision must have arrived.
    pub complete_to: Revision,
    /// The highest revision that the store may have compacted by then.
    pub compacted: Revision,
}

impl ClientRecord {
    /// Checks every watch for every guarantee. Returns the number of events.
    pub fn check(
        &self,
        expected: &ExpectedEvents<'_>,
        ends: EndBounds,
    ) -> Result<usize, Violation> {
        let (mut position, mut received) = (None, 0);
        for (n, stream) in self.streams.iter().enumerate() {
            let is_last = n + 1 == self.streams.len();
            let complete_to = if is_last { ends.complete_to } else { Revision::ZERO };
            let resumed = matches!((stream.start, position), (WatchStart::After(_), Some(_)));
            if let (WatchStart::After(after), Some(position)) = (stream.start, position)
                && after != position
            {
                let why = format!("the watch resumed after {after}, not after {position}");
                return Err(Violation { guarantee: Guarantee::Resumable, why });
            }
            let mut reader = Reader::new(expected, stream.start, resumed);
            reader.read(&stream.seen, EndBounds { complete_to, ..ends })?;
            received += reader.received;
            position = reader.resumes_after();
        }
        Ok(received)
    }

    /// The revision to resume from; `None` if a new list is needed.
    pub fn position(&self) -> Option<Revision> {
        self.streams.last().and_then(WatchRecord::position)
    }
}

impl WatchRecord {
    /// The revision to resume from; `None` if a new list is needed. Initial events do not count
    /// before the bookmark that ends them.
    pub fn position(&self) -> Option<Revision> {
        let mut position = match self.start {
            WatchStart::Initial(_) => None,
            WatchStart::After(after) => Some(after),
        };
        for seen in &self.seen {
            match seen {
                WatchItem::InitialEventsEnd(revision) => position = Some(*revision),
                WatchItem::Event(event) if position.is_some() => position = Some(event.revision),
                WatchItem::Bookmark(revision) if position.is_some() => position = Some(*revision),
                WatchItem::Event(_) | WatchItem::Bookmark(_) => {}
                WatchItem::Error(410) => return None,
                WatchItem::Error(_) => {}
            }
        }
        position
    }

    /// Checks one watch for every guarantee. Returns the number of events.
    pub fn check(
        &self,
        expected: &ExpectedEvents<'_>,
        ends: EndBounds,
    ) -> Result<usize, Violation> {
        let mut reader = Reader::new(expected, self.start, false);
        reader.read(&self.seen, ends)?;
        Ok(reader.received)
    }
}

/// The state of the check of one watch.
struct Reader<'a> {
    expected: &'a ExpectedEvents<'a>,
    start: WatchStart,
    /// Whether the watch resumes another one.
    resumed: bool,
    /// Objects of the initial state, until it is complete.
    initial: Vec<&'a WatchEvent>,
    /// All events up to this revision have arrived.
    position: Option<Revision>,
    /// Whether an event arrived after the initial state.
    has_begun: bool,
    received: usize,
    is_over: bool,
}

impl<'a> Reader<'a> {
    fn new(expected: &'a ExpectedEvents<'a>, start: WatchStart, resumed: bool) -> Reader<'a> {
        let position = match start {
            WatchStart::Initial(_) => None,
            WatchStart::After(after) => Some(after),
        };
        let initial = Vec::new();
        let (has_begun, is_over) = (false, false);
        Reader { expected, start, resumed, initial, position, has_begun, received: 0, is_over }
    }

    fn resumes_after(&self) -> Option<Revision> {
        if self.is_over { None } else { self.position }
    }

    fn read(&mut self, seen: &'a [WatchItem], ends: EndBounds) -> Result<(), Violation> {
        self.in_order(seen)?;
        for seen in seen {
            if self.is_over {
                return broken(Guarantee::Honest, format!("{seen:?} came after the error"));
            }
            match (seen, self.position) {
                (WatchItem::Event(event), None) => self.initial(event)?,
                (WatchItem::Event(event), Some(position)) => self.event(event, position)?,
                (WatchItem::InitialEventsEnd(revision), None) => self.mark(*revision)?,
                (WatchItem::InitialEventsEnd(revision), Some(_)) => {
                    return broken(Guarantee::Initial, format!("a second mark, at {revision}"));
                }
                (WatchItem::Bookmark(revision), Some(position)) => {
                    self.bookmark(*revision, position)?
                }
                (WatchItem::Bookmark(revision), None) => {
                    let why = format!("{revision} before the initial state was complete");
                    return broken(Guarantee::Bookmarkable, why);
                }
                (WatchItem::Error(code), position) => {
                    self.error(*code, position, ends.compacted)?
                }
            }
        }
        match self.position {
            Some(position) if !self.is_over && position < ends.complete_to => {
                self.nothing_between(position, ends.complete_to.next(), "the end")
            }
            _ => Ok(()),
        }
    }

    /// Checks the order first, so that swapped events are not reported as missing.
    fn in_order(&self, seen: &[WatchItem]) -> Result<(), Violation> {
        let (mut start, mut received) = (self.position, Vec::new());
        for seen in seen {
            match (seen, start) {
                (WatchItem::InitialEventsEnd(revision), None) => start = Some(*revision),
                (WatchItem::Event(event), Some(start)) => {
                    self.follows(event, start, &received)?;
                    received.push(event);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn follows(
        &self,
        event: &WatchEvent,
        start: Revision,
        received: &[&WatchEvent],
    ) -> Result<(), Violation> {
        let last = received.last().map_or(start, |last| last.revision);
        if event.revision > last {
            return Ok(());
        }
        if event.revision <= start {
            let is_seam = self.resumed && received.is_empty();
            let check = if is_seam { Guarantee::Resumable } else { Guarantee::NotBefore };
            return broken(check, format!("{event} on a watch after {start}"));
        }
        if received.contains(&event) {
            return broken(Guarantee::Unique, format!("{event} came twice"));
        }
        if event.revision == last {
            return broken(Guarantee::Atomic, format!("{event} shares its revision with another"));
        }
        broken(Guarantee::Ordered, format!("{event} came after {last}"))
    }

    /// One object of the initial state; completeness is checked at its end.
    fn initial(&mut self, event: &'a WatchEvent) -> Result<(), Violation> {
        if event.kind != EventKind::Added {
            return broken(Guarantee::EventKind, format!("{event} in the initial state"));
        }
        if self.initial.last().is_some_and(|last| last.key >= event.key) {
            return broken(Guarantee::Initial, format!("{event} is not in key order"));
        }
        let change = self.expected.history.change(event.revision);
        let is_genuine = change.is_some_and(|change| {
            change.key == event.key && change.after.as_ref() == Some(&event.body)
        });
        if !is_genuine {
            return broken(Guarantee::Genuine, format!("{event} in the initial state"));
        }
        if !(self.expected.selection)(&event.body) {
            return broken(Guarantee::FilterTrue, format!("{event} in the initial state"));
        }
        self.initial.push(event);
        self.received += 1;
        Ok(())
    }

    fn mark(&mut self, revision: Revision) -> Result<(), Violation> {
        if let WatchStart::Initial(not_older) = self.start
            && revision < not_older
        {
            let why = format!("the state at {revision} is older than {not_older}");
            return broken(Guarantee::Initial, why);
        }
        let state = self.expected.history.state_at(revision);
        let selected = |body: &ObjectBody| (self.expected.selection)(body);
        let mut missing = state.iter().filter(|(_, version)| selected(&version.body));
        let mut found = self.initial.iter();
        loop {
            match (missing.next(), found.next()) {
                (None, None) => break,
                (Some((key, version)), Some(event))
                    if *key == event.key && version.revision == event.revision => {}
                (wanted, found) => {
                    let wanted = wanted.map(|(key, version)| format!("{key}@{}", version.revision));
                    let found = found.map(|event| event.to_string());
                    let why = format!("{found:?} instead of {wanted:?} in the state at {revision}");
                    return broken(Guarantee::Initial, why);
                }
            }
        }
        self.position = Some(revision);
        Ok(())
    }

    fn event(&mut self, event: &'a WatchEvent, position: Revision) -> Result<(), Violation> {
        if event.revision <= position {
            // Newer than the events before it, so it contradicts a bookmark.
            return broken(Guarantee::Bookmarkable, format!("{event} came after {position}"));
        }
        let Some(change) = self.expected.history.change(event.revision) else {
            return broken(Guarantee::Genuine, format!("{event} never happened"));
        };
        if change.key != event.key {
            return broken(Guarantee::Genuine, format!("{event} happened to {}", change.key));
        }
        let Some(expected) = self.expected.events.get(&event.revision) else {
            return broken(Guarantee::FilterTrue, format!("{event} is not selected"));
        };
        if expected.kind != event.kind {
            return broken(Guarantee::EventKind, format!("{event} instead of {expected}"));
        }
        if expected.body != event.body {
            let is_deleted = event.kind == EventKind::Deleted;
            let check = if is_deleted { Guarantee::Previous } else { Guarantee::Genuine };
            let (received, was) = (event.body.value(), expected.body.value());
            return broken(check, format!("{event} looked like {received}, not like {was}"));
        }
        self.nothing_between(position, event.revision, &event.to_string())?;
        self.position = Some(event.revision);
        self.has_begun = true;
        self.received += 1;
        Ok(())
    }

    fn bookmark(&mut self, revision: Revision, position: Revision) -> Result<(), Violation> {
        if revision < position {
            return broken(Guarantee::Bookmarkable, format!("{revision} came after {position}"));
        }
        let what = format!("the bookmark {revision}");
        self.nothing_between(position, revision.next(), &what)
            .map_err(|missed| Violation { guarantee: Guarantee::Bookmarkable, ..missed })?;
        self.position = Some(revision);
        Ok(())
    }

    fn error(
        &mut self,
        code: u64,
        position: Option<Revision>,
        compacted: Revision,
    ) -> Result<(), Violation> {
        self.is_over = true;
        match (code, position) {
            (410, Some(position)) if position < compacted => Ok(()),
            (code, position) => {
                let at = position.map_or("the start".to_owned(), |at| at.to_string());
                let why = format!("error {code} at {at}; history is kept from {compacted}");
                broken(Guarantee::Honest, why)
            }
        }
    }

    /// Fails if an expected event between two revisions is missing.
    fn nothing_between(
        &self,
        position: Revision,
        end: Revision,
        then: &str,
    ) -> Result<(), Violation> {
        if position.next() >= end {
            return Ok(());
        }
        let Some((_, missed)) = self.expected.events.range(position.next()..end).next() else {
            return Ok(());
        };
        let is_seam = self.resumed && !self.has_begun;
        let check = if is_seam { Guarantee::Resumable } else { Guarantee::Reliable };
        broken(check, format!("{missed} is missing between {position} and {then}"))
    }
}

fn broken<T>(guarantee: Guarantee, why: String) -> Result<T, Violation> {
    Err(Violation { guarantee, why })
}
