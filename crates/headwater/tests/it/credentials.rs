//! Credentials end to end: kubectl, kube-rs and the binary's own commands log in with each kind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use headwater_testkit::tools::has_kubectl;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Client, Config};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::process::{Process, headwater, run};
use crate::python::python;

/// The user of a kubeconfig, as kube-rs logs in with it: the name and the groups.
async fn kube_user(kubeconfig: &str) -> (String, Vec<String>) {
    let user = client(kubeconfig).await;
    let reviews = Api::<SelfSubjectReview>::all(user);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let user = review.unwrap().status.unwrap().user_info.unwrap();
    (user.username.unwrap(), user.groups.unwrap_or_default())
}

pub(crate) async fn client(kubeconfig: &str) -> Client {
    let read = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(read, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// The name of the user of a kubeconfig, as kubectl logs in with it; `None` without kubectl.
fn kubectl_user(directory: &Path, kubeconfig: &str) -> Option<String> {
    if !has_kubectl() {
        return None;
    }
    let path = directory.join("user.kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let output = Command::new("kubectl")
        .args(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
        .env("KUBECONFIG", &path)
        .env("HOME", directory)
        .env_remove("https_proxy")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The same with the Python client; `None` if it is not installed.
fn python_user(directory: &Path, kubeconfig: &str) -> Option<String> {
    let path = directory.join("python.kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let script = "from kubernetes import client, config\n\
                  config.load_kube_config()\n\
                  reviews = client.AuthenticationV1Api()\n\
                  review = reviews.create_self_subject_review({})\n\
                  print(review.status.user_info.username)\n";
    let output = Command::new(python()?)
        .args(["-c", script])
        .env("KUBECONFIG", &path)
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Logs in with every client.
async fn check_user(directory: &Path, kubeconfig: &str, expected: &str) {
    assert_eq!(kube_user(kubeconfig).await.0, expected);
    for known in [kubectl_user(directory, kubeconfig), python_user(directory, kubeconfig)] {
        assert!(known.as_ref().is_none_or(|known| known == expected), "{known:?}");
    }
}

/// The standard output of a successful command.
fn output(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn admin(data: &Path) -> String {
    std::fs::read_to_string(data.join("admin.kubeconfig")).unwrap()
}

/// S8.1, S2.55
#[tokio::test]
async fn one_command_gives_somebody_a_credential() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let place = data.to_str().unwrap();
    let missing = run(&["kubeconfig", "--user", "alice", "--data-dir", place]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("contains no certificate authority"));
    let server = Process::serve(&["--data-dir", place]);
    let before = std::fs::read_dir(data.join("pki")).unwrap().count();
    let user = output(&[
        "kubeconfig",
        "--user",
        "alice: \"x\"",
        "--group",
        "dev",
        "--group",
        "ops",
        "--group",
        "qa",
        "--duration",
        "10m",
        "--data-dir",
        place,
    ]);
    let (name, groups) = kube_user(&user).await;
    assert_eq!(name, "alice: \"x\"");
    assert_eq!(groups, ["dev", "ops", "qa", "system:authenticated"]);
    check_user(directory.path(), &user, "alice: \"x\"").await;
    assert_eq!(std::fs::read_dir(data.join("pki")).unwrap().count(), before, "nothing is written");

    server.post("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"robot"}}"#);
    let remote = data.join("admin.kubeconfig");
    let remote = remote.to_str().unwrap();
    let account = |name: &str| {
        let args = ["kubeconfig", "--service-account", name, "--duration", "1h", "--kubeconfig"];
        run(&[&args[..], &[remote]].concat())
    };
    let made = account("default/robot");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let robot = String::from_utf8(made.stdout).unwrap();
    check_user(directory.path(), &robot, "system:serviceaccount:default:robot").await;
    for (name, why) in
        [("default/nobody", "not found"), ("robot", "NAMESPACE/NAME"), ("../x/y", "NAMESPACE/NAME")]
    {
        let refused = account(name);
        assert!(!refused.status.success() && refused.stdout.is_empty());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(why), "{name}: {said}");
    }
    let token_file = directory.path().join("tokens.csv");
    drop(server);
    // The same user logs in with a token file, at a server that was started anew.
    std::fs::write(&token_file, "static-token,bob,1,dev\n").unwrap();
    assert!(Command::new("chmod").arg("600").arg(&token_file).status().unwrap().success());
    let token_flag = token_file.to_str().unwrap();
    let _server = Process::serve(&["--data-dir", place, "--token-auth-file", token_flag]);
    let bob = with_token(&admin(&data), "static-token");
    check_user(directory.path(), &bob, "bob").await;
}

/// The kubeconfig with a token instead of its credential.
fn with_token(kubeconfig: &str, token: &str) -> String {
    let begin = kubeconfig.find("    client-certificate-data").unwrap();
    let end = kubeconfig.find("contexts:").unwrap();
    format!("{}    token: {token}\n{}", &kubeconfig[..begin], &kubeconfig[end..])
}

/// S8.15
#[tokio::test]
async fn an_approved_request_becomes_a_certificate_that_logs_in() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let controllers = "--controllers=csrsigning,csrapproving,csrcleaner";
    let args = ["--data-dir", data.to_str().unwrap(), controllers];
    let _server = Process::serve(&args);
    let administrator = client(&admin(&data)).await;
    let requests = Api::<CertificateSigningRequest>::all(administrator.clone());
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "carol");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "dev");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let ask = async |name: &str, usages: Value| {
        let request = json!({
            "metadata": {"name": name},
            "spec": {
                "request": STANDARD.encode(&pem), "usages": usages, "expirationSeconds": 600,
                "signerName": "kubernetes.io/kube-apiserver-client",
            },
        });
        let request: CertificateSigningRequest = serde_json::from_value(request).unwrap();
        requests.create(&PostParams::default(), &request).await.unwrap();
        let approved = json!({"type": "Approved", "status": "True", "reason": "Test"});
        let patch = Patch::Merge(json!({"status": {"conditions": [approved]}}));
        requests.patch_approval(name, &PatchParams::default(), &patch).await.unwrap();
    };
    ask("good", json!(["client auth", "digital signature"])).await;
    let is_signed = |request: Option<&CertificateSigningRequest>| {
        request.is_some_and(|it| it.status.as_ref().is_some_and(|it| it.certificate.is_some()))
    };
    let signed = await_condition(requests.clone(), "good", is_signed).await.unwrap().unwrap();
    let certificate = signed.status.unwrap().certificate.unwrap();
    let text = admin(&data);
    let begin = text.find("    client-certificate-data").unwrap();
    let end = text.find("contexts:").unwrap();
    let carol = format!(
        "{}    client-certificate-data: {}\n    client-key-data: {}\n{}",
        &text[..begin],
        STANDARD.encode(&certificate.0),
        STANDARD.encode(key.serialize_pem()),
        &text[end..]
    );
    let (name, groups) = kube_user(&carol).await;
    assert_eq!((name.as_str(), groups[0].as_str()), ("carol", "dev"));

    // A request that the signer refuses fails for good, and says why.
    ask("bad", json!(["server auth"])).await;
    let has_failed = |request: Option<&CertificateSigningRequest>| {
        let status = request.and_then(|it| it.status.as_ref());
        let conditions = status.and_then(|it| it.conditions.as_ref());
        conditions.is_some_and(|all| {
            let failed = all.iter().find(|it| it.type_ == "Failed");
            failed.is_some_and(|it| it.message.as_deref().unwrap_or("").contains("usages must"))
        })
    };
    await_condition(requests, "bad", has_failed).await.unwrap();
}

/// An OIDC issuer on loopback with a certificate of its own authority.
struct TestIssuer {
    url: String,
    authority: String,
    key: EcdsaKeyPair,
    _serving: JoinSet<()>,
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl TestIssuer {
    async fn start() -> TestIssuer {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &SystemRandom::new()).unwrap();
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = ca.self_signed(&ca_key).unwrap().pem();
        let ca = rcgen::Issuer::new(ca, ca_key);
        let tls_key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&tls_key, &ca).unwrap();
        let private = rustls::pki_types::PrivateKeyDer::try_from(tls_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], private)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let point = &key.public_key().as_ref()[1..];
        let keys = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "x": encoded(&point[..32]), "y": encoded(&point[32..]),
        }]});
        let about = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                // One request per connection, and requests are small.
                let mut head = vec![0; 4096];
                let Ok(length) = stream.read(&mut head).await else { continue };
                let is_keys = head[..length].starts_with(b"GET /keys ");
                let body = if is_keys { &keys } else { &about }.to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        TestIssuer { url, authority, key, _serving: serving }
    }

    fn token(&self, user: &str) -> String {
        let now = jiff::Timestamp::now().as_second();
        let claims = json!({"iss": self.url, "aud": "kubectl", "sub": user, "exp": now + 3600});
        let header = encoded(json!({"alg": "ES256"}).to_string());
        let message = format!("{header}.{}", encoded(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature))
    }
}

