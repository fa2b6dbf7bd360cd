//! An incremental parser for the body of a list: passes on each item as soon as it is complete.
//!
//! River: response body → **list body** → object decoder.
//! Promise: it buffers at most one item; an item within one chunk is not copied; a body that is not
//! a list is refused.

use memchr::memchr2;
use serde::Deserialize;

use crate::list_watch::Error;
use crate::version::ResourceVersion;

/// Parses the body of a list.
pub(crate) struct ListBody {
    state: ParseState,
    value: Value,
    /// The text of the current value from earlier chunks.
    buffer: Vec<u8>,
    head: ListHead,
    /// The offset in the body, for messages.
    offset: usize,
    max: usize,
}

/// The members of a list except its items.
#[derive(Default)]
pub(crate) struct ListHead {
    pub(crate) kind: String,
    pub(crate) metadata: ListMeta,
    has_items: bool,
}

/// The metadata of a list.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    #[serde(default)]
    pub(crate) resource_version: Option<ResourceVersion>,
    #[serde(default, rename = "continue")]
    pub(crate) continue_token: Option<String>,
    #[serde(default)]
    pub(crate) remaining_item_count: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ParseState {
    Start,
    FirstKey,
    NextKey,
    Key,
    Colon(Member),
    Member(Member),
    AfterMember,
    Items,
    FirstItem,
    Item,
    AfterItem,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Kind,
    Metadata,
    Items,
    Other,
}

impl ListBody {
    pub(crate) fn new(max: usize) -> ListBody {
        ListBody {
            state: ParseState::Start,
            value: Value::default(),
            buffer: Vec::new(),
            head: ListHead::default(),
            offset: 0,
            max,
        }
    }

    /// Parses the next chunk and passes on each item that it completes.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        item: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rest = chunk;
        loop {
            if !self.value.is_open() {
                rest = rest.trim_ascii_start();
            }
            let Some(&first) = rest.first() else { break };
            rest = match self.state {
                ParseState::Key | ParseState::Member(_) | ParseState::Item => {
                    self.read_value(rest, item)?
                }
                _ => self.structure(first, rest)?,
            };
        }
        self.offset += chunk.len();
        Ok(())
    }

    /// Parses one structural character, or prepares for a value.
    fn structure<'a>(&mut self, first: u8, rest: &'a [u8]) -> Result<&'a [u8], Error> {
        let (next, used) = match (self.state, first) {
            (ParseState::Start, b'{') => (ParseState::FirstKey, 1),
            (ParseState::FirstKey | ParseState::NextKey, b'"') => (ParseState::Key, 0),
            (ParseState::FirstKey | ParseState::AfterMember, b'}') => (ParseState::End, 1),
            (ParseState::Colon(Member::Items), b':') => (ParseState::Items, 1),
            (ParseState::Colon(member), b':') => (ParseState::Member(member), 1),
            (ParseState::AfterMember, b',') => (ParseState::NextKey, 1),
            (ParseState::Items, b'[') => {
                self.head.has_items = true;
                (ParseState::FirstItem, 1)
            }
            (ParseState::Items, b'n') => {
                self.head.has_items = true; // a nil slice is written as null
                (ParseState::Member(Member::Other), 0)
            }
            (ParseState::FirstItem | ParseState::AfterItem, b']') => (ParseState::AfterMember, 1),
            (ParseState::FirstItem, _) => (ParseState::Item, 0),
            (ParseState::AfterItem, b',') => (ParseState::Item, 1),
            _ => return Err(self.malformed()),
        };
        self.state = next;
        Ok(&rest[used..])
    }

    /// Continues a value; passes it on when it is complete.
    fn read_value<'a>(
        &mut self,
        rest: &'a [u8],
        item: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<&'a [u8], Error> {
        let kept = self.state != ParseState::Member(Member::Other);
        let fresh = !self.value.is_open();
        match self.value.read(rest) {
            None if kept => {
                if self.buffer.len() + rest.len() > self.max {
                    return Err(Error::TooLong { max: self.max });
                }
                self.buffer.extend_from_slice(rest);
                Ok(&[])
            }
            None => Ok(&[]),
            Some(0) if fresh => Err(self.malformed()),
            Some(end) => {
                self.value = Value::default();
                let (part, after) = rest.split_at(end);
                if self.buffer.is_empty() {
                    self.finish_value(part, item)?;
                } else {
                    if kept {
                        self.buffer.extend_from_slice(part);
                    }
                    let whole = std::mem::take(&mut self.buffer);
                    self.finish_value(&whole, item)?;
                    self.buffer = whole;
                    self.buffer.clear();
                    self.buffer.shrink_to(1 << 20);
                }
                Ok(after)
            }
        }
    }

    fn finish_value(
        &mut self,
        text: &[u8],
        item: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.state = match self.state {
            ParseState::Key => ParseState::Colon(match text {
                b"\"kind\"" => Member::Kind,
                b"\"metadata\"" => Member::Metadata,
                b"\"items\"" => Member::Items,
                _ => Member::Other,
            }),
            ParseState::Item => {
                item(text)?;
                ParseState::AfterItem
            }
            ParseState::Member(Member::Kind) => {
                self.head.kind =
                    serde_json::from_slice(text).map_err(|error| unreadable(&error))?;
                ParseState::AfterMember
            }
            ParseState::Member(Member::Metadata) => {
                self.head.metadata =
                    serde_json::from_slice(text).map_err(|error| unreadable(&error))?;
                ParseState::AfterMember
            }
            _ => ParseState::AfterMember,
        };
        Ok(())
    }

    /// Ends the body and returns the members except the items.
    pub(crate) fn finish(self) -> Result<ListHead, Error> {
        if self.state != ParseState::End {
            return Err(Error::Cut);
        }
        let ListHead { kind, metadata, has_items } = &self.head;
        if !has_items || kind == "Table" {
            return Err(Error::WrongKind(if kind.is_empty() {
                "body".into()
            } else {
                kind.clone()
            }));
        }
        match &metadata.resource_version {
            Some(version) if !version.is_empty() => Ok(self.head),
            _ => Err(Error::NoResourceVersion),
        }
    }

    fn malformed(&self) -> Error {
        Error::Malformed(format!(
            "the response is not a list of objects, near byte {}",
            self.offset
        ))
    }
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::Malformed(error.to_string())
}

