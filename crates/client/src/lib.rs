//! Everything client-go has, in Rust: reflector, informers, indexer, workqueue, controllers.
