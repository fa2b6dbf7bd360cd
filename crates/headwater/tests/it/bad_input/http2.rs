//! HTTP/2 (B040–B052), frame by frame over TLS.

use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::suite::{ADMIN, Row, Suite};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum time to wait for a response.
const HANG: Duration = Duration::from_secs(600);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;

pub(crate) fn rows(suite: &mut Suite) {
    protocol(suite);
    floods(suite);
    streams(suite);
}

/// A received frame.
#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    fn error(&self) -> Option<u32> {
        let at = match self.kind {
            RESET => 0,
            GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header as a literal that is never indexed.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x10];
    for text in [name, value] {
        length(&mut bytes, text.len());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

fn length(bytes: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return bytes.push(length as u8);
    }
    bytes.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        bytes.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    headers.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// A complete GET as the administrator.
fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_block(path))
}

fn get_block(path: &str) -> Vec<u8> {
    block(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "x"),
        (":path", path),
        ("authorization", &format!("Bearer {ADMIN}")),
    ])
}

fn window(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &by.to_be_bytes())
}

/// Sends all bytes, and reads until a frame matches or the server closes.
fn exchange(suite: &Suite, bytes: &[u8], is_last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config = suite.tls_config();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let socket = TcpStream::connect(suite.process.tls()).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connector = TlsConnector::from(std::sync::Arc::new(config));
        let stream = connector.connect(name, socket).await.unwrap();
        talk(stream, bytes, is_last).await
    })
}

async fn talk(
    stream: TlsStream<TcpStream>,
    bytes: &[u8],
    is_last: impl Fn(&Frame) -> bool,
) -> Vec<Frame> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        // The server may close before it has read everything.
        let _ = writer.write_all(bytes).await;
        let _ = writer.flush().await;
        std::future::pending::<()>().await;
    };
    let read = async {
        let mut frames = Vec::new();
        // If the server stops sending, the check of the frames fails.
        while let Ok(Some(frame)) = tokio::time::timeout(HANG, next(&mut reader)).await {
            let done = is_last(&frame);
            frames.push(frame);
            if done {
                break;
            }
        }
        frames
    };
    tokio::select! {
        biased;
        frames = read => frames,
        () = write => unreachable!("it never ends"),
    }
}

