//! Engines over members that are started for one test.

use std::time::Duration;

use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::{OwningStore, etcd};

/// A deadline that some test waits for, and that a busy machine keeps all the same.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Options for these members: any key goes, nothing is compacted by itself.
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

/// An engine over one member of its own; `None` where the machine has no etcd.
pub(crate) async fn alone() -> Option<OwningStore<EtcdStore, etcd::EtcdCluster>> {
    let members = etcd::EtcdCluster::start()?;
    let engine = EtcdStore::connect(options(&members)).await.unwrap();
    Some(OwningStore(engine, members))
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(600), waiting).await;
    assert!(waited.is_ok(), "it never happens that {what}");
}
