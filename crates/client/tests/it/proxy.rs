//! A faulty proxy: it forwards one request per connection and breaks connections on command.
//!
//! It understands only the HTTP that is needed for that: requests have no body, responses are not
//! parsed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::world::{Asked, Kind, Refusal, take_refusal};

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    line: watch::Sender<Line>,
    asked: watch::Sender<Vec<Asked>>,
    refusals: Mutex<Vec<(Kind, Refusal)>>,
    cut_in_next_frame: AtomicBool,
}

/// The faults. Each number is that of a connection: older connections are affected.
#[derive(Clone, Copy, Default)]
struct Line {
    opened: u32,
    cut_before: u32,
    silent_before: u32,
    garbage_before: u32,
    down: bool,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            line: watch::Sender::default(),
            asked: watch::Sender::default(),
            refusals: Mutex::default(),
            cut_in_next_frame: AtomicBool::new(false),
        });
        let inner = Arc::clone(&shared);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let number = inner.line.borrow().opened;
                inner.line.send_modify(|line| line.opened += 1);
                connections.spawn(carry(client, number, Arc::clone(&inner)));
                while connections.try_join_next().is_some() {}
            }
        });
        Proxy { address, shared, _tasks: tasks }
    }

    pub fn forward_to(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    pub fn asked(&self) -> watch::Receiver<Vec<Asked>> {
        self.shared.asked.subscribe()
    }

    pub fn cut(&self) {
        self.shared.line.send_modify(|line| line.cut_before = line.opened);
    }

    pub fn cut_in_next_frame(&self) {
        self.shared.cut_in_next_frame.store(true, Ordering::Relaxed);
    }

    pub fn garbage(&self) {
        self.shared.line.send_modify(|line| line.garbage_before = line.opened);
    }

    pub fn silence(&self) {
        self.shared.line.send_modify(|line| line.silent_before = line.opened);
    }

    pub fn set_down(&self, down: bool) {
        self.shared.line.send_modify(|line| line.down = down);
    }

    pub fn refuse(&self, kind: Kind, refusal: Refusal) {
        self.shared.refusals.lock().unwrap().push((kind, refusal));
    }
}

/// One connection, until it is cut.
async fn carry(client: TcpStream, number: u32, shared: Arc<Shared>) {
    let mut line = shared.line.subscribe();
    tokio::select! {
        biased;
        _ = line.wait_for(|line| number < line.cut_before) => {}
        () = exchange(client, number, &shared) => {}
    }
}

async fn exchange(mut client: TcpStream, number: u32, shared: &Shared) {
    let Some(head) = read_head(&mut client).await else { return };
    let kind = kind_of(&head);
    shared.asked.send_modify(|asked| asked.push(Asked { kind, at: Instant::now() }));
    if shared.line.subscribe().wait_for(|line| !line.down).await.is_err() {
        return;
    }
    let refusal = take_refusal(&mut shared.refusals.lock().unwrap(), kind);
    if let Some(refusal) = refusal {
        client.write_all(answer(refusal).as_bytes()).await.ok();
        return;
    }
    let target = *shared.target.lock().unwrap();
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // The server closes the connection after its response, so its end need not be parsed.
    let head = head.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    if server.write_all(head.as_bytes()).await.is_ok() {
        carry_answer(client, server, number, shared).await;
    }
}

async fn carry_answer(mut client: TcpStream, mut server: TcpStream, number: u32, shared: &Shared) {
    let mut line = shared.line.subscribe();
    let mut buffer = vec![0; 64 << 10];
    let mut littered = false;
    loop {
        tokio::select! {
            biased;
            changed = line.changed() => {
                let now = *line.borrow_and_update();
                if changed.is_err() {
                    return;
                }
                if number < now.silent_before {
                    return hold(client).await;
                }
                if number < now.garbage_before && !std::mem::replace(&mut littered, true) {
                    // A complete chunk, because the stream is idle: the garbage is in the body.
                    client.write_all(b"a\r\n\x00\x01garbage\n\r\n").await.ok();
                }
            }
            count = server.read(&mut buffer) => {
                let Ok(count @ 1..) = count else { return };
                if shared.cut_in_next_frame.swap(false, Ordering::Relaxed) {
                    client.write_all(&buffer[..count / 2]).await.ok();
                    return;
                }
                if client.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Sends nothing until the peer disconnects.
async fn hold(mut client: TcpStream) {
    client.read_u8().await.ok();
}

async fn read_head(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

fn kind_of(head: &str) -> Kind {
    let request = head.lines().next().unwrap_or_default();
    match (request.contains("watch=true"), request.contains("sendInitialEvents=true")) {
        (true, true) => Kind::WatchList,
        (true, false) => Kind::Watch,
        (false, _) => Kind::List,
    }
}

fn answer(refusal: Refusal) -> String {
    let Refusal { code, reason, cause, retry_after } = refusal;
    let causes: Vec<_> =
        cause.map(|reason| serde_json::json!({ "reason": reason })).into_iter().collect();
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "refused by the test", "details": { "causes": causes },
    });
    let body = body.to_string();
    let advice =
        retry_after.map(|wait| format!("retry-after: {}\r\n", wait.as_secs())).unwrap_or_default();
    let length = body.len();
    format!(
        "HTTP/1.1 {code} Refused\r\nconnection: close\r\ncontent-type: application/json\r\n{advice}content-length: {length}\r\n\r\n{body}"
    )
}
