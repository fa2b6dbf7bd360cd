//! Regular expressions in Go's dialect (RE2).
//!
//! Promise: a pattern matches in time linear in the text, within a limit of steps. It compiles to a
//! bounded size: repeat counts have Go's limit, and all patterns of one schema share a budget. Compiled
//! forms are in a `cache`, whose size bounds the memory of all patterns.

use std::sync::{Arc, PoisonError, RwLock, Weak};

mod cache;

use cache::CompiledPattern;

/// A pattern and, while the cache keeps it, its compiled form.
pub struct Pattern {
    text: Box<str>,
    /// In the syntax of the `regex` crate.
    translated: Box<str>,
    /// The size limit that it needs.
    size: usize,
    compiled: RwLock<Weak<CompiledPattern>>,
}

/// The maximum repeat count, nested repeats multiplied (Go's limit).
const REPEAT_MAX: u64 = 1000;

/// The maximum length of a repeat, such as `10,1000}`.
const REPEAT_LENGTH_MAX: usize = 32;

/// The size limits tried for a compiled pattern. The one it needs is charged to the budget.
const SIZES: [usize; 7] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20];

/// Compiling a pattern above this size takes milliseconds.
const SMALL_MAX: usize = 256 << 10;

/// The maximum number of steps of one match: bytes of text times states of the pattern.
const STEPS_MAX: u64 = 1 << 32;

/// The approximate size of a state of a compiled pattern.
const STATE_BYTES: usize = 64;

/// The memory budget of the patterns of one schema.
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Budget {
        Budget(64 << 20)
    }
}

impl Budget {
    /// The budget of a single expression.
    pub fn of_expression() -> Budget {
        Budget(4 << 20)
    }
}

/// A text is too long for a pattern of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is too long for a pattern of this size")]
pub struct TooManySteps;

impl Pattern {
    /// Compiles a pattern, or returns the error message.
    pub fn compile(text: &str, budget: &mut Budget) -> Result<Pattern, String> {
        Pattern::compile_in(text, &SIZES, budget)
    }

    /// Compiles a pattern computed by an evaluation: only a small one, because it may be compiled again
    /// for every object.
    pub fn compile_small(text: &str) -> Result<Pattern, String> {
        Pattern::compile_in(text, &SIZES[..2], &mut Budget::of_expression())
    }

    fn compile_in(text: &str, sizes: &[usize], budget: &mut Budget) -> Result<Pattern, String> {
        let translated = Translator::new(text).pattern()?;
        let compiled = cache::find(&translated, sizes)?;
        budget.0 = budget
            .0
            .checked_sub(compiled.size)
            .ok_or_else(|| "the patterns of the schema are too large together".to_owned())?;
        Ok(Pattern {
            text: text.into(),
            translated: translated.into(),
            size: compiled.size,
            compiled: RwLock::new(Arc::downgrade(&compiled)),
        })
    }

    /// Calls a function with the compiled form, if matching a text takes few enough steps.
    pub fn with_regex<T>(
        &self,
        text: &str,
        look: impl FnOnce(&regex::Regex) -> T,
    ) -> Result<T, TooManySteps> {
        if self.steps(text) > STEPS_MAX {
            return Err(TooManySteps);
        }
        Ok(look(self.compiled().regex()))
    }

    pub fn matches(&self, text: &str) -> Result<bool, TooManySteps> {
        self.with_regex(text, |regex| regex.is_match(text))
    }

    /// The maximum number of steps of a match.
    pub fn steps(&self, text: &str) -> u64 {
        text.len() as u64 * (self.size / STATE_BYTES) as u64
    }

    /// Whether compiling it again takes long.
    pub fn is_large(&self) -> bool {
        self.size > SMALL_MAX
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    fn compiled(&self) -> Arc<CompiledPattern> {
        let known = self.compiled.read().unwrap_or_else(PoisonError::into_inner).upgrade();
        known.unwrap_or_else(|| {
            let compiled = cache::find(&self.translated, &SIZES)
                .expect("what was compiled once with a limit compiles again");
            let mut known = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
            *known = Arc::downgrade(&compiled);
            compiled
        })
    }
}

/// Rewrites a Go pattern to the syntax of the `regex` crate.
struct Translator<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    /// The repeat count of the last part of each open group.
    groups: Vec<Group>,
    /// Whether a repetition was just read: another must not follow.
    repetition: String,
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// The largest repeat count so far.
    most: u64,
    /// The repeat count inside the part that was just read.
    last: u64,
}

/// Classes that are ASCII in Go and Unicode in the `regex` crate.
const CLASSES: [(char, &str); 6] = [
    ('d', "[0-9]"),
    ('D', "[^0-9]"),
    ('w', "[0-9A-Za-z_]"),
    ('W', "[^0-9A-Za-z_]"),
    ('s', "[\\t\\n\\x0C\\r ]"),
    ('S', "[^\\t\\n\\x0C\\r ]"),
];

