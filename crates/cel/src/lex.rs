//! The lexer.

use std::sync::Arc;

use super::Fault;

/// The maximum length of an expression (Kubernetes' limit).
const TEXT_MAX: usize = 100_000;

/// A token and its position.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) at: usize,
    pub(super) word: Word,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    Name(Box<str>),
    /// A number without its sign.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    Sign(&'static str),
    End,
}

/// Operators and punctuation, longer ones first.
#[rustfmt::skip]
const SIGNS: [&str; 28] = [
    "[?", "{?", ".?", "==", "!=", "<=", ">=", "&&", "||", "(", ")", "[", "]", "{", "}", ".", ",",
    ":", "?", "+", "-", "*", "/", "%", "<", ">", "!", "=",
];

/// Splits a text into tokens.
pub(super) fn words(text: &str) -> Result<Vec<Token>, Fault> {
    if text.len() > TEXT_MAX {
        return Err(Fault::new(
            0,
            format!(
                "expression code point size exceeds limit: size: {}, limit {TEXT_MAX}",
                text.len()
            ),
        ));
    }
    let mut lexer = Lexer { text, at: 0 };
    let mut words = Vec::new();
    loop {
        lexer.skip_blanks();
        let at = lexer.at;
        let word = lexer.word()?;
        let is_end = word == Word::End;
        words.push(Token { at, word });
        if is_end {
            return Ok(words);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches(char::is_whitespace).len();
            self.at += blanks;
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn word(&mut self) -> Result<Word, Fault> {
        let Some(first) = self.peek() else { return Ok(Word::End) };
        if let Some((raw, bytes, prefix)) = self.quoted() {
            self.at += prefix;
            return self.quotation(raw, bytes);
        }
        if first.is_ascii_digit()
            || (first == '.' && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            return self.number();
        }
        if first == '_' || first.is_ascii_alphabetic() {
            return Ok(Word::Name(self.take(|c| c == '_' || c.is_ascii_alphanumeric()).into()));
        }
        if first == '`' {
            return self.back_quoted();
        }
        match SIGNS.iter().find(|sign| self.rest().starts_with(**sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Word::Sign(sign))
            }
            None => Err(Fault::new(
                self.at,
                format!("Syntax error: token recognition error at: '{first}'"),
            )),
        }
    }

    /// A name in backquotes: a field whose name is not an identifier.
    fn back_quoted(&mut self) -> Result<Word, Fault> {
        let start = self.at;
        self.at += 1;
        let name = self.take(|c| c.is_ascii_alphanumeric() || "_.-/ ".contains(c));
        if name.is_empty() || self.peek() != Some('`') {
            return Err(Fault::new(start, "Syntax error: token recognition error at: '`'"));
        }
        self.at += 1;
        Ok(Word::Name(name.into()))
    }

    fn take(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// The kind of string literal that starts here (raw, bytes) and the length of its prefix.
    fn quoted(&self) -> Option<(bool, bool, usize)> {
        let rest = self.rest();
        let (mut raw, mut bytes) = (false, false);
        for (at, c) in rest.char_indices().take(3) {
            match c {
                '"' | '\'' => return Some((raw, bytes, at)),
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes => bytes = true,
                _ => return None,
            }
        }
        None
    }

    fn quotation(&mut self, raw: bool, is_bytes: bool) -> Result<Word, Fault> {
        let start = self.at;
        let quote = &self.rest()[..1];
        let triple = quote.repeat(3);
        let end = if self.rest().starts_with(&triple) { triple.as_str() } else { quote };
        self.at += end.len();
        let mut found = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with(end) {
                self.at += end.len();
                break;
            }
            let Some(c) = self.peek().filter(|c| end.len() == 3 || !matches!(c, '\n' | '\r'))
            else {
                return Err(Fault::new(start, "Syntax error: unterminated string"));
            };
            self.at += c.len_utf8();
            if c == '\\' && !raw {
                self.escaped(is_bytes, &mut found)?;
            } else {
                found.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        if is_bytes {
            return Ok(Word::Bytes(found.into()));
        }
        match String::from_utf8(found) {
            Ok(text) => Ok(Word::Text(text.into())),
            Err(_) => Err(Fault::new(start, "Syntax error: invalid string")),
        }
    }

    fn escaped(&mut self, is_bytes: bool, found: &mut Vec<u8>) -> Result<(), Fault> {
        let start = self.at;
        let wrong = || Fault::new(start, "Syntax error: invalid escape sequence");
        let c = self.peek().ok_or_else(wrong)?;
        self.at += c.len_utf8();
        let simple = match c {
            'a' => Some(7),
            'b' => Some(8),
            'f' => Some(12),
            'n' => Some(b'\n'),
            'r' => Some(b'\r'),
            't' => Some(b'\t'),
            'v' => Some(11),
            '\\' | '?' | '"' | '\'' | '`' => Some(c as u8),
            _ => None,
        };
        if let Some(byte) = simple {
            found.push(byte);
            return Ok(());
        }
        let (digits, radix) = match c {
            'x' | 'X' => (2, 16),
            'u' => (4, 16),
            'U' => (8, 16),
            '0'..='3' => {
                self.at -= 1;
                (3, 8)
            }
            _ => return Err(wrong()),
        };
        let text = self.rest().get(..digits).ok_or_else(wrong)?;
        let code = u32::from_str_radix(text, radix).map_err(|_| wrong())?;
        self.at += digits;
        match u8::try_from(code) {
            Ok(byte) if is_bytes => found.push(byte),
            _ => {
                let c = char::from_u32(code).ok_or_else(wrong)?;
                found.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Word, Fault> {
        let start = self.at;
        let wrong = |what: &str| Fault::new(start, format!("Syntax error: invalid {what} literal"));
        if self.rest().starts_with("0x") || self.rest().starts_with("0X") {
            self.at += 2;
            let digits = self.take(|c| c.is_ascii_hexdigit());
            let value = u64::from_str_radix(digits, 16).map_err(|_| wrong("int"))?;
            return Ok(self.unsigned(value));
        }
        self.take(|c| c.is_ascii_digit());
        let mut is_double = false;
        if self.rest().starts_with('.')
            && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            is_double = true;
            self.at += 1;
            self.take(|c| c.is_ascii_digit());
        }
        if self.rest().starts_with(['e', 'E']) {
            let sign = usize::from(self.rest()[1..].starts_with(['+', '-']));
            if self.rest()[1 + sign..].starts_with(|c: char| c.is_ascii_digit()) {
                is_double = true;
                self.at += 1 + sign;
                self.take(|c| c.is_ascii_digit());
            }
        }
        let text = &self.text[start..self.at];
        if is_double {
            return text.parse().map(Word::Double).map_err(|_| wrong("double"));
        }
        let value = text.parse().map_err(|_| wrong("int"))?;
        Ok(self.unsigned(value))
    }

    fn unsigned(&mut self, value: u64) -> Word {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            return Word::Uint(value);
        }
        Word::Int(value)
    }
}
