//! The collection as text: list pages and watch events for programs that keep no types.
//!
//! River: API server → **raw collection** → a relay's cache. Same requests, limits and errors as the
//! typed source; objects are passed on as the bytes that the server sent.
//! Promise: a page and a frame are bounded; nothing is retried; dropping a future or stream closes the
//! connection.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use headwater_api::EventType;
use headwater_api::frame::Frame;
use kube::Client;

use super::{Endpoint, FrameReader, Options};
use crate::list_watch::{Error, Event, StatusError};
use crate::object::ResourceType;
use crate::query::{ListQuery, WatchQuery};
use crate::version::ResourceVersion;

/// The maximum size of one page of a list.
const PAGE_MAX: usize = 256 << 20;

/// A collection of an API server, as text.
pub struct RawCollection {
    endpoint: Endpoint,
}

/// One page of a list.
#[derive(Debug)]
pub struct RawPage {
    /// The text of each object, without `kind` and `apiVersion` if the server leaves them out.
    pub items: Vec<Vec<u8>>,
    /// The version of the list.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Option<String>,
}

/// One event of a watch.
#[derive(Debug)]
pub enum RawEvent {
    /// An object was added, was changed or was removed, with its text.
    Object(EventType, Vec<u8>),
    /// All changes up to this version were sent.
    Bookmark(ResourceVersion),
    /// The server ends the stream with this error.
    Error(StatusError),
}

impl RawCollection {
    /// A collection in all namespaces. Nothing is left out of the objects, and no deltas are asked for.
    pub fn new(client: Client, resource: &ResourceType, options: Options) -> RawCollection {
        RawCollection { endpoint: Endpoint::new(client, resource, None, options) }
    }

    /// One page of a list.
    ///
    /// # Errors
    /// The request failed, or the response is not a page of a list.
    pub async fn page(&self, query: &ListQuery) -> Result<RawPage, Error> {
        let mut items = Vec::new();
        let mut take = |item: &[u8]| {
            items.push(item.to_vec());
            Ok(())
        };
        let head = self.endpoint.list(query, PAGE_MAX, &mut take).await?.metadata;
        Ok(RawPage {
            items,
            resource_version: head.resource_version.ok_or(Error::NoResourceVersion)?,
            continue_token: head.continue_token.filter(|token| !token.is_empty()),
        })
    }

    /// Opens a watch. It ends after its first error.
    ///
    /// # Errors
    /// The server refused, or could not be reached.
    pub async fn watch(
        &self,
        query: &WatchQuery,
    ) -> Result<BoxStream<'static, Result<RawEvent, Error>>, Error> {
        let frames = self.endpoint.watch(query, false).await?;
        Ok(stream::unfold(frames, next).boxed())
    }
}

async fn next(mut frames: FrameReader) -> Option<(Result<RawEvent, Error>, FrameReader)> {
    let event = match frames.next().await {
        Ok(None) => return None,
        Ok(Some(frame)) => read(&frame),
        Err(error) => Err(error),
    };
    if matches!(event, Err(_) | Ok(RawEvent::Error(_))) {
        frames.end();
    }
    Some((event, frames))
}

fn read(frame: &[u8]) -> Result<RawEvent, Error> {
    let malformed = |why: &str| Error::Malformed(why.to_owned());
    let text = std::str::from_utf8(frame).map_err(|_| malformed("a frame is not UTF-8"))?;
    let frame = Frame::decode(text).map_err(|_| malformed("a frame is not an event"))?;
    match EventType::parse(&frame.event) {
        None => Err(Error::Malformed(format!("unknown event type {:?}", frame.event))),
        Some(EventType::Bookmark) => match super::decode::bookmark::<()>(frame.object)? {
            Event::Bookmark { resource_version, .. } => Ok(RawEvent::Bookmark(resource_version)),
            _ => Err(malformed("a bookmark has no resourceVersion")),
        },
        Some(EventType::Error) => Ok(RawEvent::Error(StatusError::from_event(frame.object))),
        Some(event) => Ok(RawEvent::Object(event, frame.object.as_bytes().to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_without_its_object() {
        let object = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;
        let frame = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        match read(frame.as_bytes()).unwrap() {
            RawEvent::Object(EventType::Added, text) => assert_eq!(text, object.as_bytes()),
            other => panic!("{other:?}"),
        }
        let frame = format!(r#"{{"type":"BOOKMARK","object":{object}}}"#);
        assert!(matches!(read(frame.as_bytes()).unwrap(), RawEvent::Bookmark(_)));
        for bad in
            ["{}", r#"{"type":"X","object":{}}"#, "\u{0}", r#"{"type":"BOOKMARK","object":{}}"#]
        {
            assert!(matches!(read(bad.as_bytes()), Err(Error::Malformed(_))), "{bad}");
        }
        let frame = r#"{"type":"ERROR","object":{"code":410,"reason":"Expired"}}"#;
        match read(frame.as_bytes()).unwrap() {
            RawEvent::Error(status) => assert!(status.is_expired()),
            other => panic!("{other:?}"),
        }
    }
}
