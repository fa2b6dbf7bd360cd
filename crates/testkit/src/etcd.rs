//! A real etcd cluster on free loopback ports, with data in a temporary directory.
//!
//! The processes are killed when the value is dropped. The binary is the one that `HEADWATER_ETCD`
//! names; otherwise the one on the `PATH`, or the one that `./test` has put into `target/etcd`.
//! Without one, tests that need etcd fail; with `HEADWATER_SKIP_ETCD=1` they are skipped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{ports, tools};

/// The variable that names the etcd binary.
const PROGRAM: &str = "HEADWATER_ETCD";

/// The variable that permits to skip tests that need etcd.
const SKIP: &str = "HEADWATER_SKIP_ETCD";

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
    /// One member; `None` if the calling test is skipped.
    ///
    /// # Panics
    ///
    /// If the machine has no etcd, and the environment does not permit to skip the test.
    #[track_caller]
    pub fn start() -> Option<EtcdCluster> {
        EtcdCluster::cluster(1, Options::default())
    }

    /// Several members; `None` if the calling test is skipped.
    ///
    /// # Panics
    ///
    /// If the machine has no etcd, and the environment does not permit to skip the test.
    #[track_caller]
    pub fn cluster(size: usize, options: Options) -> Option<EtcdCluster> {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/etcd/usr/bin/etcd");
        let program = program(&[PathBuf::from("etcd"), ours])?;
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

    /// The directory with the data of all members.
    pub fn data(&self) -> &Path {
        self.dir.path()
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

/// The etcd binary: the one that the environment names, or the first candidate that is new enough;
/// `None` if the calling test is skipped.
#[track_caller]
fn program(candidates: &[PathBuf]) -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        let program = PathBuf::from(program);
        let path = program.display();
        assert!(is_usable(&program), "{PROGRAM}={path} is not an etcd 3.5 or newer");
        return Some(program);
    }
    let found = candidates.iter().find(|program| is_usable(program));
    if found.is_none() {
        let may_skip = std::env::var_os(SKIP).is_some_and(|value| value == "1");
        let reason = "etcd 3.5 or newer is not installed";
        assert!(
            may_skip,
            "{reason}; ./test tests downloads it, {PROGRAM}=PATH names the binary, \
             {SKIP}=1 skips the tests that need it"
        );
        tools::skip(reason, "./test tests downloads it");
    }
    found.cloned()
}

/// Whether a program is an etcd that is new enough.
fn is_usable(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("etcd Version: 3.5.") || text.contains("etcd Version: 3.6.")
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Output;

    use super::*;

    #[test]
    #[ignore = "run by the tests below, with an environment of its own"]
    fn finds() {
        if let Some(program) = program(&[PathBuf::from("etcd")]) {
            assert_eq!(Some(program.into_os_string()), std::env::var_os("EXPECTED"));
        }
    }

    /// Runs `finds` with only these variables.
    fn finds_with(variables: &[(&str, &str)]) -> Output {
        Command::new(std::env::current_exe().expect("tests run from a file"))
            .args(["--ignored", "--exact", "etcd::tests::finds"])
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .expect("the test is executable")
    }

    fn passes(variables: &[(&str, &str)]) -> bool {
        finds_with(variables).status.success()
    }

    /// Writes a program that prints a version of etcd.
    fn fake(dir: &Path, name: &str, version: &str) -> String {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho 'etcd Version: {version}'\n"))
            .expect("the program is written");
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, permissions).expect("the program is executable");
        path.into_os_string().into_string().expect("the path is text")
    }

    #[test]
    fn the_environment_names_the_binary() {
        let dir = tempfile::tempdir().expect("a temporary directory is available");
        let (new, old) = (fake(dir.path(), "new", "3.6.1"), fake(dir.path(), "old", "3.4.9"));
        assert!(passes(&[(PROGRAM, &new), ("EXPECTED", &new)]));
        // A binary that was named is never replaced by another one, and never a reason to skip.
        for wrong in [old.as_str(), "/absent"] {
            let output = finds_with(&[(PROGRAM, wrong), (SKIP, "1")]);
            assert!(!output.status.success());
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains(&format!("{PROGRAM}={wrong} is not an etcd")), "{text}");
        }
    }

    #[test]
    fn without_etcd_a_test_fails_unless_the_environment_permits_to_skip_it() {
        let dir = tempfile::tempdir().expect("a temporary directory is available");
        let path = dir.path().to_str().expect("the path is text");
        let output = finds_with(&[("PATH", path)]);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("etcd 3.5 or newer is not installed; ./test tests"), "{text}");
        assert!(passes(&[("PATH", path), (SKIP, "1")]));
        assert!(!passes(&[("PATH", path), (SKIP, "1"), ("CI", "true")]));
        fake(dir.path(), "etcd", "3.5.16");
        assert!(passes(&[("PATH", path), ("EXPECTED", "etcd")]));
    }
}
