//! Connections, TLS and HTTP/1.1 (B007–B029).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use flate2::Compression;
use flate2::write::GzEncoder;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::suite::{Answer, CMS, Row, Suite, config_map, read_to_end, wire};

/// Concurrent connections of one row; the test process needs as many descriptors.
const MANY: usize = 400;

pub(crate) fn rows(suite: &mut Suite) {
    transport(suite);
    heads(suite);
    lengths(suite);
    limits(suite);
    methods(suite);
    vanishing(suite);
}

/// Incomplete handshakes, dropped while the other rows run.
pub(crate) fn half_done_handshakes(suite: &mut Suite) -> Vec<TcpStream> {
    let begin = |_| {
        let mut socket = suite.connect_tls();
        socket.write_all(b"\x16\x03\x01\x02\x00").unwrap();
        socket
    };
    (0..MANY).map(begin).collect()
}

pub(crate) fn half_done_handshakes_are_dropped(suite: &mut Suite, half_done: Vec<TcpStream>) {
    suite.row(10, |row| {
        for mut socket in half_done {
            let answer = read_to_end(&mut socket);
            row.check(answer.len() < 64, || format!("{answer:?}"));
        }
        let answer = row.suite.ask_over_tls("GET /readyz", "");
        row.check(answer.code == 200, || answer.text());
    });
}

fn transport(suite: &mut Suite) {
    suite.row(7, |row| {
        let mut socket = row.suite.connect_tls();
        socket.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let answer = Answer::parse(&read_to_end(&mut socket));
        row.check(answer.code == 400, || answer.text());
    });
    suite.row(8, |row| {
        // TLS 1.0 and 1.1 with RC4 and export cipher suites.
        for version in [[3, 1], [3, 2]] {
            let mut socket = row.suite.connect_tls();
            socket.write_all(&client_hello(version)).unwrap();
            let answer = read_to_end(&mut socket);
            row.check(answer.first() == Some(&0x15), || format!("{version:?}: {answer:x?}"));
        }
    });
    suite.row(9, |row| {
        let stranger = rcgen::generate_simple_self_signed(vec!["admin".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(stranger.signing_key.serialize_der());
        let mut config = row.suite.tls_config();
        config.client_auth_cert_resolver = certified(&stranger.cert, key);
        let mut stream = row.suite.tls_with(config);
        let _ = stream.write_all(&wire("GET /version", b""));
        let answer = Answer::parse(&read_to_end(&mut stream));
        row.is_status(&answer, "a stranger's certificate", 401, "Unauthorized");
    });
    suite.row(27, |row| {
        for upgrade in ["h2c", "cats/1", "TLS/1.0"] {
            let request = format!(
                "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\n\
                 Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            );
            row.raw(request, &[200, 400]);
        }
        // HTTP/2 without TLS is not supported.
        row.raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 400, 505]);
    });
}

fn certified(
    certificate: &rcgen::Certificate,
    key: PrivatePkcs8KeyDer<'static>,
) -> std::sync::Arc<dyn rustls::client::ResolvesClientCert> {
    let key = rustls::crypto::ring::sign::any_supported_type(&PrivateKeyDer::from(key)).unwrap();
    let key = rustls::sign::CertifiedKey::new(vec![certificate.der().clone()], key);
    std::sync::Arc::new(rustls::sign::SingleCertAndKey::from(key))
}

/// A ClientHello of an old version without extensions.
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let suites = [0x00, 0x05, 0x00, 0x04, 0x00, 0x03, 0x00, 0x0a, 0x00, 0x2f];
    let mut hello = version.to_vec();
    hello.extend_from_slice(&[7; 32]);
    hello.push(0);
    hello.extend_from_slice(&[0, suites.len() as u8]);
    hello.extend_from_slice(&suites);
    hello.extend_from_slice(&[1, 0]);
    let mut message = vec![1, 0, 0, hello.len() as u8];
    message.extend_from_slice(&hello);
    let mut record = vec![0x16, version[0], version[1], 0, message.len() as u8];
    record.extend_from_slice(&message);
    record
}

