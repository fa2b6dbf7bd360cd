//! Removes managed fields and annotations from the text of an object before it is decoded.
//!
//! River: frame or list item → **strip** → decoder.
//! Promise: text without such fields is not copied; removed fields are never parsed.

use std::ops::Range;

use headwater_json::scan::{Malformed, Scanner, Span};

/// The fields that are removed from every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Strip {
    /// `metadata.managedFields`.
    pub managed_fields: bool,
    /// `kubectl.kubernetes.io/last-applied-configuration`, which repeats the object.
    pub last_applied: bool,
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Strip {
    fn is_nothing(&self) -> bool {
        !self.managed_fields && !self.last_applied
    }

    /// The text without the removed fields: `text` itself if there is nothing to remove or if it is
    /// not JSON (the decoder reports that), otherwise a copy in `scratch`.
    pub(crate) fn apply<'a>(&self, text: &'a str, scratch: &'a mut String) -> &'a str {
        if self.is_nothing() {
            return text;
        }
        let cuts = self.cuts(text.as_bytes()).unwrap_or_default();
        if cuts.is_empty() {
            return text;
        }
        scratch.clear();
        let mut kept_to = 0;
        for cut in cuts {
            scratch.push_str(text.get(kept_to..cut.start).unwrap_or_default());
            kept_to = cut.end;
        }
        scratch.push_str(text.get(kept_to..).unwrap_or_default());
        scratch
    }

    /// The ranges to cut, in order. They begin and end at quotes, commas and braces.
    fn cuts(&self, text: &[u8]) -> Result<Vec<Range<usize>>, Done> {
        let mut cuts = Vec::new();
        let result = Scanner::new(text).object::<Done>(|key, at| {
            if at.is(key, "metadata") && at.peek() == Some(b'{') {
                self.cut_metadata(at, &mut cuts)?;
                return Err(Done::Found); // the rest need not be scanned
            }
            at.value()?;
            Ok(())
        });
        match result {
            Ok(()) | Err(Done::Found) => Ok(cuts),
            Err(malformed) => Err(malformed),
        }
    }

    fn cut_metadata(
        &self,
        scanner: &mut Scanner<'_>,
        cuts: &mut Vec<Range<usize>>,
    ) -> Result<(), Malformed> {
        let mut cutter = Cutter::default();
        let mut inner = Vec::new();
        scanner.object::<Malformed>(|key, at| {
            let dropped = self.managed_fields && at.is(key, "managedFields");
            if at.is(key, "annotations") && at.peek() == Some(b'{') {
                self.cut_annotations(at, &mut inner)?;
            } else {
                at.value()?;
            }
            cutter.member(key, at.offset(), dropped);
            Ok(())
        })?;
        cuts.extend(cutter.finish());
        cuts.extend(inner);
        cuts.sort_by_key(|cut| cut.start);
        Ok(())
    }

    fn cut_annotations(
        &self,
        scanner: &mut Scanner<'_>,
        cuts: &mut Vec<Range<usize>>,
    ) -> Result<(), Malformed> {
        let mut cutter = Cutter::default();
        scanner.object::<Malformed>(|key, at| {
            let dropped = self.last_applied && at.text(key)? == LAST_APPLIED;
            at.value()?;
            cutter.member(key, at.offset(), dropped);
            Ok(())
        })?;
        cuts.extend(cutter.finish());
        Ok(())
    }
}

/// Ends a scan early; not an error.
enum Done {
    Found,
    Malformed,
}

impl From<Malformed> for Done {
    fn from(_: Malformed) -> Done {
        Done::Malformed
    }
}

/// Collects the ranges of dropped members of one object, each with exactly one comma.
#[derive(Default)]
struct Cutter {
    kept_end: Option<usize>,
    open: Option<Range<usize>>,
    cuts: Vec<Range<usize>>,
}

