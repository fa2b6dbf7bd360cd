//! An object: its shared JSON bytes and a small parsed head.
//!
//! River: store change → **object** → snapshot, list bodies, watch frames.
//! Promise: the bytes are immutable and exist once. They are stored inside their natural watch
//! frame (`{"type":"ADDED","object":…}`), so sending the event of the write that produced them
//! encodes and copies nothing.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::{self, EventType, FRAME_END};
use crate::kind::Field;
use crate::marks::Marks;
use crate::revision::Revision;
use headwater_json::scan::{Malformed, Scanner, Span, find, unescape};
use headwater_json::wide;

/// Whether the text of an object contains `metadata.managedFields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ManagedFields {
    /// As stored.
    #[default]
    Kept,
    /// Left out.
    Dropped,
}

/// One version of one object.
pub struct Object {
    /// The natural frame; it contains the object's bytes.
    frame: Bytes,
    event: EventType,
    revision: Revision,
    /// `namespace/name`, or `name` for cluster-scoped kinds: the sort key of lists.
    key: Box<str>,
    namespace_len: u32,
    uid: Span,
    /// The offset of `"metadata"`: list items of built-in kinds start there.
    metadata_key: u32,
    metadata: Span,
    deleting: bool,
    labels: Box<[(Text, Text)]>,
    fields: Box<[Text]>,
    unescaped: Unescaped,
    /// The marks of the labels and the fields.
    marks: Marks,
}

/// The location of a text: inside the bytes, or among the [`Unescaped`] if it contains escapes.
/// Every object has many, so it is as small as a span.
#[derive(Clone, Copy)]
struct Text(Span);

/// Copies of texts that contain escapes; hardly any object has one.
#[derive(Default)]
#[expect(clippy::box_collection, reason = "every object has room for it")]
struct Unescaped(Option<Box<Vec<Box<str>>>>);

impl Unescaped {
    fn get(&self, at: u32) -> Option<&str> {
        self.0.as_ref()?.get(at as usize).map(|text| &**text)
    }

    /// Adds a text and returns its index.
    fn push(&mut self, text: String) -> u32 {
        let all = self.0.get_or_insert_default();
        all.push(text.into());
        all.len() as u32 - 1
    }
}

impl Text {
    /// No object has this many bytes.
    const ELSEWHERE: u32 = u32::MAX;

    /// No text.
    const NONE: Text = Text(Span { start: Text::ELSEWHERE, end: u32::MAX });

    fn new(
        scanner: &Scanner<'_>,
        span: Span,
        unescaped: &mut Unescaped,
    ) -> Result<Text, Malformed> {
        let text = match scanner.text(span)? {
            Cow::Borrowed(_) => return Ok(Text(span)),
            Cow::Owned(text) => text,
        };
        let end = unescaped.push(text);
        Ok(Text(Span { start: Text::ELSEWHERE, end }))
    }

    fn raw<'a>(self, bytes: &'a [u8], unescaped: &'a Unescaped) -> Option<&'a [u8]> {
        match self.0 {
            Span { start: Text::ELSEWHERE, end } => Some(unescaped.get(end)?.as_bytes()),
            span => Some(span.of(bytes)),
        }
    }

    fn find<'a>(self, bytes: &'a [u8], unescaped: &'a Unescaped) -> Option<&'a str> {
        // The text was checked to be UTF-8, and the bytes cannot change.
        self.raw(bytes, unescaped).map(|raw| std::str::from_utf8(raw).unwrap_or_default())
    }

    /// The text, which must exist.
    fn of<'a>(self, bytes: &'a [u8], unescaped: &'a Unescaped) -> &'a str {
        self.find(bytes, unescaped).unwrap_or_default()
    }
}

impl Object {
    /// Reads stored bytes: the canonical JSON of an object without its resourceVersion, which
    /// becomes the first member of `metadata`. `event` is the type of the change that produced it;
    /// `fields` are the selectable fields of its kind.
    pub fn decode(
        stored: &[u8],
        revision: Revision,
        event: EventType,
        fields: &[Field],
    ) -> Result<Object, Malformed> {
        let frame = spliced(stored, revision, [event.prefix(), FRAME_END])?;
        Object::from_frame(frame, event, revision, fields)
    }

