//! Bad inputs, one row each, against one running server.
//!
//! Every number of the list of bad inputs is either a row here or says where else it is tested.
//! After each row the same process runs, is ready, has counted no panic, and its revision has
//! moved only if a write was answered with success. A row that fails does not hide the others: all
//! of them are told at the end, with the line they stand in.

mod body;
mod connection;
mod custom;
mod elsewhere;
mod http2;
mod identity;
mod path;
mod selector;
mod suite;
mod version;
mod websocket;
mod write;

use suite::Suite;

#[test]
fn bad_inputs_are_answered_and_leave_nothing_behind() {
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
    let done = suite.end();
    elsewhere::every_number_is_somewhere(&done);
}
