//! Encryption at rest with the real binary: what reaches the disk, and how keys change (S6.24).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use headwater_testkit::etcd::EtcdCluster;
use headwater_testkit::kms::TestKms;

use crate::process::{Process, headwater, run};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The content of all Secrets in the forms that could leak.
const PLAIN: [&[u8]; 2] = [b"supersecret", b"c3VwZXJzZWNyZXQ"];
const OLD: &str = "aesgcm: {keys: [{name: old, secret: AAECAwQFBgcICQoLDA0ODw==}]}";
const NEW: &str = "aesgcm: {keys: [{name: new, secret: EBESExQVFhcYGRobHB0eHw==}]}";
const BOX: &str =
    "secretbox: {keys: [{name: box, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}";

/// A directory with a configuration, data, logs and backups.
struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Case {
        Case { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a configuration for Secrets with these providers into a private file.
    fn configure(&self, providers: &[&str]) {
        let rows: String = providers.iter().map(|row| format!("  - {row}\n")).collect();
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [secrets]\n  providers:\n{rows}"
        );
        let (new, path) = (self.path("keys.new"), self.path("keys.yaml"));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        file.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn kms(&self, key_id: &str) -> TestKms {
        TestKms::start(&self.path("kms.sock"), key_id)
    }

    fn kms_row(&self) -> String {
        let socket = self.text("kms.sock");
        format!("kms: {{apiVersion: v2, name: vault, endpoint: 'unix://{socket}', timeout: 5s}}")
    }

    fn serve(&self, args: &[&str]) -> Process {
        let (data, keys) = (self.text("data"), self.text("keys.yaml"));
        let flags = ["--data-dir", &data, "--encryption-provider-config", &keys, "--log", "debug"];
        let all: Vec<&str> = flags.iter().chain(args).copied().collect();
        let mut options = File::options();
        let log = options.append(true).create(true).open(self.path("log")).unwrap();
        Process::serve_logging_to(Stdio::from(log), &all)
    }

    fn backup(&self, name: &str) {
        let kubeconfig = self.text("data/admin.kubeconfig");
        let made = run(&["backup", &self.text(name), "--kubeconfig", &kubeconfig]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    fn contains(&self, bytes: &[u8]) -> bool {
        contains(self.dir.path(), bytes)
    }
}

/// Whether a file below the directory contains these bytes.
fn contains(directory: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            return contains(&entry.path(), bytes);
        }
        // Another thread of a server or of etcd may have removed it.
        let mut content = Vec::new();
        kind.is_file()
            && File::open(entry.path()).is_ok_and(|mut file| file.read_to_end(&mut content).is_ok())
            && content.windows(bytes.len()).any(|window| window == bytes)
    })
}

fn make_secret(server: &Process, name: &str) {
    let body =
        format!("{{\"metadata\":{{\"name\":{name:?}}},\"data\":{{\"p\":\"c3VwZXJzZWNyZXQ=\"}}}}");
    let made = server.post(SECRETS, &body);
    assert!(made.contains("201 Created"), "{made}");
}