    /// The stored bytes with their resourceVersion, without parsing a head.
    pub fn stamp(stored: &[u8], revision: Revision) -> Result<Bytes, Malformed> {
        spliced(stored, revision, ["", ""])
    }

    fn from_frame(
        frame: Bytes,
        event: EventType,
        revision: Revision,
        fields: &[Field],
    ) -> Result<Object, Malformed> {
        let bytes = object_in(&frame, event);
        let mut head = Head::new(fields.len());
        let sought = Sought::all(fields);
        let (in_metadata, outside) = sought.split("metadata");
        let scanned = Scanner::new(bytes).object::<Stop>(|key, at| {
            if at.is(key, "metadata") {
                head.metadata_key = key.start - 1;
                let start = at.offset() as u32;
                head.metadata(at)?;
                head.metadata = Span { start, end: at.offset() as u32 };
                // After the metadata, members without selectable fields are skipped.
                return if outside.is_none() { Err(Stop::Done) } else { Ok(()) };
            }
            Ok(head.fields_below(key, at, outside)?)
        });
        if let Err(Stop::Broken(broken)) = scanned {
            return Err(broken);
        }
        if !in_metadata.is_none() {
            // Fields inside the metadata are rare, so they take a second scan.
            let mut scanner = Scanner::at(bytes, head.metadata.start);
            scanner.object::<Malformed>(|key, at| head.fields_below(key, at, in_metadata))?;
        }
        head.fill_fields(bytes, fields);
        let name = head.name.find(bytes, &head.unescaped).ok_or(Malformed { at: 0 })?.to_owned();
        let namespace = head.namespace.of(bytes, &head.unescaped);
        let namespace_len = namespace.len() as u32;
        let key = match namespace {
            "" => name,
            namespace => format!("{namespace}/{name}"),
        };
        Ok(Object {
            marks: head.marks(bytes),
            event,
            revision,
            key: key.into(),
            namespace_len,
            uid: head.uid,
            metadata_key: head.metadata_key,
            metadata: head.metadata,
            deleting: head.deleting,
            labels: head.labels.into(),
            fields: head.fields.into(),
            unescaped: head.unescaped,
            frame,
        })
    }

    /// The same object at another revision and as another event: a DELETED event carries the last
    /// state at the revision of the write that deleted it.
    pub fn restamped(
        &self,
        revision: Revision,
        event: EventType,
        fields: &[Field],
    ) -> Result<Object, Malformed> {
        Object::decode(&self.stored()?, revision, event, fields)
    }

    /// The bytes that it was decoded from, without the resourceVersion.
    pub fn stored(&self) -> Result<Vec<u8>, Malformed> {
        let bytes = self.as_slice();
        let at = self.metadata.start as usize + 1;
        let mut scanner = Scanner::at(bytes, at as u32);
        scanner.string()?; // "resourceVersion", always first: `decode` put it there
        let after_key = scanner.offset() + 1;
        let mut scanner = Scanner::at(bytes, after_key as u32);
        scanner.string()?;
        let mut stored = Vec::with_capacity(bytes.len());
        stored.extend_from_slice(&bytes[..at]);
        let rest = &bytes[scanner.offset()..];
        stored.extend_from_slice(rest.strip_prefix(b",").unwrap_or(rest));
        Ok(stored)
    }

    /// The complete object as JSON.
    pub fn bytes(&self) -> Bytes {
        let start = self.event.prefix().len();
        self.frame.slice(start..self.frame.len() - FRAME_END.len())
    }

    /// The complete object as JSON, borrowed.
    pub fn as_slice(&self) -> &[u8] {
        object_in(&self.frame, self.event)
    }

    /// The watch frame of the change that produced this version.
    pub fn natural_frame(&self) -> Bytes {
        self.frame.clone()
    }

    /// The type of the change that produced this version.
    pub fn event(&self) -> EventType {
        self.event
    }

