//! Peers that take no bytes: HTTP/2 with a closed window, frame by frame, and sockets that are not
//! read.

use super::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW: u8 = 8;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A received frame: its type, flags and stream.
type Frame = (u8, u8, u32);

/// A server that regards a response as stuck soon.
fn soon_stuck() -> Options {
    Options { timeout_progress: Duration::from_millis(50), ..Options::default() }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    let headers =
        [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    let mut block = Vec::new();
    for (name, value) in headers {
        // A literal that is not indexed.
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

/// Opens the window of a stream by this number of bytes.
fn window(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &by.to_be_bytes())
}

/// A connection whose streams have no window until it is opened.
async fn windowless(server: &Started, pki: &Pki, client: Option<&Pair>) -> TlsStream<TcpStream> {
    let mut stream = tls_connect(server.address, pki, client, "h2").await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    stream
}

async fn next(stream: &mut TlsStream<TcpStream>) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
}

/// Reads frames until one is of this type and stream.
async fn until(stream: &mut TlsStream<TcpStream>, kind: u8, id: u32) -> Frame {
    loop {
        let frame = next(stream).await.expect("the connection stays open");
        if (frame.0, frame.2) == (kind, id) {
            return frame;
        }
        assert_ne!(frame.0, RESET, "{frame:?} instead of {kind} on {id}");
    }
}

/// C7
#[tokio::test]
async fn a_stream_whose_window_stays_closed_is_reset_and_others_are_not() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, soon_stuck(), Arc::new(SystemClock));
    let mut client = windowless(&server, &pki, Some(&pki.admin)).await;
    let requests = [get(1, "/lasting"), window(1, 65_535), get(3, "/large")];
    client.write_all(&requests.concat()).await.unwrap();
    until(&mut client, RESET, 3).await;
    // The other stream has been idle for at least as long, with an open window.
    server.handler.gate.add_permits(1);
    let mut last = until(&mut client, DATA, 1).await;
    while last.1 & END_STREAM == 0 {
        last = until(&mut client, DATA, 1).await;
    }
}

/// C7
#[tokio::test]
async fn a_response_whose_last_part_is_not_taken_ends_the_connection() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, soon_stuck(), Arc::new(SystemClock));
    let mut client = windowless(&server, &pki, Some(&pki.admin)).await;
    // hyper regards the response as sent when the first byte is.
    client.write_all(&[get(1, "/who"), window(1, 1)].concat()).await.unwrap();
    while next(&mut client).await.is_some() {}
}

/// C7
#[tokio::test]
async fn an_anonymous_http2_client_holds_few_responses() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let most = Options::default().anonymous.responses_max;
    for (certificate, refused) in [(None, 20 - most), (Some(&pki.admin), 0)] {
        let mut client = windowless(&server, &pki, certificate).await;
        let requests: Vec<Vec<u8>> = (0..20).map(|n| get(2 * n + 1, "/who")).collect();
        client.write_all(&requests.concat()).await.unwrap();
        let (mut answered, mut without_body) = (0, 0);
        while answered < 20 {
            let (kind, flags, _) = next(&mut client).await.unwrap();
            answered += u32::from(kind == HEADERS);
            without_body += u32::from(kind == HEADERS && flags & END_STREAM != 0);
        }
        assert_eq!(without_body, refused, "{}", certificate.is_some());
    }
}

/// C7
#[tokio::test]
async fn a_client_that_does_not_read_its_socket_is_closed() {
    let server = Started::plain(soon_stuck());
    // The first body is written by this crate, the second by hyper.
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let mut socket = server.connect().await;
        let request = format!("GET /large {version}\r\nHost: localhost\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.read_exact(&mut [0]).await.unwrap();
        while !server.metrics.registry.text().contains("headwater_connections 0\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
