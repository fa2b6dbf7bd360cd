//! The speed of TLS, of loopback sockets and of the disk.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::AbortHandle;
use hdrhistogram::Histogram;
use headwater_api::SystemClock;
use headwater_server::pki::{Pki, kubeconfig, names};
use headwater_server::tls::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::add_row;
use crate::kubeconfig::Endpoint;
use crate::load::histogram;
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::ScratchDir;
use crate::target::measure::{Usage, cpu_of};

const MEGABYTES: usize = 1000;
/// Bytes that a server writes to TLS or to a socket at once: an event.
const EVENT: usize = 6 * 1024;
const WRITES: usize = 200_000;
const SYNCS: usize = 300;

pub(super) async fn run(home: &ScratchDir, session: &mut Session) -> Result<()> {
    let (mut tls, mut sockets, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..session.runs() {
        tls.push(tls_stream(home.path()).await?);
        sockets.push(socket_writes().await?);
        let path = home.path().join("sync");
        syncs.push(tokio::task::spawn_blocking(move || disk_syncs(&path)).await??);
    }
    add_row(session, Case::new("floor", "TLS through loopback, a MB, both ends", "MB"), &tls);
    add_row(session, Case::new("floor", "socket write of 6 KB, both ends", "writes"), &sockets);
    add_row(session, Case::new("floor", "6 KB written and synced", "syncs"), &syncs);
    Ok(())
}

/// Bytes through one TLS connection with both ends in this process.
async fn tls_stream(directory: &Path) -> Result<Figures> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pki = Pki::in_memory(&names(address.ip(), &[]), &SystemClock)?;
    let file = directory.join("tls");
    std::fs::write(&file, kubeconfig::admin(&pki, &format!("https://{address}")))?;
    let (config, name) = Endpoint::read(&file).await?.tls.context("the kubeconfig has no TLS")?;
    let acceptor = Acceptor::new(&pki, Arc::new(SystemClock))?;
    let sending = async {
        let (socket, _) = listener.accept().await?;
        let mut stream = acceptor.accept(socket, AbortHandle::new_pair().0).await?.stream;
        let began = began();
        let bytes = vec![b'x'; 64 * 1024];
        let mut left = MEGABYTES * 1_000_000;
        while left > 0 {
            let length = left.min(bytes.len());
            stream.write_all(&bytes[..length]).await?;
            left -= length;
        }
        stream.shutdown().await?;
        anyhow::Ok(began)
    };
    let receiving = async {
        let socket = TcpStream::connect(address).await?;
        let mut stream = TlsConnector::from(config).connect(name, socket).await?;
        drain(&mut stream).await
    };
    let (began, ()) = tokio::try_join!(sending, receiving)?;
    Ok(Figures::per_unit(MEGABYTES, used_since(began)))
}

/// Events written to a socket one by one and read at the other end.
async fn socket_writes() -> Result<Figures> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let sending = async {
        let (mut socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let event = vec![b'x'; EVENT];
        let began = began();
        for _ in 0..WRITES {
            socket.write_all(&event).await?;
        }
        anyhow::Ok(began)
    };
    let receiving = async { drain(&mut TcpStream::connect(address).await?).await };
    let (began, ()) = tokio::try_join!(sending, receiving)?;
    Ok(Figures::per_unit(WRITES, used_since(began)))
}

async fn drain(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    let mut bytes = vec![0; 256 * 1024];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// Objects written to disk, each synced before the next.
fn disk_syncs(path: &Path) -> Result<Figures> {
    let mut file = std::fs::File::create(path)?;
    let object = vec![b'x'; EVENT];
    let mut micros: Histogram<u64> = histogram()?;
    let all = Instant::now();
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&object)?;
        file.sync_data()?;
        micros.saturating_record(began.elapsed().as_micros() as u64);
    }
    let rate = SYNCS as f64 / all.elapsed().as_secs_f64();
    Ok(Figures::default().with(Figure::Rate, rate).latency(&micros))
}

fn began() -> (Instant, Option<Duration>) {
    (Instant::now(), cpu_of(&[std::process::id()]))
}

fn used_since((began, before): (Instant, Option<Duration>)) -> Usage {
    let after = cpu_of(&[std::process::id()]);
    let cpu = after.zip(before).map(|(after, before)| after.saturating_sub(before));
    Usage { wall: began.elapsed(), cpu }
}
