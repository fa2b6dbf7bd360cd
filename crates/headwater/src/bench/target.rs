//! The server under test: one that runs already, or one started here and removed afterwards.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::kubeconfig::Endpoint;

pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    /// Processes whose CPU and memory are the server's.
    pub(super) pids: Vec<u32>,
    started: Option<Started>,
}

impl Target {
    pub(super) fn existing(kubeconfig: &Path, pids: Vec<u32>) -> Result<Target> {
        Ok(Target { endpoint: Endpoint::read(kubeconfig)?, pids, started: None })
    }

    pub(super) fn start(memory: bool) -> Result<Target> {
        Target::timed(Started::new(Home::new()?, memory)?).map(|(target, _)| target)
    }

    /// A server that was started, and how long that took.
    pub(super) fn timed(started: Started) -> Result<(Target, Duration)> {
        let endpoint = Endpoint::read(&started.kubeconfig())?;
        let (pids, took) = (vec![started.child.id()], started.took);
        Ok((Target { endpoint, pids, started: Some(started) }, took))
    }

    /// Ends the server that was started for the purpose and keeps its data.
    pub(super) fn stop(self) -> Result<Home> {
        self.started.context("this server is not ours to stop")?.stop()
    }
}

/// A directory for the server's data: beside us, so that it is on a real disk.
pub(super) struct Home(PathBuf);

impl Home {
    pub(super) fn new() -> Result<Home> {
        let path = PathBuf::from(format!(".headwater-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Home(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What cannot be removed is left for its owner to see.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server process of this same binary.
pub(super) struct Started {
    child: Child,
    /// From its start to the line that says it is ready.
    took: Duration,
    /// Removed after the process has ended.
    home: Option<Home>,
}

impl Started {
    pub(super) fn new(home: Home, memory: bool) -> Result<Started> {
        let data = home.0.join("data");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--bind", "127.0.0.1:0", "--kubeconfig-out"]);
        command.arg(home.0.join("kubeconfig"));
        match memory {
            true => command.arg("--memory"),
            false => command.arg("--data-dir").arg(&data),
        };
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        let is_ready = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.starts_with("ready"));
        if !is_ready {
            bail!("the server to measure did not start");
        }
        Ok(Started { child, took: began.elapsed(), home: Some(home) })
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.home.as_ref().map(|home| home.0.join("kubeconfig")).unwrap_or_default()
    }

    /// Ends the process as an operator would and keeps its data.
    pub(super) fn stop(mut self) -> Result<Home> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        self.home.take().context("a server is stopped once")
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}
