//! Objects as users write them and as they are stored.

use headwater_json::json;

use super::*;
use crate::decode;
use headwater_api::kind::builtin;

fn kind(group: &str, name: &str) -> Kind {
    let mut kinds = builtin().into_iter();
    kinds.find(|kind| kind.group == group && kind.kind == name).unwrap()
}

fn defaulted(kind: &Kind, body: &Value) -> Value {
    let mut value = decode::refit(kind, body.clone(), None).unwrap().value;
    apply(kind, &mut value, None);
    let once = value.clone();
    apply(kind, &mut value, None);
    assert_eq!(value, once, "applying defaults twice");
    let refitted = decode::refit(kind, value.clone(), None).unwrap();
    assert_eq!(refitted.value, value, "defaults have the right shape");
    value
}

#[track_caller]
fn check(group: &str, name: &str, body: &Value, path: &str, expected: &Value) {
    let value = defaulted(&kind(group, name), body);
    assert_eq!(value.pointer(path), Some(expected), "{value:#}");
}

#[test]
fn a_service_gets_the_defaults_of_kubernetes() {
    let body = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    check(
        "",
        "Service",
        &body,
        "/spec",
        &json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            "selector": {"a": "b"}, "sessionAffinity": "None", "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack"}),
    );
    let body = json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP",
        "ports": [{"port": 1, "targetPort": "http"}]}});
    let spec = &defaulted(&kind("", "Service"), &body)["spec"];
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    assert_eq!(spec["ports"][0]["targetPort"], "http");
}

#[test]
fn a_pod_gets_the_defaults_of_kubernetes() {
    let body = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "img",
        "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}},
        "livenessProbe": {"httpGet": {"port": 80}}}], "volumes": [{"name": "v"}]}});
    check(
        "",
        "Pod",
        &body,
        "/spec",
        &json!({"containers": [{"name": "c", "image": "img", "imagePullPolicy": "Always",
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            "livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                "failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1,
                "timeoutSeconds": 1},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {},
            "terminationGracePeriodSeconds": 30}),
    );
}

#[test]
fn a_deployment_gets_the_defaults_of_kubernetes() {
    let body = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template":
        {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1",
            "resources": {"limits": {"cpu": "1"}}}]}}}});
    check(
        "apps",
        "Deployment",
        &body,
        "/spec",
        &json!({"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [{"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
                    "resources": {"limits": {"cpu": "1"}},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {},
                "terminationGracePeriodSeconds": 30}}}),
    );
    let recreate = json!({"spec": {"strategy": {"type": "Recreate"}}});
    check("apps", "Deployment", &recreate, "/spec/strategy", &json!({"type": "Recreate"}));
}

