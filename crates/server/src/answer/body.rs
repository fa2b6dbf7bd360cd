//! Bodies of requests and responses.
//!
//! River: HTTP → **body** → handler → **body** → HTTP.
//! Promise: a response of any size needs a bounded buffer and sends shared bytes without copying;
//! a request body is read only up to its limit (S8.28).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt, TryStreamExt};
use headwater_api::Status;
use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};

use crate::answer::status;

/// The body of a response.
pub type Body = UnsyncBoxBody<Data, io::Error>;

/// A response.
pub type Response = http::Response<Body>;

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// The largest request body (S8.28).
pub const REQUEST_MAX: usize = 3 * 1024 * 1024;

/// Responses larger than this are compressed if the client accepts gzip (S8.30).
pub(crate) const GZIP_ABOVE: usize = 128 * 1024;

/// The content type of JSON.
pub(crate) const JSON: &str = "application/json";

/// The target size of a chunk of a streamed response.
pub(crate) const CHUNK: usize = 64 * 1024;

/// A part of a body: pieces of shared memory, which are sent without copying.
#[derive(Debug, Default)]
pub struct Data(VecDeque<Bytes>);

impl Data {
    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.0.push_back(piece);
        }
    }

    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.0.iter()
    }

    /// Adds the pieces of other data.
    pub(crate) fn append(&mut self, mut more: Data) {
        self.0.append(&mut more.0);
    }
}

impl Buf for Data {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map(Bytes::as_ref).unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        into.iter_mut().zip(&self.0).map(|(into, piece)| *into = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let piece = self.0.front_mut().expect("at most the unsent bytes are sent");
            if count < piece.len() {
                return piece.advance(count);
            }
            count -= piece.len();
            self.0.pop_front();
        }
    }
}

macro_rules! from_bytes {
    ($($bytes:ty),*) => {
        $(impl From<$bytes> for Data {
            fn from(bytes: $bytes) -> Data {
                let mut data = Data(VecDeque::with_capacity(1));
                data.push(bytes.into());
                data
            }
        })*
    };
}
from_bytes!(Bytes, BytesMut, Vec<u8>, String, &'static str);

/// As contiguous bytes; several pieces are copied.
impl From<Data> for Bytes {
    fn from(mut data: Data) -> Bytes {
        match data.0.len() {
            0 | 1 => data.0.pop_front().unwrap_or_default(),
            _ => data.copy_to_bytes(data.remaining()),
        }
    }
}

/// Boxes the body of a request: all handlers get the same type.
pub fn request<B>(body: B) -> RequestBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    body.map_err(io::Error::other).boxed_unsync()
}

/// Reads a request body of at most [`REQUEST_MAX`] bytes.
pub async fn read(headers: &HeaderMap, body: RequestBody) -> Result<Bytes, Status> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) > REQUEST_MAX as u64 {
        return Err(status::too_large(REQUEST_MAX));
    }
    match Limited::new(body, REQUEST_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(status::too_large(REQUEST_MAX))
        }
        Err(error) => Err(status::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// A complete body.
pub fn full(data: impl Into<Data>) -> Body {
    Full::new(data.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A streamed body.
pub fn stream(chunks: impl Stream<Item: Into<Data>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| Ok(Frame::data(chunk.into())))).boxed_unsync()
}

/// A streamed body that may fail.
pub fn try_stream(chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map_ok(|chunk| Frame::data(chunk.into()))).boxed_unsync()
}

/// A response with a content type.
pub fn answer(code: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    set(&mut response, header::CONTENT_TYPE, content_type);
    response
}

/// A JSON response.
pub fn json(code: StatusCode, bytes: impl Into<Data>) -> Response {
    answer(code, JSON, full(bytes))
}

/// A plain-text response.
pub fn text(code: StatusCode, text: impl Into<Data>) -> Response {
    answer(code, "text/plain; charset=utf-8", full(text))
}

/// The response to an unknown path.
pub fn page_not_found() -> Response {
    let mut response = text(StatusCode::NOT_FOUND, "404 page not found\n");
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

/// Sets a header to a valid constant.
pub fn set(response: &mut Response, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}

/// The formatting of a response that the request asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish {
    /// Two-space indentation (S1.33).
    pub pretty: bool,
    /// Whether the client accepts gzip.
    pub gzip: bool,
}

