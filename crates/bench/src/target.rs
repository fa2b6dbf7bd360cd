//! The servers under test: one started here and removed afterwards, or one that runs already.

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
    /// A process of this same binary, with an empty store each time.
    Own { memory: bool },
    /// One that runs; what earlier runs left there is removed.
    Running { kubeconfig: PathBuf, pids: Vec<u32> },
}

impl ServerSource {
    /// What its figures are told under.
    pub(crate) fn name(&self) -> String {
        match self {
            ServerSource::Own { .. } => "headwater".into(),
            ServerSource::Running { kubeconfig, .. } => {
                kubeconfig.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }

    /// The server, with nothing of ours in it.
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
    /// Processes whose CPU and memory are the server's; without any, it is asked itself.
    pub(crate) pids: Vec<u32>,
    started: Option<ServerProcess>,
}

impl TargetServer {
    /// A server that was started, and how long that took.
    pub(crate) fn of(started: ServerProcess) -> Result<(TargetServer, Duration)> {
        let kubeconfig = started.kubeconfig();
        let endpoint = Endpoint::read(&kubeconfig)?;
        let (pids, took) = (vec![started.child.id()], started.took);
        let name = "headwater".into();
        Ok((TargetServer { name, endpoint, kubeconfig, pids, started: Some(started) }, took))
    }

    /// A process that somebody else looks after.
    pub(crate) fn process(name: &str, kubeconfig: &Path, pid: u32) -> Result<TargetServer> {
        let endpoint = Endpoint::read(kubeconfig)?;
        let (name, kubeconfig) = (name.to_owned(), kubeconfig.to_owned());
        Ok(TargetServer { name, endpoint, kubeconfig, pids: vec![pid], started: None })
    }

    /// Whether it was started for the purpose.
    pub(crate) fn is_own(&self) -> bool {
        self.started.is_some()
    }

    /// Ends the server that was started for the purpose and keeps its data.
    pub(crate) fn stop(self) -> Result<ScratchDir> {
        self.started.context("this server is not ours to stop")?.stop()
    }
}

/// A directory for a server's data: beside us, so that it is on a real disk.
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> Result<ScratchDir> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = PathBuf::from(format!(".headwater-bench-{process}-{number}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(ScratchDir(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What cannot be removed is left for its owner to see.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server process of this same binary.
pub(crate) struct ServerProcess {
    child: Child,
    /// From its start to the line that says it is ready.
    took: Duration,
    /// Removed after the process has ended.
    home: Option<ScratchDir>,
}

impl ServerProcess {
    pub(crate) fn new(home: ScratchDir, memory: bool) -> Result<ServerProcess> {
        let data = home.0.join("data");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--bind", "127.0.0.1:0", "--kubeconfig-out"]);
        command.arg(home.0.join("kubeconfig"));
        // One user asks for everything here.
        command.args(["--max-watches", "10000000", "--max-watches-per-user", "10000000"]);
        command.args(["--max-list-bytes", "1024GiB"]);
        match memory {
            true => command.arg("--memory"),
            false => command.arg("--data-dir").arg(&data),
        };
        let began = Instant::now();
        let child = ready(&mut command).context("the server to measure did not start")?;
        Ok(ServerProcess { child, took: began.elapsed(), home: Some(home) })
    }

    fn kubeconfig(&self) -> PathBuf {
        self.home.as_ref().map(|home| home.0.join("kubeconfig")).unwrap_or_default()
    }

    /// Ends the process as an operator would and keeps its data.
    fn stop(mut self) -> Result<ScratchDir> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        self.home.take().context("a server is stopped once")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Starts a process and waits for the line that says it is ready.
pub(crate) fn ready(command: &mut Command) -> Result<Child> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("a pipe was asked for")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    if !lines.any(|line| line.starts_with("ready")) {
        end(&mut child);
        bail!("it ended before it was ready");
    }
    Ok(child)
}

/// How long a process may take to end when it is asked to.
const END_MAX: Duration = Duration::from_secs(5);

const END_POLL: Duration = Duration::from_millis(5);

/// Ends a process, if it has not ended by itself: as an operator would, and when it takes too long, at
/// once.
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
