//! Answers of gRPC servers in tests, by hand: a mistake of the client's library is not repeated here.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};

/// The body of an answer.
pub(crate) type Body =
    StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// Answers a call with one message in each direction. `respond` gets the path and the message, and
/// returns a message, or a gRPC code and a text.
pub(crate) async fn unary(
    request: Request<Incoming>,
    respond: impl FnOnce(&str, &[u8]) -> Result<Vec<u8>, (u32, &'static str)>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    // Five bytes before the message: not compressed, and its length.
    let message = body.get(5..).unwrap_or_default();
    let mut frames = Vec::new();
    let mut trailers = HeaderMap::new();
    match respond(&path, message) {
        Ok(message) => {
            let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
            let mut framed = vec![0];
            framed.extend_from_slice(&len.to_be_bytes());
            framed.extend_from_slice(&message);
            frames.push(Ok(Frame::data(Bytes::from(framed))));
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err((code, why)) => {
            trailers.insert("grpc-status", HeaderValue::from(code));
            trailers.insert("grpc-message", HeaderValue::from_static(why));
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}
