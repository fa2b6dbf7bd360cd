//! Starts with TLS, with authentication, and with invalid settings. A rejected start writes
//! nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use headwater_store::{Action, Guard, Key, Range, Store, Write};
use headwater_store_etcd::{Error, EtcdStore, Login, Options, Tls};
use headwater_testkit::etcd;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture;

/// Writes and reads through a store.
async fn works(options: Options) {
    let engine = EtcdStore::connect(options).await.unwrap();
    let key = Key::new("/a");
    let put = Action::Put { value: Bytes::from_static(b"{}"), ttl: None };
    let at = engine.commit(Write::one(key.clone(), Guard::Absent, put)).await.unwrap().last;
    assert_eq!(engine.get(&key).await.unwrap().unwrap().revision, at);
}

async fn refused(options: Options, expected: &str) -> Error {
    let error = EtcdStore::connect(options).await.err().expect("it is refused");
    assert!(error.to_string().contains(expected), "{error}");
    error
}

/// The newest revision: grows with every write.
fn revision(members: &etcd::EtcdCluster) -> Value {
    let answer = members.post(0, "/v3/kv/range", &json!({"key": "AA=="})).unwrap();
    answer["header"]["revision"].clone()
}

#[tokio::test]
async fn an_endpoint_without_a_listener_is_named() {
    let Some(mut members) = etcd::EtcdCluster::start() else { return };
    let options = fixture::options(&members);
    members.kill(0);
    let url = options.endpoints[0].clone();
    let error = refused(options, "no etcd member responds").await.to_string();
    assert!(error.contains(&url) && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_is_not_etcd_is_rejected() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mute = async {
        while let Ok((socket, _)) = listener.accept().await {
            drop(socket)
        }
    };
    let options = Options { endpoints: vec![url], ..Options::default() };
    tokio::select! {
        () = mute => panic!("it listens as long as it is asked"),
        _ = refused(options, "no etcd member responds") => {}
    }
}

#[tokio::test]
async fn members_without_a_quorum_are_distinguished_from_unreachable_members() {
    let Some(mut members) = etcd::EtcdCluster::cluster(3, etcd::Options::default()) else { return };
    members.kill(1);
    members.kill(2);
    let options = Options { deadline: fixture::DEADLINE, ..fixture::options(&members) };
    let error = refused(options, "etcd has no quorum").await;
    assert!(matches!(error, Error::NoQuorum(_)));
}

#[tokio::test]
async fn a_prefix_with_values_of_kubernetes_is_rejected_and_nothing_is_written() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    // "/test/pods/default/web" with a value that starts with "k8s\0".
    let put = json!({"key": "L3Rlc3QvcG9kcy9kZWZhdWx0L3dlYg==", "value": "azhzAAoJCgJ2MQ=="});
    members.post(0, "/v3/kv/put", &put).unwrap();
    let before = revision(&members);
    let options = Options { compaction: Some(Duration::ZERO), ..fixture::options(&members) };
    let error = refused(options.clone(), "/test/pods/default/web").await.to_string();
    assert!(error.contains("protobuf") && error.contains("--etcd-prefix"), "{error}");
    assert_eq!(revision(&members), before);
    works(Options { prefix: "/elsewhere".into(), ..options }).await;
}

/// B268
#[tokio::test]
async fn one_foreign_value_among_our_objects_ends_no_server() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let options = fixture::options(&members);
    let store = EtcdStore::connect(options.clone()).await.unwrap();
    let key = |name: &str| Key::new(format!("{}core/namespaces/{name}", options.root));
    let value = Bytes::from_static(br#"{"metadata":{"name":"default"}}"#);
    let put = Write::one(key("default"), Guard::Absent, Action::Put { value, ttl: None });
    store.commit(put).await.unwrap();
    // The value of "/test/core/namespaces/a" starts with "k8s\0"; the other key is not UTF-8.
    for put in [
        json!({"key": "L3Rlc3QvY29yZS9uYW1lc3BhY2VzL2E=", "value": "azhzAAo="}),
        json!({"key": "L3Rlc3QvY29yZS9uYW1lc3BhY2VzL/8=", "value": "e30="}),
    ] {
        members.post(0, "/v3/kv/put", &put).unwrap();
    }
    works(options.clone()).await;
    let range = Range { prefix: options.root.clone(), ..Range::default() };
    let found = store.range(range).await.unwrap().records;
    let keys: Vec<Key> = found.into_iter().map(|record| record.key).collect();
    assert_eq!(keys, [Key::new("/a"), key("a"), key("default")]);
    assert!(
        store.get(&key("a")).await.unwrap().is_some_and(|record| record.value.starts_with(b"k8s"))
    );
}

