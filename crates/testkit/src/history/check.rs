//! One pass over a stream, and over all the streams of one client.

use headwater_api::Revision;

use super::{Body, Check, Event, Expected, Kind, Seen, Start, Stream, Violation};

/// All the watches of one client, one after the other: each but the first resumes.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// In the order they were opened.
    pub streams: Vec<Stream>,
}

/// What is known about the end of a stream from elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// Everything up to here must have been told.
    pub complete_to: Revision,
    /// The highest revision below which the store may have forgotten its history by then.
    pub compacted: Revision,
}

impl Client {
    /// Holds every stream to every check. Answers how many events were told.
    pub fn check(&self, expected: &Expected<'_>, ends: Ends) -> Result<usize, Violation> {
        let (mut position, mut told) = (None, 0);
        for (n, stream) in self.streams.iter().enumerate() {
            let is_last = n + 1 == self.streams.len();
            let complete_to = if is_last { ends.complete_to } else { Revision::ZERO };
            let resumed = matches!((stream.start, position), (Start::After(_), Some(_)));
            if let (Start::After(after), Some(position)) = (stream.start, position)
                && after != position
            {
                let why = format!("it went on after {after}, not after {position}");
                return Err(Violation { check: Check::Resumable, why });
            }
            let mut reader = Reader::new(expected, stream.start, resumed);
            reader.read(&stream.seen, Ends { complete_to, ..ends })?;
            told += reader.told;
            position = reader.resumes_after();
        }
        Ok(told)
    }

    /// Where the next watch should begin; `None` if it must begin anew.
    pub fn position(&self) -> Option<Revision> {
        self.streams.last().and_then(Stream::position)
    }
}

impl Stream {
    /// The last revision a client may go on from; `None` if it must begin anew. Initial events do
    /// not count: only the mark says that they are complete.
    pub fn position(&self) -> Option<Revision> {
        let mut position = match self.start {
            Start::Initial(_) => None,
            Start::After(after) => Some(after),
        };
        for seen in &self.seen {
            match seen {
                Seen::Mark(revision) => position = Some(*revision),
                Seen::Event(event) if position.is_some() => position = Some(event.revision),
                Seen::Bookmark(revision) if position.is_some() => position = Some(*revision),
                Seen::Event(_) | Seen::Bookmark(_) => {}
                Seen::Error(410) => return None,
                Seen::Error(_) => {}
            }
        }
        position
    }

    /// Holds one stream to every check.
    pub fn check(&self, expected: &Expected<'_>, ends: Ends) -> Result<usize, Violation> {
        let mut reader = Reader::new(expected, self.start, false);
        reader.read(&self.seen, ends)?;
        Ok(reader.told)
    }
}

/// A stream, read so far.
struct Reader<'a> {
    expected: &'a Expected<'a>,
    start: Start,
    /// Whether another stream ended where this one begins.
    resumed: bool,
    /// Objects of the initial state, until it is complete.
    initial: Vec<&'a Event>,
    /// Everything up to here was told, or was not to be told.
    position: Option<Revision>,
    /// Whether an event came after the initial state.
    has_begun: bool,
    told: usize,
    is_over: bool,
}