/// Finds the end of a JSON value across chunks by counting brackets outside strings. The decoder
/// checks whether it is JSON.
#[derive(Default)]
struct Value {
    kind: Option<ValueKind>,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    String,
    Container,
    Literal,
}

impl Value {
    fn is_open(&self) -> bool {
        self.kind.is_some()
    }

    /// The number of bytes that belong to the value, if it ends within `bytes`; zero if no value
    /// can start here.
    fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let &first = bytes.first()?;
        let kind = *self.kind.get_or_insert(match first {
            b'"' => ValueKind::String,
            b'{' | b'[' => ValueKind::Container,
            _ => ValueKind::Literal,
        });
        match kind {
            ValueKind::Literal => bytes.iter().position(|byte| {
                matches!(
                    byte,
                    b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'{' | b'[' | b':'
                )
            }),
            ValueKind::String | ValueKind::Container => self.read_nested(bytes),
        }
    }

    fn read_nested(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_string {
                at = self.read_string(bytes, at)?;
                if self.depth == 0 {
                    return Some(at);
                }
                continue;
            }
            match bytes[at] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Continues a string; returns where it ends.
    fn read_string(&mut self, bytes: &[u8], mut at: usize) -> Option<usize> {
        if self.escaped {
            self.escaped = false;
            at += 1;
        }
        loop {
            let found = at + memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[found] == b'"' {
                self.in_string = false;
                return Some(found + 1);
            }
            at = found + 2;
            if at > bytes.len() {
                self.escaped = true;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(chunks: &[&[u8]]) -> Result<(Vec<String>, ListHead), Error> {
        let mut body = ListBody::new(1000);
        let mut items = Vec::new();
        for chunk in chunks {
            body.feed(chunk, &mut |item: &[u8]| {
                items.push(String::from_utf8_lossy(item).into_owned());
                Ok(())
            })?;
        }
        Ok((items, body.finish()?))
    }

    const BODY: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"c","remainingItemCount":5}, "items" : [ {"a":"}\"]\\"} ,{"b":[{},{"c":1}]}],"extra":{"x":[1,2,"]"]},"n":-1.5}"#;

    /// C2.11
    #[test]
    fn items_are_passed_on_whatever_the_chunks() {
        let whole = read(&[BODY.as_bytes()]).unwrap();
        assert_eq!(whole.0, [r#"{"a":"}\"]\\"}"#, r#"{"b":[{},{"c":1}]}"#]);
        assert_eq!(whole.1.kind, "PodList");
        assert_eq!(whole.1.metadata.continue_token.as_deref(), Some("c"));
        assert_eq!(whole.1.metadata.remaining_item_count, Some(5));
        for size in 1..BODY.len() {
            let chunks: Vec<&[u8]> = BODY.as_bytes().chunks(size).collect();
            assert_eq!(read(&chunks).unwrap().0, whole.0, "chunks of {size}");
        }
    }

    #[test]
    fn an_empty_list_may_be_written_in_two_ways() {
        for items in ["[]", "[ ]", "null"] {
            let body = format!(r#"{{"items":{items},"metadata":{{"resourceVersion":"1"}}}}"#);
            assert_eq!(read(&[body.as_bytes()]).unwrap().0, Vec::<String>::new());
        }
    }

    /// C1.10
    #[test]
    fn a_list_without_a_version_is_an_error() {
        for metadata in ["{}", r#"{"resourceVersion":""}"#] {
            let body = format!(r#"{{"metadata":{metadata},"items":[]}}"#);
            assert!(matches!(read(&[body.as_bytes()]), Err(Error::NoResourceVersion)));
        }
    }

    /// C1.12, B250
    #[test]
    fn a_response_that_is_not_a_list_is_refused_with_its_kind() {
        let table = r#"{"kind":"Table","metadata":{"resourceVersion":"1"},"columnDefinitions":[],"rows":[{}]}"#;
        assert!(
            matches!(read(&[table.as_bytes()]), Err(Error::WrongKind(kind)) if kind == "Table")
        );
        let status = r#"{"kind":"Status","metadata":{},"code":200}"#;
        assert!(
            matches!(read(&[status.as_bytes()]), Err(Error::WrongKind(kind)) if kind == "Status")
        );
        for bad in [
            "<html></html>",
            "[]",
            "{]",
            r#"{"items":{}}"#,
            r#"{"items":[1,,2]}"#,
            r#"{"items":[}"#,
            "{}x",
            r#"{"a" 1}"#,
        ] {
            assert!(matches!(read(&[bad.as_bytes()]), Err(Error::Malformed(_))), "{bad}");
        }
        for cut in ["", "{", r#"{"items":["#, r#"{"items":[{"a":1"#, r#"{"items":[]"#] {
            assert!(matches!(read(&[cut.as_bytes()]), Err(Error::Cut)), "{cut}");
        }
    }

    #[test]
    fn an_item_without_end_stops_at_the_limit() {
        let chunk = [b'x'; 300];
        let chunks = [&b"{\"items\":[\""[..], &chunk, &chunk, &chunk, &chunk];
        assert!(matches!(read(&chunks), Err(Error::TooLong { max: 1000 })));
    }

    proptest! {
        /// C31.11
        #[test]
        fn any_bytes_are_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&[&body]);
            let mut list = br#"{"items":["#.to_vec();
            list.extend_from_slice(&body);
            let _ = read(&[&list]);
        }

        #[test]
        fn any_items_are_read_across_any_chunks(
            texts in prop::collection::vec(r#"[a-z"\\{}\[\],:\n]{0,12}"#, 0..6),
            size in 1..30usize,
        ) {
            let items: Vec<String> = texts
                .iter()
                .map(|text| serde_json::json!({ "t": text, "deep": [[text]] }).to_string())
                .collect();
            let body = format!(r#"{{"items":[{}],"metadata":{{"resourceVersion":"1"}}}}"#, items.join(","));
            let chunks: Vec<&[u8]> = body.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&chunks).unwrap().0, items);
        }
    }
}
