//! Health checks while every thread of requests is blocked.

use std::sync::mpsc;

use super::*;

/// The threads of requests.
const THREADS: usize = 2;

/// Blocks every thread of a runtime until the returned sender is dropped.
fn block(requests: &tokio::runtime::Runtime) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let (blocked, all_blocked) = mpsc::channel();
    for _ in 0..THREADS {
        let (released, blocked) = (released.clone(), blocked.clone());
        requests.spawn(async move {
            blocked.send(()).unwrap();
            // The first waits for the sender, the others for the lock.
            let _ = released.lock().unwrap().recv();
        });
    }
    for _ in 0..THREADS {
        all_blocked.recv().unwrap();
    }
    release
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

async fn ask(address: SocketAddr, pki: &Pki, path: &str) -> String {
    let mut stream = tls_connect(address, pki, Some(&pki.admin), "http/1.1").await;
    stream.write_all(request(path).as_bytes()).await.unwrap();
    read_to_end(&mut stream).await
}

/// The connections that the standby threads accepted.
fn accepted_by_standby(metrics: &Metrics) -> u64 {
    let text = metrics.registry.text();
    let line = text.lines().find(|line| line.starts_with("headwater_standby_connections_total "));
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

/// D1: `/readyz` took 20 s while three requests computed.
#[test]
fn health_is_answered_while_every_thread_of_requests_is_blocked() {
    let requests = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let pki = pki_at(&SystemClock);
    let mut options =
        headwater_server::Options::new(Issuer::new(&pki.service_account_key).unwrap());
    let metrics = Metrics::new();
    options.metrics = metrics.clone();
    let (running, secure, plain) = requests.block_on(async {
        let mut running = start(Arc::new(Memory::default()), options).await.unwrap();
        let acceptor = Acceptor::new(&pki, Arc::new(SystemClock)).unwrap();
        let limits = Options::default;
        let secure = Listener::tls(any_port(), acceptor, limits(), metrics.clone()).unwrap();
        let plain = Listener::plain(any_port(), limits(), metrics.clone()).unwrap();
        let addresses = (secure.address(), plain.address());
        running.listen(secure);
        running.listen(plain);
        (running, addresses.0, addresses.1)
    });
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    // A listener that answers has started its standby.
    clients.block_on(async {
        assert!(ask(secure, &pki, "/version").await.starts_with("HTTP/1.1 200 "));
        let mut socket = TcpStream::connect(plain).await.unwrap();
        socket.write_all(request("/version").as_bytes()).await.unwrap();
        assert!(read_to_end(&mut socket).await.starts_with("HTTP/1.1 "));
    });
    let accepted_before = accepted_by_standby(&metrics);
    let release = block(&requests);
    clients.block_on(async {
        for path in ["/livez", "/readyz", "/healthz?verbose"] {
            let answer = ask(secure, &pki, path).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
            let mut socket = TcpStream::connect(plain).await.unwrap();
            socket.write_all(request(path).as_bytes()).await.unwrap();
            let answer = read_to_end(&mut socket).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        }
    });
    assert_eq!(accepted_by_standby(&metrics), accepted_before + 6);
    // Other requests, also long ones, are answered as soon as a thread is free.
    let others = clients.block_on(async {
        let mut others = Vec::new();
        for path in ["/api/v1/namespaces", "/api/v1/namespaces?watch=1&timeoutSeconds=1"] {
            let mut stream = tls_connect(secure, &pki, Some(&pki.admin), "http/1.1").await;
            stream.write_all(request(path).as_bytes()).await.unwrap();
            others.push(stream);
        }
        others
    });
    drop(release);
    clients.block_on(async {
        for mut stream in others {
            let answer = read_to_end(&mut stream).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.contains("kube-system") && answer.ends_with("0\r\n\r\n"), "{answer}");
        }
        assert!(ask(secure, &pki, "/version").await.starts_with("HTTP/1.1 200 "));
    });
    requests.block_on(async {
        running.stop().await.unwrap();
    });
    clients.block_on(async { assert!(TcpStream::connect(plain).await.is_err()) });
}
