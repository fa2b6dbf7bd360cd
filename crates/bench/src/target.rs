//! The measured servers: a process that the bench starts and removes, or a running server.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    pub(crate) async fn open(&self) -> Result<TargetServer> {
        match self {
            ServerSource::Own { memory } => {
                let (target, _) = TargetServer::start(ScratchDir::new()?, *memory).await?;
                Ok(target)
            }
            ServerSource::Running { kubeconfig, pids } => {
                let endpoint = Endpoint::read(kubeconfig).await?;
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
    /// The process that the bench started; its directory is removed after it has exited.
    started: Option<(Process, ScratchDir)>,
}

impl TargetServer {
    /// Starts a server with the data of a directory; also returns the time until it was ready.
    pub(crate) async fn start(home: ScratchDir, memory: bool) -> Result<(TargetServer, Duration)> {
        TargetServer::start_with(home, memory, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(
        home: ScratchDir,
        memory: bool,
        flags: &[&str],
    ) -> Result<(TargetServer, Duration)> {
        let kubeconfig = home.path().join("kubeconfig");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--kubeconfig-out"]).arg(&kubeconfig);
        if !flags.contains(&"--bind") {
            command.args(["--bind", "127.0.0.1:0"]);
        }
        // All requests come from one user.
        command.args(["--max-watches", "10000000", "--max-watches-per-user", "10000000"]);
        command.args(["--max-list-bytes", "1024GiB"]).args(flags);
        match memory {
            true => command.arg("--memory"),
            false => command.arg("--data-dir").arg(home.path().join("data")),
        };
        let began = Instant::now();
        let process = Process::ready(&mut command).context("cannot start a server to measure")?;
        let took = began.elapsed();
        let target = TargetServer::process("headwater", &kubeconfig, home, process).await?;
        Ok((target, took))
    }

    /// A process that serves, with the directory of its kubeconfig.
    pub(crate) async fn process(
        name: &str,
        kubeconfig: &Path,
        home: ScratchDir,
        process: Process,
    ) -> Result<TargetServer> {
        let endpoint = Endpoint::read(kubeconfig).await?;
        let (name, kubeconfig) = (name.to_owned(), kubeconfig.to_owned());
        let pids = vec![process.id()];
        Ok(TargetServer { name, endpoint, kubeconfig, pids, started: Some((process, home)) })
    }

    /// Whether the bench started it.
    pub(crate) fn is_own(&self) -> bool {
        self.started.is_some()
    }

    /// Stops the server with SIGTERM and keeps its data.
    pub(crate) fn stop(self) -> Result<ScratchDir> {
        self.end(Signal::TERM)
    }

    /// Kills the server and keeps its data.
    pub(crate) fn kill(self) -> Result<ScratchDir> {
        self.end(Signal::KILL)
    }

    fn end(self, signal: Signal) -> Result<ScratchDir> {
        let started = self.started;
        let (mut process, home) =
            started.context("the bench did not start this server and cannot stop it")?;
        rustix::process::kill_process(Pid::from_child(&process.0), signal)?;
        process.0.wait()?;
        Ok(home)
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

/// A process that ends when this value is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process; also returns the lines that it prints.
    pub(crate) fn start(command: &mut Command) -> Result<(Process, Lines<BufReader<ChildStdout>>)> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("the output is not a pipe")?;
        Ok((Process(child), BufReader::new(stdout).lines()))
    }

    /// Starts a process and waits until it prints "ready".
    pub(crate) fn ready(command: &mut Command) -> Result<Process> {
        let (process, lines) = Process::start(command)?;
        let is_ready = lines.map_while(Result::ok).any(|line| line.starts_with("ready"));
        ensure!(is_ready, "the process exited before it was ready");
        Ok(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

/// Maximum time from SIGTERM to the exit of a process.
const END_MAX: Duration = Duration::from_secs(5);

const END_POLL: Duration = Duration::from_millis(5);

/// Stops the process with SIGTERM, and with SIGKILL if it does not exit within [`END_MAX`].
impl Drop for Process {
    fn drop(&mut self) {
        let child = &mut self.0;
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
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
}
