//! The page: who may use it, what it may read, and what a browser shows of a cluster.

mod access;
mod cluster;
mod pictures;
mod smooth;
mod views;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use crate::process::{Process, headwater};

/// A cluster with its page.
struct PageCluster {
    server: Process,
    dir: tempfile::TempDir,
    url: String,
}

impl PageCluster {
    /// A server in memory with all controllers.
    fn dev(args: &[&str]) -> PageCluster {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let mut all = vec!["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()];
        all.extend(args);
        let server = Process::dev(&all);
        let url = server.lines.iter().find_map(|line| line.strip_prefix("page at "));
        let url = url.unwrap().to_owned();
        PageCluster { server, dir, url }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Runs kubectl, and fails unless it succeeds.
    #[track_caller]
    fn kubectl(&self, line: &str) -> String {
        let output = crate::dev::kubectl(&self.kubeconfig(), line).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A `headwater ui` that is killed when dropped.
struct PageProcess {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    url: String,
}

impl PageProcess {
    fn start(kubeconfig: &Path) -> PageProcess {
        let args = ["ui", "--kubeconfig", kubeconfig.to_str().unwrap()];
        let mut child = headwater(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("page at ").unwrap().to_owned();
        PageProcess { child, _stdout: stdout, url }
    }
}

impl Drop for PageProcess {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
