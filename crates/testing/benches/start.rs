//! The time to start a test server: `cargo bench -p headwater-testing --bench start`.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use headwater_testing::TestServer;

/// The number of measured starts.
const SERVERS: usize = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    TestServer::start().await.stop().await; // builds the tables of the process
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
