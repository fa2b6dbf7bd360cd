//! A scanner over JSON bytes: finds spans without building a tree.
//!
//! River: store → **scan** → object heads, watch frames. It is for bytes that the parser has
//! accepted and the printer has written (valid, no duplicate keys), so the first match of a key is
//! the only one.
//! Promise: it never panics and never recurses deeper than the requested path, whatever the bytes
//! are; bytes that are not JSON give [`Malformed`].

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use crate::wide::{self, BLOCK, Block};

/// The bytes are not the expected JSON; `at` is the offset where the scanner noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed JSON at byte {at}")]
pub struct Malformed {
    /// Offset into the scanned bytes.
    pub at: usize,
}

/// A range of the scanned bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of this span.
    #[inline]
    pub fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }
}

/// The offset after the quote that closes the string that contains `start`.
#[inline(always)]
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// The offset after the bracket that closes the one at `at`.
fn container_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    if matches!(bytes.get(at)?, b'}' | b']') {
        return Some(at + 1);
    }
    // `open`: all bits are set if a string is open; `carried`: the first byte of the next block is
    // escaped.
    let (mut depth, mut open, mut carried) = (1, 0, false);
    while at < bytes.len() {
        let Block { mut quotes, backslashes, opening, closing } = Block::of(&bytes[at..]);
        if backslashes != 0 || carried {
            let escaped;
            (escaped, carried) = wide::escaped(backslashes, carried);
            quotes &= !escaped;
        }
        let outside = !(wide::between(quotes) ^ open);
        let (opening, closing) = (opening & outside, closing & outside);
        let closed = closing.count_ones();
        if closed < depth {
            depth = depth + opening.count_ones() - closed;
        } else {
            for bit in wide::bits(opening | closing) {
                match opening >> bit & 1 {
                    1 => depth += 1,
                    _ if depth == 1 => return Some(at + bit as usize + 1),
                    _ => depth -= 1,
                }
            }
        }
        // The last byte is outside of strings, or a string continues in the next block.
        open = if outside >> (BLOCK - 1) == 1 { 0 } else { !0 };
        at += BLOCK;
    }
    None
}
/// A position in JSON text.
#[derive(Clone, Copy, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// Starts at the first byte.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Scanner<'a> {
        Scanner { bytes, at: 0 }
    }

    /// Starts inside `bytes`, at the beginning of a value.
    #[inline]
    pub fn at(bytes: &'a [u8], at: u32) -> Scanner<'a> {
        Scanner { bytes, at: at as usize }
    }

    /// The current position.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    fn fail<T>(&self) -> Result<T, Malformed> {
        Err(Malformed { at: self.at })
    }

    /// The next byte that is not white space, without moving past it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    #[inline]
    pub fn expect(&mut self, wanted: u8) -> Result<(), Malformed> {
        if self.peek() != Some(wanted) {
            return self.fail();
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a string; the span is the text between the quotes, with its escapes.
    #[inline]
    pub fn string(&mut self) -> Result<Span, Malformed> {
        self.expect(b'"')?;
        let start = self.at;
        let Some(end) = string_end(self.bytes, start) else {
            self.at = self.bytes.len();
            return self.fail();
        };
        self.at = end;
        Ok(Span::new(start, end - 1))
    }

    /// Skips a value of any type and returns its span.
    pub fn value(&mut self) -> Result<Span, Malformed> {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'"') => {
                self.string()?;
            }
            Some(b'{' | b'[') => self.container()?,
            Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => self.literal(),
            _ => return self.fail(),
        }
        Ok(Span::new(start, self.at))
    }

    fn literal(&mut self) {
        while let Some(byte) = self.bytes.get(self.at) {
            if matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t') {
                break;
            }
            self.at += 1;
        }
    }

    fn container(&mut self) -> Result<(), Malformed> {
        match container_end(self.bytes, self.at) {
            Some(end) => self.at = end,
            None => {
                self.at = self.bytes.len();
                return self.fail();
            }
        }
        Ok(())
    }

    /// Calls `visit` for each member of the object that starts here, with the key and a scanner at
    /// its value. `visit` must read exactly that value.
    pub fn object<E: From<Malformed>>(
        &mut self,
        mut visit: impl FnMut(Span, &mut Scanner<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            visit(key, self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Ok(self.fail()?),
            }
        }
    }

    /// Calls `visit` for each element of the array that starts here, with a scanner at it.
    pub fn array<E: From<Malformed>>(
        &mut self,
        mut visit: impl FnMut(&mut Scanner<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'[')?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.peek();
            visit(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Ok(self.fail()?),
            }
        }
    }

    /// Whether the key at `span` is `name`. Keys written with escapes are unescaped first.
    #[inline]
    pub fn is(&self, span: Span, name: &str) -> bool {
        let raw = span.of(self.bytes);
        // An escape is longer than the character that it stands for.
        raw == name.as_bytes() || (raw.len() > name.len() && *self.name(span) == *name.as_bytes())
    }

    /// The key at `span`, without escapes; its bytes need not be UTF-8.
    pub fn name(&self, span: Span) -> Cow<'a, [u8]> {
        let raw = span.of(self.bytes);
        match memchr(b'\\', raw) {
            None => Cow::Borrowed(raw),
            Some(_) => match unescape(raw) {
                Some(text) => Cow::Owned(text.into_owned().into_bytes()),
                None => Cow::Borrowed(raw),
            },
        }
    }

    /// The text of a string span.
    pub fn text(&self, span: Span) -> Result<Cow<'a, str>, Malformed> {
        unescape(span.of(self.bytes)).ok_or(Malformed { at: span.start as usize })
    }
}

