//! The measured servers: a process that the bench starts and removes, or a running server.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::kubeconfig::Endpoint;

pub(crate) mod measure;

/// Where a server comes from.
#[derive(Clone, Debug)]
pub(crate) enum ServerSource {
    /// A process of this program with an empty store.
    Own { memory: bool },
    /// A running server.
    Running { kubeconfig: PathBuf, pids: Vec<u32> },
}

impl ServerSource {
    /// Its name in the report.
    pub(crate) fn name(&self) -> String {
        match self {
            ServerSource::Own { .. } => "headwater".into(),
            ServerSource::Running { kubeconfig, .. } => {
                kubeconfig.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }

    /// Starts or connects to the server.
    pub(crate) fn open(&self) -> Result<TargetServer> {
        match self {
            ServerSource::Own { memory } => {
                let started = ServerProcess::new(ScratchDir::new()?, *memory)?;
                TargetServer::of(started).map(|(target, _)| target)
            }
            ServerSource::Running { kubeconfig, pids } => {
                let endpoint = Endpoint::read(kubeconfig)?;
                let (kubeconfig, pids) = (kubeconfig.clone(), pids.clone());
                Ok(TargetServer { name: self.name(), endpoint, kubeconfig, pids, started: None })
            }
        }
    }
}

pub(crate) struct TargetServer {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) kubeconfig: PathBuf,
    /// The processes of the server; if empty, CPU and memory come from its `/metrics`.
    pub(crate) pids: Vec<u32>,
    started: Option<ServerProcess>,
}

impl TargetServer {
    /// A started server, and the time from start to ready.
    pub(crate) fn of(started: ServerProcess) -> Result<(TargetServer, Duration)> {
        let kubeconfig = started.kubeconfig();
        let endpoint = Endpoint::read(&kubeconfig)?;
        let (pids, took) = (vec![started.child.id()], started.took);
        let name = "headwater".into();
        Ok((TargetServer { name, endpoint, kubeconfig, pids, started: Some(started) }, took))
    }

    /// A process that the caller started and stops.
    pub(crate) fn process(name: &str, kubeconfig: &Path, pid: u32) -> Result<TargetServer> {
        let endpoint = Endpoint::read(kubeconfig)?;
        let (name, kubeconfig) = (name.to_owned(), kubeconfig.to_owned());
        Ok(TargetServer { name, endpoint, kubeconfig, pids: vec![pid], started: None })
    }

    /// Whether the bench started it.
    pub(crate) fn is_own(&self) -> bool {
        self.started.is_some()
    }

    /// Stops the server and keeps its data.
    pub(crate) fn stop(self) -> Result<ScratchDir> {
        self.started.context("the bench did not start this server and cannot stop it")?.stop()
    }
}

/// A temporary directory for a server's data, in the current directory so that it is on a disk.
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> Result<ScratchDir> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = PathBuf::from(format!(".headwater-bench-{process}-{number}"));
        std::fs::create_dir(&path)
            .with_context(|| format!("cannot create directory {}", path.display()))?;
        Ok(ScratchDir(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // If it cannot be removed, it stays for the user to find.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server process of this program.
pub(crate) struct ServerProcess {
    child: Child,
    /// The time from its start to the line "ready".
    took: Duration,
    /// Removed after the process has exited.
    home: Option<ScratchDir>,
}

impl ServerProcess {
    pub(crate) fn new(home: ScratchDir, memory: bool) -> Result<ServerProcess> {
        let data = home.0.join("data");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--bind", "127.0.0.1:0", "--kubeconfig-out"]);
        command.arg(home.0.join("kubeconfig"));
        // All requests come from one user.
        command.args(["--max-watches", "10000000", "--max-watches-per-user", "10000000"]);
        command.args(["--max-list-bytes", "1024GiB"]);
        match memory {
            true => command.arg("--memory"),
            false => command.arg("--data-dir").arg(&data),
        };
        let began = Instant::now();
        let child = ready(&mut command).context("cannot start a server to measure")?;
        Ok(ServerProcess { child, took: began.elapsed(), home: Some(home) })
    }

    fn kubeconfig(&self) -> PathBuf {
        self.home.as_ref().map(|home| home.0.join("kubeconfig")).unwrap_or_default()
    }

    /// Stops the process with SIGTERM and keeps its data.
    fn stop(mut self) -> Result<ScratchDir> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        self.home.take().context("the server was stopped before")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Starts a process and waits until it prints "ready".
pub(crate) fn ready(command: &mut Command) -> Result<Child> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("the output is not a pipe")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    if !lines.any(|line| line.starts_with("ready")) {
        end(&mut child);
        bail!("the process exited before it was ready");
    }
    Ok(child)
}

/// Maximum time from SIGTERM to the exit of a process.
const END_MAX: Duration = Duration::from_secs(5);

const END_POLL: Duration = Duration::from_millis(5);

/// Stops a process with SIGTERM, and with SIGKILL if it does not exit within [`END_MAX`].
pub(crate) fn end(child: &mut Child) {
    let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < END_MAX {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(END_POLL),
            Ok(Some(_)) | Err(_) => return,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}