    /// The watch frame for this version under another event type.
    pub fn frame(&self, event: EventType) -> Bytes {
        if event == self.event {
            self.natural_frame()
        } else {
            frame::encode(event, self.as_slice())
        }
    }

    /// The bytes after the opening brace of a list item of a built-in kind: the object without
    /// `kind` and `apiVersion`.
    pub fn item_tail(&self) -> &[u8] {
        &self.as_slice()[self.metadata_key as usize..]
    }

    /// The value of `metadata`, as JSON.
    pub fn metadata(&self) -> &[u8] {
        self.metadata.of(self.as_slice())
    }

    /// The complete object in two parts, between which managed fields may be left out.
    pub fn parts(&self, managed: ManagedFields) -> [&[u8]; 2] {
        let (bytes, cut) = (self.as_slice(), self.cut(managed));
        [&bytes[..cut.start], &bytes[cut.end..]]
    }

    /// As [`Object::item_tail`], in two parts.
    pub fn item_parts(&self, managed: ManagedFields) -> [&[u8]; 2] {
        let [before, after] = self.parts(managed);
        [&before[self.metadata_key as usize..], after]
    }

    /// As [`Object::metadata`], in two parts.
    pub fn metadata_parts(&self, managed: ManagedFields) -> [&[u8]; 2] {
        let (bytes, cut) = (self.as_slice(), self.cut(managed));
        let Span { start, end } = self.metadata;
        [&bytes[start as usize..cut.start], &bytes[cut.end..end as usize]]
    }

    /// The bytes to leave out, inside of the metadata.
    fn cut(&self, managed: ManagedFields) -> Range<usize> {
        let Span { start, end } = self.metadata;
        let nothing = end as usize - 1..end as usize - 1;
        if managed == ManagedFields::Kept {
            return nothing;
        }
        let Some(found) = find(self.metadata(), &["managedFields"]) else { return nothing };
        let [value, end] = [found.start, found.end].map(|at| (start + at) as usize);
        // Stored text has no white space, so the key is directly before its value.
        let bytes = self.as_slice();
        match bytes[..value].strip_suffix(MANAGED_FIELDS_KEY).map(|before| (before, &bytes[end..]))
        {
            Some(([.., b','], _)) => value - MANAGED_FIELDS_KEY.len() - 1..end,
            Some((_, [b',', ..])) => value - MANAGED_FIELDS_KEY.len()..end + 1,
            Some(_) => value - MANAGED_FIELDS_KEY.len()..end,
            None => nothing,
        }
    }

    /// The revision of the write that produced this version.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// `namespace/name`, or `name` for cluster-scoped kinds.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The namespace; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        &self.key[..self.namespace_len as usize]
    }

    /// The name.
    pub fn name(&self) -> &str {
        match self.namespace_len {
            0 => &self.key,
            len => &self.key[len as usize + 1..],
        }
    }

    /// The uid; empty if the bytes have none.
    pub fn uid(&self) -> &str {
        std::str::from_utf8(self.uid.of(self.as_slice())).unwrap_or_default()
    }

    /// Whether `deletionTimestamp` is set.
    pub fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// The value of one label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let bytes = self.as_slice();
        let is_it = |found: Text| found.raw(bytes, &self.unescaped) == Some(key.as_bytes());
        let (_, value) = self.labels.iter().find(|(found, _)| is_it(*found))?;
        value.find(bytes, &self.unescaped)
    }

    /// All labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let bytes = self.as_slice();
        let text = |text: &Text| text.of(bytes, &self.unescaped);
        self.labels.iter().map(move |(key, value)| (text(key), text(value)))
    }

    /// The marks of its labels and selectable fields.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// Whether it may have the labels and fields with these marks.
    pub(crate) fn may_have(&self, marks: Marks) -> bool {
        self.marks.cover(marks)
    }

    /// The value of the kind's `index`-th selectable field, if the object has it.
    pub fn field(&self, index: usize) -> Option<&str> {
        self.fields.get(index)?.find(self.as_slice(), &self.unescaped)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} @{})", self.key, self.revision)
    }
}

/// Objects of one kind are ordered by key, as lists are.
impl Borrow<str> for Object {
    fn borrow(&self) -> &str {
        &self.key
    }
}