fn make_map(server: &Process) {
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = server.post(maps, r#"{"metadata":{"name":"m"},"data":{"p":"readable"}}"#);
    assert!(made.contains("201 Created"), "{made}");
}

/// Whether a Secret is served with its content.
fn is_served(server: &Process, name: &str) -> bool {
    let answer = server.get(&format!("{SECRETS}/{name}"));
    answer.starts_with("HTTP/1.1 200 ") && answer.contains("c3VwZXJzZWNyZXQ=")
}

fn version(server: &Process, name: &str) -> String {
    let answer = server.get(&format!("{SECRETS}/{name}"));
    let (_, rest) = answer.split_once("\"resourceVersion\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// S6.24: a secret is in no file of the data directory and in no backup, and a changed key is in
/// effect without a restart.
#[test]
fn an_encrypted_secret_is_in_no_file_and_its_key_can_be_rotated() {
    let case = Case::new();
    case.configure(&[OLD, "identity: {}"]);
    let server = case.serve(&[]);
    make_secret(&server, "s");
    make_map(&server);
    case.backup("backup");
    assert!(PLAIN.iter().all(|secret| !case.contains(secret)));
    assert!(case.contains(b"readable"));
    assert!(case.contains(b"k8s:enc:aesgcm:v1:old:"));

    // The new key writes; the old one still reads.
    let before = version(&server, "s");
    case.configure(&[NEW, OLD]);
    until(|| version(&server, "s") != before);
    assert!(case.contains(b"k8s:enc:aesgcm:v1:new:"));
    drop(server);
    // Now nothing needs the old key.
    case.configure(&[NEW]);
    let server = case.serve(&[]);
    assert!(is_served(&server, "s"));
    assert!(PLAIN.iter().all(|secret| !case.contains(secret)));
}

/// S6.24: the same with a KMS plugin, through all states of a Secret.
#[test]
fn a_kms_plugin_encrypts_and_a_secret_is_in_no_file() {
    let case = Case::new();
    let kms = case.kms("key-1");
    let row = case.kms_row();
    case.configure(&[&row]);
    let server = case.serve(&[]);
    make_secret(&server, "s");
    make_secret(&server, "gone");
    make_map(&server);
    assert!(is_served(&server, "s"));
    assert!(server.get("/readyz/kms-providers").ends_with("ok"));
    // The history keeps what was deleted.
    let deleted = server.delete(&format!("{SECRETS}/gone"));
    assert!(deleted.starts_with("HTTP/1.1 200 "), "{deleted}");
    case.backup("backup");
    assert!(PLAIN.iter().all(|secret| !case.contains(secret)));
    assert!(case.contains(b"readable") && case.contains(b"k8s:enc:kms:v2:vault:"));
    // One seed for all values.
    assert_eq!(kms.state().calls, (1, 0));

    // After a rotation in the plugin, stored values are written again with its new key.
    let before = version(&server, "s");
    kms.state().key_id = "second-key".into();
    until(|| version(&server, "s") != before);
    assert!(case.contains(b"second-key"));
    drop(server);

    // A new process decrypts with the plugin; a restored backup too, whose values have the old key.
    let server = case.serve(&[]);
    assert!(is_served(&server, "s"));
    drop(server);
    let restored = run(&["restore", &case.text("backup"), "--data-dir", &case.text("restored")]);
    assert!(restored.status.success());
    fs::rename(case.path("data"), case.path("before")).unwrap();
    fs::rename(case.path("restored"), case.path("data")).unwrap();
    let server = case.serve(&[]);
    assert!(is_served(&server, "s"));
    assert!(PLAIN.iter().all(|secret| !case.contains(secret)));
}

#[test]
fn a_plugin_that_goes_away_fails_readiness_and_nothing_that_is_loaded() {
    let case = Case::new();
    let kms = case.kms("key-1");
    case.configure(&[&case.kms_row(), "identity: {}"]);
    let server = case.serve(&[]);
    make_secret(&server, "s");
    kms.state().failure = Some((14, "the HSM is closed"));
    until(|| server.get("/readyz/kms-providers").starts_with("HTTP/1.1 500 "));
    assert!(server.get("/readyz").contains("[-]kms-providers failed: reason withheld"));
    assert!(server.get("/livez").ends_with("ok"));
    assert!(is_served(&server, "s"));
    // Its key is valid for three minutes.
    make_secret(&server, "t");
    kms.state().failure = None;
    until(|| server.get("/readyz").ends_with("ok"));
    // The metrics of Kubernetes, which show no key id.
    let vault = "provider_name=\"vault\"";
    let metrics = server.get("/metrics");
    let status = "method_name=\"/v2.KeyManagementService/Status\"";
    let prefix = "transformer_prefix=\"k8s:enc:kms:v2:vault:\"";
    for sample in [
        format!(
            "kms_operations_latency_seconds_count{{{vault},{status},grpc_status_code=\"OK\"}} "
        ),
        format!(
            "kms_operations_latency_seconds_count{{{vault},{status},\
             grpc_status_code=\"Unavailable\"}} "
        ),
        format!(
            "key_id_hash_total{{transformation_type=\"to_storage\",{vault},key_id_hash=\"sha256:"
        ),
        format!("key_id_hash_status_last_timestamp_seconds{{{vault},key_id_hash=\"sha256:"),
    ] {
        let sample = format!("\napiserver_envelope_encryption_{sample}");
        assert!(metrics.contains(&sample), "no {sample} in {metrics}");
    }
    for direction in ["to_storage", "from_storage"] {
        let sample = format!(
            "\napiserver_storage_transformation_operations_total\
             {{transformation_type=\"{direction}\",{prefix},status=\"OK\"}} "
        );
        assert!(metrics.contains(&sample), "no {sample} in {metrics}");
    }
    assert!(metrics.contains("\napiserver_storage_data_key_generation_duration_seconds_count 1\n"));
    assert!(!metrics.contains("key-1"));
}

#[test]
fn a_start_waits_for_the_plugin_and_a_changed_file_for_a_working_one() {
    let case = Case::new();
    case.configure(&[&case.kms_row(), "identity: {}"]);
    let starting = std::thread::scope(|scope| {
        let server = scope.spawn(|| case.serve(&[]));
        until(|| fs::read_to_string(case.path("log")).is_ok_and(|log| log.contains("waiting for")));
        let kms = case.kms("key-1");
        (server.join().unwrap(), kms)
    });
    let (server, kms) = starting;
    make_secret(&server, "s");
    // A plugin that does not exist changes nothing.
    let other = case.kms_row().replace("kms.sock", "other.sock").replace("vault", "other");
    case.configure(&[&other, &case.kms_row()]);
    until(|| {
        let log = fs::read_to_string(case.path("log")).unwrap();
        log.contains("cannot be used yet") && log.contains("other.sock")
    });
    make_secret(&server, "t");
    assert!(case.contains(b"k8s:enc:kms:v2:vault:") && !case.contains(b"k8s:enc:kms:v2:other:"));
    // It comes up: the file is tried again, and its values are written with the other plugin.
    let before = version(&server, "s");
    let _other = TestKms::start(&case.path("other.sock"), "key-1");
    until(|| version(&server, "s") != before);
    assert!(case.contains(b"k8s:enc:kms:v2:other:"));
    let metrics = server.get("/metrics");
    for status in ["failure", "success"] {
        let reloads = "\napiserver_encryption_config_controller_automatic_reloads_total";
        assert!(metrics.contains(&format!("{reloads}{{status=\"{status}\"}} ")), "{metrics}");
    }
    assert!(PLAIN.iter().all(|secret| !case.contains(secret)));
    drop(kms);
}

#[test]
fn an_invalid_file_ends_the_start_with_one_line() {
    let case = Case::new();
    case.configure(&["kms: {name: vault, endpoint: 'unix:///run/vault.sock'}"]);
    let (data, keys) = (case.text("data"), case.text("keys.yaml"));
    let args = ["serve", "--data-dir", &data, "--encryption-provider-config", &keys];
    let ended = headwater(&args).args(["--bind", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(stderr.contains("the kms provider \"vault\": it needs apiVersion v2"), "{stderr}");
}

/// S6.24: what etcd keeps is encrypted too, and two servers read what the other one wrote.
#[test]
fn etcd_keeps_no_plain_secret_and_servers_read_the_secrets_of_each_other() {
    let Some(etcd) = EtcdCluster::start() else { return };
    let case = Case::new();
    let kms = case.kms("key-1");
    let endpoints = etcd.endpoints().join(",");
    for (at, row) in [case.kms_row(), BOX.to_owned(), OLD.to_owned()].iter().enumerate() {
        let prefix = format!("/p{at}");
        let args = ["--store", "etcd", "--etcd-endpoints", &endpoints, "--etcd-prefix", &prefix];
        case.configure(&[row]);
        let first = case.serve(&args);
        let second = case.serve(&args);
        make_secret(&first, "s");
        make_map(&first);
        make_secret(&second, "t");
        for server in [&first, &second] {
            assert!(is_served(server, "s") && is_served(server, "t"));
        }
    }
    for secret in PLAIN {
        assert!(!contains(etcd.data(), secret) && !case.contains(secret));
    }
    for stored in ["readable", "k8s:enc:kms:v2:vault:", "k8s:enc:secretbox:v1:box:"] {
        assert!(contains(etcd.data(), stored.as_bytes()), "{stored}");
    }
    // Each server has a seed of its own, and asked for that of the other one once.
    let (encrypted, decrypted) = kms.state().calls;
    assert_eq!(encrypted, 2);
    assert!(decrypted <= 2, "{decrypted}");
}