impl Cutter {
    fn member(&mut self, key: Span, end: usize, dropped: bool) {
        let start = key.start as usize - 1; // the quote
        if dropped {
            // Behind a kept member the comma before goes; in front of all, the comma after.
            let from = self.open.take().map(|open| open.start).or(self.kept_end).unwrap_or(start);
            self.open = Some(from..end);
            return;
        }
        if let Some(open) = self.open.take() {
            let to = if self.kept_end.is_some() { open.end } else { start };
            self.cuts.push(open.start..to);
        }
        self.kept_end = Some(end);
    }

    fn finish(mut self) -> Vec<Range<usize>> {
        self.cuts.extend(self.open);
        self.cuts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn everything() -> Strip {
        Strip { managed_fields: true, last_applied: true }
    }

    #[track_caller]
    fn check(strip: &Strip, text: &str, expected: &str) {
        assert_eq!(strip.apply(text, &mut String::new()), expected);
    }

    /// C1.19, C15.5
    #[test]
    fn managed_fields_and_annotations_are_removed_wherever_they_are() {
        let all = everything();
        check(
            &all,
            r#"{"metadata":{"managedFields":[{"a":"]"}],"name":"x"}}"#,
            r#"{"metadata":{"name":"x"}}"#,
        );
        check(
            &all,
            r#"{"metadata":{"name":"x","managedFields":[1],"uid":"u"},"spec":{"managedFields":1}}"#,
            r#"{"metadata":{"name":"x","uid":"u"},"spec":{"managedFields":1}}"#,
        );
        check(
            &all,
            r#"{"kind":"Pod","metadata":{"name":"x", "managedFields":[]}}"#,
            r#"{"kind":"Pod","metadata":{"name":"x"}}"#,
        );
        check(&all, r#"{"metadata":{"managedFields":[]}}"#, r#"{"metadata":{}}"#);
        let applied = r#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"},"managedFields":[]}}"#;
        check(&all, applied, r#"{"metadata":{"annotations":{}}}"#);
    }

    #[test]
    fn text_without_removed_fields_is_not_copied() {
        let text = r#"{"metadata":{"name":"x","annotations":{"a":"b"}},"spec":{}}"#;
        let mut scratch = String::new();
        assert!(std::ptr::eq(everything().apply(text, &mut scratch), text));
        let broken = r#"{"metadata":{"managedFields":[1"#;
        assert!(std::ptr::eq(everything().apply(broken, &mut scratch), broken));
    }

    proptest! {
        /// Members in any order: the cut text is the object without them.
        #[test]
        fn the_stripped_text_is_the_object_without_the_fields(
            order in Just(vec!["a", "managedFields", "annotations", "z"]).prop_shuffle(),
            names in prop::collection::vec(prop_oneof![Just(LAST_APPLIED), Just("x"), Just("y")], 0..4),
        ) {
            let mut annotations = String::new();
            let names: BTreeSet<_> = names.into_iter().collect();
            for name in &names {
                let comma = if annotations.is_empty() { "" } else { "," };
                annotations += &format!(r#"{comma}"{name}":"v,\"}}""#);
            }
            let members: Vec<String> = order.iter().map(|name| match *name {
                "annotations" => format!(r#""annotations":{{{annotations}}}"#),
                "managedFields" => r#""managedFields":[{"f:x":{}}]"#.to_owned(),
                other => format!(r#""{other}":1"#),
            }).collect();
            let text = format!(r#"{{"metadata":{{{}}}}}"#, members.join(","));
            let mut scratch = String::new();
            let cut: Value = serde_json::from_str(everything().apply(&text, &mut scratch)).unwrap();
            let mut expected = json!({"metadata": {"a": 1, "z": 1, "annotations": {}}});
            for name in names.iter().filter(|name| **name != LAST_APPLIED) {
                expected["metadata"]["annotations"][*name] = "v,\"}".into();
            }
            prop_assert_eq!(cut, expected);
        }

        /// C31.11
        #[test]
        fn any_text_is_read_without_panic(text in r#"[\[\]{}:,"\\a0 ]{0,40}|.*"#) {
            everything().apply(&text, &mut String::new());
        }
    }
}
