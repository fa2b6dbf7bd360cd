//! Bodies of lists: counts objects while they arrive, or checks them one by one.

use std::io::Read as _;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use headwater_api::object::string_at;
use http::Request;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use memchr::memmem;

use crate::connect::{Connection, successful};
use crate::load::object::POD_PREFIX;
use crate::load::stream::BodyFormat;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Plain,
    Gzip,
    Protobuf,
}

/// Appears once in every object.
const MARK: &[u8] = b"\"uid\":\"";

/// The size of a list that was read.
pub(crate) struct ListSize {
    pub(crate) bytes: usize,
    objects: usize,
}

impl ListSize {
    /// Fails unless the list had this many objects. Only plain bodies are counted.
    pub(crate) fn expect(&self, encoding: Encoding, objects: usize) -> Result<()> {
        let is_right = encoding != Encoding::Plain || self.objects == objects;
        ensure!(is_right, "a list had {} objects, expected {objects}", self.objects);
        Ok(())
    }
}

/// Sends a GET and returns the body of the response.
pub(crate) async fn get(
    connection: &mut Connection,
    path: &str,
    encoding: Encoding,
) -> Result<Incoming> {
    let mut request = Request::get(path);
    if encoding == Encoding::Gzip {
        request = request.header(ACCEPT_ENCODING, "gzip");
    }
    if encoding == Encoding::Protobuf {
        request = request.header(ACCEPT, BodyFormat::Protobuf.media_type());
    }
    let response = successful(connection.send(request.body(Full::default())?).await?).await?;
    let found = response.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if encoding == Encoding::Plain && found.is_some() {
        bail!("the response to {path} is compressed, but the request did not accept compression");
    }
    Ok(response.into_body())
}

pub(crate) async fn read_all(body: Incoming) -> Result<Bytes> {
    Ok(body.collect().await?.to_bytes())
}

/// Reads all pages of a list and discards them.
pub(crate) async fn read(
    connection: &mut Connection,
    path: &str,
    encoding: Encoding,
) -> Result<ListSize> {
    let mut read = ListSize { bytes: 0, objects: 0 };
    let mut next = path.to_owned();
    loop {
        let mut body = get(connection, &next, encoding).await?;
        let mut counter = Counter::default();
        while let Some(frame) = body.frame().await {
            counter.take(&frame?.into_data().unwrap_or_default());
        }
        read.bytes += counter.bytes;
        read.objects += counter.marks;
        match token(&counter.head, encoding)? {
            Some(token) => next = format!("{path}&continue={}", escaped(&token)),
            None => return Ok(read),
        }
    }
}

/// Counts objects in the chunks of a body and keeps its beginning, which has the list metadata.
#[derive(Default)]
struct Counter {
    bytes: usize,
    marks: usize,
    head: Vec<u8>,
    /// The end of the last chunk, where a mark may begin.
    tail: Vec<u8>,
}

const HEAD: usize = 4096;

impl Counter {
    fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len();
        let missing = HEAD.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend_from_slice(&piece[..missing]);
        let over = piece.len().min(MARK.len() - 1);
        self.tail.extend_from_slice(&piece[..over]);
        self.marks += memmem::find_iter(&self.tail, MARK).count();
        self.marks += memmem::find_iter(piece, MARK).count();
        if piece.len() >= MARK.len() - 1 {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - over..]);
        } else {
            let keep = self.tail.len().min(MARK.len() - 1);
            self.tail.drain(..self.tail.len() - keep);
        }
    }
}

