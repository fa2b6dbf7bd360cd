//! The decoder of watch frames and list items.
//!
//! River: frames and list items → **decoder** → reflector.
//! Promise: text is parsed once and in place; an object that does not decode is distinguished from
//! a stream that cannot be read; no input panics.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_api::EventType;
use headwater_api::delta::Delta;
use headwater_api::frame::Frame;
use headwater_api::selector::ShardSelector;
use headwater_json::scan::{Malformed, Scanner};
use serde::Deserialize;

use super::bases::Bases;
use crate::key::Key;
use crate::list_watch::{Error, Event, Skipped, StatusError, Undecodable};
use crate::object::Cached;
use crate::strip::Strip;
use crate::version::ResourceVersion;

/// Decodes the objects of one source.
pub(crate) struct Decoder<K> {
    /// Other objects are left out, in case the server cannot select parts.
    pub(crate) shard: Option<ShardSelector>,
    pub(crate) strip: Strip,
    /// The kind and apiVersion of the objects, if they contain them.
    pub(crate) kind: String,
    pub(crate) api_version: String,
    pub(crate) sizes: Arc<Sizes>,
    /// The texts to apply deltas to, if they are asked for.
    pub(crate) bases: Option<Arc<Bases>>,
    pub(crate) object: PhantomData<fn() -> K>,
}

/// The estimated memory of all objects that were decoded.
#[derive(Default)]
pub(crate) struct Sizes {
    objects: AtomicUsize,
    bytes: AtomicUsize,
}

impl Sizes {
    fn add<K: Cached>(&self, text: &str) {
        self.bytes.fetch_add(K::approx_bytes(text), Ordering::Relaxed);
        self.objects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn mean(&self) -> Option<usize> {
        let objects = self.objects.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed).checked_div(objects)
    }
}

/// The result of decoding one object.
pub(crate) enum Decoded<K> {
    Object(K),
    Undecodable(Undecodable),
    Skipped(Skipped),
    /// It belongs to another shard.
    Elsewhere,
}

impl<K: Cached> Decoder<K> {
    /// Decodes one line of a watch: the frame of an event, or a delta. `None` if it is about an object
    /// of another shard.
    pub(crate) fn event(
        &self,
        line: &[u8],
        scratch: &mut String,
    ) -> Result<Option<Event<K>>, Error> {
        let text = std::str::from_utf8(line).map_err(|_| malformed("a frame is not UTF-8"))?;
        if let Some(bases) = self.bases.as_ref().filter(|_| Delta::is(line)) {
            return self.delta(text, bases, scratch);
        }
        let frame = Frame::decode(text).map_err(|_| malformed("a frame is not an event"))?;
        let object = frame.object;
        let Some(event) = EventType::parse(&frame.event) else {
            return Err(Error::Malformed(format!("unknown event type {:?}", frame.event)));
        };
        let wrap = match event {
            EventType::Added => Event::Added,
            EventType::Modified => Event::Modified,
            EventType::Deleted => Event::Deleted,
            EventType::Bookmark => return bookmark(object).map(Some),
            EventType::Error => return Ok(Some(Event::Error(StatusError::from_event(object)))),
        };
        if let Some(kind) = self.wrong_kind(object) {
            return Ok(Some(Event::Skipped(Skipped::WrongKind(kind))));
        }
        Ok(Some(match self.object(object, scratch)? {
            Decoded::Object(object) if object.resource_version().is_empty() => {
                Event::Skipped(Skipped::NoMetadata)
            }
            Decoded::Object(object) => {
                if let Some(bases) = self.bases.as_ref().filter(|_| event == EventType::Deleted) {
                    bases.remove(&object.key());
                }
                wrap(object)
            }
            Decoded::Undecodable(undecodable) => Event::Undecodable(undecodable),
            Decoded::Skipped(skipped) => Event::Skipped(skipped),
            Decoded::Elsewhere => return Ok(None),
        }))
    }

