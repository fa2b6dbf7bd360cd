//! How long a test waits for its server: `cargo bench -p headwater-testing --bench start`.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use headwater_testing::TestServer;

/// Servers that are started, one after the other.
const SERVERS: usize = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    TestServer::start().await.stop().await; // tables of the process are made once
    let mut times = Vec::new();
    for _ in 0..SERVERS {
        let began = Instant::now();
        let server = TestServer::start().await;
        times.push(began.elapsed());
        server.stop().await;
    }
    times.sort();
    println!("start: median {:?}, slowest {:?}", times[SERVERS / 2], times[SERVERS - 1]);
}
