//! A relay in front of a real server, over TLS.

mod world;
mod reads;
mod permission;
mod passing;
mod resume;
mod kinds;
mod hostile;
mod load;