#[tokio::test]
async fn an_unfinished_write_of_an_earlier_version_is_not_ignored() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    // "/test.headwater/journal"
    let key = json!({"key": "L3Rlc3QuaGVhZHdhdGVyL2pvdXJuYWw="});
    members.post(0, "/v3/kv/put", &key).unwrap();
    let error = refused(fixture::options(&members), "unfinished write").await.to_string();
    assert!(error.contains("/test.headwater/journal"), "{error}");
    members.post(0, "/v3/kv/deleterange", &key).unwrap();
    works(fixture::options(&members)).await;
}

/// A member with two users: root, and a guest without permissions.
fn with_users() -> Option<etcd::EtcdCluster> {
    let members = etcd::EtcdCluster::start()?;
    let post = |path: &str, body: Value| members.post(0, path, &body).unwrap();
    post("/v3/auth/user/add", json!({"name": "root", "password": "secret"}));
    post("/v3/auth/user/add", json!({"name": "guest", "password": "guest"}));
    post("/v3/auth/role/add", json!({"name": "root"}));
    post("/v3/auth/user/grant", json!({"user": "root", "role": "root"}));
    post("/v3/auth/enable", json!({}));
    Some(members)
}

/// B271
#[tokio::test(flavor = "multi_thread")]
async fn the_client_logs_in_again_after_etcd_restarted() {
    let Some(mut members) = with_users() else { return };
    let login = Login { name: "root".into(), password: "secret".into() };
    let options = Options { login: Some(login), ..fixture::options(&members) };
    let store = EtcdStore::connect(options).await.unwrap();
    let mut watch = store.watch("/", store.revision().await.unwrap()).await.unwrap();
    // etcd keeps its users, but not the issued tokens.
    members.restart(0);
    let put = Action::Put { value: Bytes::new(), ttl: None };
    let write = Write::one(Key::new("/a"), Guard::Absent, put);
    let mut at = None;
    fixture::until("writes go on", async || {
        at = store.commit(write.clone()).await.ok().map(|done| done.last);
        at.is_some()
    })
    .await;
    assert_eq!(watch.next().await.unwrap().unwrap().complete_to, at.unwrap());
}

#[tokio::test]
async fn etcd_with_authentication_requires_a_valid_user() {
    let Some(members) = with_users() else { return };
    let with = |name: &str, password: &str| {
        let login = Login { name: name.into(), password: password.into() };
        Options { login: Some(login), ..fixture::options(&members) }
    };
    refused(fixture::options(&members), "--etcd-user").await;
    refused(with("root", "wrong"), "rejected the user name or password").await;
    refused(with("guest", "guest"), "readwrite on the prefix /test").await;
    works(with("root", "secret")).await;
}

#[tokio::test]
async fn a_login_without_authentication_in_etcd_is_rejected() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let login = Login { name: "root".into(), password: "secret".into() };
    let options = Options { login: Some(login), ..fixture::options(&members) };
    refused(options, "omit --etcd-user").await;
}

/// Certificates for one test.
struct Certificates {
    dir: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new() -> Certificates {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        Certificates { dir, ca }
    }

    /// A certificate and its key.
    fn issue(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }

    /// Members that use TLS and require client certificates.
    fn members(&self) -> Option<etcd::EtcdCluster> {
        let (certificate, key) = self.issue("127.0.0.1");
        let path = |name: &str| self.dir.path().join(name);
        fs::write(path("server.pem"), certificate).unwrap();
        fs::write(path("server.key"), key).unwrap();
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let args = vec![
            flag("cert-file", &path("server.pem")),
            flag("key-file", &path("server.key")),
            flag("trusted-ca-file", &path("ca.pem")),
            "--client-cert-auth".to_owned(),
        ];
        etcd::EtcdCluster::cluster(1, etcd::Options { scheme: Some("https"), args })
    }

    fn tls(&self, identity: Option<(Vec<u8>, Vec<u8>)>) -> Option<Tls> {
        Some(Tls { ca: self.ca.pem().into_bytes(), identity })
    }
}

/// B271
#[tokio::test]
async fn certificates_are_checked_by_both_sides() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let Some(members) = certificates.members() else { return };
    let with = |tls| Options { tls, ..fixture::options(&members) };
    let ours = certificates.issue("headwater");
    works(with(certificates.tls(Some(ours.clone())))).await;
    // We do not trust the members' authority.
    let error = refused(with(others.tls(Some(ours))), "no etcd member responds").await;
    assert!(error.to_string().contains("--etcd-cacert"), "{error}");
    // The members do not trust our authority.
    refused(with(certificates.tls(None)), "no etcd member responds").await;
    let theirs = others.issue("headwater");
    refused(with(certificates.tls(Some(theirs))), "no etcd member responds").await;
    // TLS members with http:// endpoints.
    let endpoints = members.endpoints().iter().map(|url| url.replace("https", "http")).collect();
    refused(Options { endpoints, ..fixture::options(&members) }, "no etcd member responds").await;
}
