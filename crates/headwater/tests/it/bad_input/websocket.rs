//! Watches over WebSocket (B230–B235).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::suite::{CMS, Row, Suite};

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
const VERSION: &str = "Sec-WebSocket-Version: 13";
const ORIGIN: &str = "Origin: http://localhost";

pub(crate) fn rows(suite: &mut Suite) {
    handshakes(suite);
    frames(suite);
}

fn request(headers: &[&str]) -> String {
    let headers = headers.join("\r\n");
    format!(
        "GET {CMS}?watch=1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         {headers}\r\n\r\n"
    )
}

fn handshakes(suite: &mut Suite) {
    suite.row(230, |row| {
        for headers in [
            &[KEY, "Sec-WebSocket-Version: 8", ORIGIN][..],
            &[KEY, ORIGIN],
            &[VERSION, ORIGIN],
            &[VERSION, ORIGIN, "Sec-WebSocket-Key: short"],
        ] {
            let closing = request(headers).replacen("Upgrade\r\n", "Upgrade, close\r\n", 1);
            row.raw(closing, &[400]);
        }
    });
    suite.row(231, |row| {
        for headers in [
            &[KEY, VERSION][..],
            &[KEY, VERSION, "Origin: null"],
            &[KEY, VERSION, "Origin: https://elsewhere.example"],
        ] {
            let closing = request(headers).replacen("Upgrade\r\n", "Upgrade, close\r\n", 1);
            row.raw(closing, &[403]);
        }
    });
}

/// The head of a response.
fn head(socket: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    head
}

/// A watch that has switched protocols.
fn open(suite: &Suite) -> TcpStream {
    let mut socket = suite.connect();
    socket.write_all(request(&[KEY, VERSION, ORIGIN]).as_bytes()).unwrap();
    let head = head(&mut socket);
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    socket
}

/// Sends bytes, reads to the end, and finds the close frame; `None` is an end without one.
fn closed_with(suite: &Suite, bytes: &[u8]) -> Option<u16> {
    let mut socket = open(suite);
    let _ = socket.write_all(bytes);
    let answer = super::suite::read_to_end(&mut socket);
    let mut rest = answer.as_slice();
    while let [first, second, tail @ ..] = rest {
        let (length, tail) = match (second & 0x7f, tail) {
            (126, [high, low, tail @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), tail),
            (127, tail) => {
                let (length, tail) = tail.split_first_chunk::<8>()?;
                (u64::from_be_bytes(*length) as usize, tail)
            }
            (short, tail) => (usize::from(short), tail),
        };
        let payload = tail.get(..length)?;
        if first & 0x0f == 8 {
            return Some(u16::from_be_bytes(payload.get(..2)?.try_into().unwrap()));
        }
        rest = &tail[length..];
    }
    None
}

/// A frame as a client sends it, masked with zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | short as u8),
        long => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

fn frames(suite: &mut Suite) {
    let closes = |row: &mut Row<'_>, bytes: &[u8], code: u16| {
        let closed = closed_with(row.suite, bytes);
        row.check(closed == Some(code), || {
            format!("{:x?}: {closed:?}", &bytes[..bytes.len().min(8)])
        });
    };
    suite.row(232, |row| {
        closes(row, b"\x81\x01x", 1002);
        closes(row, &masked(0xc1, b"x"), 1002);
        closes(row, &masked(0x83, b"x"), 1002);
        closes(row, &masked(0x8b, b"x"), 1002);
    });
    suite.row(233, |row| {
        let mut huge = vec![0x82, 0x80 | 127];
        huge.extend_from_slice(&(1_u64 << 62).to_be_bytes());
        huge.extend_from_slice(&[0; 4]);
        closes(row, &huge, 1009);
        let mut pieces = masked(0x01, &[b'x'; 1000]);
        for _ in 0..200 {
            pieces.extend_from_slice(&masked(0x00, &[b'x'; 1000]));
        }
        closes(row, &pieces, 1009);
    });
    suite.row(234, |row| {
        // The server ignores messages of the client, but not its close frame.
        let mut said = masked(0x81, b"hello");
        said.extend_from_slice(&masked(0x82, b"hello"));
        said.extend_from_slice(&masked(0x88, &1000_u16.to_be_bytes()));
        closes(row, &said, 1000);
    });
    suite.row(235, |row| {
        let mut pings = Vec::new();
        for _ in 0..20_000 {
            pings.extend_from_slice(&masked(0x89, b"ping"));
        }
        pings.extend_from_slice(&masked(0x88, &1000_u16.to_be_bytes()));
        let mut socket = open(row.suite);
        let reader = socket.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let mut reader = reader;
            super::suite::read_to_end(&mut reader).len()
        });
        // The server may close before the last frame.
        let _ = socket.write_all(&pings);
        let answered = reading.join().unwrap();
        row.check(answered < 4 << 20, || format!("{answered} bytes"));
    });
}

/// S4.40, S4.41
#[test]
fn a_websocket_carries_one_event_in_each_message() {
    let server = crate::process::Process::serve(&["--memory"]);
    let query = "watch=1&fieldSelector=metadata.name%3Ddefault&timeoutSeconds=1";
    let open = |connection: &str, protocols: &str| {
        let mut socket = server.connect();
        let request = format!(
            "GET /api/v1/namespaces?{query} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
             Connection: {connection}\r\n{KEY}\r\n{VERSION}\r\n{ORIGIN}\r\n\
             Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let head = String::from_utf8(head(&mut socket)).unwrap().to_lowercase();
        (head, socket)
    };
    let token = "base64url.bearer.authorization.k8s.io.eA";
    let (head, mut socket) = open("Upgrade", &format!("binary.k8s.io, {token}"));
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("sec-websocket-protocol: binary.k8s.io\r\n"), "{head}");
    // One text message, then the close with code 1000.
    let mut start = [0; 4];
    socket.read_exact(&mut start).unwrap();
    assert_eq!(start[..2], [0x81, 126]);
    let mut event = vec![0; usize::from(u16::from_be_bytes([start[2], start[3]]))];
    socket.read_exact(&mut event).unwrap();
    assert!(event.starts_with(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Namespace\""));
    assert!(event.ends_with(b"}\n"));
    socket.read_exact(&mut start).unwrap();
    assert_eq!(start, [0x88, 2, 0x03, 0xe8]);
    // A client that does not reply to the close does not keep the connection.
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(socket.read(&mut start).expect("the connection stays open"), 0);
    let (head, _) = open("Upgrade, close", "binary.k8s.io, base64.binary.k8s.io");
    assert!(head.starts_with("http/1.1 400 "), "{head}");
}
