//! `kubectl auth` and `kubectl --as`: rights as people see them.

use crate::kubectl::Kubectl;

const ROBOT: &str = "--as system:serviceaccount:team:robot";

/// A namespace with an account that may view it.
fn start() -> Option<Kubectl> {
    let kubectl = Kubectl::start()?;
    kubectl.expect("create namespace team", &["created"]);
    kubectl.expect("create serviceaccount robot -n team", &["created"]);
    kubectl.expect(
        "create rolebinding robot -n team --clusterrole=view --serviceaccount=team:robot",
        &["created"],
    );
    Some(kubectl)
}

/// S8.5, S8.13
#[test]
fn kubectl_shows_who_somebody_is_and_what_they_may_do() {
    let Some(kubectl) = start() else { return };
    kubectl.expect("auth whoami", &["kubernetes-admin", "system:masters"]);
    let jane = "auth whoami --as jane --as-group dev --as-uid 7";
    kubectl.expect(jane, &["jane", "[dev system:authenticated]", "UID", "7"]);
    kubectl.expect(&format!("auth can-i list pods -n team {ROBOT}"), &["yes"]);
    kubectl.expect(&format!("auth can-i get pods --subresource=log -n team {ROBOT}"), &["yes"]);
    for denied in [
        "delete pods -n team",
        "get secrets -n team",
        "list pods",
        "list pods -n default",
        "get /metrics",
    ] {
        let output = kubectl.output(&format!("auth can-i {denied} {ROBOT}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("no") && !output.status.success(), "{denied}: {text}");
    }
    kubectl.expect(&format!("auth can-i get /version {ROBOT}"), &["yes"]);
    let list = kubectl.expect(
        &format!("auth can-i --list -n team {ROBOT}"),
        &["Resources", "configmaps", "deployments.apps", "[get list watch]", "[/healthz]"],
    );
    assert!(!list.contains("secrets") && !list.contains("Warning"), "{list}");
    let admin = kubectl.expect("auth can-i --list", &["*.*"]);
    assert!(admin.contains("[*]"), "{admin}");
}

/// S8.12
#[test]
fn kubectl_reconciles_roles_and_nobody_escalates() {
    let Some(kubectl) = start() else { return };
    let file = kubectl.dir.path().join("roles.yaml");
    let role = |verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
             metadata: {{name: deployer, namespace: team}}\n\
             rules: [{{apiGroups: [apps], resources: [deployments], verbs: [{verbs}]}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
             metadata: {{name: deployer, namespace: team}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: deployer}}\n\
             subjects: [{{kind: ServiceAccount, name: robot, namespace: team}}]\n"
        )
    };
    std::fs::write(&file, role("create, patch")).unwrap();
    let reconcile = format!("auth reconcile -f {}", file.display());
    let expected = ["role.rbac.authorization.k8s.io/deployer reconciled", "rolebinding"];
    kubectl.expect(&reconcile, &expected);
    kubectl.expect(&format!("auth can-i patch deployments.apps -n team {ROBOT}"), &["yes"]);
    // Missing rights are added, others stay, unless they are to be removed.
    std::fs::write(&file, role("delete")).unwrap();
    kubectl.expect(&reconcile, &["reconciled"]);
    kubectl.expect(&format!("auth can-i patch deployments.apps -n team {ROBOT}"), &["yes"]);
    kubectl.expect(&format!("auth can-i delete deployments.apps -n team {ROBOT}"), &["yes"]);
    kubectl.expect(&format!("{reconcile} --remove-extra-permissions"), &["reconciled"]);
    let output = kubectl.output(&format!("auth can-i patch deployments.apps -n team {ROBOT}"));
    assert!(!output.status.success());

    // `admin` in a namespace may grant what it holds, and no more.
    kubectl.expect("create rolebinding jane -n team --clusterrole=admin --user=jane", &["created"]);
    kubectl.expect(
        "create rolebinding joe -n team --clusterrole=view --user=joe --as jane",
        &["created"],
    );
    let root = "create rolebinding root -n team --clusterrole=cluster-admin --user=jane --as jane";
    kubectl.expect_failure(root, "is attempting to grant RBAC permissions not currently held");
    let root = "create clusterrolebinding root --clusterrole=cluster-admin --user=jane --as jane";
    kubectl.expect_failure(root, "User \"jane\" cannot create resource \"clusterrolebindings\"");
}
