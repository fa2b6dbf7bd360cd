//! Who may use the page, and what it may read.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{PageCluster, PageProcess};
use crate::process::Process;

/// The host and the secret of an address.
fn parts(url: &str) -> (&str, &str) {
    url.strip_prefix("http://").unwrap().split_once("/?token=").unwrap()
}

/// The answer to a request with these headers, which each end with a line break.
fn ask(host: &str, line: &str, headers: &str) -> String {
    let mut socket = TcpStream::connect(host).unwrap();
    write!(socket, "{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[track_caller]
fn expect(answer: &str, code: u16, part: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
    assert!(answer.contains(part), "no {part:?} in {answer}");
}

/// Logs in, and returns the header of the cookie.
fn log_in(url: &str) -> String {
    let (host, token) = parts(url);
    let answer = ask(host, &format!("GET /?token={token}"), &format!("Host: {host}\r\n"));
    expect(&answer, 200, "<title>Headwater</title>");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    format!("Cookie: {}\r\n", cookie.split(';').next().unwrap())
}

#[test]
fn only_the_browser_that_opened_the_address_reads_the_cluster() {
    let cluster = PageCluster::dev(&["--nodes", "0"]);
    let (host, token) = parts(&cluster.url);
    let named = format!("Host: {host}\r\n");
    for path in ["/", "/?token=wrong", "/api/v1/namespaces", "/session", "/stream"] {
        let answer = ask(host, &format!("GET {path}"), &named);
        expect(&answer, 401, "headwater ui");
        assert!(!answer.contains("kube-system"), "{answer}");
    }
    let cookie = log_in(&cluster.url);
    let mine = format!("{named}{cookie}");
    expect(&ask(host, "GET /api/v1/namespaces", &mine), 200, "kube-system");
    expect(&ask(host, "GET /session", &mine), 200, "kubernetes-admin");
    expect(&ask(host, "GET /", &mine), 200, "app.js");
    let again = ask(host, &format!("GET /?token={token}"), &named);
    expect(&again, 401, "each address works once");
    // Another server of the same machine gets the cookie, but it is not that of its port.
    let forged = format!("{named}Cookie: headwater-page-1=x\r\n");
    expect(&ask(host, "GET /api/v1/namespaces", &forged), 401, "");
}

#[test]
fn the_page_only_reads_and_only_for_its_own_origin() {
    let cluster = PageCluster::dev(&["--nodes", "0"]);
    let (host, _) = parts(&cluster.url);
    let mine = format!("Host: {host}\r\n{}", log_in(&cluster.url));
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "CONNECT"] {
        let answer = ask(host, &format!("{method} /api/v1/namespaces"), &mine);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{method}: {answer}");
    }
    for path in [
        "/api/v1/namespaces/default/pods/x/exec?command=sh",
        "/api/v1/nodes/node-0/proxy/",
        "/debug/headwater/backup",
        "/metrics",
    ] {
        expect(&ask(host, &format!("GET {path}"), &mine), 403, "does not read this path");
    }
    let elsewhere = mine.replace(host, "attacker.example");
    expect(&ask(host, "GET /api/v1/namespaces", &elsewhere), 403, "127.0.0.1");
    for header in ["Origin: http://127.0.0.1:1", "Sec-Fetch-Site: same-site"] {
        let answer = ask(host, "GET /api/v1/namespaces", &format!("{mine}{header}\r\n"));
        expect(&answer, 403, "other origins");
        assert!(!answer.contains("access-control"), "{answer}");
    }
    let upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let answer = ask(host, "GET /stream", &format!("{mine}{upgrade}"));
    expect(&answer, 403, "other origins");
    let data = ask(host, "GET /api/v1/namespaces", &mine);
    expect(
        &data,
        200,
        "content-security-policy: default-src 'none'; frame-ancestors 'none'; sandbox",
    );
    let page = ask(host, "GET /app.js", &mine);
    expect(&page, 200, "require-trusted-types-for 'script'");
}

#[test]
fn the_page_has_the_rights_of_its_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Process::serve(&["--data-dir", data.to_str().unwrap()]);
    let made = crate::process::run(&[
        "kubeconfig",
        "--user",
        "alice",
        "--data-dir",
        data.to_str().unwrap(),
        "--server",
        &format!("https://{}", server.tls()),
    ]);
    let kubeconfig = dir.path().join("alice");
    std::fs::write(&kubeconfig, made.stdout).unwrap();
    let page = PageProcess::start(&kubeconfig);
    let (host, _) = parts(&page.url);
    let mine = format!("Host: {host}\r\n{}", log_in(&page.url));
    expect(&ask(host, "GET /api/v1/pods", &mine), 403, "User \\\"alice\\\" cannot list");
    expect(&ask(host, "GET /session", &mine), 200, "alice");
    drop(server);
    expect(&ask(host, "GET /api/v1/pods", &mine), 502, "");
}

#[test]
fn errors_of_the_page_name_the_remedy() {
    let run = |args: &[&str]| {
        let output = crate::process::run(args);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let error = run(&["ui", "--kubeconfig", "/nowhere"]);
    assert!(error.contains("/nowhere") && error.contains("--kubeconfig FILE"), "{error}");
    let error = run(&["ui", "--bind", "0.0.0.0:0", "--kubeconfig", "/nowhere"]);
    assert!(error.contains("loopback"), "{error}");
    let error = run(&["dev", "--memory", "--ui-bind", "0.0.0.0:0"]);
    assert!(error.contains("loopback"), "{error}");
}