/// S8.16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_an_oidc_issuer_log_in_and_no_log_or_metric_shows_a_token() {
    let issuer = TestIssuer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let file = directory.path().join("authentication.json");
    let configure = |prefix: &str| {
        let config = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {
                    "url": issuer.url, "audiences": ["kubectl"],
                    "certificateAuthority": issuer.authority,
                },
                "claimMappings": {"username": {"claim": "sub", "prefix": prefix}},
            }],
        });
        std::fs::write(&file, config.to_string()).unwrap();
    };
    configure("oidc:");
    let log = directory.path().join("log");
    let sink = Stdio::from(std::fs::File::create(&log).unwrap());
    let config = file.to_str().unwrap();
    let server = Process::serve_logging_to(
        sink,
        &[
            "--data-dir",
            data.to_str().unwrap(),
            "--authentication-config",
            config,
            "--log",
            "debug",
        ],
    );
    let token = issuer.token("dora");
    let kubeconfig = with_token(&admin(&data), &token);
    check_user(directory.path(), &kubeconfig, "oidc:dora").await;

    // Refused tokens, a token in the query, and a Secret.
    let forged = format!("{token}x");
    let refused = client(&with_token(&admin(&data), &forged)).await;
    refused.apiserver_version().await.unwrap_err();
    server.get("/api/v1/namespaces?access_token=query-token-0123");
    let secret = STANDARD.encode("secret-value-0123");
    let made = server.post(
        "/api/v1/namespaces/default/secrets",
        &json!({"metadata": {"name": "s"}, "data": {"password": secret}}).to_string(),
    );
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let refused =
        server.post("/api/v1/namespaces/default/secrets", &format!("{{\"data\": \"{secret}"));
    assert!(!refused.contains(&secret), "{refused}");

    // The file is read again when it changes.
    configure("new:");
    let changed = tokio::time::timeout(std::time::Duration::from_secs(600), async {
        while kube_user(&kubeconfig).await.0 != "new:dora" {
            tokio::task::yield_now().await;
        }
    });
    changed.await.unwrap();

    let metrics = server.get("/metrics");
    drop(server);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("DEBUG"), "the log is detailed");
    let signature = token.rsplit('.').next().unwrap();
    let claims = token.split('.').nth(1).unwrap();
    for hidden in [signature, claims, "query-token-0123", &secret, "secret-value-0123"] {
        assert!(!log.contains(hidden), "the log contains {hidden}");
        assert!(!metrics.contains(hidden), "the metrics contain {hidden}");
    }
    assert!(metrics.contains("automatic_reloads_total{status=\"success\"} 1"), "{metrics}");
}

/// S8.16
#[test]
fn a_wrong_authentication_file_fails_the_start_and_names_the_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("authentication.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
    std::fs::write(&file, format!("{head}anonymous: {{enabled: true, path: /}}\n")).unwrap();
    let output = headwater(&["serve", "--memory", "--bind", "127.0.0.1:0"])
        .arg("--authentication-config")
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("unknown field `path`"), "{said}");
}
