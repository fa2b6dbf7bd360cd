//! The page and its cluster: a server that goes away, many objects, slow watchers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::json;

use super::{PageCluster, PageProcess};
use crate::browser::Browser;
use crate::process::{Process, run};

/// A server with data on disk at a port that does not change.
struct Durable {
    dir: tempfile::TempDir,
    port: u16,
}

impl Durable {
    fn new() -> Durable {
        // Nothing else takes the port while the server restarts, unless by chance.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Durable { dir: tempfile::tempdir().unwrap(), port }
    }

    fn start_at(&self, port: u16) -> Process {
        let data = self.dir.path().join("data");
        let bind = format!("127.0.0.1:{port}");
        let kubeconfig = self.dir.path().join(format!("kubeconfig-{port}"));
        let (data, kubeconfig) = (data.to_str().unwrap(), kubeconfig.to_str().unwrap());
        Process::serve(&["--data-dir", data, "--bind", &bind, "--kubeconfig-out", kubeconfig])
    }

    fn start(&self) -> Process {
        self.start_at(self.port)
    }

    fn page(&self) -> PageProcess {
        PageProcess::start(&self.dir.path().join(format!("kubeconfig-{}", self.port)))
    }
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str, value: &str) -> String {
    json!({ "metadata": { "name": name }, "data": { "value": value } }).to_string()
}

