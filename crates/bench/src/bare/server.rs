//! The bare server: hyper and rustls serving bytes that were prepared in advance.
//!
//! | request | response |
//! | --- | --- |
//! | `GET /list/N` | N objects |
//! | `GET /watch/N` | N events after the next `GET /go` |
//! | `GET /each/N` | one event per `GET /go`, up to N |
//! | `GET /one/W/N` | one event per `POST /write/W`, up to N |
//! | `POST /write`, `POST /write/W` | an object |
//! | `POST /sync` | an object, after one was written and synced |

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::future::AbortHandle;
use futures::stream;
use headwater_api::SystemClock;
use headwater_server::pki::{Pki, kubeconfig, names};
use headwater_server::tls::Acceptor;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::load::object::pod;
use crate::report::Printer;

/// Bytes passed to hyper in one frame.
const PIECE: usize = 64 * 1024;
/// Bytes of a stored object.
const OBJECT: usize = 6 * 1024;
/// Bytes of an event: an object and a newline.
const EVENT: usize = OBJECT + 1;

/// Serves until its future is dropped.
pub(crate) async fn serve(kubeconfig_out: &Path, printer: Printer) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pki = Pki::in_memory(&names(address.ip(), &[]), &SystemClock)?;
    std::fs::write(kubeconfig_out, kubeconfig::admin(&pki, &format!("https://{address}")))?;
    let acceptor = Acceptor::new(&pki, Arc::new(SystemClock))?;
    let content = Arc::new(Content::new(File::create(kubeconfig_out.with_file_name("synced"))?));
    (printer.data)("ready");
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
    let stream = acceptor.accept(socket, AbortHandle::new_pair().0).await?.stream;
    let service = service_fn(move |request: Request<Incoming>| {
        let content = content.clone();
        async move {
            match request.method() {
                &Method::POST => content.post(request).await,
                _ => Ok(content.answer(request.uri().path())),
            }
        }
    });
    let served = Builder::new(TokioExecutor::new());
    let served = served.serve_connection(TokioIo::new(stream), service).await;
    served.map_err(|error| anyhow::anyhow!(error)).context("cannot serve the connection")
}

type Body = BoxBody<Bytes, Infallible>;

/// The prepared bytes, and the rounds that release them.
struct Content {
    /// Consecutive objects of a list.
    objects: Bytes,
    /// The number of `/go` requests.
    rounds: watch::Sender<u64>,
    /// The number of writes for each watcher.
    own_rounds: Mutex<HashMap<usize, watch::Sender<u64>>>,
    /// The last prepared events, with their number.
    events: Mutex<Option<(usize, Bytes)>>,
    /// The file that `/sync` writes to.
    disk: Arc<Mutex<File>>,
}

impl Content {
    fn new(file: File) -> Content {
        let objects = object(0).repeat(PIECE.div_ceil(OBJECT) * 4).into();
        Content {
            objects,
            rounds: watch::Sender::new(0),
            own_rounds: Mutex::default(),
            events: Mutex::new(None),
            disk: Arc::new(Mutex::new(file)),
        }
    }

    async fn post(&self, request: Request<Incoming>) -> Result<Response<Body>> {
        let (head, body) = request.into_parts();
        body.collect().await?;
        let object = self.objects.slice(..OBJECT);
        match parts(head.uri.path()) {
            ("sync", _) => {
                let (disk, object) = (self.disk.clone(), object.clone());
                tokio::task::spawn_blocking(move || {
                    let mut disk = locked(&disk);
                    disk.write_all(&object)?;
                    disk.sync_data()
                })
                .await??;
            }
            (_, Some(watcher)) => self.own_rounds(watcher).send_modify(|round| *round += 1),
            (_, None) => {}
        }
        Ok(Response::new(BodyExt::boxed(Full::new(object))))
    }

    /// The rounds of one watcher.
    fn own_rounds(&self, watcher: usize) -> watch::Sender<u64> {
        locked(&self.own_rounds).entry(watcher).or_insert_with(|| watch::Sender::new(0)).clone()
    }

    fn answer(&self, path: &str) -> Response<Body> {
        match parts(path) {
            ("list", Some(objects)) => Response::new(self.list(objects)),
            ("watch", Some(events)) => Response::new(self.watch(events)),
            ("each", Some(events)) => Response::new(self.each(self.rounds.subscribe(), events)),
            ("one", Some(watcher)) => {
                let events = path.rsplit('/').next().and_then(|last| last.parse().ok());
                let rounds = self.own_rounds(watcher).subscribe();
                Response::new(self.each(rounds, events.unwrap_or_default()))
            }
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

    /// Sends all events after the next round, in frames of [`PIECE`] bytes.
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

    /// Sends one event per round, up to `count`.
    fn each(&self, waiting: watch::Receiver<u64>, count: usize) -> Body {
        let events = self.events(count);
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
        let mut made = locked(&self.events);
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first segment of a path, and the number in the second.
fn parts(path: &str) -> (&str, Option<usize>) {
    let mut parts = path.split('/').skip(1);
    (parts.next().unwrap_or_default(), parts.next().and_then(|number| number.parse().ok()))
}

/// An object of the size of a stored pod.
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
    use crate::load::stream::revision;

    #[test]
    fn an_event_has_the_size_of_a_stored_pod_and_its_revision() {
        let event = event(417);
        assert_eq!(event.len(), EVENT);
        assert_eq!(revision(&event).unwrap(), 417);
    }

    fn content() -> Content {
        Content::new(tempfile::tempfile().unwrap())
    }

    #[tokio::test]
    async fn each_go_releases_one_event() {
        let content = content();
        let mut body = content.answer("/each/2").into_body();
        for turn in 1..=2 {
            content.answer("/go");
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((frame.len(), revision(&frame).unwrap()), (EVENT, turn));
        }
    }

    #[tokio::test]
    async fn a_write_for_one_watcher_is_an_event_for_it_alone() {
        let content = content();
        let (mut first, mut second) = (content.answer("/one/0/5"), content.answer("/one/1/5"));
        content.own_rounds(1).send_modify(|round| *round += 1);
        let frame = second.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(revision(&frame).unwrap(), 1);
        assert!(futures::FutureExt::now_or_never(first.body_mut().frame()).is_none());
    }

    #[tokio::test]
    async fn a_list_has_the_requested_number_of_objects() {
        for objects in [0, 1, 25] {
            let body = content().list(objects).collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), objects * OBJECT);
        }
    }
}
