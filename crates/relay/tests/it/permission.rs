//! Permission: a reader sees what the upstream would let it see, and never with the relay's rights.

use std::time::Duration;

use http::{Method, Request};
use kube::client::Body;
use serde_json::json;

use crate::world::{
    ADMIN, ALICE, BOB, RelayChoices, TestRelay, Upstream, eventually, named, version,
};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

async fn world(choices: RelayChoices) -> (Upstream, TestRelay) {
    let upstream = Upstream::start().await;
    let direct = upstream.client(ADMIN).await;
    direct.put_map("a", "m", "x").await;
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"] }]);
    direct.grant("alice", Some("a"), &rules).await;
    // The relay is the administrator of the upstream, by certificate: the worst case.
    let relay =
        TestRelay::start(upstream.config(true).await, named(&["configmaps"]), choices).await;
    (upstream, relay)
}

/// R97, B287
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_only_what_the_upstream_would_let_it_see() {
    let (upstream, relay) = world(RelayChoices::default()).await;
    for token in [ADMIN, ALICE, BOB, "wrong-token"] {
        let (through, direct) = (relay.client(token).await, upstream.client(token).await);
        for path in [
            MAPS,
            "/api/v1/namespaces/a/configmaps/m",
            "/api/v1/namespaces/b/configmaps",
            "/api/v1/configmaps",
            "/api/v1/configmaps?watch=1&timeoutSeconds=1",
            "/api/v1/namespaces/a/secrets",
            "/api/v1/nodes",
            "/apis",
        ] {
            let (here, there) = (through.get(path).await, direct.get(path).await);
            assert_eq!(here.0, there.0, "{token} {path}: {} {}", here.1, there.1);
            if here.0 >= 400 {
                assert_eq!(here.1["message"], there.1["message"], "{token} {path}");
            }
        }
        let body = json!({ "metadata": { "name": format!("by-{token}") } });
        let here = through.call(Method::POST, MAPS, Some(body)).await;
        let expected = match token {
            ADMIN => 201,
            "wrong-token" => 401,
            _ => 403,
        };
        assert_eq!(here.0, expected, "{token}: {}", here.1);
    }
}

/// R97: the relay's certificate is not shown for those who have no credential.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_passed_on_never_has_the_rights_of_the_relay() {
    let (_upstream, relay) = world(RelayChoices::default()).await;
    let through = relay.client(BOB).await;
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let said = through.ok(Method::POST, path, Some(review)).await;
    assert_eq!(said["status"]["userInfo"]["username"], "bob");
    // Headers of a front proxy and impersonation do not help either.
    for (name, value) in [("x-remote-user", "admin"), ("x-remote-group", "system:masters")] {
        let request =
            Request::get("/api/v1/nodes").header(name, value).body(Body::empty()).unwrap();
        assert_eq!(through.send(request).await.status(), 403, "{name}");
    }
    for path in ["/api/v1/nodes", MAPS] {
        let request =
            Request::get(path).header("impersonate-user", "admin").body(Body::empty()).unwrap();
        assert_eq!(through.send(request).await.status(), 403, "{path}");
    }
    let admin = relay.client(ADMIN).await;
    let request = Request::get(MAPS).header("impersonate-user", "bob").body(Body::empty()).unwrap();
    assert_eq!(admin.send(request).await.status(), 403, "admin as bob");
    let request =
        Request::get(MAPS).header("impersonate-user", "alice").body(Body::empty()).unwrap();
    assert_eq!(admin.send(request).await.status(), 200, "admin as alice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_cannot_be_passed_on_but_its_user_can_be_impersonated() {
    let (_upstream, relay) = world(RelayChoices::default()).await;
    let alice = relay.certified("alice").await;
    assert_eq!(alice.get(MAPS).await.0, 200);
    let (code, status) = alice.get("/api/v1/namespaces/a/secrets").await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 403 && message.contains("--impersonate"), "{code} {message}");
    // A member of system:masters by the relay's authority is still the upstream's to decide about.
    assert_eq!(relay.certified("bob").await.get(MAPS).await.0, 403);

    let choices = RelayChoices { impersonate: true, ..RelayChoices::default() };
    let (_upstream, relay) = world(choices).await;
    let alice = relay.certified("alice").await;
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let said = alice.ok(Method::POST, path, Some(review)).await;
    assert_eq!(said["status"]["userInfo"]["username"], "alice");
    let (code, status) = alice.get("/api/v1/namespaces/a/secrets").await;
    assert!(code == 403 && status["message"].as_str().unwrap().contains("\"alice\""), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_is_gone() {
    let (upstream, relay) = world(RelayChoices::default()).await;
    let through = relay.client(ALICE).await;
    assert_eq!(through.get(MAPS).await.0, 200);
    let admin = upstream.client(ADMIN).await;
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings/alice";
    admin.ok(Method::DELETE, path, None).await;
    eventually(async || (through.get(MAPS).await.0 == 403).then_some(())).await;
}

/// R98
#[tokio::test(flavor = "multi_thread")]
async fn an_open_watch_ends_when_its_reader_loses_the_permission() {
    let choices = RelayChoices {
        recheck_watches: Some(Duration::from_millis(20)),
        ..RelayChoices::default()
    };
    let (mut upstream, relay) = world(choices).await;
    let path = format!("{MAPS}?watch=1&resourceVersion=0");
    let (alice, admin) = (relay.client(ALICE).await, relay.client(ADMIN).await);
    let (mut watch, mut other) = (alice.watch(&path).await, admin.watch(&path).await);
    for lines in [&mut watch, &mut other] {
        assert_eq!(lines.next().await["object"]["metadata"]["name"], "m");
    }
    // Reviews that fail end nothing.
    let reviews = || relay.sent("access_review");
    upstream.stop().await;
    let before = reviews();
    eventually(async || (reviews() > before + 4).then_some(())).await;
    upstream.start_again(true).await;
    let direct = upstream.client(ADMIN).await;
    let written = direct.put_map("a", "after-the-stop", "x").await;
    for lines in [&mut watch, &mut other] {
        assert_eq!(version(&lines.next().await["object"]), written);
    }
    let binding = "/apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings/alice";
    direct.ok(Method::DELETE, binding, None).await;
    let last = watch.next().await;
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(403)), "{last}");
    let (code, refused) = upstream.client(ALICE).await.get(MAPS).await;
    assert_eq!(code, 403);
    let expected = refused["message"].as_str().unwrap().replace("cannot list", "cannot watch");
    assert_eq!(last["object"]["message"], expected);
    assert_eq!(watch.line().await, None);
    // The watch of another reader goes on.
    let written = direct.put_map("a", "after-the-end", "x").await;
    assert_eq!(version(&other.next().await["object"]), written);
}

/// Who cannot be asked about is not let in.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_while_the_upstream_cannot_be_asked() {
    let (mut upstream, relay) = world(RelayChoices::default()).await;
    let (alice, certified) = (relay.client(ALICE).await, relay.certified("alice").await);
    assert_eq!(alice.get(MAPS).await.0, 200);
    upstream.stop().await;
    assert_eq!(alice.get(MAPS).await.0, 401);
    assert_eq!(certified.get(MAPS).await.0, 503);
}