/// The key of `managedFields`, up to its value.
const MANAGED_FIELDS_KEY: &[u8] = br#""managedFields":"#;

fn object_in(frame: &Bytes, event: EventType) -> &[u8] {
    &frame[event.prefix().len()..frame.len() - FRAME_END.len()]
}

/// The stored bytes with their resourceVersion, between a prefix and a suffix.
fn spliced(
    stored: &[u8],
    revision: Revision,
    [prefix, suffix]: [&str; 2],
) -> Result<Bytes, Malformed> {
    let metadata = metadata_start(stored)?;
    let (before, after) = stored.split_at(metadata + 1);
    let comma = if after.first() == Some(&b'}') { "" } else { "," };
    let version = match revision {
        Revision::ZERO => String::new(), // never stored: the answer to a dry run
        revision => format!("\"resourceVersion\":\"{revision}\"{comma}"),
    };
    let mut buffer =
        BytesMut::with_capacity(prefix.len() + stored.len() + version.len() + suffix.len());
    buffer.put_slice(prefix.as_bytes());
    buffer.put_slice(before);
    buffer.put_slice(version.as_bytes());
    buffer.put_slice(after);
    buffer.put_slice(suffix.as_bytes());
    Ok(buffer.freeze())
}

/// Why a scan ends before the end of the object.
enum Stop {
    /// Everything needed was found.
    Done,
    Broken(Malformed),
}

impl From<Malformed> for Stop {
    fn from(broken: Malformed) -> Stop {
        Stop::Broken(broken)
    }
}

/// The offset of the brace that opens `metadata`, which is near the start.
fn metadata_start(stored: &[u8]) -> Result<usize, Malformed> {
    let mut found = None;
    let scanned = Scanner::new(stored).object::<Stop>(|key, at| {
        if at.is(key, "metadata") && at.peek() == Some(b'{') {
            found = Some(at.offset());
            return Err(Stop::Done);
        }
        at.value()?;
        Ok(())
    });
    match scanned {
        Err(Stop::Broken(broken)) => Err(broken),
        Ok(()) | Err(Stop::Done) => found.ok_or(Malformed { at: 0 }),
    }
}

/// The selectable fields that may be below a path in the object.
#[derive(Clone, Copy)]
struct Sought<'a> {
    fields: &'a [Field],
    /// One bit per field. No kind has as many fields as there are bits.
    which: u64,
    /// The length of the path so far.
    depth: usize,
}

impl<'a> Sought<'a> {
    fn all(fields: &'a [Field]) -> Sought<'a> {
        let count = fields.len().min(u64::BITS as usize);
        let which = (0..count).fold(0, |which, index| which | 1 << index);
        Sought { fields, which, depth: 0 }
    }

    fn is_none(&self) -> bool {
        self.which == 0
    }

    /// Their indices.
    fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        wide::bits(self.which).map(|bit| bit as usize)
    }

    /// The fields below `name`, with a path extended by it, and the others.
    fn split(self, name: &str) -> (Sought<'a>, Sought<'a>) {
        let which = self.at(name.as_bytes());
        let below = Sought { which, depth: self.depth + 1, ..self };
        (below, Sought { which: self.which & !which, ..self })
    }

    /// The fields whose next name is this one.
    fn at(&self, name: &[u8]) -> u64 {
        let is_next = |index: &usize| {
            let next = self.fields[*index].path().get(self.depth);
            next.is_some_and(|next| next.as_bytes() == name)
        };
        self.indices().filter(is_next).fold(0, |which, index| which | 1 << index)
    }

    /// Whether the path is that of the field.
    fn is_here(&self, index: usize) -> bool {
        self.fields[index].path().len() == self.depth
    }
}

/// The head, collected in one scan of the bytes.
struct Head {
    name: Text,
    namespace: Text,
    uid: Span,
    deleting: bool,
    metadata_key: u32,
    metadata: Span,
    labels: Vec<(Text, Text)>,
    fields: Vec<Text>,
    unescaped: Unescaped,
}

