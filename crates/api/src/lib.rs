//! The words and the wire of a Kubernetes-compatible API: objects, selectors, options, status, frames.
