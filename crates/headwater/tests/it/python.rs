//! The Python client, the package `kubernetes`.

use std::path::{Path, PathBuf};
use std::process::Command;

use headwater_testkit::tools;

use crate::process::Process;

/// A Python with the package, kept between runs; `None` if it cannot be installed.
pub(crate) fn python() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = venv.join("bin/python");
    let has_package = |python: &Path| {
        let import = Command::new(python).args(["-c", "import kubernetes"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if has_package(&python) {
        return Some(python);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).output();
    let installed = made.is_ok()
        && Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "kubernetes"])
            .output()
            .is_ok_and(|output| output.status.success());
    if installed && has_package(&python) {
        return Some(python);
    }
    tools::skip(
        "the Python client cannot be installed",
        "install python3 with venv, on Debian: apt-get install python3-venv, and reach PyPI",
    );
    None
}

#[test]
fn the_python_client_lists_watches_and_writes() {
    runs("client.py");
}

/// S4.60, S4.62
#[test]
fn a_python_client_of_delta_watches_has_the_texts_of_a_full_watch() {
    runs("delta.py");
}

/// Runs a script of `tests/python` against a new server.
fn runs(script: &str) {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let _server = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python"));
    let output = Command::new(python)
        .arg(scripts.join(script))
        .env("KUBECONFIG", &kubeconfig)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "ok", "{errors}");
}
