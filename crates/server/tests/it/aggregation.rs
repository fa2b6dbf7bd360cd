//! APIServices: local ones are kept, and requests for others reach a real extension server, which trusts
//! nobody but the front proxy.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt, stream};
use headwater_api::SystemClock;
use headwater_json::{Value, json};
use headwater_server::Settings;
use headwater_server::pki::{self, Pki};
use http::StatusCode;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::api::{Api, Watch};
use crate::custom::World;

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const GROUP: &str = "/apis/ext.example.com";

/// An extension server that serves `ext.example.com/v1`.
struct Extension {
    port: u16,
    authority: String,
    serving: JoinSet<()>,
}

impl Extension {
    /// `proxies` is the authority of the front proxies.
    async fn start(proxies: &str) -> Extension {
        let names = pki::names("127.0.0.1".parse().unwrap(), &["ext.ns.svc".to_owned()]);
        let keys = Pki::in_memory(&names, &SystemClock).unwrap();
        let certificate = CertificateDer::from_pem_slice(keys.server.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(keys.server.key.reveal().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(proxies.as_bytes()).unwrap()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![certificate.unwrap()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let http = hyper::server::conn::http1::Builder::new();
                    let io = TokioIo::new(stream);
                    let served = http.serve_connection(io, service_fn(answer)).with_upgrades();
                    let _ = served.await;
                });
            }
        });
        Extension { port, authority: STANDARD.encode(keys.ca), serving }
    }
}

type Request = hyper::Request<hyper::body::Incoming>;

type Response = hyper::Response<UnsyncBoxBody<Bytes, Infallible>>;

async fn answer(mut request: Request) -> std::io::Result<Response> {
    let path = request.uri().path().to_owned();
    let value = match path.strip_prefix(GROUP) {
        Some("/v1") => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1",
            "resources": [{ "name": "whos", "singularName": "who", "namespaced": false,
                "kind": "Who", "verbs": ["get", "list"] }],
        }),
        Some("/v1/whos/me") => {
            let headers = request.headers().iter();
            let headers: Vec<String> = headers
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect();
            json!({ "kind": "Who", "headers": headers, "query": request.uri().query() })
        }
        Some("/v1/whos/me/echo") => {
            let upgrade = hyper::upgrade::on(&mut request);
            #[expect(clippy::disallowed_methods, reason = "it ends with the connection")]
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut word = [0; 4];
                stream.read_exact(&mut word).await.unwrap();
                word.reverse();
                stream.write_all(&word).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let mut response = hyper::Response::new(Full::default().boxed_unsync());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
            response.headers_mut().insert("upgrade", "echo".parse().unwrap());
            return Ok(response);
        }
        Some("/v1/whos/half") => {
            let half = stream::iter([Ok(Frame::data(Bytes::from_static(b"{\"half\":")))]);
            let body = StreamBody::new(half.chain(stream::pending())).boxed_unsync();
            return Ok(hyper::Response::new(body));
        }
        None if path == "/openapi/v3/apis/ext.example.com/v1" => json!({ "openapi": "3.0.0" }),
        None if path == "/openapi/v2" => json!({
            "swagger": "2.0",
            "paths": {
                "/apis/ext.example.com/v1/whos": { "get": { "responses": { "200": {
                    "schema": { "$ref": "#/definitions/io.k8s.api.core.v1.ConfigMap" },
                }}}},
                "/apis/elsewhere/": {},
            },
            // Not what the server itself means by this name.
            "definitions": { "io.k8s.api.core.v1.ConfigMap": { "type": "string" }, "unused": {} },
        }),
        _ => {
            let mut response = hyper::Response::new(Full::from("no such page").boxed_unsync());
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok(response);
        }
    };
    Ok(hyper::Response::new(Full::from(value.to_string()).boxed_unsync()))
}

fn condition(object: &Value) -> (String, String) {
    let condition = &object["status"]["conditions"][0];
    assert_eq!(condition["type"], "Available");
    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"))
}

/// Waits until an APIService has a condition with this status and reason.
async fn becomes(watch: &mut Watch, status: &str, reason: &str) {
    loop {
        let event = watch.next().await.unwrap();
        let object = &event["object"];
        if object["status"]["conditions"].is_array()
            && condition(object) == (status.to_owned(), reason.to_owned())
        {
            return;
        }
    }
}

fn api_service(extension: &Extension) -> Value {
    json!({
        "metadata": { "name": "v1.ext.example.com" },
        "spec": {
            "group": "ext.example.com", "version": "v1", "caBundle": extension.authority,
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "namespace": "ns", "name": "ext", "port": 443 },
        },
    })
}

/// A server, and an extension server that it forwards to.
async fn start() -> (Api, Extension, Watch) {
    start_with(Settings::default()).await
}

