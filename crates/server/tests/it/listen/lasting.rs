//! Streamed responses over HTTP/1: written directly to the socket, bypassing hyper.

use super::*;

const LASTING: &str = "GET /lasting HTTP/1.1\r\nHost: localhost\r\n\r\n";
const WHO_AND_CLOSE: &str = "GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Sends `one`, then `two` when the test adds a permit, then ends. Adds a permit to `arrived` when
/// the stream is complete or dropped.
pub(super) fn answer(handler: &Scripted) -> Response {
    struct Gone(Arc<Semaphore>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.add_permits(1);
        }
    }
    let (gate, gone) = (handler.gate.clone(), Gone(handler.arrived.clone()));
    lasting(stream::unfold((0, gate, gone), |(step, gate, gone)| async move {
        let data = match step {
            0 => "one\n",
            1 => {
                gate.acquire().await.unwrap().forget();
                "two\n"
            }
            _ => return None,
        };
        Some((Bytes::from(data), (step + 1, gate, gone)))
    }))
}

/// More than all buffers on the way hold.
pub(super) fn large_answer() -> Response {
    lasting(stream::iter((0..LARGE_CHUNKS).map(|_| Bytes::from(vec![b'x'; LARGE_CHUNK]))))
}

const LARGE_CHUNK: usize = 1 << 20;
const LARGE_CHUNKS: usize = 24;

fn lasting(chunks: impl futures::Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(body::stream(chunks));
    response.extensions_mut().insert(LongRunning);
    response
}

