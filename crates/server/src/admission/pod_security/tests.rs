//! Verdicts of the Pod Security Standards, by level and version.

use headwater_json::json;

use super::*;

fn verdict(level: SecurityLevel, minor: Option<u32>, pod: &Value) -> String {
    details(&violations(LevelVersion { level, minor }, PodShape::of(pod)))
}

fn container(context: &Value) -> Value {
    json!({ "spec": { "containers": [{ "name": "a", "securityContext": context }] } })
}

/// A container that the restricted level allows.
fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
        "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

#[test]
fn the_baseline_forbids_known_privilege_escalations() {
    let of_container = |key: &str, value: Value| {
        let mut pod = container(&json!({}));
        pod["spec"]["containers"][0][key] = value;
        pod
    };
    let of_pod = |key: &str, value: Value| {
        let mut pod = container(&json!({}));
        pod["spec"][key] = value;
        pod
    };
    let annotated = json!({
        "metadata": { "annotations": {
            "container.apparmor.security.beta.kubernetes.io/a": "unconfined",
            "container.apparmor.security.beta.kubernetes.io/b": "localhost/x",
        } },
        "spec": { "containers": [] },
    });
    for (pod, expected) in [
        (container(&json!({})), ""),
        (container(&json!({ "capabilities": { "add": ["CHOWN"] } })), ""),
        (
            container(&json!({ "capabilities": { "add": ["SYS_ADMIN", "KILL", "NET_RAW"] } })),
            "non-default capabilities (container \"a\" must not include \"NET_RAW\", \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            container(&json!({ "privileged": true, "procMount": "Unmasked" })),
            "privileged (container \"a\" must not set securityContext.privileged=true), procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            container(&json!({ "seLinuxOptions": { "type": "spc_t", "user": "u", "role": "r" } })),
            "seLinuxOptions (container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set; role may not be set)",
        ),
        (container(&json!({ "seLinuxOptions": { "level": "s0" } })), ""),
        (
            container(&json!({ "appArmorProfile": { "type": "Unconfined" } })),
            "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            annotated,
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
        ),
        (
            container(&json!({ "windowsOptions": { "hostProcess": true } })),
            "hostProcess (container \"a\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            of_container("ports", json!([{ "hostPort": 81 }, { "hostPort": 80 }, {}])),
            "hostPort (container \"a\" uses hostPorts 80, 81)",
        ),
        (
            of_container("livenessProbe", json!({ "httpGet": { "host": "1.2.3.4" } })),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"1.2.3.4\")",
        ),
        (
            of_container("lifecycle", json!({ "preStop": { "tcpSocket": { "host": "h" } } })),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"h\")",
        ),
        (of_pod("hostPID", json!(true)), "host namespaces (hostPID=true)"),
        (
            of_pod("volumes", json!([{ "name": "v", "hostPath": { "path": "/" } }])),
            "hostPath volumes (volume \"v\")",
        ),
        (
            of_pod(
                "securityContext",
                json!({ "sysctls": [{ "name": "kernel.msgmax" }, { "name": "net.ipv4.tcp_rmem" }] }),
            ),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            of_pod("securityContext", json!({ "seccompProfile": { "type": "Unconfined" } })),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
    ] {
        assert_eq!(verdict(SecurityLevel::Baseline, None, &pod), expected, "{pod}");
        assert_eq!(verdict(SecurityLevel::Privileged, None, &pod), "", "{pod}");
    }
}

#[test]
fn the_restricted_level_asks_for_hardening() {
    assert_eq!(verdict(SecurityLevel::Restricted, None, &container(&restricted())), "");
    let plain = verdict(SecurityLevel::Restricted, None, &container(&json!({})));
    assert_eq!(
        plain,
        "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let change = |key: &str, value: Value| {
        let mut context = restricted();
        context[key] = value;
        container(&context)
    };
    let pod = |key: &str, value: Value| {
        let mut pod = container(&restricted());
        pod["spec"][key] = value;
        pod
    };
    for (pod, expected) in [
        (
            change("runAsNonRoot", json!(false)),
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
        (change("runAsUser", json!(0)), "runAsUser=0 (container \"a\" must not set runAsUser=0)"),
        (change("runAsUser", json!(1)), ""),
        (
            change("capabilities", json!({ "drop": ["all"], "add": ["CHOWN"] })),
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]; container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            pod("volumes", json!([{ "name": "v", "nfs": {} }, { "name": "w", "hostPath": {} }])),
            "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")",
        ),
        (pod("volumes", json!([{ "name": "v", "csi": {} }])), ""),
        (
            pod("securityContext", json!({ "runAsNonRoot": false, "runAsUser": 0 })),
            "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false), runAsUser=0 (pod must not set runAsUser=0)",
        ),
    ] {
        assert_eq!(verdict(SecurityLevel::Restricted, None, &pod), expected, "{pod}");
    }
}