async fn next(reader: &mut (impl AsyncReadExt + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}

/// A connection after the preface and settings.
fn begun(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    bytes.extend_from_slice(&frame(SETTINGS, 0, 0, &[]));
    bytes.extend_from_slice(&frames.concat());
    bytes
}

fn is_goaway(frame: &Frame) -> bool {
    frame.kind == GOAWAY
}

/// The connection ends with this error.
#[track_caller]
fn goes_away(row: &mut Row<'_>, frames: &[Vec<u8>], error: u32) {
    let came = exchange(row.suite, &begun(frames), is_goaway);
    let last = came.last().and_then(Frame::error);
    row.check(last == Some(error), || format!("{last:?} is not {error}"));
}

/// The connection ends with any error.
#[track_caller]
fn ends(row: &mut Row<'_>, frames: &[Vec<u8>]) {
    let came = exchange(row.suite, &begun(frames), is_goaway);
    let is_error = came.last().is_some_and(|last| last.kind == GOAWAY && last.error() != Some(0));
    row.check(is_error, || format!("{:?}", came.last()));
}

/// The stream, or all of them, is refused with this error.
#[track_caller]
fn is_reset(row: &mut Row<'_>, frames: &[Vec<u8>], error: u32) {
    let came = exchange(row.suite, &begun(frames), |frame| {
        matches!(frame.kind, GOAWAY | RESET) || frame.flags & END_STREAM != 0 && frame.stream != 0
    });
    let last = came.last().and_then(Frame::error);
    row.check(last == Some(error), || format!("{last:?} is not {error}: {came:?}"));
}

/// The stream is reset or gets status 400; the connection goes on.
#[track_caller]
fn is_malformed(row: &mut Row<'_>, frames: &[Vec<u8>]) {
    let came =
        exchange(row.suite, &begun(frames), |frame| matches!(frame.kind, GOAWAY | RESET | HEADERS));
    let is_it = came.last().is_some_and(|last| match last.kind {
        // 0x8c is status 400; the others are its literal encodings.
        HEADERS => last.payload[0] == 0x8c || last.payload.starts_with(&[0x48, 0x83, 0x68, 0x0c]),
        RESET => last.error() == Some(PROTOCOL_ERROR),
        _ => false,
    });
    row.check(is_it, || format!("{:?}", came.last()));
}

fn protocol(suite: &mut Suite) {
    suite.row(40, |row| {
        for preface in
            [&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
        {
            exchange(row.suite, preface, |_| false);
        }
    });
    suite.row(41, |row| {
        goes_away(row, &[frame(DATA, 0, 1, b"x")], PROTOCOL_ERROR);
        goes_away(row, &[get(2, "/version")], PROTOCOL_ERROR);
    });
    suite.row(42, |row| {
        goes_away(row, &[frame(DATA, 0, 1, &vec![0; 300 * 1024])], FRAME_SIZE_ERROR);
    });
    suite.row(43, |row| {
        let most = 0x7fff_ffff;
        goes_away(row, &[window(0, most), window(0, most)], FLOW_CONTROL_ERROR);
        goes_away(row, &[window(0, 0)], PROTOCOL_ERROR);
    });
    suite.row(51, |row| {
        let request = |extra: &[(&str, &str)]| {
            let mut block = get_block("/version");
            block.extend_from_slice(&self::block(extra));
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)
        };
        // The h2 library ends the connection for it, as it may.
        goes_away(row, &[request(&[("X-Upper", "x")])], PROTOCOL_ERROR);
        is_malformed(row, &[request(&[("connection", "keep-alive")])]);
        is_malformed(row, &[request(&[("transfer-encoding", "chunked")])]);
        is_malformed(row, &[request(&[(":method", "GET")])]);
        let no_path = block(&[(":method", "GET"), (":scheme", "https")]);
        let no_path = frame(HEADERS, END_HEADERS | END_STREAM, 1, &no_path);
        is_malformed(row, &[no_path]);
        let post = block(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/api/v1/namespaces"),
            ("authorization", &format!("Bearer {ADMIN}")),
        ]);
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[(":path", "/x")]));
        let frames = [frame(HEADERS, END_HEADERS, 1, &post), frame(DATA, 0, 1, b"{"), trailers];
        is_malformed(row, &frames);
    });
}

