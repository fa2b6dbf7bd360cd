//! Revisioned bytes: the Store trait, the memory engine, the embedded engine.