/// GET with these header lines.
fn get(lines: &str) -> String {
    format!("GET /version HTTP/1.1\r\n{lines}\r\n")
}

/// A create with these header lines, and a second request hidden behind its body.
fn smuggling(lines: &str) -> String {
    format!(
        "POST {CMS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}\r\n0\r\n\r\n\
         DELETE {CMS}/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    )
}

fn heads(suite: &mut Suite) {
    suite.row(11, |row| {
        for request in [
            "garbage\r\n\r\n".to_owned(),
            "GET /version\r\n\r\n".to_owned(),
            "\0\0\0\0\r\n\r\n".to_owned(),
            "GET  /version HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            "GET /version HTTP/1.1 x\r\nHost: localhost\r\n\r\n".to_owned(),
            "GET /version HTTP/7.0\r\nHost: localhost\r\n\r\n".to_owned(),
            get(""),
            get("Host: localhost\r\nHost: y\r\n"),
            get("Host: user@localhost\r\n"),
            get("Host: localhost/x\r\n"),
            get("Host: localhost, localhost\r\n"),
            get("Host: localhost:99999\r\n"),
        ] {
            row.raw(request, &[400]);
        }
    });
    suite.row(12, |row| {
        for lines in [
            "Host : x\r\n",
            "Host: localhost\r\nA : b\r\n",
            "Host: localhost\r\nA: b\0c\r\n",
            "Host: localhost\r\nA: b\rc\r\n",
        ] {
            row.raw(get(lines), &[400]);
        }
    });
    suite.row(13, |row| {
        row.raw(get("Host: localhost\r\nA: b\r\n folded\r\n"), &[400]);
        row.raw(get("Host: localhost\r\nA: b\r\n\tfolded\r\n"), &[400]);
    });
    suite.row(14, |row| {
        let answer =
            row.raw("GET /version HTTP/1.1\nHost: localhost\nConnection: close\n\n", &[200, 400]);
        let is_whole = answer.code == 400 || answer.text().contains("gitVersion");
        row.check(is_whole, || answer.text());
    });
    suite.row(28, |row| {
        let request = "GET http://localhost:1/version HTTP/1.1\r\nHost: elsewhere.example\r\n\
                       Connection: close\r\n\r\n";
        let answer = row.raw(request, &[200, 400]);
        row.check(answer.code == 400 || answer.text().contains("gitVersion"), || answer.text());
    });
}

fn lengths(suite: &mut Suite) {
    suite.row(15, |row| {
        row.raw(smuggling("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), &[400]);
        row.raw(smuggling("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), &[400]);
    });
    suite.row(16, |row| {
        for lines in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: 5, 6\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: five\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 99999999999999999999999\r\n",
            "Content-Length:\r\n",
        ] {
            row.raw(smuggling(lines), &[400]);
        }
    });
    suite.row(17, |row| {
        for coding in ["cats", "identity, cats", "gzip", "chunked, cats", "xchunked"] {
            row.raw(smuggling(&format!("Transfer-Encoding: {coding}\r\n")), &[400, 501]);
        }
    });
    suite.row(18, |row| {
        for size in ["zz", "-1", "ffffffffffffffffff", "", "5;\0", "0x5", " 5"] {
            let request = format!(
                "POST {CMS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: chunked\r\n\r\n{size}\r\n{{}}\r\n0\r\n\r\n"
            );
            row.raw(request, &[400]);
        }
    });
    suite.row(21, |row| {
        let request = format!(
            "POST {CMS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 10000000000\r\n\r\n"
        );
        let answer = row.raw(&request, &[413]);
        row.is_status(&answer, "10 GB", 413, "RequestEntityTooLarge");
        row.raw(request.replace("10000000000", &i64::MAX.to_string()), &[413]);
    });
    suite.row(22, |row| {
        let request = format!(
            "POST {CMS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 10000000000\r\nExpect: 100-continue\r\n\r\n"
        );
        let answer = row.raw(request, &[413]);
        row.check(!answer.head.contains("100 continue"), || answer.head.clone());
    });
    suite.row(23, |row| {
        row.raw(get("Host: localhost\r\nExpect: cats\r\n"), &[417]);
    });
    suite.row(25, |row| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(config_map("zipped").to_string().as_bytes()).unwrap();
        let body = encoder.finish().unwrap();
        row.bad_request(&format!("POST {CMS}\nContent-Encoding: gzip"), body);
    });
}

fn limits(suite: &mut Suite) {
    suite.row(19, |row| {
        let many: String = (0..10_000).map(|n| format!("H{n}: x\r\n")).collect();
        row.raw(get(&format!("Host: localhost\r\n{many}")), &[431]);
        let some: String = (0..201).map(|n| format!("H{n}: x\r\n")).collect();
        row.raw(get(&format!("Host: localhost\r\n{some}")), &[431]);
        row.raw(get(&format!("Host: localhost\r\nA: {}\r\n", "x".repeat(300 * 1024))), &[431]);
    });
    suite.row(20, |row| {
        let long = "x".repeat(65 * 1024);
        row.raw(format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"), &[414]);
        row.raw(
            format!("GET {CMS}?labelSelector={long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            &[414],
        );
    });
    suite.row(26, |row| {
        let names: Vec<String> = (0..1_000).map(|n| format!("x{n}")).collect();
        let mut requests = String::new();
        for name in &names {
            requests.push_str(&format!("GET {CMS}/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        }
        let mut socket = row.suite.connect();
        let mut writer = socket.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(requests.as_bytes()));
        let answered: Vec<String> = (0..1_000).map(|_| missing_name(&mut socket)).collect();
        writing.join().unwrap().unwrap();
        row.check(answered == names, || format!("{answered:?}"));
    });
}

/// The name in the details of the next response on a connection.
fn missing_name(socket: &mut TcpStream) -> String {
    let mut reader = BufReader::with_capacity(1, &mut *socket);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().to_ascii_lowercase().strip_prefix("content-length: ") {
            Some(digits) => length = digits.parse().unwrap(),
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
    status["details"]["name"].as_str().unwrap_or_default().to_owned()
}

fn methods(suite: &mut Suite) {
    suite.row(24, |row| {
        for target in [CMS.to_owned(), format!("{CMS}/a")] {
            for method in ["TRACE", "OPTIONS", "FROB", "get", "LIST"] {
                row.refused(&format!("{method} {target}"), "", 405, "MethodNotAllowed");
            }
            let answer = row.suite.ask(&format!("HEAD {target}"), "");
            row.check(answer.code == 405 && answer.body.is_empty(), || answer.text());
        }
        let connect =
            "CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        row.raw(connect, &[400, 404, 405]);
    });
}

/// The server frees the resources of clients that disconnect during a watch or a list.
fn vanishing(suite: &mut Suite) {
    let connections = |suite: &Suite| suite.metric("headwater_connections");
    let watches = |suite: &Suite| suite.metric("headwater_watchers");
    suite.row(29, |row| {
        let (before, watched) = (connections(row.suite), watches(row.suite));
        let open = |row: &mut Row<'_>, target: &str| {
            let mut socket = row.suite.connect();
            socket
                .write_all(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
                .unwrap();
            let mut first = [0];
            socket.read_exact(&mut first).unwrap();
            socket
        };
        // Dropping a socket with unread data resets the connection.
        let held: Vec<TcpStream> = (0..50)
            .map(|n| {
                open(row, if n % 2 == 0 { "/api/v1/configmaps?watch=1" } else { "/openapi/v2" })
            })
            .collect();
        drop(held);
        row.suite.until("what they held is back", |suite| {
            connections(suite) <= before && watches(suite) <= watched
        });
    });
}
