//! A watch stream, read with as little work as a client can have: the bench shares the machine
//! with the server it measures.

use anyhow::{Context, Result, bail};
use memchr::{memchr, memmem};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::kubeconfig::Endpoint;

const READ: usize = 16 * 1024;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// An open watch.
pub(super) struct Stream {
    socket: Box<dyn Socket>,
    /// Bytes as they came; what is before `at` has been used.
    raw: Vec<u8>,
    at: usize,
    /// Bytes left of the current chunk.
    chunk: usize,
    /// The event that is being put together.
    line: Vec<u8>,
}

impl Stream {
    /// Opens a watch and waits for the head of its answer.
    pub(super) async fn open(endpoint: &Endpoint, path: &str) -> Result<Stream> {
        let socket = TcpStream::connect(&endpoint.authority).await?;
        socket.set_nodelay(true)?;
        let socket: Box<dyn Socket> = match &endpoint.tls {
            None => Box::new(socket),
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                Box::new(connector.connect(name.clone(), socket).await?)
            }
        };
        let mut stream = Stream { socket, raw: Vec::new(), at: 0, chunk: 0, line: Vec::new() };
        stream.ask(endpoint, path).await?;
        Ok(stream)
    }

    async fn ask(&mut self, endpoint: &Endpoint, path: &str) -> Result<()> {
        let authorization = match &endpoint.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\n{authorization}\r\n",
            endpoint.authority
        );
        self.socket.write_all(request.as_bytes()).await?;
        loop {
            if let Some(end) = memmem::find(&self.raw, b"\r\n\r\n") {
                if !self.raw.starts_with(b"HTTP/1.1 200 ") {
                    bail!("a watch was refused: {}", String::from_utf8_lossy(&self.raw));
                }
                self.at = end + 4;
                return Ok(());
            }
            self.read().await?;
        }
    }

    /// The next event, without its newline.
    pub(super) async fn next(&mut self) -> Result<&[u8]> {
        self.line.clear();
        loop {
            if self.chunk == 0 && !self.begin_chunk()? {
                self.read().await?;
                continue;
            }
            let there = &self.raw[self.at..];
            let there = &there[..there.len().min(self.chunk)];
            if there.is_empty() {
                self.read().await?;
                continue;
            }
            let (taken, is_whole) = match memchr(b'\n', there) {
                Some(end) => (end + 1, true),
                None => (there.len(), false),
            };
            self.line.extend_from_slice(&there[..taken]);
            self.at += taken;
            self.chunk -= taken;
            if is_whole {
                return Ok(&self.line);
            }
        }
    }

    /// Reads the size line of the next chunk, if it is there.
    fn begin_chunk(&mut self) -> Result<bool> {
        let mut there = &self.raw[self.at..];
        let skipped = if there.starts_with(b"\r\n") { 2 } else { 0 };
        there = &there[skipped..];
        let Some(end) = memmem::find(there, b"\r\n") else { return Ok(false) };
        let size = std::str::from_utf8(&there[..end])?;
        self.chunk = usize::from_str_radix(size, 16).context("not a chunk")?;
        self.at += skipped + end + 2;
        if self.chunk == 0 {
            bail!("the watch ended");
        }
        Ok(true)
    }

    async fn read(&mut self) -> Result<()> {
        self.raw.drain(..self.at);
        self.at = 0;
        self.raw.reserve(READ);
        if self.socket.read_buf(&mut self.raw).await? == 0 {
            bail!("the server closed a watch");
        }
        Ok(())
    }
}

/// The resourceVersion in an event.
pub(super) fn revision(event: &[u8]) -> Result<u64> {
    const KEY: &[u8] = b"\"resourceVersion\":\"";
    let start = memmem::find(event, KEY).context("an event without a resourceVersion")?;
    let rest = &event[start + KEY.len()..];
    let end = memchr(b'"', rest).context("an event that breaks off")?;
    Ok(std::str::from_utf8(&rest[..end])?.parse()?)
}

/// What a watcher has seen, in a form that two of them can be compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) count: u64,
    last: u64,
    /// Depends on every revision and on their order.
    digest: u64,
}

impl Seen {
    /// Takes the next revision; it must be newer than all before.
    pub(super) fn push(&mut self, revision: u64) -> Result<()> {
        if revision <= self.last {
            bail!("revision {revision} came after {}", self.last);
        }
        self.last = revision;
        self.count += 1;
        self.digest = self.digest.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(revision);
        Ok(())
    }

    /// What should be seen after these writes.
    pub(super) fn of(mut revisions: Vec<u64>) -> Result<Seen> {
        revisions.sort_unstable();
        let mut seen = Seen::default();
        for revision in revisions {
            seen.push(revision)?;
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_repeat_and_a_swap_are_seen() {
        let expected = Seen::of(vec![3, 1, 2]).unwrap();
        let seen = |revisions: &[u64]| -> Result<Seen> {
            let mut seen = Seen::default();
            revisions.iter().try_for_each(|revision| seen.push(*revision))?;
            Ok(seen)
        };
        assert_eq!(seen(&[1, 2, 3]).unwrap(), expected);
        assert_ne!(seen(&[1, 3]).unwrap(), expected);
        assert_ne!(seen(&[1, 2, 4]).unwrap(), expected);
        assert!(seen(&[1, 1]).is_err());
        assert!(seen(&[2, 1, 3]).is_err());
    }

    #[tokio::test]
    async fn events_are_whole_however_the_bytes_are_cut() {
        let wire = b"HTTP/1.1 200 OK\r\n\r\n5\r\none\nt\r\n7\r\nwo\nthre\r\n2\r\ne\n\r\n";
        for size in [1, 2, 3, wire.len()] {
            let (client, mut server) = tokio::io::duplex(size);
            let mut stream = Stream {
                socket: Box::new(client),
                raw: Vec::new(),
                at: 0,
                chunk: 0,
                line: Vec::new(),
            };
            let write = async {
                for piece in wire.chunks(size) {
                    server.write_all(piece).await.unwrap();
                }
                std::future::pending::<()>().await;
            };
            let read = async {
                while memmem::find(&stream.raw, b"\r\n\r\n").is_none() {
                    stream.read().await.unwrap();
                }
                stream.at = 19;
                for expected in ["one\n", "two\n", "three\n"] {
                    assert_eq!(stream.next().await.unwrap(), expected.as_bytes());
                }
            };
            tokio::select! {
                () = write => {}
                () = read => {}
            }
        }
    }
}