impl Head {
    fn new(fields: usize) -> Head {
        Head {
            name: Text::NONE,
            namespace: Text::NONE,
            uid: Span::default(),
            deleting: false,
            metadata_key: 0,
            metadata: Span::default(),
            labels: Vec::new(),
            fields: vec![Text::NONE; fields],
            unescaped: Unescaped::default(),
        }
    }

    /// Gives empty fields the value of the field that stands in for them.
    fn fill_fields(&mut self, bytes: &[u8], fields: &[Field]) {
        for (index, field) in fields.iter().enumerate() {
            let Some(instead) = &field.instead else { continue };
            let is_empty = self.fields[index].of(bytes, &self.unescaped).is_empty();
            let other = fields.iter().position(|field| field.label == *instead);
            if let Some(other) = other.filter(|_| is_empty) {
                self.fields[index] = self.fields[other];
            }
        }
    }

    fn marks(&self, bytes: &[u8]) -> Marks {
        let mut marks = Marks::default();
        for (key, value) in &self.labels {
            let [key, value] = [key, value].map(|text| text.of(bytes, &self.unescaped));
            marks.add(Marks::label(key, value));
        }
        for (index, text) in self.fields.iter().enumerate() {
            if let Some(text) = text.find(bytes, &self.unescaped) {
                marks.add(Marks::field(index, text));
            }
        }
        marks
    }

    fn metadata(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        scanner.object(|key, at| {
            match &*at.name(key) {
                b"name" => self.name = self.string(at)?,
                b"namespace" => self.namespace = self.string(at)?,
                b"uid" => self.uid = at.string()?,
                b"deletionTimestamp" => {
                    self.deleting = at.peek() == Some(b'"');
                    at.value()?;
                }
                b"labels" if at.peek() == Some(b'{') => at.object::<Malformed>(|key, at| {
                    let key = Text::new(at, key, &mut self.unescaped)?;
                    let value = self.string(at)?;
                    self.labels.push((key, value));
                    Ok(())
                })?,
                _ => drop(at.value()?),
            }
            Ok(())
        })
    }

    fn fields_below(
        &mut self,
        key: Span,
        at: &mut Scanner<'_>,
        sought: Sought<'_>,
    ) -> Result<(), Malformed> {
        let which = sought.at(&at.name(key));
        if which == 0 {
            return at.value().map(drop);
        }
        let sought = Sought { which, depth: sought.depth + 1, ..sought };
        let deeper = sought.indices().any(|index| !sought.is_here(index));
        if deeper && at.peek() == Some(b'{') {
            return at.object(|key, at| self.fields_below(key, at, sought));
        }
        let text = self.scalar(at)?;
        for index in sought.indices().filter(|index| sought.is_here(*index)) {
            self.fields[index] = text;
        }
        Ok(())
    }

    fn string(&mut self, at: &mut Scanner<'_>) -> Result<Text, Malformed> {
        let span = at.string()?;
        Text::new(at, span, &mut self.unescaped)
    }

    /// A scalar as selectors compare it: a string without quotes, a number or boolean as written.
    fn scalar(&mut self, at: &mut Scanner<'_>) -> Result<Text, Malformed> {
        match at.peek() {
            Some(b'"') => self.string(at),
            Some(b'{' | b'[' | b'n') => at.value().map(|_| Text::NONE),
            _ => at.value().map(Text),
        }
    }
}

