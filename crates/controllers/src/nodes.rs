//! Simulated nodes: they say that they run what is bound to them.

use headwater_client::Error;
use headwater_client::controller::Prepared;

use crate::cluster::Cluster;

/// What the simulated nodes are like.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many there are.
    pub count: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { count: 3 }
    }
}

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?;
    Ok(Prepared::custom("simulated-nodes", move |env| async move {
        env.stop().cancelled().await;
        drop(pods);
        Ok(())
    }))
}
