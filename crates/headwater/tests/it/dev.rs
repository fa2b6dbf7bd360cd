//! `headwater dev` as a user sees it through kubectl.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use headwater_testkit::tools::has_kubectl;

use crate::process::{Process, headwater};

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_secs(600);

/// A cluster, and a kubectl configured for it.
pub(crate) struct Cluster {
    _server: Process,
    _dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

/// Pods start without delay; a deleted pod of `web` stays until it is force-deleted.
const STAGES: &str = "
node: {renewEvery: 250ms}
rules:
- match: {labels: {app: web}}
  stages:
  - {stage: Running}
  - {stage: Gone, after: 1h}
- match: {owner: Job}
  stages:
  - {stage: Running}
  - {stage: Succeeded, after: 100ms}
  - {stage: Gone}
- stages:
  - {stage: Running}
  - {stage: Gone}
  - {stage: Restarted, after: 100ms}
";

impl Cluster {
    /// `None` if the machine has no kubectl.
    pub(crate) fn dev(args: &[&str]) -> Option<Cluster> {
        if !has_kubectl() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let stages = dir.path().join("stages.yaml");
        std::fs::write(&stages, STAGES).unwrap();
        let (kubeconfig_out, stages) = (kubeconfig.to_str().unwrap(), stages.to_str().unwrap());
        let mut all = vec!["--memory", "--kubeconfig-out", kubeconfig_out, "--stages", stages];
        all.extend(args);
        let server = Process::dev(&all);
        Some(Cluster { _server: server, _dir: dir, kubeconfig })
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        kubectl(&self.kubeconfig, line)
    }

    pub(crate) fn output(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Fails unless the command succeeds and prints all of these.
    #[track_caller]
    pub(crate) fn expect(&self, line: &str, expected: &[&str]) -> String {
        let output = self.output(line);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {text}{errors}");
        for part in expected {
            assert!(text.contains(part), "{line}: no {part:?} in {text}{errors}");
        }
        text
    }

    /// Waits for a condition with `kubectl wait`.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, condition: &str) {
        self.expect(&format!("wait {what} --for={condition} --timeout=600s"), &[]);
    }

    fn watch(&self, line: &str) -> Watch {
        Watch::open(&self.kubeconfig, line)
    }

    /// Repeats a command until its output is accepted: events and taints appear with a delay.
    #[track_caller]
    pub(crate) fn until(&self, line: &str, is_right: impl Fn(&str) -> bool) {
        let began = Instant::now();
        while !is_right(&self.expect(line, &[])) {
            assert!(began.elapsed() < PATIENCE, "never: {line}: {}", self.expect(line, &[]));
        }
    }

    /// Repeats a command until its output contains all of these.
    #[track_caller]
    pub(crate) fn expect_soon(&self, line: &str, expected: &[&str]) {
        self.until(line, |text| expected.iter().all(|part| text.contains(part)));
    }

    /// Waits until this many nodes are ready for pods.
    #[track_caller]
    pub(crate) fn wait_for_nodes(&self, count: usize) {
        for number in 0..count {
            let node = format!("node/node-{number}");
            self.wait_for(&node, "create");
            self.wait_for(&node, "condition=Ready");
        }
    }
}

pub(crate) fn kubectl(kubeconfig: &std::path::Path, line: &str) -> Command {
    let mut command = Command::new("kubectl");
    command
        .args(line.split_whitespace())
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", kubeconfig.parent().unwrap())
        .env_remove("http_proxy")
        .env_remove("https_proxy");
    command
}

/// The lines of a `kubectl get -w`.
pub(crate) struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// One event of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) event: String,
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) phase: String,
    pub(crate) is_deleting: bool,
}

impl Watch {
    pub(crate) fn open(kubeconfig: &std::path::Path, what: &str) -> Watch {
        let line = format!(
            "get {what} -w --output-watch-events --no-headers -o custom-columns=EVENT:.type,NAME:.object.metadata.name,NODE:.object.spec.nodeName,PHASE:.object.status.phase,END:.object.metadata.deletionTimestamp"
        );
        let mut child = kubectl(kubeconfig, &line).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }

    pub(crate) fn next(&mut self) -> Seen {
        let line = self.lines.next().expect("the watch continues").unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [event, name, node, phase, end] = words.as_slice() else { panic!("{line}") };
        Seen {
            event: event.to_string(),
            name: name.to_string(),
            node: (*node != "<none>").then(|| node.to_string()),
            phase: phase.to_string(),
            is_deleting: *end != "<none>",
        }
    }

    /// The events up to and including the first that matches.
    fn until(&mut self, fits: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let mut all = Vec::new();
        loop {
            all.push(self.next());
            if fits(all.last().unwrap()) {
                return all;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn dev_prints_a_command_to_try() {
    let server = Process::dev(&["--memory", "--nodes", "1"]);
    let has = |start: &str| server.lines.iter().any(|line| line.starts_with(start));
    assert!(has("controllers: scheduler, "), "{:?}", server.lines);
    assert!(has("simulated nodes: 1"), "{:?}", server.lines);
    assert!(server.ready().contains("; kubectl create deployment "), "{}", server.ready());
}

#[test]
fn a_watch_shows_the_replacement_of_a_deleted_pod() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.expect("create deployment web --image=nginx --replicas=3", &["created"]);
    cluster.expect("rollout status deployment/web --timeout=600s", &["successfully rolled out"]);
    let mut watch = cluster.watch("pods");
    let there: Vec<Seen> = (0..3).map(|_| watch.next()).collect();
    let old = there[0].name.clone();
    cluster.expect(&format!("delete pod {old} --wait=false"), &["deleted"]);
    let is_new = |seen: &Seen| there.iter().all(|known| known.name != seen.name);
    let mut seen = watch.until(|seen| is_new(seen) && seen.phase == "Running");
    cluster
        .expect(&format!("delete pod {old} --force --grace-period=0 --wait=false"), &["deleted"]);
    seen.extend(watch.until(|seen| seen.event == "DELETED"));
    let new = seen.iter().find(|seen| seen.event == "ADDED").unwrap().name.clone();
    let place = |what: &str, fits: &dyn Fn(&Seen) -> bool| {
        seen.iter().position(fits).unwrap_or_else(|| panic!("never {what}: {seen:#?}"))
    };
    let order = [
        place("marked", &|seen| seen.name == old && seen.event == "MODIFIED" && seen.is_deleting),
        place("replaced", &|seen| {
            seen.name == new && seen.event == "ADDED" && seen.phase == "Pending"
        }),
        place("scheduled", &|seen| {
            seen.name == new && seen.node.is_some() && seen.phase == "Pending"
        }),
        place("running", &|seen| seen.name == new && seen.phase == "Running"),
        place("deleted", &|seen| seen.name == old && seen.event == "DELETED"),
    ];
    assert!(order.is_sorted(), "{seen:#?}");
}

#[test]
fn a_rollout_completes_and_can_be_undone() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.expect("create deployment shop --image=nginx:1 --replicas=3", &["created"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    cluster.expect("set image deployment/shop nginx=nginx:2", &["image updated"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    let images = "get pods -l app=shop -o jsonpath={.items[*].spec.containers[0].image}";
    // Old pods may still be terminating.
    let running = |image: &str| cluster.until(images, |text| text == [image; 3].join(" "));
    running("nginx:2");
    cluster.expect("rollout history deployment/shop", &["1", "2"]);
    cluster.expect("rollout undo deployment/shop", &["rolled back"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    running("nginx:1");
    cluster.expect("scale deployment/shop --replicas=5", &["scaled"]);
    cluster.wait_for("deployment/shop", "jsonpath={.status.readyReplicas}=5");
    cluster.expect("scale deployment/shop --replicas=1", &["scaled"]);
    cluster.wait_for("deployment/shop", "jsonpath={.status.replicas}=1");
}

#[test]
fn a_drained_node_gets_no_pods_until_it_is_uncordoned() {
    let Some(cluster) = Cluster::dev(&["--nodes", "2"]) else { return };
    cluster.wait_for_nodes(2);
    cluster.expect("create deployment shop --image=nginx --replicas=4", &["created"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    cluster.expect("get pods -o wide", &["node-0", "node-1"]);
    // One pod at a time: the next eviction is refused until the last one is replaced.
    cluster.expect("create poddisruptionbudget shop --selector=app=shop --min-available=3", &[]);
    cluster.wait_for("poddisruptionbudget/shop", "jsonpath={.status.disruptionsAllowed}=1");
    cluster.expect("drain node-0 --timeout=600s", &["node-0 drained"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    let on_node_0 = "get pods --field-selector=spec.nodeName=node-0 -o name";
    assert_eq!(cluster.expect(on_node_0, &[]), "");
    cluster.expect("get node node-0", &["Ready,SchedulingDisabled"]);
    cluster.expect("uncordon node-0", &["uncordoned"]);
    cluster.until("get node node-0 -o jsonpath={.spec.taints}", str::is_empty);
    cluster.expect("scale deployment/shop --replicas=8", &["scaled"]);
    cluster.wait_for("deployment/shop", "jsonpath={.status.readyReplicas}=8");
    assert_ne!(cluster.expect(on_node_0, &[]), "");
}

/// The `--overrides` of `kubectl run` for a pod that requests CPU.
fn asking(name: &str, cpu: &str, priority_class: &str) -> String {
    let spec = format!(
        r#"{{"spec":{{"priorityClassName":"{priority_class}","containers":[{{"name":"{name}","image":"x","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}]}}}}"#
    );
    format!("run {name} --image=x --overrides={spec}")
}

#[test]
fn an_unschedulable_pod_has_a_reason_and_is_scheduled_when_there_is_room() {
    let Some(cluster) = Cluster::dev(&["--nodes", "1"]) else { return };
    cluster.expect("wait node/node-0 --for=create --timeout=600s", &[]);
    cluster.expect(&asking("first", "6", ""), &["created"]);
    cluster.wait_for("pod/first", "condition=Ready");
    cluster.expect(&asking("second", "6", ""), &["created"]);
    cluster.wait_for("pod/second", "condition=PodScheduled=False");
    let why = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
               1 No preemption victims found for incoming pod.";
    cluster.expect_soon("describe pod second", &["PodScheduled", "False", "FailedScheduling", why]);
    cluster.expect_soon("get events", &["Successfully assigned default/first to node-0"]);
    cluster.expect("delete pod first", &["deleted"]);
    cluster.wait_for("pod/second", "condition=Ready");
}

#[test]
fn a_pod_of_higher_priority_preempts_one_of_lower_priority() {
    let Some(cluster) = Cluster::dev(&["--nodes", "1"]) else { return };
    cluster.expect("wait node/node-0 --for=create --timeout=600s", &[]);
    cluster.expect("create priorityclass vip --value=1000", &["created"]);
    cluster.expect(&asking("small", "1", ""), &["created"]);
    cluster.expect(&asking("poor", "6", ""), &["created"]);
    cluster.wait_for("pod/poor", "condition=Ready");
    cluster.expect(&asking("vip", "6", "vip"), &["created"]);
    cluster.wait_for("pod/poor", "delete");
    cluster.wait_for("pod/vip", "condition=Ready");
    cluster.wait_for("pod/small", "condition=Ready");
    cluster.expect_soon("get events", &["Preempted by pod"]);
}

#[test]
fn annotations_make_pods_fail_restart_and_complete() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    let annotated = |name: &str, restart: &str, annotation: &str| {
        format!("run {name} --image=x --restart={restart} --annotations=headwater.dev/{annotation}")
    };
    cluster.expect(&annotated("done", "Never", "complete-after=1ms"), &["created"]);
    cluster.expect(&annotated("bad", "Never", "fail-after=1ms"), &["created"]);
    cluster.expect(&annotated("loop", "Always", "fail-after=1ms"), &["created"]);
    cluster.wait_for("pod/done", "jsonpath={.status.phase}=Succeeded");
    cluster.wait_for("pod/bad", "jsonpath={.status.phase}=Failed");
    let restarts = "get pod loop -o jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(restarts, |text| text.parse::<u32>().is_ok_and(|count| count >= 2));
    cluster.expect("get pod loop -o jsonpath={.status.phase}", &["Running"]);
    cluster.expect_soon("describe pod loop", &["Back-off restarting failed container"]);
    cluster.expect("get pods", &["Completed", "Error"]);
    cluster.expect("delete pods --all", &["deleted"]);
}

#[test]
fn a_restart_with_fewer_nodes_removes_the_others_and_keeps_the_data() {
    if !has_kubectl() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let run = |nodes: &str| {
        let args = ["--data-dir", data.to_str().unwrap(), "--nodes", nodes];
        Process::dev(&args)
    };
    let expect = |line: &str| {
        let kubeconfig = data.join("admin.kubeconfig");
        let output = kubectl(&kubeconfig, line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut three = run("3");
    expect("wait node/node-2 --for=create --timeout=600s");
    expect("create configmap kept --from-literal=x=1");
    three.signal("TERM");
    assert!(three.wait().success());
    let _one = run("1");
    expect("wait node/node-2 --for=delete --timeout=600s");
    expect("wait node/node-1 --for=delete --timeout=600s");
    assert_eq!(expect("get nodes -o name").trim(), "node/node-0");
    expect("get configmap kept");
}

#[test]
fn sigterm_stops_controllers_before_their_server() {
    let mut server = Process::dev(&["--memory"]);
    server.signal("TERM");
    assert!(server.wait().success(), "controllers stop before their server");
}

#[test]
fn deleting_an_owner_deletes_its_dependents() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.expect("create namespace team", &["created"]);
    cluster.wait_for("serviceaccount/default -n team", "create");
    for name in ["one", "two"] {
        cluster.expect(&format!("create deployment {name} -n team --image=x --replicas=2"), &[]);
        cluster.expect(&format!("rollout status deployment/{name} -n team --timeout=600s"), &[]);
    }
    cluster
        .expect("delete deployment one -n team --cascade=foreground --timeout=600s", &["deleted"]);
    assert_eq!(cluster.expect("get replicasets,pods -n team -l app=one -o name", &[]), "");
    cluster.expect("delete namespace team --timeout=600s", &["deleted"]);
    let output = cluster.output("get namespace team");
    assert!(!output.status.success());
    assert_eq!(cluster.expect("get pods,replicasets,deployments -n team -o name", &[]), "");
}

#[test]
fn a_job_completes_and_a_service_has_endpoints() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.expect("create job count --image=x", &["created"]);
    cluster.wait_for("job/count", "condition=Complete");
    cluster.expect("get pods -l job-name=count", &["Completed"]);
    cluster.expect("create deployment shop --image=x --replicas=2 --port=80", &["created"]);
    cluster.expect("expose deployment shop", &["exposed"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    cluster.wait_for(
        "endpointslice -l kubernetes.io/service-name=shop",
        "jsonpath={.endpoints[1].conditions.ready}=true",
    );
}

#[test]
fn the_pods_of_a_failed_node_are_replaced() {
    let Some(cluster) = Cluster::dev(&["--nodes", "2", "--node-grace", "5s"]) else { return };
    cluster.wait_for_nodes(2);
    cluster.expect("create deployment shop --image=x --replicas=2", &["created"]);
    let toleration = r#"{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}"#;
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{{"tolerations":[{toleration}]}}}}}}}}"#);
    cluster.expect(&format!("patch deployment shop -p {patch}"), &["patched"]);
    cluster.expect("rollout status deployment/shop --timeout=600s", &["successfully rolled out"]);
    let there = "pod -l app=shop --field-selector=spec.nodeName=node-0";
    cluster.expect(&format!("get {there} -o name"), &["pod/shop"]);
    cluster.expect("annotate node node-0 headwater.dev/offline=", &["annotated"]);
    cluster.wait_for("node/node-0", "condition=Ready=Unknown");
    cluster.expect("get node node-0", &["NotReady"]);
    cluster.wait_for(there, "jsonpath={.metadata.deletionTimestamp}");
    cluster.wait_for("deployment/shop", "jsonpath={.status.availableReplicas}=2");
    cluster.expect("annotate node node-0 headwater.dev/offline-", &["annotated"]);
    cluster.wait_for("node/node-0", "condition=Ready");
    cluster.wait_for(there, "delete");
}

/// The bench fails if a controller lists or watches again after its first sync.
#[test]
fn bench_cluster_runs_and_no_controller_lists_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = headwater(&["bench", "cluster", "--memory", "--pods", "20", "--nodes", "3"]);
    let output = bench.current_dir(dir.path()).output().unwrap();
    let (text, notes) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{notes}");
    for line in ["cluster: pods running, 20 pods", "cluster: server", "cluster: controllers"] {
        assert!(text.contains(line), "{text}{notes}");
    }
}
