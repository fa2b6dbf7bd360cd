//! Stores over etcd members that are started for one test.

use std::time::Duration;

use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::{OwningStore, etcd};

/// A deadline that a test waits for, and that a busy machine still meets.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Options for these members: any key is allowed, and nothing is compacted automatically.
pub(crate) fn options(members: &etcd::EtcdCluster) -> Options {
    Options {
        endpoints: members.endpoints(),
        prefix: "/test".into(),
        root: String::new(),
        compaction: None,
        deadline: Duration::from_secs(30),
        ..Options::default()
    }
}

/// A store over its own member; `None` if the machine has no etcd.
pub(crate) async fn alone() -> Option<OwningStore<EtcdStore, etcd::EtcdCluster>> {
    let members = etcd::EtcdCluster::start()?;
    let engine = EtcdStore::connect(options(&members)).await.unwrap();
    Some(OwningStore(engine, members))
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(600), waiting).await;
    assert!(waited.is_ok(), "it never happens that {what}");
}
