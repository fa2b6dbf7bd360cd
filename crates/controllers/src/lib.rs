//! Reconcilers, a scheduler and simulated nodes, on the informer stack alone.
#![warn(missing_docs)]
