//! The scheduler: gives every pod without a node one that fits.

use headwater_client::Error;
use headwater_client::controller::Prepared;

use crate::cluster::Cluster;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?;
    Ok(Prepared::custom("scheduler", move |env| async move {
        env.stop().cancelled().await;
        drop(pods);
        Ok(())
    }))
}
