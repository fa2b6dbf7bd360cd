//! The codec of deltas: the line of a delta watch that changes an object the client holds.
//!
//! River: two versions of an object → **delta** → HTTP stream → **delta** → the client's bytes.
//! `docs/spec/delta-watch.md` describes the format.
//! Promise: applying a delta to the text it was made from gives the other text byte for byte; a
//! delta for another version, or one whose digest does not match, is refused; no input panics.

use std::borrow::Cow;

use bytes::Bytes;
use headwater_json::scan::{Malformed, Scanner};
use headwater_json::{edit, push_string};
use memchr::memmem;

use crate::fnv;
use crate::revision::Revision;

/// Encodes the line that turns `old`, the text of an object at revision `from`, into `new`, its text
/// at revision `to`. `None` if the line is not shorter than `max` bytes.
pub fn encode(
    (old, from): (&[u8], Revision),
    (new, to): (&[u8], Revision),
    with_digest: bool,
    max: usize,
) -> Option<Bytes> {
    let (from, to) = (from.to_string(), to.to_string());
    let old = restamped(old, &from, &to)?;
    let mut line = format!("{{\"delta\":[\"{from}\",\"{to}\"").into_bytes();
    let mut at = 0;
    for edit in edit::between(&old, new) {
        let text = std::str::from_utf8(new.get(edit.new)?).ok()?;
        push_edit(&mut line, edit.old.start - at, edit.old.len(), text);
        if line.len() >= max {
            return None;
        }
        at = edit.old.end;
    }
    line.push(b']');
    if with_digest {
        line.extend_from_slice(format!(",\"digest\":\"{:016x}\"", fnv::hash(new)).as_bytes());
    }
    line.extend_from_slice(b"}\n");
    (line.len() < max).then(|| line.into())
}

fn push_edit(line: &mut Vec<u8>, copied: usize, replaced: usize, text: &str) {
    line.extend_from_slice(format!(",{copied},").as_bytes());
    if replaced != text.len() {
        line.extend_from_slice(format!("{replaced},").as_bytes());
    }
    push_string(line, text);
}

/// The text of an object with another resourceVersion. Its first occurrence is that of the metadata:
/// only `kind` and `apiVersion` come before, and text inside a string has escaped quotes.
fn restamped(text: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    let marker = |version: &str| format!("\"resourceVersion\":\"{version}\"").into_bytes();
    let (old, new) = (marker(from), marker(to));
    let at = memmem::find(text, &old)?;
    let mut made = Vec::with_capacity(text.len() + new.len());
    made.extend_from_slice(&text[..at]);
    made.extend_from_slice(&new);
    made.extend_from_slice(&text[at + old.len()..]);
    Some(made)
}

/// Why a delta cannot be applied. The client must read the object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The text has another resourceVersion.
    #[error("the delta is for another version of the object")]
    Base,
    /// The edits do not fit the text.
    #[error("the edits of the delta do not fit the object")]
    Edits,
    /// The result has another digest.
    #[error("the object has another digest than the server's")]
    Digest,
}

/// A decoded delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta<'a> {
    /// The resourceVersion of the text that it changes.
    pub from: Cow<'a, str>,
    /// The resourceVersion of the result.
    pub to: Cow<'a, str>,
    edits: Vec<TextEdit<'a>>,
    digest: Option<u64>,
}

/// After `copied` bytes, `replaced` bytes become `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TextEdit<'a> {
    copied: usize,
    replaced: usize,
    text: Cow<'a, str>,
}

/// An item of the array of a delta.
enum Item<'a> {
    Number(usize),
    Text(Cow<'a, str>),
}

impl<'a> Delta<'a> {
    /// Whether a line of a watch is a delta and not an event.
    pub fn is(line: &[u8]) -> bool {
        line.starts_with(b"{\"delta\":")
    }