#[test]
fn checks_change_with_versions() {
    let names = |minor, pod: &Value| {
        let policy = LevelVersion { level: SecurityLevel::Restricted, minor };
        reasons(&violations(policy, PodShape::of(pod)))
    };
    let plain = container(&json!({}));
    let escalation = "allowPrivilegeEscalation != false";
    for (minor, expected) in [
        (0, "runAsNonRoot != true".to_owned()),
        (8, format!("{escalation}, runAsNonRoot != true")),
        (19, format!("{escalation}, runAsNonRoot != true, seccompProfile")),
        (
            22,
            format!(
                "{escalation}, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
            ),
        ),
        (
            99,
            format!(
                "{escalation}, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
            ),
        ),
    ] {
        assert_eq!(names(Some(minor), &plain), expected, "v1.{minor}");
    }
    let mut windows = container(&json!({ "runAsNonRoot": true }));
    windows["spec"]["os"] = json!({ "name": "windows" });
    assert_eq!(names(None, &windows), "");
    assert_ne!(names(Some(24), &windows), "");
    // Root in a user namespace of its own is nobody outside.
    let mut own = container(&restricted());
    own["spec"]["hostUsers"] = false.into();
    own["spec"]["containers"][0]["securityContext"]["runAsUser"] = 0.into();
    own["spec"]["containers"][0]["securityContext"]["procMount"] = "Unmasked".into();
    assert_eq!(names(Some(34), &own), "procMount, runAsUser=0");
    assert_eq!(names(None, &own), "procMount");
    assert_eq!(verdict(SecurityLevel::Baseline, None, &own), "");
    let sysctl =
        |name: &str| json!({ "spec": { "securityContext": { "sysctls": [{ "name": name }] } } });
    for (name, since) in [("net.ipv4.ip_local_reserved_ports", 27), ("net.ipv4.tcp_wmem", 32)] {
        assert_ne!(verdict(SecurityLevel::Baseline, Some(since - 1), &sysctl(name)), "", "{name}");
        assert_eq!(verdict(SecurityLevel::Baseline, Some(since), &sysctl(name)), "", "{name}");
    }
    let annotated = json!({
        "metadata": { "annotations": { "seccomp.security.alpha.kubernetes.io/pod": "unconfined" } },
        "spec": { "containers": [] },
    });
    assert_eq!(
        verdict(SecurityLevel::Baseline, Some(18), &annotated),
        "seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")"
    );
    assert_eq!(verdict(SecurityLevel::Baseline, Some(19), &annotated), "");
}

#[test]
fn lists_of_pods_are_cut_to_the_first_name() {
    let pods = |count| ("a".to_owned(), count);
    assert_eq!(shown("hostPort", &pods(1)), "a: hostPort");
    assert_eq!(shown("hostPort", &pods(2)), "a (and 1 other pod): hostPort");
    assert_eq!(shown("hostPort", &pods(4)), "a (and 3 other pods): hostPort");
}