impl<'a> Translator<'a> {
    fn new(text: &'a str) -> Translator<'a> {
        Translator {
            rest: text.chars().peekable(),
            out: String::with_capacity(text.len() + 16),
            groups: vec![Group::default()],
            repetition: String::new(),
        }
    }

    fn pattern(mut self) -> Result<String, String> {
        while let Some(next) = self.rest.next() {
            match next {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '{' => self.repeat()?,
                '(' => {
                    self.repetition.clear();
                    self.groups.push(Group::default());
                    self.out.push('(');
                }
                ')' => self.close(),
                '*' | '+' | '?' => {
                    self.repetition(&next.to_string())?;
                }
                other => {
                    self.part(1);
                    self.out.push(other);
                }
            }
        }
        Ok(self.out)
    }

    /// A repetition operator with its lazy suffix. Go allows no two in a row.
    fn repetition(&mut self, operator: &str) -> Result<(), String> {
        let before = std::mem::take(&mut self.repetition);
        let lazy = if self.rest.next_if_eq(&'?').is_some() { "?" } else { "" };
        let this = format!("{operator}{lazy}");
        if !before.is_empty() {
            return Err(format!("invalid nested repetition operator: `{before}{this}`"));
        }
        self.out.push_str(&this);
        self.repetition = this;
        Ok(())
    }

    fn part(&mut self, repeats: u64) {
        self.repetition.clear();
        if let Some(group) = self.groups.last_mut() {
            group.last = repeats;
            group.most = group.most.max(repeats);
        }
    }

    fn close(&mut self) {
        self.out.push(')');
        // The compiler reports an unmatched closing parenthesis.
        if self.groups.len() > 1
            && let Some(group) = self.groups.pop()
        {
            self.part(group.most.max(1));
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let Some(escaped) = self.rest.next() else {
            return Err("trailing backslash at end of expression".to_owned());
        };
        self.part(1);
        match escaped {
            'Q' => self.quoted(),
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' => self.out.push_str("(?-u:\\B)"),
            other => self.class_escape(other),
        }
        Ok(())
    }

    fn class_escape(&mut self, escaped: char) {
        match CLASSES.iter().find(|(class, _)| *class == escaped) {
            Some((_, class)) => self.out.push_str(class),
            None => {
                self.out.push('\\');
                self.out.push(escaped);
            }
        }
    }

    /// `\Q…\E`: the text in between is literal.
    fn quoted(&mut self) {
        let mut text = String::new();
        while let Some(next) = self.rest.next() {
            if next == '\\' && self.rest.peek() == Some(&'E') {
                self.rest.next();
                break;
            }
            text.push(next);
        }
        self.out.push_str(&regex::escape(&text));
    }

    /// `[…]`: brackets and doubled signs are literal inside, except names in `[:…:]`.
    fn class(&mut self) -> Result<(), String> {
        self.part(1);
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        let mut is_first = true;
        loop {
            let Some(next) = self.rest.next() else {
                return Err("missing closing ]".to_owned());
            };
            match next {
                ']' if !is_first => break,
                ']' => self.out.push_str("\\]"),
                '\\' => match self.rest.next() {
                    Some(escaped) => self.class_escape(escaped),
                    None => return Err("missing closing ]".to_owned()),
                },
                '[' if self.rest.peek() == Some(&':') => self.named_class(),
                '[' | '&' | '~' => {
                    self.out.push('\\');
                    self.out.push(next);
                }
                '-' if self.out.ends_with('-') => self.out.push_str("\\-"),
                other => self.out.push(other),
            }
            is_first = false;
        }
        self.out.push(']');
        Ok(())
    }

    fn named_class(&mut self) {
        self.out.push('[');
        for next in self.rest.by_ref() {
            self.out.push(next);
            if next == ']' {
                break;
            }
        }
    }

    /// `{n}`, `{n,}` or `{n,m}`; any other brace is literal.
    fn repeat(&mut self) -> Result<(), String> {
        let mut ahead = self.rest.clone();
        let mut is_closed = false;
        // A pattern of open braces is read once, and not once for each of them.
        let is_inside = |c: &char| {
            is_closed = *c == '}';
            !is_closed
        };
        let inside: String = ahead.by_ref().take(REPEAT_LENGTH_MAX).take_while(is_inside).collect();
        let Some(most) = repeats(&inside).filter(|_| is_closed) else {
            self.part(1);
            self.out.push_str("\\{");
            return Ok(());
        };
        let last = self.groups.last().map_or(1, |group| group.last.max(1));
        let total = most.saturating_mul(last);
        if total > REPEAT_MAX {
            return Err(format!("invalid repeat count: `{{{inside}}}`"));
        }
        self.rest = ahead;
        self.repetition(&format!("{{{inside}}}"))?;
        if let Some(group) = self.groups.last_mut() {
            group.last = total;
            group.most = group.most.max(total);
        }
        Ok(())
    }
}

/// The largest number of a repeat; `None` if it is not a repeat.
fn repeats(inside: &str) -> Option<u64> {
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true if !text.is_empty() => Some(text.parse().unwrap_or(u64::MAX)),
        _ => None,
    };
    match inside.split_once(',') {
        None => number(inside),
        Some((least, "")) => number(least),
        Some((least, most)) => Some(number(least)?.max(number(most)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Result<Pattern, String> {
        Pattern::compile(text, &mut Budget::default())
    }

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: bool) {
        let compiled = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        assert_eq!(compiled.matches(text), Ok(expected), "{pattern} on {text:?}");
    }

    #[test]
    fn patterns_match_as_in_go() {
        check("^[a-z]+$", "abc", true);
        check("^[a-z]+$", "abC", false);
        check("b", "abc", true);
        // Classes are ASCII.
        check(r"^\d+$", "12", true);
        check(r"^\d+$", "١٢", false);
        check(r"^\w+$", "é", false);
        check(r"^[\w.]+$", "a.b", true);
        check(r"^[^\d]$", "1", false);
        check(r"\bé", "é", false);
        // Braces and brackets without a meaning are literal.
        check("^a{,2}$", "a{,2}", true);
        check("^{{x}}$", "{{x}}", true);
        check("^a{2$", "a{2", true);
        check("^[[a]$", "[", true);
        check("^[]a]$", "]", true);
        check("^[a&&b]+$", "&&", true);
        check("^[[:alpha:]]+$", "ab", true);
        check(r"^\Qa.b\E$", "a.b", true);
        check(r"^\Qa.b\E$", "axb", false);
        check("^[+--]$", ",", true);
        check("(?i)^ABC$", "abc", true);
    }

    #[test]
    fn patterns_that_go_rejects_are_rejected() {
        for bad in [
            "(",
            ")",
            "[a",
            "a**b(",
            "a++",
            "a+*",
            "a{2}{3}",
            "a??+",
            "(?=a)",
            "(?<!a)b",
            r"(a)\1",
            "a{1001}",
            "(a{100}){11}",
            "((a{10}){10}){11}",
            "*a",
            r"\",
            "[z-a]",
        ] {
            assert!(compile(bad).is_err(), "{bad}");
        }
        compile("(a{100}){10}").unwrap();
        compile("a+?b??(c*)*[+*]{2}?").unwrap();
    }

    #[test]
    fn a_pattern_of_nested_repeats_matches_in_linear_time() {
        let compiled = compile("^(a+)+$").unwrap();
        let text = "a".repeat(100_000);
        assert_eq!(compiled.matches(&text), Ok(true));
        assert_eq!(compiled.matches(&format!("{text}b")), Ok(false));
    }

    /// B139: OpenShift's `ingresses.config.openshift.io` has such a pattern.
    #[test]
    fn a_large_pattern_of_unicode_classes_is_accepted() {
        let pattern = r"^[\p{S}\p{L}\p{N}]{0,62}$";
        check(pattern, &"é€7".repeat(20), true);
        check(pattern, &"é".repeat(63), false);
        let compiled = compile(pattern).unwrap();
        assert!(compiled.is_large() && !compile("^[a-z]+$").unwrap().is_large());
        // A match is bounded, and not the definition.
        assert_eq!(compiled.matches(&"é".repeat(1 << 20)), Err(TooManySteps));
    }

    #[test]
    fn a_pattern_that_the_cache_dropped_is_compiled_again() {
        let pattern = compile("^again[0-9]$").unwrap();
        *pattern.compiled.write().unwrap() = Weak::new();
        assert_eq!(pattern.matches("again7"), Ok(true));
        assert!(pattern.compiled.read().unwrap().upgrade().is_some());
    }

    #[test]
    fn a_hostile_pattern_cannot_take_all_memory() {
        for hostile in [r"\pL{1000}", r"(\pL{100}){10}", r"(\pL\pS\pN\pP){250}"] {
            let mut budget = Budget::default();
            let refused =
                (0..8).find_map(|n| Pattern::compile(&format!("{hostile}{n}"), &mut budget).err());
            let known = ["it is too large", "the patterns of the schema are too large together"];
            assert!(known.contains(&refused.unwrap().as_str()), "{hostile}");
        }
    }

    /// With a search for the end of each brace, this test does not end.
    #[test]
    fn a_pattern_of_open_braces_is_translated_in_linear_time() {
        let text = "{1,".repeat(1 << 20);
        let translated = Translator::new(&text).pattern().unwrap();
        assert_eq!(translated, text.replace('{', "\\{"));
    }

    #[test]
    fn patterns_of_one_schema_share_a_budget() {
        let mut budget = Budget(100 << 10);
        Pattern::compile("a", &mut budget).unwrap();
        let rest =
            (0..20).map(|n| Pattern::compile(&format!("a{n}"), &mut budget)).find(Result::is_err);
        assert_eq!(
            rest.unwrap().err().unwrap(),
            "the patterns of the schema are too large together"
        );
    }
}