    /// Decodes a line.
    pub fn decode(line: &'a str) -> Result<Delta<'a>, Malformed> {
        let (mut items, mut digest) = (Vec::new(), None);
        let mut scanner = Scanner::new(line.as_bytes());
        scanner.object::<Malformed>(|key, at| {
            if at.is(key, "delta") {
                at.array::<Malformed>(|at| {
                    items.push(item(line, at)?);
                    Ok(())
                })
            } else if at.is(key, "digest") {
                let span = at.string()?;
                let text = at.text(span)?;
                let number = u64::from_str_radix(&text, 16);
                digest = Some(number.map_err(|_| Malformed { at: span.start as usize })?);
                Ok(())
            } else {
                at.value().map(drop)
            }
        })?;
        Delta::of(items, digest).ok_or(Malformed { at: scanner.offset() })
    }

    fn of(items: Vec<Item<'a>>, digest: Option<u64>) -> Option<Delta<'a>> {
        let mut items = items.into_iter();
        let (Item::Text(from), Item::Text(to)) = (items.next()?, items.next()?) else {
            return None;
        };
        let mut edits = Vec::new();
        while let Some(first) = items.next() {
            let Item::Number(copied) = first else { return None };
            edits.push(match items.next()? {
                Item::Text(text) => TextEdit { copied, replaced: text.len(), text },
                Item::Number(replaced) => match items.next()? {
                    Item::Text(text) => TextEdit { copied, replaced, text },
                    Item::Number(_) => return None,
                },
            });
        }
        Some(Delta { from, to, edits, digest })
    }

    /// The text of the object after the change.
    pub fn apply(&self, text: &str) -> Result<String, Mismatch> {
        let old = restamped(text.as_bytes(), &self.from, &self.to).ok_or(Mismatch::Base)?;
        let mut new = Vec::with_capacity(old.len() + 64);
        let mut rest = &old[..];
        for edit in &self.edits {
            let (copied, after) = rest.split_at_checked(edit.copied).ok_or(Mismatch::Edits)?;
            new.extend_from_slice(copied);
            new.extend_from_slice(edit.text.as_bytes());
            rest = after.get(edit.replaced..).ok_or(Mismatch::Edits)?;
        }
        new.extend_from_slice(rest);
        if self.digest.is_some_and(|digest| digest != fnv::hash(&new)) {
            return Err(Mismatch::Digest);
        }
        String::from_utf8(new).map_err(|_| Mismatch::Edits)
    }

    /// Whether it has a digest of the result.
    pub fn has_digest(&self) -> bool {
        self.digest.is_some()
    }
}

fn item<'a>(line: &'a str, at: &mut Scanner<'a>) -> Result<Item<'a>, Malformed> {
    if at.peek() == Some(b'"') {
        let span = at.string()?;
        return Ok(Item::Text(at.text(span)?));
    }
    let span = at.value()?;
    let text = line.get(span.start as usize..span.end as usize).unwrap_or_default();
    text.parse().map(Item::Number).map_err(|_| Malformed { at: span.start as usize })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: &str = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"99","annotations":{"a":"\"resourceVersion\":\"99\" é"},"name":"n"},"spec":{"renewTime":"2026-11-19T15:22:02.123456Z"}}"#;