impl Finish {
    /// Reads `Accept-Encoding`.
    pub fn of(headers: &HeaderMap, pretty: bool) -> Finish {
        let gzip = headers
            .get_all(header::ACCEPT_ENCODING)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(','))
            .any(accepts_gzip);
        Finish { pretty, gzip }
    }
}

/// Whether one element of `Accept-Encoding` offers gzip.
fn accepts_gzip(element: &str) -> bool {
    let mut parts = element.split(';').map(str::trim);
    parts.next() == Some("gzip")
        && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.trim() == "0"))
}

/// A JSON response of chunks, indented or compressed if requested. Small ones are sent unstreamed.
pub fn json_chunks(
    code: StatusCode,
    finish: Finish,
    mut chunks: impl Iterator<Item = Data> + Send + 'static,
) -> Response {
    let mut indent = finish.pretty.then(Indent::default);
    let mut shaped = move |chunk: Data| match &mut indent {
        Some(indent) => indent.feed(&Bytes::from(chunk)).into(),
        None => chunk,
    };
    let mut first: Vec<Data> = Vec::new();
    let mut held = 0;
    while held <= GZIP_ABOVE {
        match chunks.next() {
            Some(chunk) => {
                let chunk = shaped(chunk);
                held += chunk.remaining();
                first.push(chunk);
            }
            None => return whole(code, JSON, finish, first, held),
        }
    }
    let rest = futures::stream::iter(first.into_iter().chain(chunks.map(shaped)));
    if finish.gzip {
        return gzipped(code, JSON, stream(Gzip::new(rest)));
    }
    answer(code, JSON, stream(rest))
}

/// The same of chunks that may take long to compute.
pub async fn json_stream(
    finish: Finish,
    chunks: impl Stream<Item = Data> + Send + Unpin + 'static,
) -> Response {
    let mut indent = finish.pretty.then(Indent::default);
    let shaped = chunks.map(move |chunk: Data| match &mut indent {
        Some(indent) => indent.feed(&Bytes::from(chunk)).into(),
        None => chunk,
    });
    derived_stream(JSON, finish, shaped).await
}

/// A response of chunks in any format, compressed if requested. Small ones are sent unstreamed.
pub async fn derived_stream(
    content_type: &'static str,
    finish: Finish,
    chunks: impl Stream<Item = Data> + Send + Unpin + 'static,
) -> Response {
    let code = StatusCode::OK;
    match begin(chunks).await {
        Beginning::All(chunks, size) => whole(code, content_type, finish, chunks, size),
        Beginning::More(chunks) if finish.gzip => {
            gzipped(code, content_type, stream(Gzip::new(chunks)))
        }
        Beginning::More(chunks) => answer(code, content_type, stream(chunks)),
    }
}

/// A complete response in any format, compressed if it is large and that was requested.
pub fn complete(
    code: StatusCode,
    content_type: &'static str,
    finish: Finish,
    bytes: Bytes,
) -> Response {
    let size = bytes.len();
    whole(code, content_type, finish, vec![bytes.into()], size)
}

/// What the first chunks show: a small body, or a large one with these chunks first.
enum Beginning<S> {
    All(Vec<Data>, usize),
    More(S),
}

async fn begin<S: Stream<Item = Data> + Unpin>(
    mut chunks: S,
) -> Beginning<impl Stream<Item = Data> + use<S>> {
    let mut first: Vec<Data> = Vec::new();
    let mut held = 0;
    while held <= GZIP_ABOVE {
        let Some(chunk) = chunks.next().await else { return Beginning::All(first, held) };
        held += chunk.remaining();
        first.push(chunk);
    }
    Beginning::More(futures::stream::iter(first).chain(chunks))
}

fn joined(chunks: Vec<Data>) -> Data {
    let mut all = Data::default();
    chunks.into_iter().for_each(|chunk| all.append(chunk));
    all
}

fn whole(
    code: StatusCode,
    content_type: &'static str,
    finish: Finish,
    chunks: Vec<Data>,
    size: usize,
) -> Response {
    if finish.gzip && size > GZIP_ABOVE {
        return gzipped(code, content_type, stream(Gzip::new(futures::stream::iter(chunks))));
    }
    answer(code, content_type, full(joined(chunks)))
}

