//! A watch over HTTP/1.1, with its own parser for chunks.

use anyhow::{Context, Result, bail};
use memchr::memmem;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{BodyFormat, WatchTarget, take_event};
use crate::kubeconfig::Endpoint;

const READ: usize = 16 * 1024;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// An open watch.
pub(crate) struct Http1Stream {
    socket: Box<dyn Socket>,
    /// Received bytes; those before `at` are consumed.
    raw: Vec<u8>,
    at: usize,
    /// Remaining bytes of the current chunk.
    chunk: usize,
    /// The current event.
    line: Vec<u8>,
    format: BodyFormat,
}

impl Http1Stream {
    pub(super) async fn open(endpoint: &Endpoint, target: &WatchTarget) -> Result<Http1Stream> {
        let socket = TcpStream::connect(&endpoint.authority).await?;
        socket.set_nodelay(true)?;
        let socket: Box<dyn Socket> = match &endpoint.tls {
            None => Box::new(socket),
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                Box::new(connector.connect(name.clone(), socket).await?)
            }
        };
        let mut stream = Http1Stream::over(socket);
        stream.format = target.format();
        stream.ask(endpoint, target).await?;
        Ok(stream)
    }

    fn over(socket: Box<dyn Socket>) -> Http1Stream {
        let (raw, line, format) = (Vec::new(), Vec::new(), BodyFormat::Json);
        Http1Stream { socket, raw, at: 0, chunk: 0, line, format }
    }

    #[cfg(test)]
    pub(super) async fn answering(wire: &'static [u8]) -> Http1Stream {
        let mut stream = Http1Stream::over(Box::new(tokio::io::join(wire, tokio::io::sink())));
        stream.read_head().await.unwrap();
        stream
    }

    async fn ask(&mut self, endpoint: &Endpoint, target: &WatchTarget) -> Result<()> {
        let authorization = match &endpoint.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: {}\r\n{authorization}\r\n",
            target.path, endpoint.authority, target.accept
        );
        self.socket.write_all(request.as_bytes()).await?;
        self.read_head().await
    }

    async fn read_head(&mut self) -> Result<()> {
        loop {
            if let Some(end) = memmem::find(&self.raw, b"\r\n\r\n") {
                if !self.raw.starts_with(b"HTTP/1.1 200 ") {
                    bail!("the server refused a watch: {}", String::from_utf8_lossy(&self.raw));
                }
                self.at = end + 4;
                return Ok(());
            }
            self.read().await?;
        }
    }

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
            let (taken, is_complete) = take_event(self.format, there, &mut self.line);
            self.at += taken;
            self.chunk -= taken;
            if is_complete {
                return Ok(&self.line);
            }
        }
    }

    /// Reads the size line of the next chunk; false if it is incomplete.
    fn begin_chunk(&mut self) -> Result<bool> {
        let mut there = &self.raw[self.at..];
        let skipped = if there.starts_with(b"\r\n") { 2 } else { 0 };
        there = &there[skipped..];
        let Some(end) = memmem::find(there, b"\r\n") else { return Ok(false) };
        let size = std::str::from_utf8(&there[..end])?;
        self.chunk = usize::from_str_radix(size, 16).context("invalid chunk size")?;
        self.at += skipped + end + 2;
        if self.chunk == 0 {
            bail!("the server ended the watch");
        }
        Ok(true)
    }

    async fn read(&mut self) -> Result<()> {
        self.raw.drain(..self.at);
        self.at = 0;
        self.raw.reserve(READ);
        if self.socket.read_buf(&mut self.raw).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_complete_for_any_chunk_size() {
        let wire = b"HTTP/1.1 200 OK\r\n\r\n5\r\none\nt\r\n7\r\nwo\nthre\r\n2\r\ne\n\r\n";
        for size in [1, 2, 3, wire.len()] {
            let (client, mut server) = tokio::io::duplex(size);
            let mut stream = Http1Stream::over(Box::new(client));
            let write = async {
                for piece in wire.chunks(size) {
                    server.write_all(piece).await.unwrap();
                }
                std::future::pending::<()>().await;
            };
            let read = async {
                stream.read_head().await.unwrap();
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

    #[tokio::test]
    async fn the_end_of_a_stream_is_an_error() {
        let wire = b"HTTP/1.1 200 OK\r\n\r\n2\r\na\n\r\n0\r\n\r\n";
        let mut stream = Http1Stream::answering(wire).await;
        assert_eq!(stream.next().await.unwrap(), b"a\n");
        assert!(stream.next().await.is_err());
    }
}