/// The continue token, from the beginning of a body.
fn token(head: &[u8], encoding: Encoding) -> Result<Option<String>> {
    let mut plain = Vec::new();
    if encoding == Encoding::Gzip && head.starts_with(&[0x1f, 0x8b]) {
        // The input is truncated; the decoded part is enough.
        let _ = flate2::read::MultiGzDecoder::new(head).take(HEAD as u64).read_to_end(&mut plain);
    } else {
        plain.extend_from_slice(head);
    }
    let end = memmem::find(&plain, b"\"items\":").unwrap_or(plain.len());
    const KEY: &[u8] = b"\"continue\":\"";
    let Some(start) = memmem::find(&plain[..end], KEY) else { return Ok(None) };
    let rest = &plain[start + KEY.len()..end];
    let length = memchr::memchr(b'"', rest).context("truncated continue token")?;
    let token = std::str::from_utf8(&rest[..length])?;
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// Reads all pages of a list. It must contain exactly the expected pods, each once. Returns the
/// bytes on the wire.
pub(crate) async fn check(
    connection: &mut Connection,
    path: &str,
    encoding: Encoding,
    expected: &[usize],
) -> Result<usize> {
    let (mut bytes, mut found) = (0, Vec::new());
    let mut next = path.to_owned();
    loop {
        let body = read_all(get(connection, &next, encoding).await?).await?;
        bytes += body.len();
        if encoding == Encoding::Protobuf {
            // These lists have one page.
            protobuf_pods(&body, &mut found)?;
            break;
        }
        let body = plain(body)?;
        pods(&body, &mut found)?;
        match string_at(&body, &["metadata", "continue"]) {
            Some(token) if !token.is_empty() => {
                next = format!("{path}&continue={}", escaped(&token));
            }
            _ => break,
        }
    }
    same(found, expected).with_context(|| format!("incorrect list from {path}"))?;
    Ok(bytes)
}

fn plain(body: Bytes) -> Result<Bytes> {
    if !body.starts_with(&[0x1f, 0x8b]) {
        return Ok(body);
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(&*body).read_to_end(&mut plain)?;
    Ok(plain.into())
}

/// Appends the index of every pod in a body.
fn pods(body: &[u8], found: &mut Vec<usize>) -> Result<()> {
    let key = format!("\"name\":\"{POD_PREFIX}");
    for start in memmem::find_iter(body, &key) {
        let rest = &body[start + key.len()..];
        let end = memchr::memchr(b'"', rest).context("truncated name")?;
        found.push(std::str::from_utf8(&rest[..end])?.parse()?);
    }
    Ok(())
}

/// The same in a body as protobuf, where the length of a name precedes it.
fn protobuf_pods(body: &[u8], found: &mut Vec<usize>) -> Result<()> {
    for start in memmem::find_iter(body, POD_PREFIX) {
        if let Some([.., 0x0a, length]) = body.get(..start) {
            let name = body.get(start..start + usize::from(*length)).context("truncated name")?;
            found.push(std::str::from_utf8(&name[POD_PREFIX.len()..])?.parse()?);
        }
    }
    Ok(())
}

fn same(mut found: Vec<usize>, expected: &[usize]) -> Result<()> {
    found.sort_unstable();
    if let Some(pair) = found.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("pod {} appears twice", pair[0]);
    }
    if let Some(missing) = expected.iter().find(|index| found.binary_search(index).is_err()) {
        bail!("pod {missing} is missing");
    }
    if let Some(other) = found.iter().find(|index| expected.binary_search(index).is_err()) {
        bail!("pod {other} is unexpected");
    }
    Ok(())
}

fn escaped(token: &str) -> String {
    let mut text = String::new();
    for byte in token.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte as char),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Reads a response and discards it.
pub(crate) async fn drain(connection: &mut Connection, path: &str) -> Result<()> {
    read(connection, path, Encoding::Plain).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_for_any_chunk_size() {
        let body = br#"{"items":[{"uid":"a"},{"uid":"b"},{"x":"uid"},{"uid":"c"}]}"#;
        for size in 1..body.len() {
            let mut counter = Counter::default();
            body.chunks(size).for_each(|piece| counter.take(piece));
            assert_eq!((counter.marks, counter.bytes), (3, body.len()), "pieces of {size}");
        }
    }

    #[test]
    fn the_continue_token_is_read_from_the_list_metadata_only() {
        let head = br#"{"kind":"PodList","metadata":{"continue":"a+b","x":"1"},"items":["#;
        assert_eq!(token(head, Encoding::Plain).unwrap().as_deref(), Some("a+b"));
        assert_eq!(escaped("a+b"), "a%2Bb");
        let last = br#"{"metadata":{"resourceVersion":"7"},"items":[{"continue":"x"}"#;
        assert_eq!(token(last, Encoding::Plain).unwrap(), None);
    }

    #[test]
    fn missing_duplicate_and_unexpected_pods_are_errors() {
        let why = |found: &[usize]| same(found.to_vec(), &[1, 2, 3]).unwrap_err().to_string();
        assert!(same(vec![3, 1, 2], &[1, 2, 3]).is_ok());
        assert_eq!(why(&[1, 3]), "pod 2 is missing");
        assert_eq!(why(&[1, 2, 2, 3]), "pod 2 appears twice");
        assert_eq!(why(&[1, 2, 3, 9]), "pod 9 is unexpected");
    }

    #[test]
    fn pods_are_identified_by_name() {
        let body = format!(r#"{{"name":"{POD_PREFIX}00017"}},{{"name":"app"}}"#);
        let mut found = Vec::new();
        pods(body.as_bytes(), &mut found).unwrap();
        assert_eq!(found, [17]);
        let name = format!("{POD_PREFIX}00018");
        let body = [&[0x0a, name.len() as u8], name.as_bytes(), b"\x12", name.as_bytes()].concat();
        protobuf_pods(&body, &mut found).unwrap();
        assert_eq!(found, [17, 18]);
    }
}
