//! Regular expressions in Go's dialect (RE2).
//!
//! Promise: a pattern matches in time linear in the text and compiles to a bounded size: repeat counts
//! have Go's limit, and all patterns of one schema share a budget.

use regex::{Regex, RegexBuilder};

/// A compiled pattern and its source.
pub struct Pattern {
    text: Box<str>,
    regex: Regex,
}

/// The maximum repeat count, nested repeats multiplied (Go's limit).
const REPEAT_MAX: u64 = 1000;

/// The size limits tried for a compiled pattern. The one it needs is charged to the budget.
const SIZES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

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

impl Pattern {
    /// Compiles a pattern, or returns the error message.
    pub fn compile(text: &str, budget: &mut Budget) -> Result<Pattern, String> {
        Pattern::compile_in(text, &SIZES, budget)
    }

    /// Compiles a pattern computed by an evaluation: only a small one, because it is compiled again
    /// for every object.
    pub fn compile_small(text: &str) -> Result<Pattern, String> {
        Pattern::compile_in(text, &SIZES[..2], &mut Budget::of_expression())
    }

    fn compile_in(text: &str, sizes: &[usize], budget: &mut Budget) -> Result<Pattern, String> {
        let translated = Translator::new(text).pattern()?;
        let mut error = None;
        for &size in sizes {
            let built =
                RegexBuilder::new(&translated).size_limit(size).dfa_size_limit(size).build();
            match built {
                Ok(regex) => {
                    budget.0 = budget.0.checked_sub(size).ok_or_else(|| {
                        "the patterns of the schema are too large together".to_owned()
                    })?;
                    return Ok(Pattern { text: text.into(), regex });
                }
                Err(regex::Error::CompiledTooBig(_)) => error = Some("it is too large".to_owned()),
                Err(other) => return Err(short(&other.to_string())),
            }
        }
        Err(error.unwrap_or_default())
    }

    pub fn regex(&self) -> &Regex {
        &self.regex
    }

    pub fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The last line of an error message; earlier lines show the pattern.
fn short(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
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
        let inside: String = ahead.by_ref().take_while(|c| *c != '}').collect();
        let Some(most) = repeats(&inside) else {
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
        assert_eq!(compiled.matches(text), expected, "{pattern} on {text:?}");
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
        assert!(compiled.matches(&text));
        assert!(!compiled.matches(&format!("{text}b")));
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
