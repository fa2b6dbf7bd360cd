//! Certificates and tokens: requests are approved, signed and cleaned up; Secrets are filled.

use std::sync::Arc;

use headwater_client::{Cached, Snapshot};
use headwater_controllers::Options;
use headwater_controllers::certificates::{AskedCertificate, CertificateSigner};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::World;

const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// A signer that refuses server certificates.
struct TestSigner;

impl CertificateSigner for TestSigner {
    fn sign(&self, asked: &AskedCertificate<'_>, _: Timestamp) -> Result<String, String> {
        match asked.usages.iter().any(|usage| usage == "server auth") {
            true => Err("no server certificates".to_owned()),
            false => Ok(String::from_utf8(asked.pem.to_vec()).unwrap().replace(" REQUEST", "")),
        }
    }

    fn permitted_name(&self, asked: &AskedCertificate<'_>) -> Option<String> {
        (asked.signer == KUBELET).then(|| "system:node:n".to_owned())
    }
}

fn request(name: &str, signer: &str, usage: &str) -> Value {
    let pem = "-----BEGIN CERTIFICATE REQUEST-----\nMAMCAQE=\n-----END CERTIFICATE REQUEST-----\n";
    json!({
        "metadata": {"name": name},
        "spec": {"request": ByteString(pem.into()), "signerName": signer, "usages": [usage]},
    })
}

fn has(name: &'static str) -> impl FnMut(Option<&CertificateSigningRequest>) -> bool {
    move |request| {
        let status = request.and_then(|request| request.status.as_ref());
        let all = status.and_then(|status| status.conditions.as_ref());
        all.is_some_and(|all| all.iter().any(|held| held.type_ == name))
    }
}

fn is_signed(request: Option<&CertificateSigningRequest>) -> bool {
    let status = request.and_then(|request| request.status.as_ref());
    status.is_some_and(|status| status.certificate.is_some())
}

async fn approve(world: &World, name: &str) {
    let requests = Api::<CertificateSigningRequest>::all(world.client());
    let condition = json!({"type": "Approved", "status": "True", "reason": "Test"});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    requests.patch_approval(name, &PatchParams::default(), &patch).await.unwrap();
}

/// S8.15
#[tokio::test]
async fn requests_are_signed_after_an_approval_and_those_of_kubelets_are_approved() {
    let world = World::start().await;
    let cluster = world.cluster().with_signer(Arc::new(TestSigner));
    let options = Options::new("csrapproving,csrsigning,csrcleaner".parse().unwrap());
    let running = world.run_on(cluster, options);
    // The user of the test may have kubelets approved.
    world.create::<CertificateSigningRequest>(request("kubelet", KUBELET, "client auth")).await;
    let approved = world.until("kubelet", is_signed).await.unwrap();
    let conditions = approved.status.as_ref().unwrap().conditions.as_ref().unwrap();
    assert_eq!(conditions[0].reason.as_deref(), Some("AutoApproved"));
    // Others wait for a person, and foreign signers for their own controller.
    for (name, signer, usage) in [
        ("server", "kubernetes.io/kubelet-serving", "server auth"),
        ("other", "example.com/signer", "client auth"),
    ] {
        world.create::<CertificateSigningRequest>(request(name, signer, usage)).await;
        approve(&world, name).await;
    }
    let failed = world.until("server", has("Failed")).await.unwrap();
    assert!(!is_signed(Some(&failed)) && has("Approved")(Some(&failed)));
    let other = world.until("other", has("Approved")).await.unwrap();
    assert!(!is_signed(Some(&other)));
    running.stop().await;
}

fn account_token(account: &str) -> Value {
    json!({
        "metadata": {
            "name": "token", "namespace": "default",
            "annotations": {"kubernetes.io/service-account.name": account},
        },
        "type": "kubernetes.io/service-account-token",
    })
}

/// S2.55
#[tokio::test]
async fn the_secret_of_a_service_account_gets_a_token_and_ends_with_the_account() {
    let world = World::start().await;
    let cluster = world.cluster().with_root_ca("CA");
    let options = Options::new("serviceaccount-token".parse().unwrap());
    let running = world.run_on(cluster, options);
    let account = json!({"metadata": {"name": "robot", "namespace": "default"}});
    let account: ServiceAccount = world.create(account).await;
    world.create::<Secret>(account_token("robot")).await;
    let is_filled = |secret: Option<&Secret>| {
        let data = secret.and_then(|secret| secret.data.as_ref());
        data.is_some_and(|data| data.contains_key("token"))
    };
    let filled = world.until("default/token", is_filled).await.unwrap();
    let data = filled.data.as_ref().unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!((text("ca.crt"), text("namespace")), ("CA".to_owned(), "default".to_owned()));
    assert_eq!(text("token").split('.').count(), 3);
    let annotations = filled.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubernetes.io/service-account.uid"], account.uid());
    // What somebody removes comes back; the token is not replaced.
    world.merge::<Secret>("default/token", json!({"data": {"ca.crt": null}})).await;
    let has_ca = |secret: Option<&Secret>| {
        secret.and_then(|it| it.data.as_ref()).is_some_and(|data| data.contains_key("ca.crt"))
    };
    let again = world.until("default/token", has_ca).await.unwrap();
    assert_eq!(again.data.as_ref().unwrap()["token"], data["token"]);
    let key = "default/robot".parse().unwrap();
    world.calls.of::<ServiceAccount>().delete(&key).await.unwrap();
    world.until_all(|secrets: &Snapshot<Secret>| secrets.is_empty().then_some(())).await;
    running.stop().await;
}

/// S8.17
#[tokio::test]
async fn expired_bootstrap_tokens_are_deleted() {
    let world = World::start().await;
    let token = |name: &str, expiration: &str| {
        json!({
            "metadata": {"name": name, "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {"expiration": ByteString(expiration.into())},
        })
    };
    world.create::<Secret>(token("bootstrap-token-aaaaaa", "2020-01-01T00:00:00Z")).await;
    world.create::<Secret>(token("bootstrap-token-bbbbbb", "2999-01-01T00:00:00Z")).await;
    let running = world.run("tokencleaner");
    world
        .until_all(|secrets: &Snapshot<Secret>| {
            let names: Vec<String> =
                secrets.iter().map(|(_, secret)| secret.name().to_owned()).collect();
            (names == ["bootstrap-token-bbbbbb"]).then_some(())
        })
        .await;
    running.stop().await;
}
