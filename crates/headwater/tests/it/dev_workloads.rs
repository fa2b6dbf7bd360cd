//! Workloads of `headwater dev` through kubectl: StatefulSets with claims, DaemonSets, CronJobs, logs,
//! commands, metrics and autoscaling.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};

use crate::dev::Cluster;

/// An object of every workload that the others do not create.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: postgres}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: agent}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "@every 1s"
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}
"#;

const LOADED: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata:
      labels: {app: busy}
      annotations:
        headwater.dev/cpu-total: "1"
        headwater.dev/log-start: "first\nsecond"
        headwater.dev/exec-replies: "redis-cli ping: PONG"
    spec: {containers: [{name: c, image: nginx, resources: {requests: {cpu: 500m}}}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  minReplicas: 1
  maxReplicas: 5
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
"#;

fn apply(cluster: &Cluster, objects: &str) {
    let mut command = cluster.command("apply -f -");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(objects.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn sets_roll_out_claims_are_bound_and_jobs_run_on_a_schedule() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.wait_for_nodes(3);
    cluster.wait_for("storageclass/standard", "create");
    apply(&cluster, WORKLOADS);
    cluster.expect("rollout status statefulset/db --timeout=600s", &["complete"]);
    cluster.expect("rollout status daemonset/agent --timeout=600s", &["successfully rolled out"]);
    cluster.expect_soon("get pvc --no-headers", &["data-db-0", "data-db-1", "Bound"]);
    cluster.expect_soon("get jobs", &["tick-", "Complete"]);
    cluster.expect("set image statefulset/db c=postgres:2", &["updated"]);
    cluster.expect("rollout status statefulset/db --timeout=600s", &["complete"]);
    cluster.expect("rollout history statefulset/db", &["1", "2"]);
    cluster.expect("rollout undo statefulset/db", &["rolled back"]);
    cluster.expect("rollout status statefulset/db --timeout=600s", &["complete"]);
    cluster.expect("get pod db-0 -o jsonpath={.spec.containers[0].image}", &["postgres"]);
}

#[test]
fn containers_answer_and_the_autoscaler_follows_their_load() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    apply(&cluster, LOADED);
    cluster.expect("rollout status deployment/busy --timeout=600s", &["successfully rolled out"]);
    assert_eq!(cluster.expect("logs deployment/busy", &[]), "first\nsecond\n");
    assert_eq!(cluster.expect("logs deployment/busy --tail=1", &[]), "second\n");
    cluster.expect("exec deployment/busy -- echo hello", &["hello"]);
    cluster.expect("exec deployment/busy -- redis-cli ping", &["PONG"]);
    let failed = cluster.output("exec deployment/busy -- false");
    assert_eq!(failed.status.code(), Some(1));
    cluster.expect_soon("top pods", &["busy-", "m"]);
    cluster.expect("top nodes", &["node-0", "node-1"]);
    // A whole CPU over pods that should use 250m each.
    cluster.expect_soon("get hpa busy -o jsonpath={.status.currentReplicas}", &["4"]);
    cluster.expect_soon("get events", &["SuccessfulRescale"]);
}

#[test]
fn a_single_pod_ends_and_a_debugger_starts() {
    let Some(cluster) = Cluster::dev(&["--controllers", "*,-garbage"]) else { return };
    cluster.wait_for_nodes(3);
    cluster.expect("run once --image=busybox --restart=Never", &["created"]);
    cluster.expect_soon("get pod once -o jsonpath={.status.phase}", &["Succeeded"]);
    cluster.expect("run web --image=nginx", &["created"]);
    cluster.wait_for("pod/web", "condition=Ready");
    cluster.expect("debug web --image=busybox --container=look -- sh", &[]);
    let state = "get pod web -o jsonpath={.status.ephemeralContainerStatuses[0].state}";
    cluster.expect_soon(state, &["running"]);
    let copied = cluster.output("cp web:/etc/hosts hosts");
    let shown = String::from_utf8([copied.stdout, copied.stderr].concat()).unwrap();
    assert!(!copied.status.success() && shown.contains("tar: not found"), "{shown}");
}

/// A running `kubectl port-forward` to a free local port.
struct Forwarded {
    child: Child,
    address: SocketAddr,
}

impl Forwarded {
    fn start(cluster: &Cluster, target: &str, websockets: bool) -> Forwarded {
        let mut command = cluster.command(&format!("port-forward {target}"));
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.split_whitespace().nth(2).unwrap().parse().unwrap();
        Forwarded { child, address }
    }

    /// What a connection receives after it sent this and closed its half.
    fn send(&self, data: &[u8]) -> String {
        let (mut writer, mut received) = (TcpStream::connect(self.address).unwrap(), String::new());
        let mut reader = writer.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                writer.write_all(data).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            reader.read_to_string(&mut received).unwrap();
        });
        received
    }

    fn get(&self, path: &str) -> String {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

const SERVED: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: api
  labels: {app: api}
  annotations:
    headwater.dev/http-replies: |
      /healthz: fine
      POST /orders: {status: 201, body: created}
    headwater.dev/exec-replies: |
      psql *: {stderr: refused, exitCode: 2}
spec: {containers: [{name: c, image: api, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: api}
spec: {selector: {app: api}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: laptop, annotations: {headwater.dev/forward-to: "ADDRESS"}}
spec: {containers: [{name: c, image: api}]}
---
apiVersion: v1
kind: Service
metadata: {name: routed, annotations: {headwater.dev/forward-to: "ADDRESS"}}
spec: {selector: {app: api}, ports: [{port: 81, targetPort: 8181}]}
"#;

#[test]
fn ports_are_forwarded_over_both_protocols() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    let process = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = process.local_addr().unwrap().to_string();
    let replies = std::thread::spawn(move || {
        for _ in 0..4 {
            let mut socket = process.accept().unwrap().0;
            let mut asked = String::new();
            socket.read_to_string(&mut asked).unwrap();
            socket.write_all(format!("the laptop heard {asked}").as_bytes()).unwrap();
        }
    });
    apply(&cluster, &SERVED.replace("ADDRESS", &here));
    cluster.wait_for("pod/api", "condition=Ready");
    cluster.wait_for("pod/laptop", "condition=Ready");
    for websockets in [true, false] {
        let pod = Forwarded::start(&cluster, "api :9999", websockets);
        let page = pod.get("/");
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("default/api"), "{page}");
        assert!(pod.get("/healthz").ends_with("\r\n\r\nfine\n"));
        assert_eq!(pod.send(b"ping\r\n"), "ping\r\n");
        let large = "x".repeat(300_000);
        assert_eq!(pod.send(large.as_bytes()).len(), large.len());
        let service = Forwarded::start(&cluster, "service/api :80", websockets);
        let created =
            service.send(b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert!(created.starts_with("HTTP/1.1 201") && created.contains("created"), "{created}");
        let laptop = Forwarded::start(&cluster, "laptop :1", websockets);
        assert_eq!(laptop.send(b"hello"), "the laptop heard hello");
        let routed = Forwarded::start(&cluster, "service/routed :81", websockets);
        assert_eq!(routed.send(b"hello"), "the laptop heard hello");
    }
    replies.join().unwrap();
}

#[test]
fn commands_run_over_both_protocols() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    apply(&cluster, &SERVED.replace("ADDRESS", "127.0.0.1:1"));
    cluster.wait_for("pod/api", "condition=Ready");
    for websockets in ["true", "false"] {
        let run = |line: &str, input: &str| {
            let mut command = cluster.command(line);
            command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(output.stdout), text(output.stderr), output.status.code())
        };
        assert_eq!(run("exec api -- echo hello", ""), ("hello\n".into(), String::new(), Some(0)));
        let (_, error, code) = run("exec api -- psql -c x", "");
        assert!(error.starts_with("refused\n"), "{error}");
        assert_eq!(code, Some(2));
        let (output, _, code) = run("exec -i api -- cat", "one\ntwo\n");
        assert_eq!((output.as_str(), code), ("one\ntwo\n", Some(0)));
        let (output, error, _) = run(
            &format!("run shell-{websockets} --image=busybox -i -- sh"),
            "echo attached\nexit\n",
        );
        assert!(output.contains("attached"), "{output}{error}");
        let (output, _, code) = run("exec -i api -- sh", "echo typed\nexit 7\n");
        assert!(output.contains("typed"), "{output}");
        assert_eq!(code, Some(7));
    }
}

const PROBED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: deaf, annotations: {headwater.dev/readiness-fails: "1s.."}}
spec: {containers: [{name: c, image: a, readinessProbe: {periodSeconds: 1, failureThreshold: 1, tcpSocket: {port: 1}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: dying, annotations: {headwater.dev/liveness-fails: "1s.."}}
spec: {containers: [{name: c, image: a, livenessProbe: {periodSeconds: 1, failureThreshold: 1, tcpSocket: {port: 1}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: typo, annotations: {headwater.dev/readiness-fails: "often"}}
spec: {containers: [{name: c, image: a}]}
---
apiVersion: v1
kind: Pod
metadata: {name: hungry, annotations: {headwater.dev/fail-after: 100ms, headwater.dev/exit-reason: OOMKilled}}
spec: {containers: [{name: c, image: a}]}
"#;

#[test]
fn probes_fail_and_containers_restart_by_rule() {
    let Some(cluster) = Cluster::dev(&[]) else { return };
    cluster.wait_for_nodes(3);
    apply(&cluster, PROBED);
    cluster.wait_for("pod/deaf", "condition=Ready=false");
    cluster.expect_soon("events --for pod/deaf", &["Unhealthy", "Readiness probe failed"]);
    cluster.expect("get pod deaf -o jsonpath={.status.phase}", &["Running"]);
    let killed = ["Unhealthy", "failed liveness probe, will be restarted", "BackOff"];
    cluster.expect_soon("events --for pod/dying", &killed);
    let restarts = "get pod dying -o jsonpath={.status.containerStatuses[0].restartCount}";
    cluster.until(restarts, |count| count.parse::<u32>().is_ok_and(|count| count > 0));
    cluster.expect_soon("events --for pod/typo", &["InvalidAnnotation", "30s..45s"]);
    let last = "get pod hungry -o jsonpath={.status.containerStatuses[0].lastState.terminated}";
    cluster.expect_soon(last, &["OOMKilled", "137"]);
}
