//! A real Headwater server over HTTP on loopback, and a proxy in front of it that can misbehave.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use headwater_api::{Clock, SystemClock};
use headwater_cache::{Cacher, Options as CacheOptions};
use headwater_client::factory::client_of;
use headwater_server::identity::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::openapi::Descriptions;
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::token_file::Tokens;
use headwater_server::{Options, Parts, Server};
use headwater_store::{Memory, Store};
use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A server and the client to it; everything ends when this is dropped.
pub struct Api {
    pub client: Client,
    pub proxy: Proxy,
    store: Arc<Memory>,
    running: Running,
}

/// The parts of one server process.
struct Running {
    stop: CancellationToken,
    parts: JoinSet<()>,
}

impl Api {
    pub async fn start() -> Api {
        let store = Arc::new(Memory::default());
        let (address, running) = serve(Arc::clone(&store)).await;
        let proxy = Proxy::start(address).await;
        Api { client: client(proxy.address), proxy, store, running }
    }

    /// Ends the server and starts another on the same data, as an upgrade does.
    pub async fn restart(&mut self) {
        self.running.stop.cancel();
        while self.running.parts.join_next().await.is_some() {}
        let (address, running) = serve(Arc::clone(&self.store)).await;
        self.running = running;
        self.proxy.forward_to(address);
        self.proxy.cut();
    }

    /// Forgets all history, so that whoever resumes from before is told 410.
    pub async fn compact(&self) {
        let now = self.store.revision().await.unwrap();
        self.store.compact(now).await.unwrap();
    }
}

pub fn client(address: SocketAddr) -> Client {
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    client_of(config).unwrap()
}

async fn serve(store: Arc<Memory>) -> (SocketAddr, Running) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let metrics = Metrics::new();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::plain(address, listen::Options::default(), metrics.clone()).unwrap();
    let address = listener.address();
    let mut cacher = Cacher::new(store as Arc<dyn Store>, CacheOptions::default());
    cacher.load().await.unwrap();
    let keys = Pki::in_memory(&pki::names(address.ip(), &[]), &*clock).unwrap();
    let server = Server::new(Parts {
        cache: cacher.handle(),
        authenticator: Authenticator::new(Tokens::default()),
        issuer: Issuer::new(&keys.service_account_key).unwrap(),
        backup: headwater_server::backup::Backup::default(),
        clock,
        metrics,
        descriptions: Descriptions::compressed(&[]),
        options: Options::default(),
    })
    .unwrap();
    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
    let follow = stop.clone();
    parts.spawn(async move { cacher.run(follow).await.unwrap() });
    parts.spawn(server.clone().follow_definitions(stop.clone()));
    server.bootstrap().await.unwrap();
    let listening = stop.clone();
    parts.spawn(async move {
        let draining = server.clone();
        let ended = listening.clone();
        tokio::join!(listener.run(server, listening), async {
            ended.cancelled().await;
            draining.drain();
        });
    });
    (address, Running { stop, parts })
}

/// Forwards bytes, until it is told to cut or to go silent.
pub struct Proxy {
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    state: watch::Sender<Line>,
    _tasks: JoinSet<()>,
}

/// What the line does; a new number cuts every connection.
#[derive(Clone, Copy, PartialEq)]
struct Line {
    number: u32,
    silent: bool,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(target));
        let state = watch::Sender::new(Line { number: 0, silent: false });
        let (to, line) = (Arc::clone(&target), state.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let target = *to.lock().unwrap();
                connections.spawn(carry(client, target, line.subscribe()));
                while connections.try_join_next().is_some() {}
            }
        });
        Proxy { address, target, state, _tasks: tasks }
    }

    fn forward_to(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = target;
    }

    /// Resets every connection.
    pub fn cut(&self) {
        self.state.send_modify(|line| line.number += 1);
    }

    /// Carries nothing to the client any more, without closing: a half-open connection.
    pub fn silence(&self, silent: bool) {
        self.state.send_modify(|line| line.silent = silent);
    }
}

async fn carry(client: TcpStream, target: SocketAddr, mut line: watch::Receiver<Line>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let number = line.borrow_and_update().number;
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let mut silent = line.clone();
    let answers = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = server_in.read(&mut buffer).await {
            if silent.wait_for(|line| !line.silent).await.is_err() {
                return;
            }
            if client_out.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    let requests = async { tokio::io::copy(&mut client_in, &mut server_out).await.map(drop) };
    tokio::select! {
        _ = line.wait_for(|line| line.number != number) => {}
        () = answers => {}
        _ = requests => {}
    }
}
