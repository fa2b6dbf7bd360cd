//! What a fresh server has: namespaces, priority classes, flow control (S10.20, S7.4).
//!
//! River: start-up → **bootstrap** → store, through the same admission as every other create.

use headwater_api::Status;
use headwater_api::json::{Value, json};
use headwater_store::{Guard, Key};

use crate::admission::{Attempt, admit_own};
use crate::object::{canonical, meta};
use crate::server::Server;
use crate::write::put;

const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

impl Server {
    /// Creates what is missing. Running it again changes nothing.
    pub async fn bootstrap(&self) -> Result<(), Status> {
        for (group, version, plural, value) in objects() {
            self.ensure(group, version, plural, value).await?;
        }
        Ok(())
    }

    async fn ensure(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        mut value: Value,
    ) -> Result<(), Status> {
        let registry = self.registry();
        let Some(kind) = registry.find(group, version, plural) else { return Ok(()) };
        value["kind"] = kind.kind.kind.to_string().into();
        value["apiVersion"] = kind.api_version().into();
        let key = Key::in_collection(&kind.prefix, meta(&value, "name"));
        let resource = self.cache().resource(&kind.prefix);
        if self.cache().snapshot(&resource).get(meta(&value, "name")).is_some() {
            return Ok(());
        }
        admit_own(Attempt {
            cache: self.cache(),
            addresses: self.addresses(),
            kind,
            namespace: "",
            subresource: "",
            new: &mut value,
            old: None,
            untouched: None,
            now: self.now(),
        })?;
        put(self, kind, key, Guard::Absent, canonical(&value)).await.map(drop)
    }
}

type Row = (&'static str, &'static str, &'static str, Value);

fn objects() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for name in ["kube-system", "kube-public", "kube-node-lease", "default"] {
        rows.push(("", "v1", "namespaces", json!({ "metadata": { "name": name } })));
    }
    for (name, value, text) in [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ] {
        let class = json!({
            "metadata": { "name": name }, "value": value, "description": text,
            "preemptionPolicy": "PreemptLowerPriority",
        });
        rows.push(("scheduling.k8s.io", "v1", "priorityclasses", class));
    }
    rows.extend(
        priority_levels().into_iter().map(|v| (FLOW, "v1", "prioritylevelconfigurations", v)),
    );
    rows.extend(flow_schemas().into_iter().map(|v| (FLOW, "v1", "flowschemas", v)));
    rows
}

fn annotated(name: &str) -> Value {
    json!({ "name": name, "annotations": { AUTOUPDATE: "true" } })
}

fn priority_levels() -> Vec<Value> {
    let exempt = json!({
        "metadata": annotated("exempt"),
        "spec": { "type": "Exempt", "exempt": { "nominalConcurrencyShares": 0, "lendablePercent": 0 } },
    });
    let catch_all = json!({
        "metadata": annotated("catch-all"),
        "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": 5, "lendablePercent": 0,
            "limitResponse": { "type": "Reject" },
        }},
    });
    let mut levels = vec![exempt, catch_all];
    // name, shares, lendable %, queues, hand size
    for (name, shares, lendable, queues, hand) in [
        ("leader-election", 10, 0, 16, 4),
        ("node-high", 40, 25, 64, 6),
        ("system", 30, 33, 64, 6),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ] {
        levels.push(json!({
            "metadata": annotated(name),
            "spec": { "type": "Limited", "limited": {
                "nominalConcurrencyShares": shares, "lendablePercent": lendable,
                "limitResponse": { "type": "Queue", "queuing": {
                    "queues": queues, "handSize": hand, "queueLengthLimit": 50,
                }},
            }},
        }));
    }
    levels
}

fn flow_schemas() -> Vec<Value> {
    let group = |name: &str| json!({ "kind": "Group", "group": { "name": name } });
    let user = |name: &str| json!({ "kind": "User", "user": { "name": name } });
    let account = |namespace: &str, name: &str| json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": namespace, "name": name } });
    let every_path = json!([{ "verbs": ["*"], "nonResourceURLs": ["*"] }]);
    let everything = json!([{
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
        "namespaces": ["*"], "clusterScope": true,
    }]);
    let all = |subjects: Vec<Value>| json!([{ "subjects": subjects, "resourceRules": everything, "nonResourceRules": every_path }]);
    let everybody = vec![group("system:unauthenticated"), group("system:authenticated")];
    let leases = json!([{
        "verbs": ["get", "create", "update"], "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"], "namespaces": ["kube-system"],
    }]);
    let node_rules = json!([
        { "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
          "namespaces": ["*"], "clusterScope": true },
        { "verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
          "namespaces": ["*"] },
    ]);
    let probes = json!([{
        "subjects": everybody,
        "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"] }],
    }]);
    let leader_rule = json!([{
        "subjects": [
            user("system:kube-controller-manager"), user("system:kube-scheduler"),
            account("kube-system", "*"),
        ],
        "resourceRules": leases,
    }]);
    let node_rule = json!([{ "subjects": [group("system:nodes")], "resourceRules": node_rules }]);
    // name, precedence, level, what tells flows apart, rules
    let rows: [(&str, i64, &str, &str, Value); 11] = [
        ("exempt", 1, "exempt", "", all(vec![group("system:masters")])),
        ("probes", 2, "exempt", "", probes),
        ("system-leader-election", 100, "leader-election", "ByUser", leader_rule),
        ("system-node-high", 400, "node-high", "ByUser", node_rule),
        ("system-nodes", 500, "system", "ByUser", all(vec![group("system:nodes")])),
        (
            "kube-controller-manager",
            800,
            "workload-high",
            "ByNamespace",
            all(vec![user("system:kube-controller-manager")]),
        ),
        (
            "kube-scheduler",
            800,
            "workload-high",
            "ByNamespace",
            all(vec![user("system:kube-scheduler")]),
        ),
        (
            "kube-system-service-accounts",
            900,
            "workload-high",
            "ByNamespace",
            all(vec![account("kube-system", "*")]),
        ),
        (
            "service-accounts",
            9000,
            "workload-low",
            "ByUser",
            all(vec![group("system:serviceaccounts")]),
        ),
        ("global-default", 9900, "global-default", "ByUser", all(everybody.clone())),
        ("catch-all", 10000, "catch-all", "ByUser", all(everybody)),
    ];
    rows.into_iter()
        .map(|(name, precedence, level, by, rules)| {
            let mut spec = json!({
                "priorityLevelConfiguration": { "name": level },
                "matchingPrecedence": precedence,
                "rules": rules,
            });
            if !by.is_empty() {
                spec["distinguisherMethod"] = json!({ "type": by });
            }
            json!({ "metadata": annotated(name), "spec": spec })
        })
        .collect()
}