/// Reads until the received text ends with this.
async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), end: &str) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        let read = stream.read_buf(&mut answer).await.unwrap();
        assert_ne!(read, 0, "ended early: {}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

/// A streamed response, followed by a request on the same connection.
async fn lasts_and_goes_on(server: &Started, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    for _ in 0..2 {
        stream.write_all(LASTING.as_bytes()).await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n4\r\none\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
        server.handler.gate.add_permits(1);
        assert_eq!(read_until(&mut stream, "0\r\n\r\n").await, "4\r\ntwo\n\r\n0\r\n\r\n");
        server.held_request_arrived().await;
    }
    stream.write_all(WHO_AND_CLOSE.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}

#[tokio::test]
async fn a_streamed_response_ends_and_the_connection_serves_more_requests() {
    let server = Started::plain(Options::default());
    lasts_and_goes_on(&server, server.connect().await).await;
}

#[tokio::test]
async fn a_streamed_response_works_over_tls() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let stream = tls_connect(server.address, &pki, Some(&pki.admin), "http/1.1").await;
    lasts_and_goes_on(&server, stream).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_after_the_stream() {
    let server = Started::plain(Options::default());
    server.handler.gate.add_permits(2);
    let requests = [LASTING, LASTING, WHO_AND_CLOSE].concat();
    let answers = server.exchange(requests.as_bytes()).await;
    assert_eq!(answers.matches("two\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
    assert!(answers.ends_with("kubernetes-admin"), "{answers}");

    let mut stream = server.connect().await;
    stream.write_all(LASTING.as_bytes()).await.unwrap();
    read_until(&mut stream, "one\n\r\n").await;
    // More than the server reads ahead, so that the remainder waits in the socket.
    let many = "GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(999) + WHO_AND_CLOSE;
    stream.write_all(many.as_bytes()).await.unwrap();
    server.handler.gate.add_permits(1);
    let answers = read_to_end(&mut stream).await;
    assert!(answers.starts_with("4\r\ntwo\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"), "{answers}");
    assert_eq!(answers.matches("200 OK").count(), 1000);
}

#[tokio::test]
async fn connection_close_closes_the_connection_after_the_stream() {
    let server = Started::plain(Options::default());
    server.handler.gate.add_permits(2);
    let request = LASTING.replace("\r\n\r\n", "\r\nConnection: Foo, Close\r\n\r\n");
    let answer = server.exchange(request.as_bytes()).await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(answer.ends_with("4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n"), "{answer}");
    // An HTTP/1.0 client gets no chunks.
    let answer = server.exchange(LASTING.replace("1.1", "1.0").as_bytes()).await;
    assert!(answer.ends_with("\r\n\r\none\ntwo\n"), "{answer}");
}

#[tokio::test]
async fn a_head_request_gets_no_body_and_holds_no_stream() {
    let server = Started::plain(Options::default());
    let mut stream = server.connect().await;
    stream.write_all(LASTING.replace("GET", "HEAD").as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    server.held_request_arrived().await;
    stream.write_all(WHO_AND_CLOSE.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.ends_with("kubernetes-admin"), "{answer}");
}

#[tokio::test]
async fn a_client_that_disconnects_ends_the_stream() {
    let server = Started::plain(Options::default());
    let mut stream = server.connect().await;
    stream.write_all(LASTING.as_bytes()).await.unwrap();
    read_until(&mut stream, "one\n\r\n").await;
    drop(stream);
    server.held_request_arrived().await;
}

#[tokio::test]
async fn a_stream_never_counts_as_idle_and_the_connection_does_afterwards() {
    let server = Started::plain(soon_idle());
    let mut stream = server.connect().await;
    stream.write_all(LASTING.as_bytes()).await.unwrap();
    read_until(&mut stream, "one\n\r\n").await;
    // Longer than the idle timeout: an idle connection is closed meanwhile.
    let answer = server.exchange(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.ends_with("kubernetes-admin"), "{answer}");
    server.handler.gate.add_permits(1);
    assert_eq!(read_to_end(&mut stream).await, "4\r\ntwo\n\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_slow_reader_receives_the_entire_stream() {
    let pki = pki_at(&SystemClock);
    let server = Started::tls(&pki, Options::default(), Arc::new(SystemClock));
    let mut stream = tls_connect(server.address, &pki, None, "http/1.1").await;
    stream.write_all(LASTING.replace("/lasting", "/large").as_bytes()).await.unwrap();
    // Another connection is served while the first does not read.
    assert!(who(server.address, &pki, Some(&pki.admin)).await.starts_with("200"));
    let answer = read_until(&mut stream, "0\r\n\r\n").await;
    let (_, mut chunks) = answer.split_once("\r\n\r\n").unwrap();
    for _ in 0..LARGE_CHUNKS {
        let data = chunks.strip_prefix("100000\r\n").unwrap();
        assert!(data[..LARGE_CHUNK].bytes().all(|byte| byte == b'x'));
        chunks = data[LARGE_CHUNK..].strip_prefix("\r\n").unwrap();
    }
    assert_eq!(chunks, "0\r\n\r\n");
}

#[tokio::test]
async fn a_stop_waits_for_the_stream() {
    let server = Started::plain(Options::default());
    let mut stream = server.connect().await;
    stream.write_all(LASTING.as_bytes()).await.unwrap();
    read_until(&mut stream, "one\n\r\n").await;
    server.stop.cancel();
    server.handler.gate.add_permits(1);
    assert_eq!(read_to_end(&mut stream).await, "4\r\ntwo\n\r\n0\r\n\r\n");
    server.ended().await;
}

/// R32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_end_leave_no_task_and_no_watcher_behind() {
    const WATCHES: usize = 100;
    const WATCH: &str = "GET /api/v1/configmaps?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let issuer = Issuer::new(&pki_at(&SystemClock).service_account_key).unwrap();
    let options = headwater_server::Options::new(issuer);
    let metrics = options.metrics.clone();
    let mut running = start(Arc::new(Memory::default()), options).await.unwrap();
    let listener = Listener::plain(any_port(), Options::default(), metrics).unwrap();
    let address = listener.address();
    running.listen(listener);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let cache = running.server().cache().clone();
    let watchers = || cache.resource("/registry/core/configmaps/").watchers();
    let until = async |what: &str, is_true: &dyn Fn() -> bool| {
        let waiting = async {
            while !is_true() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
        assert!(waited.is_ok(), "{what}: {} tasks, {} watchers", tasks(), watchers());
    };
    let before = tasks();
    for _ in 0..3 {
        let mut open = Vec::new();
        for _ in 0..WATCHES {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(WATCH.as_bytes()).await.unwrap();
            open.push(stream);
        }
        until("the watches begin", &|| watchers() == WATCHES).await;
        drop(open);
        // A few tasks of the server itself may have started since.
        until("the watches end", &|| watchers() == 0 && tasks() < before + WATCHES / 4).await;
    }
    running.stop().await.unwrap();
}
