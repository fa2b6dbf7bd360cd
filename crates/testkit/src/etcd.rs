//! A real etcd cluster on free loopback ports, with data in a temporary directory.
//!
//! The processes are killed when the value is dropped. The binary is the one on the `PATH` or the
//! one that `./test` has put into `target/etcd`. Without one, tests that need etcd are skipped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{ports, tools};

/// How long a member may take to start on a busy machine.
const START_MAX: Duration = Duration::from_secs(600);

/// The members of one cluster.
pub struct EtcdCluster {
    program: PathBuf,
    members: Vec<Member>,
    options: Options,
    dir: TempDir,
}

/// How members are started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `https` together with TLS arguments; `http` by default.
    pub scheme: Option<&'static str>,
    /// Additional arguments for every member.
    pub args: Vec<String>,
}

struct Member {
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

impl EtcdCluster {
    /// One member; `None` if the machine has no etcd.
    pub fn start() -> Option<EtcdCluster> {
        EtcdCluster::cluster(1, Options::default())
    }

    /// Several members; `None` if the machine has no etcd.
    pub fn cluster(size: usize, options: Options) -> Option<EtcdCluster> {
        let Some(program) = find() else {
            tools::skip("etcd 3.5 or newer is not installed", "./test tests downloads it");
            return None;
        };
        let ports = ports::free(2 * size);
        let members = ports.chunks(2).map(|ports| Member {
            client_port: ports[0],
            peer_port: ports[1],
            process: None,
        });
        let dir = tempfile::tempdir().expect("a temporary directory is available");
        let mut etcd = EtcdCluster { program, members: members.collect(), options, dir };
        (0..size).for_each(|member| etcd.spawn(member));
        (0..size).for_each(|member| etcd.wait(member));
        Some(etcd)
    }

    /// The URLs for clients.
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = self.options.scheme.unwrap_or("http");
        self.members.iter().map(|m| format!("{scheme}://127.0.0.1:{}", m.client_port)).collect()
    }

    /// The client port of a member.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client_port
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Suspends a member with SIGSTOP: its connections stay open.
    pub fn pause(&self, member: usize) {
        self.signal(member, "STOP");
    }

    /// Resumes a suspended member.
    pub fn resume(&self, member: usize) {
        self.signal(member, "CONT");
    }

    fn signal(&self, member: usize, name: &str) {
        let process = self.members[member].process.as_ref().expect("the member runs");
        let sent = Command::new("kill").args(["-s", name, &process.id().to_string()]).status();
        assert!(sent.expect("kill is installed").success());
    }

    /// Restarts a member with its data.
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        self.spawn(member);
        self.wait(member);
    }

    /// Starts a member without waiting until it serves: it may have no quorum.
    pub fn spawn(&mut self, member: usize) {
        let scheme = self.options.scheme.unwrap_or("http");
        let cluster: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(n, m)| format!("m{n}=http://127.0.0.1:{}", m.peer_port))
            .collect();
        let Member { client_port, peer_port, .. } = self.members[member];
        let client = format!("{scheme}://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        // Short, but long enough that a busy machine does not elect all the time.
        let (heartbeat, election) =
            if self.members.len() == 1 { ("10", "50") } else { ("200", "2000") };
        let log = File::create(self.log(member)).expect("the log file is created");
        let process = Command::new(&self.program)
            .args(["--name", &format!("m{member}")])
            .arg("--data-dir")
            .arg(self.dir.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"])
            .args(["--heartbeat-interval", heartbeat, "--election-timeout", election])
            .args(["--max-request-bytes", "8388608", "--unsafe-no-fsync"])
            .args(&self.options.args)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.members[member].process = Some(process);
    }

    fn log(&self, member: usize) -> PathBuf {
        self.dir.path().join(format!("m{member}.log"))
    }

    /// Waits until a member serves requests.
    pub fn wait(&mut self, member: usize) {
        let (began, log) = (Instant::now(), self.log(member));
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains("ready to serve client requests") {
                return;
            }
            let process = self.members[member].process.as_mut().expect("the member was started");
            let ended = process.try_wait().expect("its status is available");
            assert!(ended.is_none(), "etcd exited: {text}");
            assert!(began.elapsed() < START_MAX, "etcd does not start: {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a leader among the running members.
    pub fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            let running = (0..self.members.len()).filter(|n| self.members[*n].process.is_some());
            for member in running {
                let Some(status) = self.status(member) else { continue };
                if status["leader"] == status["header"]["member_id"] {
                    return member;
                }
            }
            assert!(began.elapsed() < START_MAX, "no member became leader");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Calls etcd's JSON gateway.
    pub fn post(&self, member: usize, path: &str, body: &Value) -> Option<Value> {
        let body = body.to_string();
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.members[member].client_port)).ok()?;
        stream.set_read_timeout(Some(START_MAX)).ok()?;
        let length = body.len();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    fn status(&self, member: usize) -> Option<Value> {
        let status = self.post(member, "/v3/maintenance/status", &serde_json::json!({}))?;
        (!status["leader"].is_null()).then_some(status)
    }
}

/// The first etcd binary that is new enough.
fn find() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/etcd/usr/bin/etcd");
    [PathBuf::from("etcd"), ours].into_iter().find(|program| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.contains("etcd Version: 3.5.") || text.contains("etcd Version: 3.6.")
        })
    })
}