#[track_caller]
fn create(server: &Process, name: &str) {
    let answer = server.post(CONFIG_MAPS, &config_map(name, ""));
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

const NAMES: &str = "[...document.querySelectorAll('.td.main')].map((c) => c.innerText)";

#[test]
fn a_server_that_comes_back_is_resumed_without_loss() {
    let Some(browser) = Browser::start() else { return };
    let durable = Durable::new();
    let server = durable.start();
    create(&server, "before");
    let page = durable.page();
    browser.open(&page.url);
    browser.show("#/t/configmaps");
    browser.until(&format!("{NAMES}.includes('before')"));
    server.signal("KILL");
    drop(server);
    browser.until("document.querySelector('.note-bar b')?.innerText.startsWith('Connection lost')");
    // What was written while the page was away arrives, although nothing is listed again.
    let elsewhere = durable.start_at(0);
    create(&elsewhere, "meanwhile");
    drop(elsewhere);
    let server = durable.start();
    browser.until(&format!("{NAMES}.includes('meanwhile')"));
    browser.show("#/connection");
    browser.until_shown("Resumed without loss at revision");
    create(&server, "after");
    let relisted =
        "[...document.querySelectorAll('.st:not(.st-head)')].map((r) => r.lastChild.innerText)";
    browser.until(&format!("{relisted}.length > 20"));
    let listed = browser.value(&format!("{relisted}.filter((n) => n !== '0').length"));
    assert_eq!(listed, 0, "kinds that were listed again");
    browser.show("#/t/configmaps");
    browser.until(&format!("{NAMES}.includes('after')"));
}

#[test]
fn a_history_that_is_gone_is_listed_again_once() {
    let Some(browser) = Browser::start() else { return };
    let durable = Durable::new();
    let server = durable.start();
    create(&server, "before");
    create(&server, "deleted");
    let page = durable.page();
    browser.open(&page.url);
    browser.show("#/t/configmaps");
    browser.until(&format!("{NAMES}.includes('deleted')"));
    drop(server);
    let elsewhere = durable.start_at(0);
    let port = elsewhere.tls().port();
    let kubeconfig = durable.dir.path().join("kubeconfig-0");
    let kubectl = |line: &str| crate::dev::kubectl(&kubeconfig, line).output().unwrap();
    assert!(kubectl("delete configmap deleted").status.success(), "at port {port}");
    create(&elsewhere, "meanwhile");
    let revision = kubectl("get configmap meanwhile -o jsonpath={.metadata.resourceVersion}");
    let revision = String::from_utf8(revision.stdout).unwrap();
    let compacted =
        run(&["compact", "--revision", &revision, "--kubeconfig", kubeconfig.to_str().unwrap()]);
    assert!(compacted.status.success(), "{compacted:?}");
    drop(elsewhere);
    let _server = durable.start();
    browser.until(&format!("{NAMES}.includes('meanwhile')"));
    browser.until(&format!("!{NAMES}.includes('deleted')"));
    browser.show("#/connection");
    browser.until_shown("History is gone. Listing again");
    browser.until_shown("Listed again at revision");
    let most = "Math.max(...[...document.querySelectorAll('.st:not(.st-head)')]\
                .map((r) => +r.lastChild.innerText))";
    browser.until(&format!("{most} > 0"));
    assert_eq!(browser.number(most), 1.0, "each at most once");
}

/// Sends requests over one connection of plain HTTP.
struct PlainClient {
    reader: BufReader<TcpStream>,
}

impl PlainClient {
    fn connect(address: SocketAddr) -> PlainClient {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        PlainClient { reader: BufReader::new(socket) }
    }

    fn send(&mut self, method: &str, path: &str, kind: &str, body: &str) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        let mut head = String::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            head.push_str(&line);
            if line.trim().is_empty() {
                break;
            }
        }
        assert!(head.starts_with("HTTP/1.1 2"), "{head}");
        if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            self.skip(length);
            return;
        }
        loop {
            let mut size = String::new();
            self.reader.read_line(&mut size).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            self.skip(size + "\r\n".len());
            if size == 0 {
                break;
            }
        }
    }

    fn skip(&mut self, length: usize) {
        self.reader.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn ten_thousand_rows_are_few_elements_while_they_change() {
    const ROWS: usize = 10_000;
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "0"]);
    let address = cluster.server.plain;
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                let mut client = PlainClient::connect(address);
                for number in (part..ROWS).step_by(4) {
                    let body = config_map(&format!("row-{number:05}"), "");
                    client.send("POST", CONFIG_MAPS, "application/json", &body);
                }
            });
        }
    });
    browser.open(&cluster.url);
    browser.show("#/t/configmaps");
    let count = "+document.querySelector('.vt').getAttribute('aria-rowcount')";
    browser.until(&format!("{count} >= {ROWS}"));
    browser.until("document.querySelectorAll('.tr').length > 10");
    // Elements are counted in every frame while rows change and the table scrolls.
    browser.value(
        "void (window.most = 0, window.frames_ = 0, (function look() {\
         window.most = Math.max(window.most, document.querySelectorAll('.tr').length);\
         const t = document.querySelector('.vt'); t.scrollTop = (t.scrollTop + 997) % t.scrollHeight;\
         window.frames_++; window.looking = requestAnimationFrame(look); })())",
    );
    let mut client = PlainClient::connect(address);
    for number in 0..1_000 {
        let path = format!("{CONFIG_MAPS}/row-{:05}", number * 7);
        let patch = r#"{"data":{"other":"x"}}"#;
        client.send("PATCH", &path, "application/merge-patch+json", patch);
    }
    browser.until("window.frames_ > 100");
    let most = browser.number("(cancelAnimationFrame(window.looking), window.most)");
    assert!(most < 80.0, "{most} row elements");
    browser.press(&["G"]);
    browser.until("document.querySelector('.tr.sel .td.main')?.innerText === 'row-09999'");
    browser.press(&["/", "0", "6", "9", "9", "3"]);
    browser.until(&format!("{count} === 1"));
    // The column counts the data of the changed object.
    browser.until("document.querySelector('.tr:not([hidden])').innerText.includes('2')");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_watcher_that_does_not_read_tops_the_list_of_watchers() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "1"]);
    let mut stopped = cluster.server.connect();
    let target = format!("{CONFIG_MAPS}?watch=true");
    write!(stopped, "GET {target} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: stopped/1\r\n\r\n")
        .unwrap();
    browser.open(&cluster.url);
    browser.until("document.querySelectorAll('.rl.k').length > 8");
    browser.press(&["g", "r"]);
    browser.until("document.querySelectorAll('.watchers .tr:not([hidden])').length > 8");
    browser.until("document.querySelectorAll('.srows div').length === 6");
    let mut client = PlainClient::connect(cluster.server.plain);
    let value = "x".repeat(200_000);
    for number in 0..150 {
        let body = config_map(&format!("large-{number}"), &value);
        client.send("POST", CONFIG_MAPS, "application/json", &body);
    }
    let row = |n: usize| {
        format!(
            "[...[...document.querySelectorAll('.watchers .tr:not([hidden])')]\
             .find((r) => r.ariaRowIndex === '{n}').children].map((c) => c.innerText)"
        )
    };
    let behind = "document.querySelectorAll('.watchers .th')[6].innerText.trim()";
    assert!(browser.text(behind).starts_with("Behind"), "{}", browser.text(behind));
    browser.until(&format!(
        "{}[1] === 'stopped/1' && +{}[6].replace(',', '') > 10",
        row(1),
        row(1)
    ));
    browser.until(&format!("{}[6] === '0'", row(2)));
    // The writer is in the list of requests, with the level that it has.
    browser.until(
        "[...document.querySelectorAll('.req')].some((r) => /kubernetes-admin/.test(r.innerText))",
    );
    browser.until(
        "[...document.querySelectorAll('.frow')].some((r) => /simulated-nodes/.test(r.innerText))",
    );
    browser.value("[...document.querySelectorAll('.p-reqs .seg')][1].click()");
    browser
        .until("[...document.querySelectorAll('.req')].some((r) => /^exempt/.test(r.innerText))");
    assert_eq!(browser.console(), Vec::<String>::new());
}
