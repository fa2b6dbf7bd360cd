//! Continue tokens: the start of the next page of a list.
//!
//! River: the end of one page → **token** → the client → the start of the next page.
//! Promise: a token only names a position in the collection that it is used on. It carries no
//! permission and no prefix; whatever a client puts into it, the resulting key is relative (B169).

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde::{Deserialize, Serialize};

use crate::query::bad_request;
use crate::revision::Revision;
use crate::status::Status;

/// The maximum length: a real token holds a name and a namespace (B175).
const LENGTH_MAX: usize = 4096;

const VERSION: &str = "meta.k8s.io/v1";

/// Unpadded; excess bits at the end are ignored, as in Kubernetes.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// The position where a list continues.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The revision to continue at; none for the newest, which gives up consistency.
    pub at: Option<Revision>,
    /// The first key of the page, relative to the collection: `name\0`, or `namespace/name\0` for a
    /// list across namespaces. The zero byte makes it the position just after that name.
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
    /// Continues after the last key of a page, at the same revision.
    pub fn after(last_key: &str, at: Revision) -> Token {
        Token { at: Some(at), start: format!("{last_key}\0") }
    }

    /// The same position at the newest revision: offered when the token's revision is compacted
    /// (S3.14).
    #[must_use]
    pub fn at_latest(&self) -> Token {
        Token { at: None, start: self.start.clone() }
    }

    /// Encodes it for the client.
    pub fn encode(&self) -> String {
        // Kubernetes writes a leading slash in tokens that its cache makes; the position is the
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

    /// Decodes a token from a client.
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

/// Whether a relative key stays in its collection: no empty, `.` or `..` segment.
fn is_clean(key: &str) -> bool {
    key.is_empty() || key.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}

/// Names the first byte outside of the alphabet, or the end of a truncated text, as Go does.
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
    fn a_token_has_the_content_of_kubernetes() {
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
    fn an_invalid_token_is_rejected() {
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
