//! A cluster whose processes are killed is delayed, and otherwise unaffected.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use headwater_testkit::ports;
use headwater_testkit::tools::has_kubectl;
use serde_json::Value;

use crate::dev::{Seen, Watch, kubectl};
use crate::process::{Process, headwater};

const STAGES: &str = "
rules:
- stages:
  - {stage: Running, after: 50ms, jitter: 50ms}
  - {stage: Gone, after: 50ms, jitter: 50ms}
";

/// A server and its kubeconfig; controllers run in separate processes.
struct Split {
    server: Process,
    dir: tempfile::TempDir,
}

impl Split {
    fn start() -> Option<Split> {
        if !has_kubectl() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("stages.yaml"), STAGES).unwrap();
        // A port that no other process gets while the server is down.
        let server = serve(dir.path(), &format!("127.0.0.1:{}", ports::free(1)[0]));
        Some(Split { server, dir })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn controllers(&self, args: &[&str]) -> Controllers {
        let (kubeconfig, stages) = (self.path("kubeconfig"), self.path("stages.yaml"));
        let mut all = vec!["controllers", "--kubeconfig", &kubeconfig, "--stages", &stages];
        all.extend(args);
        Controllers::start(&all)
    }

    fn kubectl(&self, line: &str) -> String {
        let output = kubectl(Path::new(&self.path("kubeconfig")), line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.kubectl(&format!("{line} -o json"))).unwrap()
    }

    /// Kills the server and starts it again at the same address, with the same data.
    fn kill_server(&mut self) {
        let url = self.server.ready().split_whitespace().nth(2).unwrap().to_owned();
        let address = url.strip_prefix("https://").unwrap();
        self.server.signal("KILL");
        self.server.wait();
        self.server = serve(self.dir.path(), address);
    }

    /// Whether the Deployment is as its spec wants it.
    fn is_rolled_out(&self, image: &str) -> bool {
        let deployment = self.json("get deployment web");
        let (spec, status) = (&deployment["spec"], &deployment["status"]);
        let wanted = &spec["replicas"];
        spec["template"]["spec"]["containers"][0]["image"] == image
            && deployment["metadata"]["generation"] == status["observedGeneration"]
            && ["replicas", "updatedReplicas", "availableReplicas"]
                .iter()
                .all(|field| &status[field] == wanted)
    }

    /// Checks that every object exists once and matches its spec.
    #[track_caller]
    fn assert_complete(&self, replicas: usize, image: &str) {
        let pods = self.json("get pods");
        let pods: Vec<&Value> = pods["items"].as_array().unwrap().iter().collect();
        let live: Vec<&&Value> =
            pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
        assert_eq!(live.len(), replicas, "{pods:#?}");
        let addresses: BTreeSet<String> =
            live.iter().map(|pod| pod["status"]["podIP"].to_string()).collect();
        assert_eq!(addresses.len(), replicas, "two pods have one address: {addresses:?}");
        for pod in live {
            assert_eq!(pod["spec"]["containers"][0]["image"], image, "{pod:#}");
            assert_eq!(pod["status"]["phase"], "Running", "{pod:#}");
        }
        let sets = self.json("get replicasets");
        for set in sets["items"].as_array().unwrap() {
            let is_new = set["spec"]["template"]["spec"]["containers"][0]["image"] == image;
            let expected = if is_new { replicas } else { 0 };
            assert_eq!(set["spec"]["replicas"], expected, "{set:#}");
        }
    }
}

fn serve(dir: &Path, address: &str) -> Process {
    let (data, kubeconfig) = (dir.join("data"), dir.join("kubeconfig"));
    let (data, kubeconfig) = (data.to_str().unwrap(), kubeconfig.to_str().unwrap());
    Process::serve(&["--bind", address, "--data-dir", data, "--kubeconfig-out", kubeconfig])
}

