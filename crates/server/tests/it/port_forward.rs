//! Ports of pods over WebSocket channels, and clients that break the protocols.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use headwater_server::containers::{
    ContainerLog, ContainerRuntime, ExecReply, ExecRequest, HttpReply, HttpRequest, LogRequest,
    NoLog, PodUsage,
};
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::api::{Api, PODS, pod};

/// Replies to every HTTP request with its port and path.
#[derive(Debug)]
struct Ports;

impl ContainerRuntime for Ports {
    fn log(&self, _: &LogRequest<'_>) -> Result<ContainerLog, NoLog> {
        Ok(ContainerLog::default())
    }

    fn exec(&self, _: &ExecRequest<'_>) -> ExecReply {
        ExecReply { exit_code: Some(0), ..ExecReply::default() }
    }

    fn http(&self, request: &HttpRequest<'_>) -> HttpReply {
        let body = format!("port {} path {}", request.port, request.path);
        HttpReply { status: 200, headers: Vec::new(), body }
    }

    fn usage(&self, _: &[Bytes], _: Timestamp) -> Vec<PodUsage> {
        Vec::new()
    }
}

async fn start() -> (Api, SocketAddr) {
    let mut api = Api::with_containers(Arc::new(Ports)).await;
    api.create(PODS, &pod("web", "node-0")).await;
    let address = api.listen();
    (api, address)
}

async fn connect(address: SocketAddr, target: &str, protocol: &str) -> WebSocketStream<TcpStream> {
    let mut request = format!("ws://{address}{PODS}/web/{target}").into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    let socket = TcpStream::connect(address).await.unwrap();
    let (socket, response) = tokio_tungstenite::client_async(request, socket).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    socket
}

/// The next messages of the server, each a channel and its data.
async fn messages(socket: &mut WebSocketStream<TcpStream>, count: usize) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while found.len() < count {
        if let Message::Binary(message) = socket.next().await.unwrap().unwrap() {
            found.push((message[0], message[1..].to_vec()));
        }
    }
    found
}

#[tokio::test]
async fn each_port_of_the_query_has_two_channels() {
    let (_api, address) = start().await;
    let mut socket = connect(address, "portforward?ports=80,8080", "v4.channel.k8s.io").await;
    let begin = [(0, 80_u16), (1, 80), (2, 8080), (3, 8080)];
    let begin = begin.map(|(channel, port)| (channel, port.to_le_bytes().to_vec()));
    assert_eq!(messages(&mut socket, 4).await, begin);
    for (channel, port) in [(2, 8080), (0, 80)] {
        let asked = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        let message = [&[channel], &asked[..]].concat();
        socket.send(Message::Binary(message.into())).await.unwrap();
        let mut page = String::new();
        while !page.ends_with(&format!("port {port} path /a")) {
            let [(from, data)] = &messages(&mut socket, 1).await[..] else { panic!() };
            assert_eq!(*from, channel);
            page.push_str(std::str::from_utf8(data).unwrap());
        }
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    }
}

#[tokio::test]
async fn requests_without_a_protocol_that_is_served_are_rejected() {
    let (api, address) = start().await;
    let target = format!("{PODS}/web/portforward");
    api.get(&target).await.fails(400, "BadRequest", "Upgrade request required");
    let spdy = format!("POST {target}\nConnection: Upgrade\nUpgrade: SPDY/3.1");
    let offered = format!("{spdy}\nX-Stream-Protocol-Version: other");
    let message = "unable to upgrade: unable to negotiate protocol";
    api.send(&offered, "").await.fails(403, "Forbidden", message);
    for query in ["", "?ports=0", "?ports=http"] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {target}{query} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 400", "{query}");
    }
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_loses_its_connection() {
    let (_api, address) = start().await;
    let frame_of_16_mib = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff];
    let opened_with_garbage = [&[0x80, 3, 0, 1, 0, 0, 0, 20][..], &[1; 20]].concat();
    for hostile in [&frame_of_16_mib[..], &opened_with_garbage, &[0x80, 9, 0, 1, 0, 0, 0, 0]] {
        for (target, protocol) in [
            ("portforward", "portforward.k8s.io"),
            ("exec?command=sh&stdin=true", "v4.channel.k8s.io"),
        ] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "POST {PODS}/web/{target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                 Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {protocol}\r\n\
                 Content-Type: application/json\r\n\r\n" // which web pages cannot send
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("HTTP/1.1 101"), "{target}: {head}");
            socket.write_all(hostile).await.unwrap();
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest[..4], [0x80, 3, 0, 7], "it ends with GOAWAY: {target}");
        }
        let mut tunnel = connect(address, "portforward", "SPDY/3.1+portforward.k8s.io").await;
        tunnel.send(Message::Binary(Bytes::copy_from_slice(hostile))).await.unwrap();
        let answer = tunnel.next().await.unwrap().unwrap();
        assert_eq!(answer.into_data()[..4], [0x80, 3, 0, 7]);
        while let Some(Ok(_)) = tunnel.next().await {}
    }
}
