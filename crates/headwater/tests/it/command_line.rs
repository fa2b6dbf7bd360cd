//! Start, shutdown, and errors at start.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use crate::process::{Process, run};

#[test]
fn the_last_line_has_the_address_and_a_command_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let server = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let ready = server.ready();
    assert!(ready.starts_with("ready at https://127.0.0.1:"), "{ready}");
    assert!(ready.contains(&format!("export KUBECONFIG={}", kubeconfig.display())), "{ready}");
    assert!(ready.ends_with("kubectl get namespaces"), "{ready}");
    let answer = server.get("/readyz");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
}

/// B262
#[test]
fn the_kubeconfig_is_private_and_has_the_actual_port() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, "old").unwrap();
    let server = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let mode = fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let url = server.ready().split(' ').nth(2).unwrap();
    assert!(fs::read_to_string(&kubeconfig).unwrap().contains(&format!("server: {url}\n")));
}

#[test]
fn a_server_in_memory_leaves_no_files() {
    let mut server = Process::serve(&["--memory"]);
    let (_, rest) = server.ready().split_once("export KUBECONFIG=").unwrap();
    let kubeconfig = rest.split(';').next().unwrap().to_owned();
    assert!(fs::exists(&kubeconfig).unwrap());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!fs::exists(&kubeconfig).unwrap());
}

/// S4.15, R43
#[test]
fn sigterm_and_sigint_stop_it_with_exit_code_0() {
    for signal in ["TERM", "INT"] {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut server = Process::serve_logging_to(log.reopen().unwrap().into(), &["--memory"]);
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal}");
        let log = fs::read_to_string(log.path()).unwrap();
        assert!(log.contains("a second signal exits at once"), "{signal}: {log}");
    }
}

#[test]
fn an_open_watch_does_not_delay_shutdown() {
    let mut server = Process::serve(&["--memory", "--shutdown-grace", "1h"]);
    let mut watch = server.connect();
    let target = "/api/v1/namespaces?watch=true";
    write!(watch, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    read_until(&mut watch, "kube-system");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// R43
#[test]
fn a_second_signal_stops_it_at_once() {
    let mut server = Process::serve(&["--memory", "--shutdown-grace", "1h"]);
    let mut stalled = server.connect();
    write!(
        stalled,
        "POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    )
    .unwrap();
    // The request is in progress when the server asks for its body.
    read_until(&mut stalled, "100 Continue");
    server.signal("TERM");
    while TcpStream::connect(server.plain).is_ok() {
        std::thread::yield_now();
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(130));
}

fn read_until(socket: &mut TcpStream, text: &str) {
    use std::io::Read;
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(text) {
        assert_eq!(socket.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.extend(byte);
    }
}

/// Fails unless the command exits with 1 and prints one line that contains all of these.
#[track_caller]
fn check_refused(args: &[&str], expected: &[&str]) {
    let output = run(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in expected {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_port_in_use_is_an_error_that_names_bind() {
    let server = Process::serve(&["--memory"]);
    let address = server.plain.to_string();
    check_refused(
        &["serve", "--memory", "--bind", &address],
        &[&address, "already in use", "--bind"],
    );
}

#[test]
fn too_many_simulated_nodes_are_refused_with_the_limit() {
    for count in ["10001", "3000000", "99999999999"] {
        let refused = run(&["dev", "--nodes", count]);
        assert_eq!(refused.status.code(), Some(2));
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("--nodes") && why.contains("10000"), "{why}");
    }
}

#[test]
fn plain_http_is_refused_on_other_than_loopback_addresses() {
    check_refused(
        &["serve", "--memory", "--bind", "127.0.0.1:0", "--insecure-bind", "0.0.0.0:0"],
        &["not a loopback address"],
    );
}

/// B260
#[test]
fn a_token_file_that_others_can_read_is_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.csv");
    fs::write(&path, "t,u,1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let path = path.to_str().unwrap();
    let args = ["serve", "--memory", "--bind", "127.0.0.1:0", "--token-auth-file", path];
    check_refused(&args, &["chmod 600", "--allow-loose-permissions"]);
}

/// B260
#[test]
fn a_data_directory_that_others_can_read_is_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().to_str().unwrap();
    let args = ["serve", "--bind", "127.0.0.1:0", "--data-dir", path];
    check_refused(&args, &["chmod 700", "--allow-loose-permissions"]);
}

/// B264
#[test]
fn a_data_directory_in_use_is_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let _server = Process::serve(&["--data-dir", data]);
    let args = ["serve", "--bind", "127.0.0.1:0", "--data-dir", data];
    check_refused(&args, &[data, "in use by another process", "--data-dir"]);
}

#[test]
fn a_restart_keeps_data_and_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Process::serve(&["--data-dir", data.to_str().unwrap()]);
    let uid = |answer: &str| {
        let (_, rest) = answer.split_once("\"uid\":\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let before = uid(&server.get("/api/v1/namespaces/default"));
    let authority = fs::read_to_string(data.join("pki/ca.crt")).unwrap();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = Process::serve(&["--data-dir", data.to_str().unwrap()]);
    assert_eq!(uid(&server.get("/api/v1/namespaces/default")), before);
    assert_eq!(fs::read_to_string(data.join("pki/ca.crt")).unwrap(), authority);
}

#[test]
fn a_data_directory_that_is_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    check_refused(&["serve", "--data-dir", path], &["cannot create the directory", path]);
}

#[test]
fn a_command_without_a_server_names_the_command_to_start_one() {
    check_refused(
        &["compact", "--revision", "1", "--kubeconfig", "/nonexistent"],
        &["cannot read kubeconfig /nonexistent", "headwater serve"],
    );
}

#[test]
fn invalid_flags_have_their_own_exit_code() {
    assert_eq!(run(&["serve", "--no-such-flag"]).status.code(), Some(2));
    for help in [&["--help"][..], &["help"], &["help", "serve"], &["version"]] {
        assert_eq!(run(help).status.code(), Some(0), "{help:?}");
    }
}