async fn start_with(settings: Settings) -> (Api, Extension, Watch) {
    let keys = Pki::in_memory(&pki::names("127.0.0.1".parse().unwrap(), &[]), &SystemClock);
    let front_proxy = keys.unwrap().front_proxy;
    let extension = Extension::start(&front_proxy.ca).await;
    let api = Api::with_front_proxy(front_proxy.client, settings).await;
    let target = format!("{SERVICES}?watch=true&fieldSelector=metadata.name%3Dv1.ext.example.com");
    let mut watch = api.watch(&target).await;
    api.create(SERVICES, &api_service(&extension)).await;
    becomes(&mut watch, "False", "ServiceNotFound").await;
    let answer = api.get(&format!("{GROUP}/v1/whos")).await;
    assert_eq!((answer.code, answer.text().as_str()), (503, "service unavailable\n"));
    let service = json!({
        "metadata": { "name": "ext" },
        "spec": { "type": "ExternalName", "externalName": "localhost",
            "ports": [{ "port": 443, "targetPort": extension.port }] },
    });
    api.create("/api/v1/namespaces/ns/services", &service).await;
    becomes(&mut watch, "True", "Passed").await;
    (api, extension, watch)
}

#[tokio::test]
async fn group_versions_have_api_services() {
    let world = World::with_widgets(|_| {}).await;
    for (name, label) in [("v1.", "onstart"), ("v1.apps", "onstart"), ("v2.autoscaling", "onstart")]
    {
        let found = world.get(&format!("{SERVICES}/{name}")).await.json();
        assert_eq!(condition(&found), ("True".to_owned(), "Local".to_owned()));
        let labels = &found["metadata"]["labels"];
        assert_eq!(labels["kube-aggregator.kubernetes.io/automanaged"], label);
    }
    let name = format!("{SERVICES}/v1.example.com");
    let made = world.until(&name, 200).await.json();
    assert_eq!(made["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    assert_eq!(made["spec"]["groupPriorityMinimum"], 1000);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    world.delete(&format!("{definitions}/widgets.example.com")).await.is(200, "");
    world.until(&name, 404).await;
}

#[tokio::test]
async fn an_extension_server_learns_the_user_and_no_credential() {
    let (api, _extension, _watch) = start().await;
    let request = format!("GET {GROUP}/v1/whos/me?x=1\nX-Remote-User: root\nX-Mine: 7");
    let who = api.send(&request, "").await.is(200, "").json();
    assert_eq!(who["query"], "x=1");
    let headers: Vec<&str> =
        who["headers"].as_array().unwrap().iter().map(|header| header.as_str().unwrap()).collect();
    for expected in
        ["x-remote-user: kubernetes-admin", "x-remote-group: system:masters", "x-mine: 7"]
    {
        assert!(headers.contains(&expected), "{headers:?}");
    }
    assert!(!headers.iter().any(|header| header.contains("root")));
    assert!(headers.contains(&"host: ext.ns.svc:443"), "{headers:?}");
    // Whoever may not read a resource learns nothing of it.
    let nobody = api.as_user("bob", &[]);
    assert_eq!(nobody.send(&format!("GET {GROUP}/v1/whos/me"), "").await.code, 403);
    assert_eq!(api.get(&format!("{GROUP}/v1/others")).await.code, 404);
}

/// R49, S8.8: what is asked of an extension server is authorized as it is routed.
#[tokio::test]
async fn each_verb_of_an_extension_server_is_a_right_of_its_own() {
    let (api, _extension, _watch) = start().await;
    let role = json!({ "metadata": { "name": "r" }, "rules": [
        { "verbs": ["list"], "apiGroups": ["ext.example.com"], "resources": ["whos"],
          "resourceNames": ["me"] },
        { "verbs": ["get"], "apiGroups": ["ext.example.com"], "resources": ["whos"] },
    ]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    api.create(&format!("{rbac}/clusterroles"), &role).await;
    let bound = json!({
        "metadata": { "name": "r" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r" },
        "subjects": [{ "kind": "User", "name": "joe" }],
    });
    api.create(&format!("{rbac}/clusterrolebindings"), &bound).await;
    let joe = api.as_user("joe", &[]);
    let one = "fieldSelector=metadata.name%3Dme";
    for (request, code, part) in [
        (format!("GET {GROUP}/v1/whos/me"), 200, ""),
        (format!("GET {GROUP}/v1/whos?{one}"), 404, "no such page"),
        (format!("GET {GROUP}/v1/whos"), 403, "cannot list resource \"whos\""),
        (format!("GET {GROUP}/v1/whos?{one}%2Cmetadata.name%3Dyou"), 403, "cannot list"),
        (format!("GET {GROUP}/v1/whos?watch=1&{one}"), 403, "cannot watch resource \"whos\""),
        (format!("GET {GROUP}/v1/watch/whos?{one}"), 403, "cannot watch resource \"whos\""),
        (format!("GET {GROUP}/v1/watch/whos/me"), 403, "cannot watch resource \"whos\""),
        (format!("GET {GROUP}/v1/whos/me/echo"), 403, "cannot get resource \"whos/echo\""),
        (format!("GET {GROUP}/v1/whos/me/../../others"), 403, "resource \"whos/..\""),
    ] {
        let answer = joe.send(&request, "").await;
        assert_eq!(answer.code, code, "{request}: {}", answer.text());
        let message = if code == 200 { String::new() } else { answer.text().replace("\\\"", "\"") };
        assert!(message.contains(part), "{request}: {message}");
    }
    let dots = format!("GET {GROUP}/v1/whos/me/%2e%2e/%2e%2e/others");
    api.send(&dots, "").await.is(400, "segments of dots");
}

#[tokio::test]
async fn discovery_and_openapi_contain_extension_servers() {
    let (api, extension, mut watch) = start().await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = api.get("/apis").await.json();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.last().unwrap()["name"], "ext.example.com");
    let group = api.get(GROUP).await.json();
    assert_eq!(group["preferredVersion"]["groupVersion"], "ext.example.com/v1");
    assert_eq!(api.get(&format!("{GROUP}/v1")).await.json()["resources"][0]["name"], "whos");
    let version = async || {
        let document = api.accept("/apis", aggregated).await.json();
        document["items"].as_array().unwrap().last().unwrap()["versions"][0].clone()
    };
    let found = version().await;
    assert_eq!((&found["freshness"], &found["version"]), (&json!("Current"), &json!("v1")));
    assert_eq!(found["resources"][0]["responseKind"]["kind"], "Who");
    let index = api.get("/openapi/v3").await.json();
    let url = &index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"];
    let document = api.get(url.as_str().unwrap()).await.json();
    assert_eq!(document, json!({ "openapi": "3.0.0" }));
    let merged = api.get("/openapi/v2").await.json();
    let whos = &merged["paths"]["/apis/ext.example.com/v1/whos"]["get"]["responses"]["200"];
    let reference = whos["schema"]["$ref"].as_str().unwrap();
    assert_eq!(reference, "#/definitions/io.k8s.api.core.v1.ConfigMap_v2");
    let definitions = &merged["definitions"];
    assert_eq!(definitions["io.k8s.api.core.v1.ConfigMap_v2"], json!({ "type": "string" }));
    assert_eq!(definitions["io.k8s.api.core.v1.ConfigMap"]["type"], "object");
    assert!(definitions["unused"].is_null() && merged["paths"]["/apis/elsewhere/"].is_null());
    // A change of the object makes the server check it; here it learns that nobody answers.
    let Extension { mut serving, .. } = extension;
    serving.shutdown().await;
    let answer = api.get(&format!("{GROUP}/v1/whos")).await;
    assert_eq!(answer.code, 503);
    assert!(answer.text().starts_with("error trying to reach service: "), "{}", answer.text());
    let touch = json!({ "metadata": { "annotations": { "a": "b" } } });
    api.merge(&format!("{SERVICES}/v1.ext.example.com"), &touch).await.is(200, "");
    becomes(&mut watch, "False", "FailedDiscoveryCheck").await;
    let found = version().await;
    assert_eq!(found["freshness"], "Stale");
    assert_eq!(found["resources"][0]["resource"], "whos");
    api.delete(&format!("{SERVICES}/v1.ext.example.com")).await.is(200, "");
    api.until(GROUP, 404).await;
}

/// R44
#[tokio::test]
async fn a_response_that_an_extension_server_does_not_complete_ends_with_its_request() {
    let settings = Settings { request_timeout: Duration::from_secs(5), ..Settings::default() };
    let (mut api, _extension, _watch) = start_with(settings).await;
    let mut socket = TcpStream::connect(api.listen()).await.unwrap();
    let request = format!("GET {GROUP}/v1/whos/half HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut answer)).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(read.is_ok(), "the client waits: {text}");
    // Without its last chunk: a client sees that it is not complete.
    assert!(text.contains("{\"half\":") && !text.ends_with("0\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn an_upgraded_connection_is_passed_through() {
    let (mut api, _extension, _watch) = start().await;
    let mut socket = TcpStream::connect(api.listen()).await.unwrap();
    let request = format!(
        "GET {GROUP}/v1/whos/me/echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: echo\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: echo"), "{head}");
    socket.write_all(b"abcd").await.unwrap();
    let mut echo = Vec::new();
    socket.read_to_end(&mut echo).await.unwrap();
    assert_eq!(echo, b"dcba");
}
