//! A browser that a test drives: Chromium through ChromeDriver, by the WebDriver protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_testkit::tools::has_chromium;
use serde_json::{Value, json};

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the page itself waits before it reports that a condition does not hold yet.
const LOOK: Duration = Duration::from_secs(4);

/// A browser with an empty profile. It ends when dropped.
pub(crate) struct Browser {
    driver: Child,
    _output: BufReader<std::process::ChildStdout>,
    address: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser; `None` if the machine has none.
    pub(crate) fn start() -> Option<Browser> {
        if !has_chromium() {
            return None;
        }
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env_remove("http_proxy")
            .env_remove("https_proxy")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "chromedriver ended");
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim().trim_end_matches('.').parse::<u16>().unwrap();
            }
        };
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Browser {
            driver,
            _output: output,
            address: ([127, 0, 0, 1], port).into(),
            session: String::new(),
            _profile: profile,
        };
        let profile = format!("--user-data-dir={}", browser._profile.path().display());
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1440,900",
            &profile,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": 60_000 },
        } } });
        let made = browser.send("POST", "/session", &wanted);
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    pub(crate) fn open(&self, url: &str) {
        self.ask("/url", &json!({ "url": url }));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.ask("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    pub(crate) fn text(&self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn number(&self, expression: &str) -> f64 {
        self.value(expression).as_f64().unwrap_or(f64::NAN)
    }

    /// Waits until an expression is true in the page, and returns its value.
    #[track_caller]
    pub(crate) fn until(&self, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0], ends = performance.now() + {};\n\
             (function look() {{ let value = null; try {{ value = ({expression}); }} catch (e) {{}}\n\
             if (value || performance.now() > ends) done(value || null); else setTimeout(look, 30); }})();",
            LOOK.as_millis()
        );
        let began = Instant::now();
        loop {
            let value = self.ask("/execute/async", &json!({ "script": script, "args": [] }));
            if !value.is_null() {
                return value;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "never: {expression}\n{}\n{:?}",
                self.text("document.body.innerText"),
                self.console()
            );
        }
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Presses keys, one after the other.
    pub(crate) fn press(&self, keys: &[&str]) {
        let press = |key: &&str| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        };
        let actions: Vec<Value> = keys.iter().flat_map(press).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.ask("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Presses a key with shift.
    pub(crate) fn press_with_shift(&self, key: &str) {
        let shift = "\u{e008}";
        let action = |kind: &str, key: &str| json!({ "type": kind, "value": key });
        let actions = [
            action("keyDown", shift),
            action("keyDown", key),
            action("keyUp", key),
            action("keyUp", shift),
        ];
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.ask("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Shows a view of the page by its address.
    pub(crate) fn show(&self, view: &str) {
        self.value(&format!("void (location.hash = {})", json!(view)));
    }

    /// The size of the page, as on a screen of this size.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", &size);
    }

    /// A command of the DevTools protocol.
    pub(crate) fn command(&self, name: &str, parameters: &Value) -> Value {
        self.ask("/goog/cdp/execute", &json!({ "cmd": name, "params": parameters }))
    }

    /// The value that a script passes to its callback `done`.
    pub(crate) fn result(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0];\n{script}");
        self.ask("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// What the console shows since the last call.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.ask("/se/log", &json!({ "type": "browser" }));
        let text = |entry: &Value| format!("{}: {}", entry["level"], entry["message"]);
        entries.as_array().map(|all| all.iter().map(text).collect()).unwrap_or_default()
    }

    /// Waits until the page has been painted.
    pub(crate) fn paint(&self) {
        let script = "const done = arguments[0];\
                      requestAnimationFrame(() => requestAnimationFrame(() => done(true)));";
        self.ask("/execute/async", &json!({ "script": script, "args": [] }));
    }

    /// Writes a picture of the page.
    pub(crate) fn picture(&self, file: &Path) {
        let made = self.send("GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        std::fs::write(file, STANDARD.decode(made.as_str().unwrap()).unwrap()).unwrap();
    }

    #[track_caller]
    fn ask(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let (code, answer) = self.exchange(method, path, body);
        assert_eq!(code, 200, "{method} {path} {body}: {answer}");
        answer["value"].clone()
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut socket = TcpStream::connect(self.address).unwrap();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(socket);
        let mut length = 0;
        let mut code = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                code = rest.split(' ').next().unwrap().parse().unwrap();
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        (code, serde_json::from_slice(&answer).unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // On a thread of its own: a second panic would abort the test before it reports the first.
            let path = format!("/session/{}", self.session);
            let end = || drop(self.exchange("DELETE", &path, &Value::Null));
            let _ = std::thread::scope(|scope| scope.spawn(end).join());
        }
        let pid = self.driver.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        let _ = self.driver.wait();
    }
}