    /// A delta as the event that it stands for. One that cannot be applied ends the stream as if the
    /// position were gone: the reflector reads the collection again.
    fn delta(
        &self,
        line: &str,
        bases: &Bases,
        scratch: &mut String,
    ) -> Result<Option<Event<K>>, Error> {
        let delta = Delta::decode(line).map_err(|_| malformed("a line is not a delta"))?;
        let text = match bases.apply(&delta) {
            Ok(text) => text,
            Err(mismatch) => {
                let (kind, version) = (&self.kind, &delta.to);
                tracing::warn!(kind, %version, %mismatch, "cannot apply a delta; reading again");
                let message = format!("cannot apply a delta: {mismatch}");
                return Ok(Some(Event::Error(StatusError::new(410, "Expired", &message))));
            }
        };
        Ok(Some(match self.object(&text, scratch)? {
            Decoded::Object(object) => Event::Modified(object),
            Decoded::Undecodable(undecodable) => Event::Undecodable(undecodable),
            Decoded::Skipped(skipped) => Event::Skipped(skipped),
            Decoded::Elsewhere => return Ok(None),
        }))
    }

    /// Decodes one item of a list.
    pub(crate) fn item(&self, item: &[u8], scratch: &mut String) -> Result<Decoded<K>, Error> {
        let text = std::str::from_utf8(item).map_err(|_| malformed("an item is not UTF-8"))?;
        self.object(text, scratch)
    }

    fn object(&self, text: &str, scratch: &mut String) -> Result<Decoded<K>, Error> {
        let kept = self.strip.apply(text, scratch);
        match K::decode(kept) {
            Ok(object) if object.name().is_empty() => Ok(Decoded::Skipped(Skipped::NoMetadata)),
            Ok(object) if !self.is_here(&object) => Ok(Decoded::Elsewhere),
            Ok(object) => {
                self.sizes.add::<K>(kept);
                if let Some(bases) = &self.bases {
                    bases.keep(&object, kept.len() == text.len());
                }
                Ok(Decoded::Object(object))
            }
            Err(error) => Ok(match isolate(text, &error)? {
                Isolated::Undecodable(undecodable) => {
                    if let Some(bases) = &self.bases {
                        bases.remove(&undecodable.key);
                    }
                    Decoded::Undecodable(undecodable)
                }
                Isolated::Skipped => Decoded::Skipped(Skipped::NoMetadata),
            }),
        }
    }

    fn is_here(&self, object: &K) -> bool {
        let is_in = |shard: &ShardSelector| {
            shard.includes(object.uid(), object.namespace().unwrap_or_default())
        };
        self.shard.as_ref().is_none_or(is_in)
    }

    /// The kind of an object, if it is not the expected one.
    fn wrong_kind(&self, object: &str) -> Option<String> {
        let (kind, api_version) = kind_of(object);
        let wrong = kind.as_ref().is_some_and(|kind| *kind != self.kind)
            || api_version.is_some_and(|version| *version != self.api_version);
        wrong.then(|| kind.unwrap_or_default().into_owned())
    }
}

/// An object that did not decode.
enum Isolated {
    Undecodable(Undecodable),
    /// It has no metadata.
    Skipped,
}

/// Distinguishes a bad object from a bad stream; called for objects that did not decode.
fn isolate(text: &str, error: &serde_json::Error) -> Result<Isolated, Error> {
    let Ok(Bare { metadata: Some(metadata) }) = serde_json::from_str::<Bare>(text) else {
        // JSON without metadata is skipped; other text is not an object.
        return match serde_json::from_str::<Bare>(text) {
            Ok(_) => Ok(Isolated::Skipped),
            Err(_) => Err(Error::Malformed(error.to_string())),
        };
    };
    let Some(name) = metadata.name.filter(|name| !name.is_empty()) else {
        return Ok(Isolated::Skipped);
    };
    let resource_version = metadata.resource_version.unwrap_or_else(|| "".into());
    Ok(Isolated::Undecodable(Undecodable {
        key: Key::new(metadata.namespace.as_deref(), &name),
        resource_version,
        error: error.to_string(),
    }))
}

