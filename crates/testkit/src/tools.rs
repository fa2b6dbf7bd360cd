//! Programs that tests need and a machine may lack: without one a test is skipped, in CI it fails.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

/// The file in which `./test` collects what was skipped.
const SKIPPED_FILE: &str = "HEADWATER_SKIPPED_FILE";

/// Reports that the calling test cannot run. `./test` lists it at the end.
///
/// # Panics
///
/// If the environment has `CI=true`: there every check must run.
#[track_caller]
pub fn skip(reason: &str, remedy: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci, "{reason}; {remedy}");
    eprintln!("skipped: {reason}; {remedy}");
    let Some(path) = std::env::var_os(SKIPPED_FILE) else { return };
    let file = File::options().append(true).create(true).open(path);
    // One write: tests of other processes append to the same file.
    let line = format!("{reason}; {remedy}\n");
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file is writable");
}

/// Whether the machine has kubectl. Without it the calling test is skipped.
#[track_caller]
pub fn has_kubectl() -> bool {
    let version = ["version", "--client"];
    let status = Command::new("kubectl").args(version).stdout(Stdio::null()).status();
    let found = status.is_ok_and(|status| status.success());
    if !found {
        skip(
            "kubectl is not installed",
            "install it, on Debian: apt-get install kubernetes-client",
        );
    }
    found
}

/// Whether the machine has Chromium and ChromeDriver. Without them the calling test is skipped.
#[track_caller]
pub fn has_chromium() -> bool {
    let answers = |program: &str| {
        let mut command = Command::new(program);
        let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let found = answers("chromedriver") && browsers.into_iter().any(answers);
    if !found {
        skip(
            "Chromium and ChromeDriver are not installed",
            "install them, on Debian: apt-get install chromium chromium-driver",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "run by the test below, with an environment of its own"]
    fn skipped() {
        skip("nothing is installed", "install it");
    }

    #[test]
    fn a_skipped_test_fails_in_ci_and_is_listed_elsewhere() {
        let dir = tempfile::tempdir().expect("a temporary directory is available");
        let list = dir.path().join("list");
        let passes = |ci: &str| {
            let output = Command::new(std::env::current_exe().expect("tests run from a file"))
                .args(["--ignored", "--exact", "tools::tests::skipped"])
                .env("CI", ci)
                .env(SKIPPED_FILE, &list)
                .output();
            output.expect("the test is executable").status.success()
        };
        assert!(!passes("true"));
        assert!(!list.exists());
        assert!(passes("") && passes(""));
        let text = std::fs::read_to_string(&list).expect("the file was written");
        assert_eq!(text, "nothing is installed; install it\n".repeat(2));
    }
}
