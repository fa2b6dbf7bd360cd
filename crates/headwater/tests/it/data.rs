//! The commands `backup`, `restore`, `verify` and `compact` with a running server.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::process::{Process, run};

/// A server with data on disk, and a directory for the output of commands.
struct Case {
    dir: tempfile::TempDir,
    server: Process,
}

impl Case {
    fn new() -> Case {
        let dir = tempfile::tempdir().unwrap();
        let server = Process::serve(&["--data-dir", text(&dir.path().join("data"))]);
        Case { dir, server }
    }

    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name)).to_owned()
    }

    fn command(&self, args: &[&str]) -> Output {
        let kubeconfig = self.path("data/admin.kubeconfig");
        let all: Vec<&str> = args.iter().copied().chain(["--kubeconfig", &kubeconfig]).collect();
        run(&all)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn check(output: &Output, code: i32, said: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(said), "{stderr}");
}

fn uid(server: &Process) -> String {
    let answer = server.get("/api/v1/namespaces/default");
    let (_, rest) = answer.split_once("\"uid\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

/// R94
#[test]
fn a_backup_of_a_running_server_can_be_restored() {
    let case = Case::new();
    let backup = case.path("backup");
    check(&case.command(&["backup", &backup]), 0, "objects at revision");
    check(&run(&["verify", &backup]), 0, "is intact");
    let restored = case.path("restored");
    check(&run(&["restore", &backup, "--data-dir", &restored]), 0, "headwater serve --data-dir");
    check(&run(&["verify", &restored]), 0, "is intact");
    let second = Process::serve(&["--data-dir", &restored]);
    assert_eq!(uid(&second), uid(&case.server));
}

#[test]
fn a_backup_does_not_replace_a_file() {
    let case = Case::new();
    let backup = case.path("backup");
    fs::write(&backup, "mine").unwrap();
    check(&case.command(&["backup", &backup]), 1, "exists");
    assert_eq!(fs::read_to_string(&backup).unwrap(), "mine");
}

/// B267
#[test]
fn a_damaged_backup_is_refused_before_anything_is_written() {
    let case = Case::new();
    let backup = case.path("backup");
    check(&case.command(&["backup", &backup]), 0, "");
    let mut bytes = fs::read(&backup).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&backup, bytes).unwrap();
    let restored = case.path("restored");
    check(&run(&["verify", &backup]), 1, "verification of");
    check(&run(&["restore", &backup, "--data-dir", &restored]), 1, "cannot restore");
    assert!(!fs::exists(restored).unwrap());
}

#[test]
fn a_file_that_is_no_backup_is_not_called_truncated() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "a: 1\n").unwrap();
    check(&run(&["verify", text(file.path())]), 1, "not a Headwater backup");
    fs::write(&file, "headwater").unwrap();
    check(&run(&["verify", text(file.path())]), 1, "truncated");
}

#[test]
fn a_server_in_memory_refuses_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, backup) = (dir.path().join("kubeconfig"), dir.path().join("backup"));
    let _server = Process::serve(&["--memory", "--kubeconfig-out", text(&kubeconfig)]);
    let args = ["backup", text(&backup), "--kubeconfig", text(&kubeconfig)];
    check(&run(&args), 1, "in memory only");
    assert!(!fs::exists(backup).unwrap());
}

#[test]
fn a_read_before_the_compacted_revision_returns_410() {
    let case = Case::new();
    let answer = case.server.get("/api/v1/namespaces?limit=1");
    let (_, rest) = answer.split_once("\"resourceVersion\":\"").unwrap();
    let newest = rest.split('"').next().unwrap();
    let future = case.command(&["compact", "--revision", "99999999"]);
    check(&future, 1, "revision 99999999 is in the future");
    check(&case.command(&["compact", "--revision", newest]), 0, newest);
    let gone = case.server.get("/api/v1/namespaces?resourceVersion=2&resourceVersionMatch=Exact");
    assert!(gone.starts_with("HTTP/1.1 410 "), "{gone}");
}