/// The value at a path of keys; `None` if it is absent or the bytes before it are not JSON.
pub fn find(bytes: &[u8], path: &[&str]) -> Option<Span> {
    let mut scanner = Scanner::new(bytes);
    for name in path {
        let mut found = None;
        // An error ends the walk over the members.
        let _ = scanner.object::<Malformed>(|key, at| {
            if at.is(key, name) {
                at.peek();
                found = Some(at.offset());
                return at.fail();
            }
            at.value().map(drop)
        });
        scanner.at = found?;
    }
    scanner.value().ok()
}

/// Unescapes the text between the quotes of a JSON string; borrowed if it contains no escapes.
pub fn unescape(raw: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(raw).ok()?;
    if !raw.contains(&b'\\') {
        return Some(Cow::Borrowed(text));
    }
    // In most strings with escapes only quotes are escaped.
    let plain = text.replace("\\\"", "\"");
    if !plain.contains('\\') {
        return Some(Cow::Owned(plain));
    }
    serde_json::from_str::<String>(&format!("\"{text}\"")).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_is_found_by_its_path() {
        let text = br#"{"a":{"b":1,"c":{"b": "x"}},"\u0062":[2],"b":3, broken"#;
        let found = |path: &[&str]| find(text, path).map(|span| span.of(text));
        assert_eq!(found(&["a", "b"]), Some(b"1".as_slice()));
        assert_eq!(found(&["a", "c", "b"]), Some(br#""x""#.as_slice()));
        assert_eq!(found(&["b"]), Some(b"[2]".as_slice()));
        for absent in [&["c"][..], &["a", "d"], &["b", "a"], &["a", "b", "c"]] {
            assert_eq!(found(absent), None, "{absent:?}");
        }
    }

    fn keys(json: &str) -> Result<Vec<String>, Malformed> {
        let mut scanner = Scanner::new(json.as_bytes());
        let mut keys = Vec::new();
        scanner.object(|key, at| {
            keys.push(at.text(key)?.into_owned());
            at.value().map(drop)
        })?;
        Ok(keys)
    }

    #[test]
    fn members_are_visited_in_order_and_values_skipped() {
        let json = r#"{"a":{"x":"}\""},"b":[1,[2]],"c\u0041":"]","d":-1.5e3,"e":null}"#;
        assert_eq!(keys(json).unwrap(), ["a", "b", "cA", "d", "e"]);
        assert_eq!(keys("{}").unwrap(), Vec::<String>::new());
    }

    /// [`container_end`], one byte at a time.
    fn slow_end(bytes: &[u8], start: usize) -> Option<usize> {
        let (mut depth, mut at) = (0, start);
        loop {
            match bytes.get(at)? {
                b'"' => {
                    at = string_end(bytes, at + 1)?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 1 => return Some(at + 1),
                b'}' | b']' => depth -= 1,
                // This is not JSON, but the search must end.
                b'\\' if matches!(bytes.get(at + 1), Some(b'"' | b'\\')) => at += 1,
                _ => {}
            }
            at += 1;
        }
    }

    proptest! {
        #[test]
        fn the_end_of_a_container_agrees_with_a_slow_search(
            text in prop::collection::vec(
                prop_oneof![
                    4 => prop::sample::select(b"{}[]\"\\".to_vec()),
                    1 => prop::sample::select(vec![b'a', b'"']),
                ],
                0..300,
            ),
            filling in 0..80usize,
        ) {
            let mut bytes = vec![b'{'; 1];
            bytes.extend(std::iter::repeat_n(b'x', filling));
            bytes.extend(text);
            prop_assert_eq!(container_end(&bytes, 0), slow_end(&bytes, 0));
        }
    }

    #[test]
    fn malformed_text_is_an_error_and_never_a_panic() {
        for bad in ["", "{", "[1]", "{\"a\"}", "{\"a\":}", "{\"a\":1", "{\"a\":\"x", "{\"a\":1 2}"]
        {
            assert!(keys(bad).is_err(), "{bad}");
        }
    }
}
