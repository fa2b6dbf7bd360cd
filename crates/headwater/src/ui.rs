//! `headwater ui`: a loopback server for the page, which shows a cluster live.
//!
//! Reading order: `access` decides who may use the page, `assets` are its files, `paths` says which
//! requests it may send to the cluster, `upstream` sends them with the credentials of a kubeconfig,
//! `stream` carries all watches of a page over one WebSocket, `request` joins these.
//!
//! River: browser → **ui** → the API server, as for every other client.
//! Promise: the page only reads. Nothing but this server, and a browser with its cookie, uses the
//! credentials.

mod access;
mod assets;
mod paths;
mod request;
mod stream;
mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::flags::UiFlags;
use crate::print;
use crate::signals::Signals;
use access::PageAccess;
use request::Page;
use stream::Streams;
use upstream::Upstream;

/// The maximum number of connections; a browser opens seven.
const CONNECTIONS_MAX: usize = 128;
/// The maximum time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum size of the head of a request.
const HEAD_MAX: usize = 32 * 1024;
/// The pause after an error of the listening socket, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// `headwater ui`: serves the page until a signal.
pub(crate) async fn run(flags: &UiFlags) -> Result<()> {
    let mut signals = Signals::new()?;
    let server = PageServer::bind(flags.bind, flags.remote.kubeconfig.clone()).await?;
    // An error of the kubeconfig ends the command; a server that is not running does not.
    server.page.upstream.check().await?;
    server.announce();
    let stop = CancellationToken::new();
    let served = server.run(stop.clone());
    tokio::pin!(served);
    tokio::select! {
        biased;
        () = signals.next() => stop.cancel(),
        () = &mut served => {}
    }
    Ok(())
}

/// The server of the page, bound to its address.
pub(crate) struct PageServer {
    listener: TcpListener,
    page: Arc<Page>,
}

impl PageServer {
    /// Listens on a loopback address. The kubeconfig is read when the page is used.
    pub(crate) async fn bind(address: SocketAddr, kubeconfig: PathBuf) -> Result<PageServer> {
        ensure!(
            address.ip().is_loopback(),
            "the page uses the credentials of the kubeconfig, so {address} must be a loopback address"
        );
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} for the page"))?;
        let access = PageAccess::new(listener.local_addr()?)?;
        let upstream = Arc::new(Upstream::new(kubeconfig));
        let page = Page { access, upstream, streams: Streams::default() };
        Ok(PageServer { listener, page: Arc::new(page) })
    }

    /// Prints the address with the secret that opens the page.
    pub(crate) fn announce(&self) {
        print::data(&format!("page at {}", self.page.access.url()));
    }

    /// Serves until stopped. Open requests and streams end with it.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    match accepted {
                        Ok((socket, _)) => {
                            connections.spawn(connection(socket, self.page.clone()));
                        }
                        Err(error) => {
                            tracing::warn!(%error, "cannot accept a connection for the page");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
            }
        }
    }
}

/// Serves one connection, and the stream that it may become.
async fn connection(socket: TcpStream, page: Arc<Page>) {
    // Events are small and must not wait for each other.
    let _ = socket.set_nodelay(true);
    let mut upgraded = JoinSet::new();
    let (tasks, mut spawned) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |request| {
        let (page, tasks) = (page.clone(), tasks.clone());
        async move { Ok::<_, std::convert::Infallible>(page.answer(request, &tasks).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_MAX);
    let served = http.serve_connection(TokioIo::new(socket), service).with_upgrades();
    tokio::pin!(served);
    let mut is_served = false;
    loop {
        tokio::select! {
            // A client that disconnects early is not an error.
            _ = &mut served, if !is_served => is_served = true,
            Some(task) = spawned.recv() => { upgraded.spawn(task); }
            Some(_) = upgraded.join_next(), if !upgraded.is_empty() => {}
            else => return,
        }
        if is_served && upgraded.is_empty() && spawned.is_empty() {
            return;
        }
    }
}
