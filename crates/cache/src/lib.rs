//! The watch cache: current state, a window of recent changes, views and cursors.