fn malformed(text: &str) -> Error {
    Error::Malformed(text.to_owned())
}

/// `kind` and `apiVersion` of an object. Known servers send them first, so little is read.
fn kind_of(object: &str) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    enum Stop {
        Enough,
        Malformed,
    }
    impl From<Malformed> for Stop {
        fn from(_: Malformed) -> Stop {
            Stop::Malformed
        }
    }
    let (mut kind, mut api_version) = (None, None);
    let read = Scanner::new(object.as_bytes()).object::<Stop>(|key, at| {
        let wanted = match () {
            () if at.is(key, "kind") => &mut kind,
            () if at.is(key, "apiVersion") => &mut api_version,
            () => {
                at.value()?;
                return Ok(());
            }
        };
        if at.peek() == Some(b'"') {
            let span = at.string()?;
            *wanted = Some(at.text(span)?);
        } else {
            at.value()?;
        }
        if kind.is_some() && api_version.is_some() { Err(Stop::Enough) } else { Ok(()) }
    });
    match read {
        Ok(()) | Err(Stop::Enough) => (kind, api_version),
        Err(Stop::Malformed) => (None, None), // the decoder reports it
    }
}

/// The metadata of an object.
#[derive(Deserialize)]
struct Bare {
    #[serde(default)]
    metadata: Option<BareMeta>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BareMeta {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    resource_version: Option<ResourceVersion>,
    #[serde(default)]
    annotations: Option<BareAnnotations>,
}

#[derive(Deserialize)]
struct BareAnnotations {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

pub(super) fn bookmark<K>(object: &str) -> Result<Event<K>, Error> {
    let bare: Bare = serde_json::from_str(object)
        .map_err(|error| Error::Malformed(format!("a bookmark: {error}")))?;
    let Some(BareMeta { resource_version: Some(resource_version), annotations, .. }) =
        bare.metadata.filter(|metadata| {
            metadata.resource_version.as_ref().is_some_and(|version| !version.is_empty())
        })
    else {
        return Ok(Event::Skipped(Skipped::NoMetadata));
    };
    let marker = annotations.and_then(|annotations| annotations.initial_events_end);
    Ok(Event::Bookmark { resource_version, initial_events_end: marker.as_deref() == Some("true") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::Packed;
    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;

    fn decoder<K>() -> Decoder<K> {
        Decoder {
            shard: None,
            strip: Strip { managed_fields: true, ..Strip::default() },
            kind: "Pod".into(),
            api_version: "v1".into(),
            sizes: Arc::default(),
            bases: None,
            object: PhantomData,
        }
    }

    fn event(frame: &str) -> Result<Event<Pod>, Error> {
        let event = decoder().event(frame.as_bytes(), &mut String::new());
        event.map(|event| event.expect("there are no shards"))
    }

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","resourceVersion":"5","managedFields":[{"manager":"m"}]}}"#;

    /// C1.16
    #[test]
    fn type_and_object_come_in_either_order_and_extras_are_ignored() {
        for frame in [
            format!(r#"{{"type":"MODIFIED","object":{POD}}}"#),
            format!(r#"{{"object":{POD},"type":"MODIFIED"}}"#),
            format!(r#" {{ "x" : [1] , "object" : {POD} , "y":null, "type" : "MODIFIED" }} "#),
            format!(r#"{{"t\u0079pe":"MODIFI\u0045D","object":{POD}}}"#),
        ] {
            let Ok(Event::Modified(pod)) = event(&frame) else { panic!("{frame}") };
            assert_eq!(pod.metadata.name.as_deref(), Some("a"));
            assert_eq!(pod.metadata.managed_fields, None);
        }
    }

    /// C3.5
    #[test]
    fn only_the_annotation_value_true_is_the_marker() {
        for (annotations, expected) in [
            (r#"{"k8s.io/initial-events-end":"true"}"#, true),
            (r#"{"k8s.io/initial-events-end":"false"}"#, false),
            (r#"{"k8s.io/initial-events-end":""}"#, false),
            (r#"{"other":"true"}"#, false),
            ("{}", false),
            ("null", false),
        ] {
            let frame = format!(
                r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"9","annotations":{annotations}}}}}}}"#
            );
            let Ok(Event::Bookmark { resource_version, initial_events_end }) = event(&frame) else {
                panic!("{frame}")
            };
            assert_eq!((resource_version, initial_events_end), ("9".into(), expected));
        }
    }

    /// C4.6, C1.12
    #[test]
    fn objects_of_another_kind_or_without_metadata_are_skipped() {
        let skipped =
            |object: &str| match event(&format!(r#"{{"type":"ADDED","object":{object}}}"#)) {
                Ok(Event::Skipped(skipped)) => skipped,
                other => panic!("{object}: {other:?}"),
            };
        let wrong = |kind: &str| Skipped::WrongKind(kind.to_owned());
        let named = r#""metadata":{"name":"a","resourceVersion":"1"}"#;
        assert_eq!(skipped(&format!(r#"{{"kind":"Node",{named}}}"#)), wrong("Node"));
        assert_eq!(
            skipped(&format!(r#"{{"kind":"Pod","apiVersion":"v2",{named}}}"#)),
            wrong("Pod")
        );
        assert_eq!(
            skipped(r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}"#),
            wrong("Table")
        );
        assert_eq!(skipped(r#"{"kind":"Pod","apiVersion":"v1"}"#), Skipped::NoMetadata);
        assert_eq!(skipped(r#"{"metadata":{"resourceVersion":"1"}}"#), Skipped::NoMetadata);
        assert_eq!(skipped(r#"{"metadata":{"name":"a"}}"#), Skipped::NoMetadata);
    }

    /// C15.9, C2.13
    #[test]
    fn an_object_that_does_not_decode_is_reported_with_its_key() {
        let bad = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","resourceVersion":"5"},"spec":{"containers":"none"}}"#;
        let Ok(Event::Undecodable(undecodable)) =
            event(&format!(r#"{{"type":"ADDED","object":{bad}}}"#))
        else {
            panic!()
        };
        assert_eq!(undecodable.key.as_str(), "n/a");
        assert_eq!(undecodable.resource_version, "5".into());
        assert!(undecodable.error.contains("invalid type"), "{}", undecodable.error);
        let item = decoder::<Pod>().item(bad.as_bytes(), &mut String::new());
        assert!(matches!(item, Ok(Decoded::Undecodable(_))));
    }

    /// B240, B242
    #[test]
    fn input_that_is_not_an_event_breaks_the_stream() {
        for bad in [
            "garbage",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a""#,
            r#"{"type":"WHATEVER","object":{}}"#,
            r#"{"type":5,"object":{}}"#,
            r#"{"type":"ADDED","object":7}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"},]}}"#,
            r#"{"type":"BOOKMARK","object":"x"}"#,
            "{\"type\":\"ADDED\",\"object\":{}} trailing",
        ] {
            assert!(matches!(event(bad), Err(Error::Malformed(_))), "{bad}: {:?}", event(bad));
        }
        let frame = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"\xff\"}}}";
        assert!(decoder::<Packed<Pod>>().event(frame, &mut String::new()).is_err());
        assert!(
            matches!(event(r#"{"type":"ERROR","object":3}"#), Ok(Event::Error(error)) if error.code == 0)
        );
    }

    proptest! {
        /// C31.11
        #[test]
        fn any_frame_is_read_without_panic(frame in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decoder::<Pod>().event(&frame, &mut String::new());
            let _ = decoder::<Packed<Pod>>().item(&frame, &mut String::new());
        }

        #[test]
        fn any_object_in_a_frame_is_read_without_panic(object in r#"[\[\]{}:,"\\a0tn ]{0,30}"#) {
            let frame = format!(r#"{{"type":"ADDED","object":{object}}}"#);
            let _ = decoder::<Pod>().event(frame.as_bytes(), &mut String::new());
            let _ = decoder::<Packed<Pod>>().event(frame.as_bytes(), &mut String::new());
        }
    }
}