/// Reads one string member from the JSON of an object, for callers that need a single value and
/// have no [`Object`].
pub fn string_at(bytes: &[u8], path: &[&str]) -> Option<String> {
    let value = find(bytes, path)?.of(bytes);
    let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    unescape(text).map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<Field> {
        vec![
            Field::new("spec.nodeName", &["spec", "nodeName"], ""),
            Field::new("spec.hostNetwork", &["spec", "hostNetwork"], "false"),
            Field::new("status.phase", &["status", "phase"], ""),
        ]
    }

    const STORED: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"u-1","labels":{"app":"web","e\"":"x\u0041"}},"spec":{"nodeName":"n1","hostNetwork":true},"status":{"phase":"Running"}}"#;

    fn object() -> Object {
        Object::decode(STORED.as_bytes(), Revision(7), EventType::Added, &fields()).unwrap()
    }

    #[test]
    fn an_object_is_small() {
        // With the two counters of an `Arc`, the largest size that allocators serve with 160 bytes.
        assert!(size_of::<Object>() <= 144, "{}", size_of::<Object>());
    }

    #[test]
    fn the_head_is_parsed_from_the_bytes() {
        let object = object();
        assert_eq!(object.key(), "ns/a");
        assert_eq!((object.namespace(), object.name(), object.uid()), ("ns", "a", "u-1"));
        assert_eq!(object.label("app"), Some("web"));
        assert_eq!(object.label("e\""), Some("xA"));
        assert_eq!(object.field(0), Some("n1"));
        assert_eq!(object.field(1), Some("true"));
        assert_eq!(object.field(2), Some("Running"));
        assert!(!object.is_deleting());
    }

    #[test]
    fn the_revision_is_spliced_in_and_replaced() {
        let object = object();
        let text = String::from_utf8(object.bytes().to_vec()).unwrap();
        assert!(text.contains(r#""metadata":{"resourceVersion":"7","name":"a""#), "{text}");
        let later = object.restamped(Revision(12), EventType::Deleted, &fields()).unwrap();
        let text = String::from_utf8(later.bytes().to_vec()).unwrap();
        assert!(text.contains(r#""metadata":{"resourceVersion":"12","name":"a""#), "{text}");
        assert!(!text.contains(r#""7""#), "{text}");
        assert_eq!(later.frame(EventType::Deleted), later.natural_frame());
    }

    #[test]
    fn a_list_item_leaves_out_the_type() {
        assert!(object().item_tail().starts_with(br#""metadata":{"resourceVersion":"7""#));
    }

    #[test]
    fn managed_fields_are_left_out_wherever_they_are() {
        let check = |stored: &str, revision: u64, expected: &str| {
            let fields = [];
            let stored = stored.as_bytes();
            let object =
                Object::decode(stored, Revision(revision), EventType::Added, &fields).unwrap();
            let text = |parts: [&[u8]; 2]| String::from_utf8(parts.concat()).unwrap();
            assert_eq!(text(object.parts(ManagedFields::Dropped)), expected);
            assert_eq!(text(object.parts(ManagedFields::Kept)).as_bytes(), object.as_slice());
            let metadata = text(object.metadata_parts(ManagedFields::Dropped));
            assert!(expected.ends_with(&format!("\"metadata\":{metadata},\"spec\":1}}")));
            let item = text(object.item_parts(ManagedFields::Dropped));
            assert_eq!(item, format!("\"metadata\":{metadata},\"spec\":1}}"));
        };
        check(
            r#"{"kind":"Pod","metadata":{"managedFields":[{"a":"]"}],"name":"x"},"spec":1}"#,
            7,
            r#"{"kind":"Pod","metadata":{"resourceVersion":"7","name":"x"},"spec":1}"#,
        );
        // The answer to a dry run has no resourceVersion.
        check(
            r#"{"metadata":{"managedFields":[],"name":"x"},"spec":1}"#,
            0,
            r#"{"metadata":{"name":"x"},"spec":1}"#,
        );
        let without = r#"{"metadata":{"annotations":{"managedFields":"z"},"name":"x"},"spec":1}"#;
        check(without, 0, without);
    }

    #[test]
    fn the_natural_frame_is_one_line_of_json() {
        let frame = object().natural_frame();
        assert!(frame.starts_with(br#"{"type":"ADDED","object":{"kind":"Pod""#));
        assert!(frame.ends_with(b"}}\n"));
        serde_json::from_slice::<headwater_json::Value>(&frame).unwrap();
    }

    #[test]
    fn text_inside_a_string_is_not_mistaken_for_a_member() {
        let stored = r#"{"data":{"x":"\"metadata\":{\"name\":\"evil\"}"},"metadata":{"name":"a"}}"#;
        let object = Object::decode(stored.as_bytes(), Revision(1), EventType::Added, &[]).unwrap();
        assert_eq!(object.key(), "a");
    }
}