/// A response that is already compressed.
pub(crate) fn gzipped(code: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = answer(code, content_type, body);
    set(&mut response, header::CONTENT_ENCODING, "gzip");
    set(&mut response, header::VARY, "Accept-Encoding");
    response
}

/// Compresses a stream chunk by chunk.
struct Gzip<S> {
    chunks: S,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<S> Gzip<S> {
    fn new(chunks: S) -> Gzip<S> {
        Gzip { chunks, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) }
    }
}

impl<S: Stream<Item = Data> + Unpin> Stream for Gzip<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let next = std::task::ready!(self.chunks.poll_next_unpin(context));
            let Some(encoder) = &mut self.encoder else { return Poll::Ready(None) };
            // Writing to a Vec cannot fail.
            let output = match next {
                Some(chunk) => {
                    encoder.write_all(&Bytes::from(chunk)).expect("a Vec takes everything");
                    std::mem::take(encoder.get_mut())
                }
                None => {
                    let encoder = self.encoder.take().expect("it was there a line above");
                    encoder.finish().expect("a Vec takes everything")
                }
            };
            if !output.is_empty() {
                return Poll::Ready(Some(output.into()));
            }
        }
    }
}

/// Indents compact JSON as it passes, without building a tree.
#[derive(Default)]
pub struct Indent {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The last byte written is an opening bracket.
    fresh: bool,
}

impl Indent {
    /// Indents the next piece.
    pub fn feed(&mut self, chunk: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(chunk.len() * 2);
        for &byte in chunk {
            if self.in_string {
                out.extend_from_slice(&[byte]);
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'{' | b'[' => {
                    self.begin(&mut out);
                    out.extend_from_slice(&[byte]);
                    self.depth += 1;
                    self.fresh = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.fresh) {
                        self.line(&mut out);
                    }
                    out.extend_from_slice(&[byte]);
                }
                b',' => {
                    out.extend_from_slice(b",");
                    self.line(&mut out);
                }
                b':' => out.extend_from_slice(b": "),
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => {
                    self.begin(&mut out);
                    self.in_string = byte == b'"';
                    out.extend_from_slice(&[byte]);
                }
            }
        }
        out.freeze()
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if std::mem::take(&mut self.fresh) {
            self.line(out);
        }
    }

    fn line(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"\n");
        (0..self.depth).for_each(|_| out.extend_from_slice(b"  "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indenting_in_pieces_is_what_serde_prints() {
        let value = headwater_json::json!({
            "a": {}, "b": [], "c": [1, {"x": "a\"{,}\\"}, null], "d": {"e": "f", "g": -1.5}
        });
        let compact = serde_json::to_vec(&value).unwrap();
        let mut indent = Indent::default();
        let mut text = Vec::new();
        for piece in compact.chunks(3) {
            text.extend_from_slice(&indent.feed(piece));
        }
        assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn pieces_are_sent_once_and_in_order_however_much_is_taken() {
        let parts = ["ab", "", "cdefghi", "j", "k", ""];
        let sent = parts.concat();
        for taken in 1..sent.len() + 1 {
            let mut data = Data::default();
            parts.iter().for_each(|part| data.push(Bytes::from_static(part.as_bytes())));
            let mut found = Vec::new();
            while data.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = data.chunks_vectored(&mut slices);
                assert_eq!(&*slices[0], data.chunk());
                let ready: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = taken.min(ready.len());
                found.extend_from_slice(&ready[..taken]);
                data.advance(taken);
                assert_eq!(data.remaining(), sent.len() - found.len());
            }
            assert_eq!(found, sent.as_bytes(), "{taken} at a time");
        }
    }

    #[track_caller]
    fn check(value: &str, expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
        assert_eq!(Finish::of(&headers, false).gzip, expected, "{value}");
    }

    #[test]
    fn gzip_is_used_only_where_it_is_offered() {
        check("gzip", true);
        check("deflate, gzip;q=1.0, *;q=0.5", true);
        check("gzip;q=0", false);
        check("identity", false);
    }
}
