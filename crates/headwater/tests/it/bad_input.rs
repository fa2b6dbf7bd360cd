//! Bad inputs, one row each, against one running server.
//!
//! A row has the number of its clause (B007 is row 7); the other B clauses are cited by tests
//! elsewhere. After each row the same process is running and ready, has counted no panic, and its
//! revision has moved only if a write succeeded. All failed rows are reported at the end.

mod body;
mod connection;
mod custom;
mod http2;
mod identity;
mod path;
mod selector;
mod suite;
mod version;
mod websocket;
mod write;

use suite::Suite;

/// R46, R47
#[test]
fn bad_inputs_get_their_response_and_have_no_side_effect() {
    let mut suite = Suite::start();
    let half_done = connection::half_done_handshakes(&mut suite);
    path::rows(&mut suite);
    body::rows(&mut suite);
    selector::rows(&mut suite);
    version::rows(&mut suite);
    write::rows(&mut suite);
    custom::rows(&mut suite);
    identity::rows(&mut suite);
    connection::rows(&mut suite);
    http2::rows(&mut suite);
    websocket::rows(&mut suite);
    connection::half_done_handshakes_are_dropped(&mut suite, half_done);
    suite.end();
}