/// S7.2
#[test]
fn other_kinds_get_their_defaults() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    check("apps", "StatefulSet", &json!({}), "/spec/updateStrategy", &strategy);
    let strategy = json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}});
    check(
        "apps",
        "StatefulSet",
        &strategy,
        "/spec/updateStrategy",
        &strategy["spec"]["updateStrategy"],
    );
    let claims = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "d"}}]}});
    check(
        "apps",
        "StatefulSet",
        &claims,
        "/spec/volumeClaimTemplates/0/kind",
        &json!("PersistentVolumeClaim"),
    );
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    check("apps", "DaemonSet", &json!({}), "/spec/updateStrategy", &strategy);
    check("batch", "Job", &json!({}), "/spec/completions", &json!(1));
    check("batch", "Job", &json!({"spec": {"parallelism": 2}}), "/spec/parallelism", &json!(2));
    let cron = json!({"spec": {"jobTemplate": {"spec": {}}}});
    let cron = defaulted(&kind("batch", "CronJob"), &cron);
    assert_eq!(cron["spec"]["concurrencyPolicy"], "Allow");
    assert_eq!(cron.pointer("/spec/jobTemplate/spec/completions"), None);
    assert_eq!(
        cron.pointer("/spec/jobTemplate/spec/template/spec/dnsPolicy"),
        Some(&json!("ClusterFirst"))
    );
    let binding = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]});
    let binding = defaulted(&kind("rbac.authorization.k8s.io", "RoleBinding"), &binding);
    assert_eq!(binding["roleRef"]["apiGroup"], "rbac.authorization.k8s.io");
    assert_eq!(binding["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    assert_eq!(binding["subjects"][1].get("apiGroup"), None);
    let secret = json!({"data": {"a": "YQ=="}, "stringData": {"a": "b", "c": "é"}});
    let secret = defaulted(&kind("", "Secret"), &secret);
    assert_eq!(secret["data"], json!({"a": "Yg==", "c": "w6k="}));
    assert_eq!((secret.get("stringData"), &secret["type"]), (None, &json!("Opaque")));
    let namespace =
        json!({"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "x"}}});
    let labels = json!({"kubernetes.io/metadata.name": "n"});
    check("", "Namespace", &namespace, "/metadata/labels", &labels);
    let policy = json!({"spec": {"egress": [{"ports": [{"port": 80}]}]}});
    check(
        "networking.k8s.io",
        "NetworkPolicy",
        &policy,
        "/spec/policyTypes",
        &json!(["Ingress", "Egress"]),
    );
    check(
        "networking.k8s.io",
        "NetworkPolicy",
        &policy,
        "/spec/egress/0/ports/0/protocol",
        &json!("TCP"),
    );
    let limits = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}});
    check(
        "",
        "LimitRange",
        &limits,
        "/spec/limits/0/defaultRequest",
        &json!({"cpu": "2", "memory": "1Mi"}),
    );
    let scaler = json!({"spec": {"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}});
    let scaler = defaulted(&kind("autoscaling", "HorizontalPodAutoscaler"), &scaler);
    assert_eq!(scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
    assert_eq!(scaler["spec"]["behavior"]["scaleUp"]["policies"][0]["value"], 4);
    assert_eq!(scaler["spec"]["behavior"]["scaleDown"]["selectPolicy"], "Disabled");
    let level = json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}});
    let level =
        defaulted(&kind("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"), &level);
    assert_eq!(
        level["spec"]["limited"]["limitResponse"]["queuing"],
        json!({"queues": 64, "handSize": 8, "queueLengthLimit": 50})
    );
    assert_eq!(level["spec"]["limited"]["nominalConcurrencyShares"], 30);
}

#[test]
fn creation_clears_the_status_and_starts_bookkeeping() {
    let prepared = |group: &str, name: &str, body: &Value| {
        let kind = kind(group, name);
        let mut value = defaulted(&kind, body);
        prepare_for_create(&kind, &mut value);
        value
    };
    let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}, "status": {"phase": "Running"}});
    assert_eq!(
        prepared("", "Pod", &pod)["status"],
        json!({"phase": "Pending", "qosClass": "Guaranteed"})
    );
    let spec = &prepared("", "Pod", &pod)["spec"];
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    let tolerant = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    assert_eq!(
        prepared("", "Pod", &tolerant)["spec"]["tolerations"],
        json!([{"operator": "Exists"}])
    );
    let deployment = json!({"status": {"replicas": 9}});
    assert_eq!(prepared("apps", "Deployment", &deployment)["status"], json!({}));
    let service = json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
    assert_eq!(prepared("", "Service", &service)["status"], json!({"loadBalancer": {}}));
    let node = json!({"status": {"capacity": {"cpu": "4"}}});
    assert_eq!(prepared("", "Node", &node)["status"]["allocatable"], json!({"cpu": "4"}));
    let namespace = prepared("", "Namespace", &json!({"metadata": {"name": "n"}}));
    assert_eq!(namespace["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(namespace["status"], json!({"phase": "Active"}));
    let job = prepared("batch", "Job", &json!({"metadata": {"name": "j", "uid": "u"}}));
    assert_eq!(
        job["spec"]["selector"],
        json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}})
    );
    assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
    let daemon = prepared("apps", "DaemonSet", &json!({}));
    assert_eq!(daemon["metadata"]["annotations"]["deprecated.daemonset.template.generation"], "1");
}

#[test]
fn an_update_keeps_status_and_allocated_values() {
    let kind = kind("", "Service");
    let old = json!({"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "NodePort",
        "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}, "status": {"loadBalancer": {}}});
    let mut new = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]},
        "status": {"loadBalancer": {"ingress": []}}});
    prepare_for_update(&kind, &mut new, &old);
    assert_eq!(new["spec"]["clusterIP"], "10.0.0.1");
    assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(new["spec"]["ports"][1].get("nodePort"), None);
    assert_eq!(new["status"], json!({"loadBalancer": {}}));
    let mut external = old.clone();
    external["spec"]["type"] = "ExternalName".into();
    prepare_for_update(&kind, &mut external, &old);
    assert_eq!(external["spec"].get("clusterIP"), None);
    assert_eq!(external["spec"]["ports"][0].get("nodePort"), None);
}

#[test]
fn the_qos_class_follows_from_the_resources() {
    let class = |resources: &Value| {
        quality_of_service(
            &json!({"containers": [{"resources": resources}, {"resources": resources}]}),
        )
    };
    assert_eq!(class(&json!({})), "BestEffort");
    assert_eq!(class(&json!({"requests": {"cpu": "1"}})), "Burstable");
    let both = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(class(&json!({"requests": both, "limits": both})), "Guaranteed");
    assert_eq!(class(&json!({"requests": {"cpu": "500m"}, "limits": both})), "Burstable");
    assert_eq!(quality_of_service(&json!({})), "BestEffort");
}
