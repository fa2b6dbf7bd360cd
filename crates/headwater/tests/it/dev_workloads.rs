//! Workloads of `headwater dev` through kubectl: StatefulSets with claims, DaemonSets, CronJobs, logs,
//! commands, metrics and autoscaling.

use std::io::Write;
use std::process::Stdio;

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
    let refused = cluster.output("port-forward web 0:80");
    assert!(!refused.status.success());
}
