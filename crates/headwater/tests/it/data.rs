//! The commands `backup`, `restore`, `verify` and `compact` with a running server.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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

/// An encryption configuration for Secrets with these AES-GCM keys, written to a private file.
fn write_keys(path: &Path, keys: &[(&str, &str)]) {
    let rows: Vec<String> = keys
        .iter()
        .map(|(name, secret)| format!("{{\"name\": {name:?}, \"secret\": {secret:?}}}"))
        .collect();
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - aesgcm: {{keys: [{}]}}\n  - identity: {{}}\n",
        rows.join(", ")
    );
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Whether a file below the directory contains these bytes.
fn contains(directory: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => contains(&path, bytes),
            false => fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes),
        }
    })
}

fn revision_of(answer: &str) -> String {
    let (_, rest) = answer.split_once("\"resourceVersion\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

/// S6.24: a secret is in no file of the data directory and in no backup, and a changed key is in
/// effect without a restart.
#[test]
fn an_encrypted_secret_is_in_no_file_and_its_key_can_be_rotated() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    const OLD: (&str, &str) = ("old", "AAECAwQFBgcICQoLDA0ODw==");
    const NEW: (&str, &str) = ("new", "EBESExQVFhcYGRobHB0eHw==");
    let dir = tempfile::tempdir().unwrap();
    let (data, config) = (dir.path().join("data"), dir.path().join("keys.yaml"));
    let flags = ["--data-dir", text(&data), "--encryption-provider-config", text(&config)];
    write_keys(&config, &[OLD]);
    let server = Process::serve(&flags);
    // "c3VwZXJzZWNyZXQ=" is the base64 of "supersecret".
    let made = server.post(SECRETS, r#"{"metadata":{"name":"s"},"data":{"p":"c3VwZXJzZWNyZXQ="}}"#);
    assert!(made.contains("201 Created"), "{made}");
    let plain = server.post(
        "/api/v1/namespaces/default/configmaps",
        r#"{"metadata":{"name":"m"},"data":{"p":"readable"}}"#,
    );
    assert!(plain.contains("201 Created"), "{plain}");
    let backup = dir.path().join("backup");
    let kubeconfig = data.join("admin.kubeconfig");
    check(&run(&["backup", text(&backup), "--kubeconfig", text(&kubeconfig)]), 0, "");
    for secret in [&b"supersecret"[..], b"c3VwZXJzZWNyZXQ"] {
        assert!(!contains(dir.path(), secret));
    }
    assert!(contains(dir.path(), b"readable"));
    assert!(contains(&data, b"k8s:enc:aesgcm:v1:old:"));

    // The new key writes; the old one still reads.
    let before = revision_of(&server.get(&format!("{SECRETS}/s")));
    write_keys(&config, &[NEW, OLD]);
    while revision_of(&server.get(&format!("{SECRETS}/s"))) == before {
        std::thread::yield_now();
    }
    assert!(contains(&data, b"k8s:enc:aesgcm:v1:new:"));
    drop(server);
    // Now nothing needs the old key.
    write_keys(&config, &[NEW]);
    let server = Process::serve(&flags);
    let read = server.get(&format!("{SECRETS}/s"));
    assert!(read.contains("c3VwZXJzZWNyZXQ="), "{read}");
    assert!(!contains(&data, b"c3VwZXJzZWNyZXQ"));
}