impl<'a> Reader<'a> {
    fn new(expected: &'a Expected<'a>, start: Start, resumed: bool) -> Reader<'a> {
        let position = match start {
            Start::Initial(_) => None,
            Start::After(after) => Some(after),
        };
        let initial = Vec::new();
        let (has_begun, is_over) = (false, false);
        Reader { expected, start, resumed, initial, position, has_begun, told: 0, is_over }
    }

    fn resumes_after(&self) -> Option<Revision> {
        if self.is_over { None } else { self.position }
    }

    fn read(&mut self, seen: &'a [Seen], ends: Ends) -> Result<(), Violation> {
        self.in_order(seen)?;
        for seen in seen {
            if self.is_over {
                return broken(Check::Honest, format!("{seen:?} came after the error"));
            }
            match (seen, self.position) {
                (Seen::Event(event), None) => self.initial(event)?,
                (Seen::Event(event), Some(position)) => self.event(event, position)?,
                (Seen::Mark(revision), None) => self.mark(*revision)?,
                (Seen::Mark(revision), Some(_)) => {
                    return broken(Check::Initial, format!("a second mark, at {revision}"));
                }
                (Seen::Bookmark(revision), Some(position)) => self.bookmark(*revision, position)?,
                (Seen::Bookmark(revision), None) => {
                    let why = format!("{revision} before the initial state was complete");
                    return broken(Check::Bookmarkable, why);
                }
                (Seen::Error(code), position) => self.error(*code, position, ends.compacted)?,
            }
        }
        match self.position {
            Some(position) if !self.is_over && position < ends.complete_to => {
                self.nothing_between(position, ends.complete_to.next(), "the end")
            }
            _ => Ok(()),
        }
    }

    /// Order first, so that a swap is not taken for a loss.
    fn in_order(&self, seen: &[Seen]) -> Result<(), Violation> {
        let (mut start, mut told) = (self.position, Vec::new());
        for seen in seen {
            match (seen, start) {
                (Seen::Mark(revision), None) => start = Some(*revision),
                (Seen::Event(event), Some(start)) => {
                    self.follows(event, start, &told)?;
                    told.push(event);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn follows(&self, event: &Event, start: Revision, told: &[&Event]) -> Result<(), Violation> {
        let last = told.last().map_or(start, |last| last.revision);
        if event.revision > last {
            return Ok(());
        }
        if event.revision <= start {
            let is_seam = self.resumed && told.is_empty();
            let check = if is_seam { Check::Resumable } else { Check::NotBefore };
            return broken(check, format!("{event} on a watch after {start}"));
        }
        if told.contains(&event) {
            return broken(Check::Unique, format!("{event} came twice"));
        }
        if event.revision == last {
            return broken(Check::Atomic, format!("{event} shares its revision with another"));
        }
        broken(Check::Ordered, format!("{event} came after {last}"))
    }

    /// One object of the initial state; its set is checked when it is complete.
    fn initial(&mut self, event: &'a Event) -> Result<(), Violation> {
        if event.kind != Kind::Added {
            return broken(Check::Kind, format!("{event} in the initial state"));
        }
        if self.initial.last().is_some_and(|last| last.key >= event.key) {
            return broken(Check::Initial, format!("{event} is not in key order"));
        }
        let change = self.expected.truth.change(event.revision);
        let is_genuine = change.is_some_and(|change| {
            change.key == event.key && change.after.as_ref() == Some(&event.body)
        });
        if !is_genuine {
            return broken(Check::Genuine, format!("{event} in the initial state"));
        }
        if !(self.expected.selection)(&event.body) {
            return broken(Check::FilterTrue, format!("{event} in the initial state"));
        }
        self.initial.push(event);
        self.told += 1;
        Ok(())
    }

    fn mark(&mut self, revision: Revision) -> Result<(), Violation> {
        if let Start::Initial(not_older) = self.start
            && revision < not_older
        {
            let why = format!("the state at {revision} is older than {not_older}");
            return broken(Check::Initial, why);
        }
        let state = self.expected.truth.state_at(revision);
        let selected = |body: &Body| (self.expected.selection)(body);
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
                    return broken(Check::Initial, why);
                }
            }
        }
        self.position = Some(revision);
        Ok(())
    }

    fn event(&mut self, event: &'a Event, position: Revision) -> Result<(), Violation> {
        if event.revision <= position {
            // Later than the events before it, so it is a bookmark that it contradicts.
            return broken(Check::Bookmarkable, format!("{event} came after {position}"));
        }
        let Some(change) = self.expected.truth.change(event.revision) else {
            return broken(Check::Genuine, format!("{event} never happened"));
        };
        if change.key != event.key {
            return broken(Check::Genuine, format!("{event} happened to {}", change.key));
        }
        let Some(expected) = self.expected.events.get(&event.revision) else {
            return broken(Check::FilterTrue, format!("{event} is not selected"));
        };
        if expected.kind != event.kind {
            return broken(Check::Kind, format!("{event} instead of {expected}"));
        }
        if expected.body != event.body {
            let is_deleted = event.kind == Kind::Deleted;
            let check = if is_deleted { Check::Previous } else { Check::Genuine };
            let (told, was) = (event.body.value(), expected.body.value());
            return broken(check, format!("{event} looked like {told}, not like {was}"));
        }
        self.nothing_between(position, event.revision, &event.to_string())?;
        self.position = Some(event.revision);
        self.has_begun = true;
        self.told += 1;
        Ok(())
    }

    fn bookmark(&mut self, revision: Revision, position: Revision) -> Result<(), Violation> {
        if revision < position {
            return broken(Check::Bookmarkable, format!("{revision} came after {position}"));
        }
        let what = format!("the bookmark {revision}");
        self.nothing_between(position, revision.next(), &what)
            .map_err(|missed| Violation { check: Check::Bookmarkable, ..missed })?;
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
                broken(Check::Honest, why)
            }
        }
    }

    /// Nothing that had to be told lies between two revisions.
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
        let check = if is_seam { Check::Resumable } else { Check::Reliable };
        broken(check, format!("{missed} is missing between {position} and {then}"))
    }
}

fn broken<T>(check: Check, why: String) -> Result<T, Violation> {
    Err(Violation { check, why })
}