    fn renewed() -> String {
        LEASE.replace(r#":"99","#, r#":"100","#).replace("22:02.123456", "22:12.987654")
    }

    fn line(old: &str, new: &str, with_digest: bool) -> Option<String> {
        let made = encode(
            (old.as_bytes(), Revision(99)),
            (new.as_bytes(), Revision(100)),
            with_digest,
            new.len(),
        );
        made.map(|line| String::from_utf8(line.to_vec()).unwrap())
    }

    /// The example of `docs/spec/delta-watch.md`.
    #[test]
    fn the_example_of_the_specification_is_right() {
        let text = r#"{"kind":"Lease","metadata":{"resourceVersion":"99","name":"n"},"spec":{"renewTime":"15:22:02.5Z"}}"#;
        let delta = Delta::decode(r#"{"delta":["99","100",88,"3"]}"#).unwrap();
        let expected = text.replace(r#":"99""#, r#":"100""#).replace("22:02", "32:02");
        assert_eq!(delta.apply(text).unwrap(), expected);
    }

    #[test]
    fn a_renewed_lease_is_a_short_line() {
        let line = line(LEASE, &renewed(), false).unwrap();
        assert_eq!(line, "{\"delta\":[\"99\",\"100\",192,\"12.987654\"]}\n");
        let delta = Delta::decode(line.trim_end()).unwrap();
        assert_eq!((&*delta.from, &*delta.to), ("99", "100"));
        assert_eq!(delta.apply(LEASE).unwrap(), renewed());
        assert!(Delta::is(line.as_bytes()) && !Delta::is(b"{\"type\":\"ADDED\""));
    }

    #[test]
    fn a_delta_that_is_not_shorter_is_not_made() {
        assert_eq!(line(LEASE, r#"{"metadata":{"resourceVersion":"100"}}"#, false), None);
        assert_eq!(line("{}", &renewed(), false), None, "without a version there is no base");
    }

    #[test]
    fn a_text_that_differs_is_refused() {
        let line = line(LEASE, &renewed(), true).unwrap();
        let delta = Delta::decode(line.trim_end()).unwrap();
        assert!(delta.has_digest());
        assert_eq!(delta.apply(LEASE).unwrap(), renewed());
        assert_eq!(delta.apply(&renewed()), Err(Mismatch::Base));
        let changed = LEASE.replace("Lease", "Leash");
        assert_eq!(delta.apply(&changed), Err(Mismatch::Digest));
        let short = r#"{"metadata":{"resourceVersion":"99"}}"#;
        assert_eq!(delta.apply(short), Err(Mismatch::Edits));
    }

    #[test]
    fn lines_that_are_no_deltas_are_refused() {
        for bad in [
            "{}",
            r#"{"delta":[]}"#,
            r#"{"delta":["1"]}"#,
            r#"{"delta":[1,2]}"#,
            r#"{"delta":["1","2",3]}"#,
            r#"{"delta":["1","2","3"]}"#,
            r#"{"delta":["1","2",-3,"x"]}"#,
            r#"{"delta":["1","2",3,4,5]}"#,
            r#"{"delta":["1","2",3.5,"x"]}"#,
            r#"{"delta":["1","2",99999999999999999999999,"x"]}"#,
            r#"{"delta":["1","2"],"digest":"xyz"}"#,
            r#"{"delta":["1","2"],"digest":7}"#,
        ] {
            assert!(Delta::decode(bad).is_err(), "{bad}");
        }
        let later = r#"{"digest":"00000000000000ff","x":[{}],"delta":["1","2", 3, 4, "\u0041"]}"#;
        let delta = Delta::decode(later).unwrap();
        assert_eq!(delta.apply(r#"{"resourceVersion":"1"}"#), Err(Mismatch::Digest));
    }

    proptest! {
        #[test]
        fn a_delta_of_any_texts_gives_the_second(
            old in r#"[\[\]{}:,"\\a0é ]{0,40}|.*"#,
            new in r#"[\[\]{}:,"\\a0é ]{0,40}|.*"#,
            with_digest: bool,
        ) {
            let at = |version: u64, text: &str| format!(r#"{{"resourceVersion":"{version}"{text}"#);
            let (old, new) = (at(99, &old), at(100, &new));
            let made = encode(
                (old.as_bytes(), Revision(99)),
                (new.as_bytes(), Revision(100)),
                with_digest,
                usize::MAX,
            );
            let line = made.unwrap();
            let delta = Delta::decode(std::str::from_utf8(&line).unwrap().trim_end()).unwrap();
            prop_assert_eq!(delta.apply(&old).unwrap(), new);
            prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        }

        #[test]
        fn no_line_and_no_text_panics(line in r#"[\[\]{}:,"delt0-9]{0,30}|.*"#, text in ".*") {
            if let Ok(delta) = Delta::decode(&line) {
                let _ = delta.apply(&text);
            }
        }
    }
}
