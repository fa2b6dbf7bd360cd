//! The bare server: hyper and rustls, and bytes that were made before anybody asked.
//!
//! `/list/N` answers N objects; `/watch/N` streams N events once somebody has asked for `/go`,
//! `/each/N` one event for each time that somebody has.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::stream;
use headwater_api::SystemClock;
use headwater_server::pki::{Pki, kubeconfig, names};
use headwater_server::tls::Acceptor;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bench::object::pod;
use crate::print;

/// Bytes handed to hyper at once.
const PIECE: usize = 64 * 1024;
/// Bytes of an object as it is stored.
const OBJECT: usize = 6 * 1024;
/// The same with the newline of a stream.
const EVENT: usize = OBJECT + 1;

/// Serves until it is killed.
pub(in crate::bench) async fn serve(kubeconfig_out: &Path) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pki = Pki::in_memory(&names(address.ip(), &[]), &SystemClock)?;
    std::fs::write(kubeconfig_out, kubeconfig::admin(&pki, &format!("https://{address}")))?;
    let acceptor = Acceptor::new(&pki, Arc::new(SystemClock))?;
    let content = Arc::new(Content::new());
    print::data("ready");
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        let (acceptor, content) = (acceptor.clone(), content.clone());
        connections.spawn(async move {
            if let Err(error) = connection(socket, acceptor, content).await {
                tracing::debug!(%error, "connection ended");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, acceptor: Acceptor, content: Arc<Content>) -> Result<()> {
    socket.set_nodelay(true)?;
    let (stream, _, _) = acceptor.accept(socket).await?;
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = content.answer(request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = Builder::new(TokioExecutor::new());
    let served = served.serve_connection(TokioIo::new(stream), service).await;
    served.map_err(|error| anyhow::anyhow!(error)).context("serving")
}

type Body = BoxBody<Bytes, Infallible>;

/// Everything that is ever sent.
struct Content {
    /// Objects of a list, one after the other.
    objects: Bytes,
    /// How often somebody has said go.
    rounds: watch::Sender<u64>,
    /// Events of a watch, by how many there are.
    events: Mutex<Option<(usize, Bytes)>>,
}

impl Content {
    fn new() -> Content {
        let objects = object(0).repeat(PIECE.div_ceil(OBJECT) * 4).into();
        Content { objects, rounds: watch::Sender::new(0), events: Mutex::new(None) }
    }

    fn answer(&self, path: &str) -> Response<Body> {
        let number = path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0);
        match path.split('/').nth(1) {
            Some("list") => Response::new(self.list(number)),
            Some("watch") => Response::new(self.watch(number)),
            Some("each") => Response::new(self.each(number)),
            _ => {
                self.rounds.send_modify(|round| *round += 1);
                Response::default()
            }
        }
    }

    fn list(&self, objects: usize) -> Body {
        let (piece, all) = (self.objects.clone(), objects * OBJECT);
        let pieces = stream::unfold(all, move |left| {
            let length = left.min(PIECE);
            let piece = piece.slice(..length);
            async move { (length > 0).then(|| (Ok(Frame::data(piece)), left - length)) }
        });
        BodyExt::boxed(StreamBody::new(pieces))
    }

    /// Sends everything, as much at once as a piece holds, after the next go.
    fn watch(&self, count: usize) -> Body {
        let events = self.events(count);
        let waiting = self.rounds.subscribe();
        let pieces = stream::unfold((waiting, 0), move |(mut waiting, at)| {
            let events = events.clone();
            async move {
                if at == 0 {
                    waiting.changed().await.ok()?;
                }
                if at == events.len() {
                    // Watches stay open.
                    std::future::pending::<()>().await;
                }
                let end = (at + PIECE).min(events.len());
                Some((Ok(Frame::data(events.slice(at..end))), (waiting, end)))
            }
        });
        BodyExt::boxed(StreamBody::new(pieces))
    }

    /// Sends the next event after each go, up to so many.
    fn each(&self, count: usize) -> Body {
        let events = self.events(count);
        let waiting = self.rounds.subscribe();
        let first = *waiting.borrow();
        let pieces = stream::unfold((waiting, 0), move |(mut waiting, at)| {
            let events = events.clone();
            async move {
                let ready = |round: &u64| (round - first) as usize * EVENT > at;
                let round = *waiting.wait_for(ready).await.ok()?;
                let end = ((round - first) as usize * EVENT).min(events.len());
                if at == end {
                    // Watches stay open.
                    std::future::pending::<()>().await;
                }
                Some((Ok(Frame::data(events.slice(at..end))), (waiting, end)))
            }
        });
        BodyExt::boxed(StreamBody::new(pieces))
    }

    fn events(&self, count: usize) -> Bytes {
        let mut made = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*made {
            Some((known, events)) if *known == count => events.clone(),
            _ => {
                let events: Bytes = (1..=count).flat_map(event).collect();
                *made = Some((count, events.clone()));
                events
            }
        }
    }
}

/// An object of the size it has when it is stored.
fn object(revision: usize) -> Vec<u8> {
    let start = format!("{{\"metadata\":{{\"resourceVersion\":\"{revision}\"}},\"object\":");
    let mut object = start.into_bytes();
    object.extend(pod(0, "bench-0", 0));
    object.resize(OBJECT - 1, b' ');
    object.push(b'}');
    object
}

fn event(revision: usize) -> Vec<u8> {
    let mut event = object(revision);
    event.push(b'\n');
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stream::revision;

    #[test]
    fn events_have_the_size_of_stored_pods_and_tell_their_revision() {
        let event = event(417);
        assert_eq!(event.len(), EVENT);
        assert_eq!(revision(&event).unwrap(), 417);
    }

    #[tokio::test]
    async fn each_go_is_one_event() {
        let content = Content::new();
        let mut body = content.each(2);
        for turn in 1..=2 {
            content.answer("/go");
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((frame.len(), revision(&frame).unwrap()), (EVENT, turn));
        }
    }

    #[tokio::test]
    async fn a_list_has_so_many_objects() {
        for objects in [0, 1, 25] {
            let body = Content::new().list(objects).collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), objects * OBJECT);
        }
    }
}
