//! A server process that a test starts and that is killed when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// `headwater` with these arguments.
pub(crate) fn headwater(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(args).env_remove("KUBECONFIG").env_remove("HEADWATER_LOG");
    command
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    headwater(args).output().unwrap()
}

/// A process that is killed when dropped.
pub(crate) struct KilledOnDrop(pub(crate) Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server.
pub(crate) struct Process {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    /// The lines it printed until it was ready.
    pub(crate) lines: Vec<String>,
    /// The address of plain HTTP.
    pub(crate) plain: SocketAddr,
}

impl Process {
    /// Starts `headwater serve` on free ports and waits until it is ready.
    pub(crate) fn serve(args: &[&str]) -> Process {
        Process::serve_logging_to(Stdio::inherit(), args)
    }

    /// The same, with its log redirected.
    pub(crate) fn serve_logging_to(log: Stdio, args: &[&str]) -> Process {
        Process::start("serve", log, args)
    }

    /// Starts `headwater dev` on free ports and waits until it is ready.
    pub(crate) fn dev(args: &[&str]) -> Process {
        Process::start("dev", Stdio::inherit(), args)
    }

    pub(crate) fn start(command: &str, log: Stdio, args: &[&str]) -> Process {
        let ports = [command, "--insecure-bind", "127.0.0.1:0"];
        let free: &[&str] = if args.contains(&"--bind") { &[] } else { &["--bind", "127.0.0.1:0"] };
        let all: Vec<&str> = ports.iter().chain(free).chain(args).copied().collect();
        let mut child = headwater(&all).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it ended: {lines:?}");
            let is_ready = line.starts_with("ready");
            lines.push(line.trim_end().to_owned());
            if is_ready {
                break;
            }
        }
        let plain = lines.iter().find_map(|line| line.strip_prefix("plain HTTP at http://"));
        let plain = plain.unwrap().split(": ").next().unwrap().parse().unwrap();
        Process { child, _stdout: stdout, lines, plain }
    }

    /// The line that starts with "ready".
    pub(crate) fn ready(&self) -> &str {
        self.lines.last().unwrap()
    }

    /// The response to a GET over plain HTTP.
    pub(crate) fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// Creates an object over plain HTTP.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.send("POST", path, body)
    }

    /// Replaces an object over plain HTTP.
    pub(crate) fn put(&self, path: &str, body: &str) -> String {
        self.send("PUT", path, body)
    }

    /// Sends a document over plain HTTP.
    pub(crate) fn send(&self, verb: &str, path: &str, body: &str) -> String {
        let length = body.len();
        self.ask(&format!(
            "{verb} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// Deletes an object over plain HTTP.
    pub(crate) fn delete(&self, path: &str) -> String {
        self.ask(&format!(
            "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: 0\r\n\r\n"
        ))
    }

    fn ask(&self, request: &str) -> String {
        let mut socket = self.connect();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.plain).unwrap()
    }

    /// The address of HTTPS.
    pub(crate) fn tls(&self) -> SocketAddr {
        let address = self.ready().split("https://").nth(1).unwrap();
        address.split(' ').next().unwrap().parse().unwrap()
    }

    /// Whether it is running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