fn floods(suite: &mut Suite) {
    suite.row(45, |row| {
        let resets: Vec<Vec<u8>> = (0..5_000)
            .map(|n| {
                let stream = 2 * n + 1;
                [get(stream, "/version"), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
            })
            .collect();
        ends(row, &resets);
    });
    suite.row(46, |row| {
        let provoking: Vec<Vec<u8>> = (0..5_000)
            .map(|n| {
                let stream = 2 * n + 1;
                [get(stream, "/api/v1/nodes?watch=1"), window(stream, 0)].concat()
            })
            .collect();
        ends(row, &provoking);
    });
    suite.row(47, |row| {
        let mut frames = vec![frame(HEADERS, END_STREAM, 1, &get_block("/version"))];
        let more = block(&[("x-filler", &"x".repeat(8_000))]);
        frames.extend((0..1_000).map(|_| frame(CONTINUATION, 0, 1, &more)));
        ends(row, &frames);
        // The size limit does not apply to empty frames.
        let mut frames = vec![frame(HEADERS, END_STREAM, 1, &get_block("/version"))];
        frames.extend((0..100_000).map(|_| frame(CONTINUATION, 0, 1, b"")));
        ends(row, &frames);
    });
    suite.row(48, |row| {
        // One entry of the table, referenced 500 times: 1.5 MB of headers in a few KB.
        let mut bomb = get_block("/version");
        bomb.push(0x40);
        for text in ["x-bomb", &"x".repeat(3_000)] {
            length(&mut bomb, text.len());
            bomb.extend_from_slice(text.as_bytes());
        }
        bomb.extend_from_slice(&[0x80 | 62; 500]);
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb);
        let is_answer = |frame: &Frame| matches!(frame.kind, HEADERS | RESET | GOAWAY);
        let came = exchange(row.suite, &begun(&[request]), is_answer);
        // 0x88 is status 200.
        let served = came.last().is_some_and(|last| last.payload.first() == Some(&0x88));
        row.check(!served, || "it was served".into());
    });
    suite.row(49, |row| {
        let ask = get(1, "/version");
        for (what, one) in [
            ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
            ("PING", frame(PING, 0, 0, &[0; 8])),
            ("PRIORITY", frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1])),
            ("WINDOW_UPDATE", window(0, 1)),
        ] {
            let mut frames = vec![one; 20_000];
            frames.push(ask.clone());
            let came = exchange(row.suite, &begun(&frames), |frame| {
                frame.kind == GOAWAY || (frame.stream == 1 && frame.flags & END_STREAM != 0)
            });
            row.check(came.len() <= 20_010, || format!("{what}: {} frames", came.len()));
        }
        let post = block(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/api/v1/namespaces"),
            ("authorization", &format!("Bearer {ADMIN}")),
        ]);
        let mut frames = vec![frame(HEADERS, END_HEADERS, 1, &post)];
        frames.extend(vec![frame(DATA, 0, 1, b""); 20_000]);
        frames.push(frame(DATA, END_STREAM, 1, b"["));
        exchange(row.suite, &begun(&frames), |frame| {
            matches!(frame.kind, GOAWAY | RESET) || frame.stream == 1
        });
    });
}

fn streams(suite: &mut Suite) {
    suite.row(44, |row| {
        let watches: Vec<Vec<u8>> =
            (0..101).map(|n| get(2 * n + 1, "/api/v1/nodes?watch=1")).collect();
        is_reset(row, &watches, REFUSED_STREAM);
    });
    suite.row(50, |row| {
        // Only stream 3 has a flow-control window.
        let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let frames = [
            no_window.clone(),
            get(1, "/api/v1/namespaces?watch=1"),
            get(3, "/version"),
            window(3, 65_535),
        ];
        let came = exchange(row.suite, &begun(&frames), |frame| {
            frame.kind == GOAWAY || (frame.stream == 3 && frame.flags & END_STREAM != 0)
        });
        let answered = came.last().is_some_and(|last| last.stream == 3);
        row.check(answered, || format!("{came:?}"));
        let sent = came.iter().any(|frame| frame.stream == 1 && frame.kind == DATA);
        row.check(!sent, || "data without a window".into());
        // A client without an identity holds few responses.
        let request = block(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/version"),
        ]);
        let mut frames = vec![no_window];
        frames.extend(
            (0..100).map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &request)),
        );
        let answers = std::cell::Cell::new(0);
        let came = exchange(row.suite, &begun(&frames), |frame| {
            answers.set(answers.get() + usize::from(frame.kind == HEADERS));
            frame.kind == GOAWAY || answers.get() == 100
        });
        let is_refused = |frame: &&Frame| frame.kind == HEADERS && frame.flags & END_STREAM != 0;
        let refused = came.iter().filter(is_refused).count();
        row.check((answers.get(), refused) == (100, 92), || format!("{refused} were refused"));
    });
    suite.row(52, |row| {
        let request = block(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/api/v1/nodes"),
            ("authorization", "Bearer wrong"),
        ]);
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &request);
        let came = exchange(row.suite, &begun(&[request]), |_| false);
        let answered = came.iter().any(|frame| frame.stream == 1 && frame.kind == HEADERS);
        row.check(answered && came.iter().any(is_goaway), || format!("{came:?}"));
    });
}
