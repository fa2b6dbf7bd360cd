//! Certificate signing requests: the requester, the rights of approvers and signers (S8.15).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Value, json};
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::api::Api;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// A request for a certificate of a user in these groups; the last one counts.
fn request(name: &str, organization: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "alice");
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({
        "metadata": { "name": name },
        "spec": {
            "request": STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
        },
    })
}

/// S8.15
#[tokio::test(start_paused = true)]
async fn the_requester_is_the_user_that_sent_the_request() {
    let api = Api::start().await;
    let mut body = request("a", "dev");
    let forged = json!({
        "username": "system:admin", "uid": "0", "groups": ["system:masters"],
        "extra": { "scopes": ["all"] },
    });
    for (key, value) in forged.as_object().unwrap() {
        body["spec"][key.as_str()] = value.clone();
    }
    let spec = api.create(REQUESTS, &body).await["spec"].clone();
    assert_eq!(spec["username"], "kubernetes-admin");
    assert_eq!(spec["groups"], json!(["system:masters", "system:authenticated"]));
    assert_eq!((spec.get("uid"), spec.get("extra")), (None, None));

    // Another user, by impersonation: that user is the requester.
    body["metadata"]["name"] = "b".into();
    let head = "\nContent-Type: application/json\nImpersonate-User: jane\n\
                Impersonate-Group: system:masters\nImpersonate-Uid: 7\nImpersonate-Extra-Team: x";
    let made = api.send(&format!("POST {REQUESTS}{head}"), body.to_string()).await.json();
    let spec = &made["spec"];
    assert_eq!((&spec["username"], &spec["uid"]), (&json!("jane"), &json!("7")));
    assert_eq!(spec["extra"], json!({ "team": ["x"] }));

    // It stays, whoever updates the request, and by whatever path.
    for (path, part) in [("", "spec"), ("/status", "spec"), ("/approval", "spec")] {
        let change = json!({ part: { "username": "mallory", "groups": ["system:masters"] } });
        let target = format!("{REQUESTS}/b{path}");
        let answer = api.merge(&target, &change).await;
        assert_eq!(answer.code, 200, "{}", answer.text());
        assert_eq!(answer.json()["spec"], *spec, "{path}");
    }
    // Nobody manages what the server writes.
    let managed = made["metadata"]["managedFields"].to_string();
    assert!(managed.contains("f:signerName"), "{managed}");
}

/// S8.15
#[tokio::test(start_paused = true)]
async fn a_certificate_of_an_administrator_cannot_be_requested() {
    let api = Api::start().await;
    let answer = api.post(REQUESTS, &request("a", "system:masters")).await;
    answer.is(403, "signer with system:masters group is not allowed");
    let mut broken = request("b", "dev");
    let pem = "-----BEGIN CERTIFICATE REQUEST-----\nMAMCAQE=\n-----END CERTIFICATE REQUEST-----\n";
    broken["spec"]["request"] = STANDARD.encode(pem).into();
    api.post(REQUESTS, &broken).await.is(403, "unable to parse csr");
    // Other signers have their own rules.
    let mut other = request("c", "system:masters");
    other["spec"]["signerName"] = "example.com/mine".into();
    api.create(REQUESTS, &other).await;
}

fn conditions(names: &[&str]) -> Value {
    let all = names.iter().map(|name| json!({ "type": name, "status": "True", "reason": "x" }));
    json!({ "status": { "conditions": all.collect::<Vec<_>>() } })
}

/// S8.15
#[tokio::test(start_paused = true)]
async fn an_approval_and_a_certificate_are_final() {
    let api = Api::start().await;
    api.create(REQUESTS, &request("a", "dev")).await;
    let (status, approval) = (format!("{REQUESTS}/a/status"), format!("{REQUESTS}/a/approval"));
    let types = |object: &Value| -> Vec<String> {
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().map(|held| held["type"].as_str().unwrap().to_owned()).collect()
    };
    // The status subresource approves nothing.
    let written = api.merge(&status, &conditions(&["Approved", "Failed"])).await.json();
    assert_eq!(types(&written), ["Failed"]);
    api.merge(&approval, &conditions(&["Approved", "Denied", "Failed"])).await.is(422, "exclusive");
    let mut unsure = conditions(&["Failed", "Approved"]);
    unsure["status"]["conditions"][1]["status"] = "False".into();
    api.merge(&approval, &unsure).await.is(422, "supported values");
    let approved = api.merge(&approval, &conditions(&["Failed", "Approved"])).await.json();
    assert_eq!(types(&approved), ["Failed", "Approved"]);
    let first = &approved["status"]["conditions"][1];
    assert_eq!(first["lastTransitionTime"], crate::api::NOW);
    assert_eq!(first["lastUpdateTime"], crate::api::NOW);
    api.merge(&approval, &conditions(&["Failed"])).await.is(422, "may not remove");
    let kept = api.merge(&status, &json!({ "status": { "conditions": [] } })).await;
    kept.is(422, "updates may not remove a condition of type");

    let certificate = |text: &str| json!({ "status": { "certificate": STANDARD.encode(text) } });
    assert_eq!(api.merge(&status, &certificate("one")).await.code, 200);
    api.merge(&status, &certificate("two")).await.is(422, "field is immutable");
    // Labels may change together with the approval.
    let labelled = api.merge(&approval, &json!({ "metadata": { "labels": { "a": "b" } } })).await;
    assert_eq!(labelled.json()["metadata"]["labels"]["a"], "b");
}
