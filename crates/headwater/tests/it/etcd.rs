//! Several servers over one etcd, and their responses when it is down.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use headwater_testkit::etcd;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Process, headwater, run};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Maximum time to wait for a condition on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// A server over these members.
struct Replica {
    process: Process,
    dir: TempDir,
}

impl Replica {
    fn start(members: &etcd::EtcdCluster, args: &[&str]) -> Replica {
        let dir = tempfile::tempdir().unwrap();
        let endpoints = members.endpoints().join(",");
        let data = dir.path().join("data");
        let fixed = [
            "--store",
            "etcd",
            "--etcd-endpoints",
            &endpoints,
            "--data-dir",
            data.to_str().unwrap(),
        ];
        let all: Vec<&str> = fixed.iter().chain(args).copied().collect();
        Replica { process: Process::serve(&all), dir }
    }

    /// The status and the body of a response.
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        self.call_with("", method, path, body)
    }

    /// The same with additional headers, each with its line end.
    fn call_with(
        &self,
        headers: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, String) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut socket = self.process.connect();
        write!(
            socket,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             {headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[track_caller]
    fn json(&self, method: &str, path: &str, body: Option<&Value>, code: u16) -> Value {
        let (status, text) = self.call(method, path, body);
        assert_eq!(status, code, "{method} {path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    #[track_caller]
    fn create(&self, name: &str) -> Value {
        self.json("POST", MAPS, Some(&json!({"metadata": {"name": name}})), 201)
    }

    /// Waits until a GET returns this status.
    #[track_caller]
    fn wait_for(&self, path: &str, code: u16) {
        let began = Instant::now();
        while self.call("GET", path, None).0 != code {
            assert!(began.elapsed() < PATIENCE, "{path} is never {code}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Watches the namespace after a revision.
    fn watch(&self, after: &str) -> Events {
        let mut socket = self.process.connect();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let query = format!("watch=true&resourceVersion={after}");
        write!(socket, "GET {MAPS}?{query} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        Events(BufReader::new(socket))
    }
}

/// The events of a watch.
struct Events(BufReader<TcpStream>);

impl Iterator for Events {
    type Item = (String, String, String);

    /// Type, name and resourceVersion of the next event.
    fn next(&mut self) -> Option<(String, String, String)> {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the watch ended");
            if !line.starts_with('{') {
                continue; // headers
            }
            let event: Value = serde_json::from_str(&line).unwrap();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &event["object"]["metadata"];
            return Some((
                text(&event["type"]),
                text(&metadata["name"]),
                text(&metadata["resourceVersion"]),
            ));
        }
    }
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

#[test]
fn two_servers_over_one_etcd_show_the_same_objects() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let servers = [Replica::start(&members, &[]), Replica::start(&members, &[])];
    let list = servers[0].json("GET", MAPS, None, 200);
    let mut watches = servers.each_ref().map(|server| server.watch(version(&list)));
    let mut expected = Vec::new();
    for n in 0..20 {
        let (here, there) = (&servers[n % 2], &servers[(n + 1) % 2]);
        let name = format!("map-{n}");
        let made = here.create(&name);
        expected.push(("ADDED".to_owned(), name.clone(), version(&made).to_owned()));
        // The other server returns it at once for get, list and update.
        let path = format!("{MAPS}/{name}");
        assert_eq!(there.json("GET", &path, None, 200), made);
        let listed = there.json("GET", MAPS, None, 200);
        assert_eq!(listed["items"].as_array().unwrap().len(), n + 1);
        let mut changed = made.clone();
        changed["data"] = json!({"n": n.to_string()});
        let changed = there.json("PUT", &path, Some(&changed), 200);
        expected.push(("MODIFIED".to_owned(), name, version(&changed).to_owned()));
        here.json("PUT", &path, Some(&made), 409);
    }
    for watch in &mut watches {
        let seen: Vec<_> = watch.take(expected.len()).collect();
        assert_eq!(seen, expected);
    }
}

/// S8.10: a change of a role or binding is in force for the next request on the server that
/// acknowledged it, and on another one as soon as that one shows the change.
#[test]
fn a_change_of_a_role_is_in_force_on_every_server_over_one_etcd() {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let servers = [Replica::start(&members, &[]), Replica::start(&members, &[])];
    let (roles, bindings) = (format!("{RBAC}/roles"), format!("{RBAC}/rolebindings"));
    let list =
        |server: &Replica| server.call_with("Impersonate-User: joe\r\n", "GET", MAPS, None).0;
    let rule =
        |verb: &str| json!([{"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]);
    let role = |verb: &str| json!({"metadata": {"name": "r"}, "rules": rule(verb)});
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "joe"}],
    });
    servers[0].json("POST", &roles, Some(&role("get")), 201);
    for round in 0..10 {
        let (here, there) = (&servers[round % 2], &servers[(round + 1) % 2]);
        let in_force = |code: u16, collection: &str, what: &str| {
            assert_eq!(list(here), code, "round {round}, {what}, next request");
            // The list is consistent: the other server has the change when it responds.
            there.json("GET", collection, None, 200);
            assert_eq!(list(there), code, "round {round}, {what}, other server");
        };
        here.json("POST", &bindings, Some(&binding), 201);
        in_force(403, &bindings, "bound to a role without the verb");
        here.json("PUT", &format!("{roles}/r"), Some(&role("list")), 200);
        in_force(200, &roles, "the role has the verb");
        here.json("PUT", &format!("{roles}/r"), Some(&role("get")), 200);
        in_force(403, &roles, "the verb was taken away");
        here.json("PUT", &format!("{roles}/r"), Some(&role("*")), 200);
        in_force(200, &roles, "the role has every verb");
        here.json("DELETE", &format!("{bindings}/b"), None, 200);
        in_force(403, &bindings, "the binding was deleted");
        here.json("PUT", &format!("{roles}/r"), Some(&role("get")), 200);
    }
}

/// Sends requests to both servers concurrently; returns the responses of each.
fn at_once(
    servers: &[Replica; 2],
    count: usize,
    path: &str,
    body: impl Fn(usize, usize) -> Value + Sync,
) -> Vec<(u16, Value)> {
    std::thread::scope(|scope| {
        let ask = |server: usize| {
            let (servers, body) = (servers, &body);
            scope.spawn(move || {
                let call = |n| servers[server].call("POST", path, Some(&body(server, n)));
                let read =
                    |(code, text): (u16, String)| (code, serde_json::from_str(&text).unwrap());
                (0..count).map(call).map(read).collect::<Vec<_>>()
            })
        };
        let asked = [ask(0), ask(1)];
        asked.into_iter().flat_map(|asked| asked.join().unwrap()).collect()
    })
}

#[test]
fn two_servers_never_allocate_the_same_address() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    const ROUNDS: usize = 30;
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let servers = [Replica::start(&members, &[]), Replica::start(&members, &[])];
    let service = |server: usize, n: usize, spec: Value| {
        let metadata = json!({"name": format!("s{server}-{n}-{}", spec["type"].as_str().unwrap().to_lowercase())});
        json!({"metadata": metadata, "spec": spec})
    };
    // Both request the same address: one of them gets it.
    let same = at_once(&servers, ROUNDS, SERVICES, |server, n| {
        let ports = json!([{"port": 80, "nodePort": 30_500 + n}]);
        let spec = json!({"type": "NodePort", "clusterIP": format!("10.96.7.{n}"), "ports": ports});
        service(server, n, spec)
    });
    let made = same.iter().filter(|(code, _)| *code == 201).count();
    let refused = same.iter().filter(|(code, _)| *code == 422).count();
    assert_eq!((made, refused), (ROUNDS, ROUNDS), "{same:?}");
    // Both allocate addresses: never the same one.
    let any = at_once(&servers, ROUNDS, SERVICES, |server, n| {
        service(server, n, json!({"type": "LoadBalancer", "ports": [{"port": 80}]}))
    });
    let all: BTreeSet<String> = any
        .iter()
        .flat_map(|(_, made)| [&made["spec"]["clusterIP"], &made["spec"]["ports"][0]["nodePort"]])
        .map(Value::to_string)
        .collect();
    assert_eq!(all.len(), 4 * ROUNDS, "{any:?}");
}

#[test]
fn servers_with_the_same_keys_accept_the_same_credentials() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let args = ["--pki-dir", pki.to_str().unwrap()];
    let servers = [Replica::start(&members, &args), Replica::start(&members, &args)];
    let robot = json!({"metadata": {"name": "robot"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    servers[0].json("POST", accounts, Some(&robot), 201);
    let token = servers[0].json("POST", &format!("{accounts}/robot/token"), Some(&json!({})), 201);
    let review = json!({"spec": {"token": token["status"]["token"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let known = servers[1].json("POST", reviews, Some(&review), 201);
    assert_eq!(known["status"]["user"]["username"], "system:serviceaccount:default:robot");
    assert!(!servers[0].dir.path().join("data/pki").exists());
}

#[test]
fn two_servers_together_never_exceed_a_quota() {
    let Some(members) = etcd::EtcdCluster::start() else { return };
    let servers = [Replica::start(&members, &[]), Replica::start(&members, &[])];
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "7"}}});
    servers[0].json("POST", "/api/v1/namespaces/default/resourcequotas", Some(&quota), 201);
    let answers = at_once(
        &servers,
        20,
        MAPS,
        |server, n| json!({"metadata": {"name": format!("map-{server}-{n}")}}),
    );
    let count = |wanted: u16| answers.iter().filter(|(code, _)| *code == wanted).count();
    assert_eq!((count(201), count(403)), (7, 33), "{answers:?}");
    let listed = servers[1].json("GET", MAPS, None, 200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 7);
}

#[test]
fn without_etcd_the_cache_still_serves_and_recovers_later() {
    let Some(mut members) = etcd::EtcdCluster::start() else { return };
    let server = Replica::start(&members, &["--etcd-timeout", "5s"]);
    let made = server.create("before");
    let mut watch = server.watch(version(&made));
    members.kill(0);
    server.wait_for("/readyz", 500);
    let (_, verbose) = server.call("GET", "/readyz?verbose", None);
    assert!(verbose.contains("[-]etcd failed"), "{verbose}");
    server.wait_for("/livez", 200);

    let cached = server.json("GET", &format!("{MAPS}?resourceVersion=0"), None, 200);
    assert!(
        cached["items"].as_array().unwrap().iter().any(|map| map["metadata"] == made["metadata"]),
        "{cached}"
    );
    let one = server.json("GET", &format!("{MAPS}/before?resourceVersion=0"), None, 200);
    assert_eq!(one, made);
    let map = json!({"metadata": {"name": "meanwhile"}});
    for (method, path, body) in [
        ("GET", MAPS.to_owned(), None),
        ("GET", format!("{MAPS}/before"), None),
        ("POST", MAPS.to_owned(), Some(&map)),
        ("DELETE", format!("{MAPS}/before"), None),
    ] {
        let (code, text) = server.call(method, &path, body);
        let status: Value = serde_json::from_str(&text).unwrap();
        assert!(matches!(code, 503 | 504), "{method} {path}: {code} {text}");
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
    }

    members.restart(0);
    server.wait_for("/readyz", 200);
    let after = server.create("after");
    let seen = watch.next().unwrap();
    assert_eq!(seen, ("ADDED".to_owned(), "after".to_owned(), version(&after).to_owned()));
    server.json("DELETE", &format!("{MAPS}/before"), None, 200);
    assert_eq!(watch.next().unwrap().1, "before");
}

#[test]
fn errors_of_etcd_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let fixed = ["serve", "--bind", "127.0.0.1:0", "--data-dir", data, "--store", "etcd"];
    let check = |args: &[&str], expected: &str| {
        let all: Vec<&str> = fixed.iter().chain(args).copied().collect();
        let output = run(&all);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{args:?}: {text}");
    };
    check(&[], "--etcd-endpoints");
    check(&["--etcd-endpoints", "http://127.0.0.1:1"], "http://127.0.0.1:1: Connection refused");
    check(&["--etcd-endpoints", "127.0.0.1:2379"], "must start with http:// or https://");
    check(&["--etcd-endpoints", "https://127.0.0.1:1"], "use --etcd-cacert");
    let missing = dir.path().join("missing.pem");
    let missing = missing.to_str().unwrap();
    check(&["--etcd-endpoints", "https://127.0.0.1:1", "--etcd-cacert", missing], "cannot read");
    check(&["--etcd-endpoints", "http://127.0.0.1:1", "--etcd-cert", missing], "--etcd-key");
    check(&["--etcd-endpoints", "http://127.0.0.1:1", "--etcd-user", "x"], "NAME:PASSWORD");
    let output = headwater(&["serve", "--memory", "--store", "etcd"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
