//! The objects of flow control that every server has (S7.4).
//!
//! River: start-up, upkeep → **defaults** → store. The mandatory ones are in force even while their
//! objects are missing.

use headwater_json::{Value, json};

/// The annotation of objects that are kept as they are here.
pub(crate) const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// The names of the mandatory schemas and levels.
pub(crate) const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// The mandatory ones of these objects, with their names.
pub(super) fn mandatory(objects: Vec<Value>) -> impl Iterator<Item = (String, Value)> {
    objects.into_iter().filter_map(|object| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        MANDATORY.contains(&name.as_str()).then_some((name, object))
    })
}

fn annotated(name: &str) -> Value {
    json!({ "name": name, "annotations": { AUTOUPDATE: "true" } })
}

/// The mandatory and the suggested levels.
pub(crate) fn priority_levels() -> Vec<Value> {
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

/// The mandatory and the suggested schemas.
pub(crate) fn flow_schemas() -> Vec<Value> {
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
    // name, precedence, level, flow distinguisher, rules
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
