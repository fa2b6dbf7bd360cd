//! Follows a collection: its objects, then every change, over closed streams and failures.
//!
//! River: list, watch → **follow** → the terminal, a recording.
//! Promise: after the objects of a list, each change once and in order. When the server has forgotten
//! the position, [`CollectionEvent::Restart`] says so and the objects come again; what was missed is the
//! consumer's difference.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use headwater_api::EventType;
use headwater_api::backoff::Backoff;
use headwater_api::frame::{Frame, FrameSplitter};
use headwater_api::random::Random;
use headwater_json::Value;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use super::{Refused, RemoteCluster, ResponseForm};

/// The longest event that is read, in bytes.
const EVENT_MAX: usize = 16 << 20;

/// How long the server is asked to keep a stream open, in seconds.
const STREAM_SECONDS: u32 = 290;

/// Without data for so long a stream counts as broken. Bookmarks arrive about every minute.
const SILENCE_MAX: Duration = Duration::from_secs(STREAM_SECONDS as u64 + 30);

/// A collection to follow.
#[derive(Clone, Debug)]
pub(crate) struct FollowedCollection {
    pub(crate) path: String,
    /// Further parameters, each with `&` in front.
    pub(crate) query: String,
}

/// What follows from a collection.
#[derive(Debug)]
pub(crate) enum CollectionEvent {
    /// An object of the list.
    Object(Value),
    /// All objects of the list were sent.
    Complete,
    /// A change.
    Change(EventType, Value),
    /// The server has forgotten the changes since the last one; the objects of a new list follow.
    Restart,
}

/// Sends what is seen until the receiver is dropped. Fails if the first list fails, or if the server
/// refuses later requests for a reason that does not pass.
pub(crate) async fn follow(
    cluster: &RemoteCluster,
    followed: &FollowedCollection,
    out: &mpsc::Sender<CollectionEvent>,
) -> Result<()> {
    let random = Random::from_entropy();
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30), 0.8..1.2);
    let mut position = begin(cluster, followed, out).await?;
    while !out.is_closed() {
        let mut progressed = false;
        let ended = stream(cluster, followed, &mut position, &mut progressed, out).await;
        if progressed {
            backoff.reset();
        }
        match ended {
            Ok(()) => {}
            Err(error) if Refused::code_of(&error) == Some(410) => {
                if out.send(CollectionEvent::Restart).await.is_err() {
                    return Ok(());
                }
                position = begin(cluster, followed, out).await?;
            }
            Err(error) if is_permanent(&error) => return Err(error),
            Err(error) => {
                let pause = backoff.next(&random);
                tracing::warn!("{}: {error:#}; trying again", followed.path);
                tokio::select! {
                    () = out.closed() => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
    Ok(())
}

/// Whether a repeated request will be refused too.
fn is_permanent(error: &anyhow::Error) -> bool {
    matches!(Refused::code_of(error), Some(400 | 401 | 403 | 404 | 405 | 422))
}

async fn begin(
    cluster: &RemoteCluster,
    followed: &FollowedCollection,
    out: &mpsc::Sender<CollectionEvent>,
) -> Result<String> {
    let listed = cluster.list(&followed.path, &followed.query, ResponseForm::Full).await?;
    for object in listed.items {
        if out.send(CollectionEvent::Object(object)).await.is_err() {
            return Ok(listed.version);
        }
    }
    let version = listed.version;
    // If nobody receives it, the caller notices.
    let _ = out.send(CollectionEvent::Complete).await;
    Ok(version)
}

/// Reads one stream to its end.
async fn stream(
    cluster: &RemoteCluster,
    followed: &FollowedCollection,
    position: &mut String,
    progressed: &mut bool,
    out: &mpsc::Sender<CollectionEvent>,
) -> Result<()> {
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={STREAM_SECONDS}&resourceVersion={}{}",
        followed.path,
        super::encoded(position),
        followed.query
    );
    let mut body = cluster.stream(&path).await?;
    let mut frames = FrameSplitter::new(EVENT_MAX);
    loop {
        let next = tokio::select! {
            () = out.closed() => return Ok(()),
            next = tokio::time::timeout(SILENCE_MAX, body.frame()) => next,
        };
        let Some(frame) = next.map_err(|_| anyhow!("the server sent nothing for too long"))? else {
            return Ok(());
        };
        let Ok(data) = frame.context("the stream broke")?.into_data() else { continue };
        frames.feed(data);
        while let Some(frame) = frames.next_frame()? {
            *progressed = true;
            let (event, object) = decode(&frame)?;
            match event {
                EventType::Error => return Err(failed(&object).into()),
                _ => *position = version(&object).to_owned(),
            }
            if event != EventType::Bookmark
                && out.send(CollectionEvent::Change(event, object)).await.is_err()
            {
                return Ok(());
            }
        }
    }
}

fn decode(frame: &[u8]) -> Result<(EventType, Value)> {
    let text = std::str::from_utf8(frame).context("an event is not UTF-8")?;
    let frame = Frame::decode(text).map_err(|_| anyhow!("an event is not a watch event"))?;
    let Some(event) = EventType::parse(&frame.event) else {
        bail!("the type of an event is unknown: {:?}", frame.event);
    };
    let parsed = headwater_json::parse(frame.object.as_bytes());
    Ok((event, parsed.map_err(|error| anyhow!("an event is not JSON: {error}"))?.value))
}

/// The status that ends a watch.
fn failed(status: &Value) -> Refused {
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    Refused { code, reason: text("reason"), message: text("message") }
}

/// The resourceVersion of an object.
pub(crate) fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}
