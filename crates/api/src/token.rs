//! Continue tokens: where the next page of a list begins.
//!
//! River: the end of one page → **token** → the client → the start of the next page.
//! Promise: a token names a place inside the collection it is used on and nothing else. It carries
//! no permission and no prefix; whatever a client puts in it, the key it yields is relative (B169).

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde::{Deserialize, Serialize};

use crate::query::bad_request;
use crate::revision::Revision;
use crate::status::Status;

/// Longer tokens are refused: a real one holds a name and a namespace (B175).
const LENGTH_MAX: usize = 4096;

const VERSION: &str = "meta.k8s.io/v1";

/// Unpadded; bits left over at the end are ignored, as the reference does.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The state to go on in; none for the latest, at the price of a consistent list.
    pub at: Option<Revision>,
    /// The first key of the page, relative to the collection: `name\0`, or `namespace/name\0`
    /// for a list across namespaces. The zero byte makes it the place just after that name.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Content {
    #[serde(rename = "v", default)]
    version: String,
    #[serde(rename = "rv", default)]
    revision: i64,
    #[serde(default)]
    start: String,
}

impl Token {
    /// Goes on after the last key of a page, in the same state.
    pub fn after(last_key: &str, at: Revision) -> Token {
        Token { at: Some(at), start: format!("{last_key}\0") }
    }

    /// The same place in the latest state: offered when the token's own state is gone (S3.14).
    #[must_use]
    pub fn at_latest(&self) -> Token {
        Token { at: None, start: self.start.clone() }
    }

    /// As clients see it.
    pub fn encode(&self) -> String {
        // The reference writes a leading slash where its cache made the token; the place is the
        // same with and without.
        let (revision, slash) = match self.at {
            Some(at) => (i64::try_from(at.0).unwrap_or(i64::MAX), "/"),
            None => (-1, ""),
        };
        let content = Content {
            version: VERSION.to_owned(),
            revision,
            start: format!("{slash}{}", self.start),
        };
        let json = serde_json::to_vec(&content).expect("strings and a number");
        BASE64.encode(json)
    }

    /// Reads what a client sent.
    pub fn decode(text: &str) -> Result<Token, Status> {
        decode(text).map_err(|why| bad_request(format!("invalid continue token: {why}")))
    }
}

fn decode(text: &str) -> Result<Token, String> {
    let invalid = |why: &str| format!("continue key is not valid: {why}");
    if text.len() > LENGTH_MAX {
        return Err(invalid(&format!("longer than {LENGTH_MAX} bytes")));
    }
    let json = BASE64.decode(text).map_err(|_| invalid(&illegal_base64(text)))?;
    let content: Content =
        serde_json::from_slice(&json).map_err(|error| invalid(&error.to_string()))?;
    if content.version != VERSION {
        return Err(format!(
            "continue key is not valid: server does not recognize this encoded version {}",
            content.version
        ));
    }
    let at = match content.revision {
        -1 => None,
        revision => Some(
            u64::try_from(revision)
                .ok()
                .filter(|revision| *revision > 0)
                .map(Revision)
                .ok_or_else(|| {
                    invalid(&format!("incorrect encoded start resourceVersion (version {VERSION})"))
                })?,
        ),
    };
    if content.start.is_empty() {
        return Err(invalid(&format!("encoded start key empty (version {VERSION})")));
    }
    let start = content.start.strip_prefix('/').unwrap_or(&content.start);
    if !is_clean(start) {
        return Err(invalid(&content.start));
    }
    Ok(Token { at, start: start.to_owned() })
}

/// Whether a relative key cannot lead out of its collection: no empty, `.` or `..` segment.
fn is_clean(key: &str) -> bool {
    key.is_empty() || key.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}

/// Names the first byte that is not of the alphabet, or the end of a text cut short, as the
/// reference does.
fn illegal_base64(text: &str) -> String {
    let foreign = text
        .bytes()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')));
    format!("illegal base64 data at input byte {}", foreign.unwrap_or(text.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> String {
        BASE64.encode(json)
    }

    #[test]
    fn a_token_has_the_reference_s_content() {
        let token = Token::after("b", Revision(7));
        assert_eq!(token.encode(), raw(r#"{"v":"meta.k8s.io/v1","rv":7,"start":"/b\u0000"}"#));
        assert_eq!(
            token.at_latest().encode(),
            raw(r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"b\u0000"}"#)
        );
    }

    #[test]
    fn decoding_undoes_encoding() {
        for token in [
            Token::after("b", Revision(7)),
            Token::after("ns/b", Revision(u64::MAX / 2)),
            Token::after("b", Revision(1)).at_latest(),
        ] {
            assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        }
    }

    #[test]
    fn a_token_that_is_none_is_refused() {
        check("not a token!", "illegal base64 data at input byte 3");
        check("notatoken", "illegal base64 data at input byte 8");
        check(&format!("{}=", raw("{}")), "illegal base64 data at input byte 3");
        check(
            &raw(r#"{"v":"v2","rv":1,"start":"a"}"#),
            "server does not recognize this encoded version v2",
        );
        check(&raw("{}"), "server does not recognize this encoded version ");
        let v1 = |rest: &str| raw(&format!(r#"{{"v":"meta.k8s.io/v1",{rest}}}"#));
        let bad_revision = "incorrect encoded start resourceVersion (version meta.k8s.io/v1)";
        check(&v1(r#""rv":0,"start":"a""#), bad_revision);
        check(&v1(r#""rv":-2,"start":"a""#), bad_revision);
        check(&v1(r#""rv":1"#), "encoded start key empty (version meta.k8s.io/v1)");
        for start in ["../../secrets/x", "a/../b", "..", "a//b", "./a", "a/"] {
            check(&v1(&format!(r#""rv":1,"start":"{start}""#)), start);
        }
        check(&"A".repeat(100_000), "longer than 4096 bytes");
        for json in ["", "[", "1", r#"{"rv":"1"}"#, r#"{"rv":1.5}"#, r#"{"rv":1e30}"#] {
            assert_eq!(Token::decode(&raw(json)).unwrap_err().code, 400, "{json}");
        }
    }

    #[track_caller]
    fn check(token: &str, why: &str) {
        let status = Token::decode(token).unwrap_err();
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
        assert_eq!(
            status.message,
            format!("invalid continue token: continue key is not valid: {why}")
        );
    }

    #[test]
    fn a_token_may_start_anywhere_inside_the_collection() {
        let token = raw(r#"{"v":"meta.k8s.io/v1","rv":3,"start":"/"}"#);
        assert_eq!(
            Token::decode(&token).unwrap(),
            Token { at: Some(Revision(3)), start: String::new() }
        );
        let token = raw(r#"{"v":"meta.k8s.io/v1","rv":3,"start":"ns/a..b"}"#);
        assert_eq!(Token::decode(&token).unwrap().start, "ns/a..b");
    }
}