/// A process of controllers, killed when dropped.
struct Controllers {
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Controllers {
    /// Starts it and waits until every informer has synced.
    fn start(args: &[&str]) -> Controllers {
        let mut child = headwater(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the controllers ended");
        }
        Controllers { child, _stdout: stdout }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The events of pods, read by a thread so that waiting can time out.
fn events(cluster: &Split) -> Receiver<Seen> {
    let (sender, receiver) = sync_channel(1024);
    let mut watch = Watch::open(Path::new(&cluster.path("kubeconfig")), "pods");
    std::thread::spawn(move || while sender.send(watch.next()).is_ok() {});
    receiver
}

/// Waits for three events. Four pods cause at least four, however late the watch starts.
fn after_three_events(cluster: &Split) {
    let events = events(cluster);
    for _ in 0..3 {
        events.recv_timeout(PATIENCE).unwrap();
    }
}

/// Number of kills; set `HEADWATER_KILLS=100` for a long run.
fn kills() -> usize {
    std::env::var("HEADWATER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_secs(600);

/// Time without events after which the state is checked.
const QUIET: Duration = Duration::from_millis(500);

#[test]
fn killed_controllers_still_complete_rollouts() {
    let Some(cluster) = Split::start() else { return };
    let mut controllers = cluster.controllers(&["--no-leader-election"]);
    cluster.kubectl("create deployment web --image=img:0 --replicas=4");
    let events = events(&cluster);
    let (mut seen, mut killed, mut revision) = (0, 0, 0);
    loop {
        let image = format!("img:{revision}");
        match events.recv_timeout(QUIET) {
            // At a different moment of the rollout each time.
            Ok(_) if seen % 7 != 3 => seen += 1,
            Ok(_) => {
                seen += 1;
                drop(controllers);
                killed += 1;
                controllers = cluster.controllers(&["--no-leader-election"]);
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the watch ended"),
            Err(_) if !cluster.is_rolled_out(&image) => {}
            Err(_) => {
                cluster.assert_complete(4, &image);
                if killed >= kills() {
                    break;
                }
                revision += 1;
                cluster.kubectl(&format!("set image deployment/web img=img:{revision}"));
            }
        }
    }
}

#[test]
fn a_killed_server_only_delays_a_rollout() {
    let Some(mut cluster) = Split::start() else { return };
    let _controllers = cluster.controllers(&["--no-leader-election"]);
    cluster.kubectl("create deployment web --image=img:0 --replicas=4");
    after_three_events(&cluster);
    cluster.kill_server();
    while !cluster.is_rolled_out("img:0") {
        std::thread::yield_now();
    }
    cluster.kubectl("set image deployment/web img=img:1");
    after_three_events(&cluster);
    cluster.kill_server();
    while !cluster.is_rolled_out("img:1") {
        std::thread::yield_now();
    }
    cluster.assert_complete(4, "img:1");
}

#[test]
fn one_of_two_copies_leads_and_the_other_takes_over() {
    let Some(cluster) = Split::start() else { return };
    // The default duration: with a shorter one, a slow leader may lose the lease.
    let copy = |name: &str| cluster.controllers(&["--identity", name, "--lease-duration", "15s"]);
    let holder = || {
        cluster.kubectl(
            "get lease headwater-controllers -n kube-system -o jsonpath={.spec.holderIdentity}",
        )
    };
    let first = copy("first");
    cluster.kubectl("wait lease/headwater-controllers -n kube-system --for=create --timeout=600s");
    let second = copy("second");
    assert_eq!(holder(), "first");
    cluster.kubectl("create deployment web --image=img:0 --replicas=5");
    let events = events(&cluster);
    cluster.kubectl("rollout status deployment/web --timeout=600s");
    drop(first);
    cluster.kubectl("scale deployment/web --replicas=8");
    cluster
        .kubectl("wait deployment/web --for=jsonpath={.status.availableReplicas}=8 --timeout=600s");
    assert_eq!(holder(), "second");
    cluster.assert_complete(8, "img:0");
    drop(second);
    let mut made = BTreeSet::new();
    let patience = |made: &BTreeSet<String>| if made.len() < 8 { PATIENCE } else { QUIET };
    while let Ok(seen) = events.recv_timeout(patience(&made)) {
        made.insert(seen.name);
    }
    assert_eq!(made.len(), 8, "two that act make more than is wanted: {made:?}");
}
