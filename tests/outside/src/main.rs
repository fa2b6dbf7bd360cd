//! A controller that copies the label `team` of each namespace into a ConfigMap.

use std::sync::Arc;

use headwater_client::controller::{Context, Failure, Next};
use headwater_client::{Cached, Controller, Error, Factory, owner};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let factory = Factory::connect().await?;
    run(&factory, async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await
}

async fn run(
    factory: &Factory,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let namespaces = factory.informer::<Namespace>().open()?;
    let maps = factory.informer::<ConfigMap>().open()?;
    let controller = Controller::new("teams", &namespaces).owns(&maps);
    controller.run(factory, stop, reconcile).await.map(drop)
}

async fn reconcile(namespace: Arc<Namespace>, cx: Context) -> Result<Next, Failure> {
    let Some(team) = namespace.label("team") else { return Ok(Next::Done) };
    let mut map = ConfigMap::default();
    map.metadata.name = Some("team".to_owned());
    map.metadata.namespace = Some(namespace.name().to_owned());
    map.data = Some([("name".to_owned(), team.into_owned())].into());
    owner::set_controller(&*namespace, &mut map)?;
    cx.apply(&map, "teams").await?;
    Ok(Next::Done)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headwater_client::Key;
    use headwater_testing::TestServer;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn the_label_of_a_namespace_is_copied() {
        let server = TestServer::start().await;
        let factory = server.factory();
        let maps = factory.informer::<ConfigMap>().open().unwrap();
        let stop = CancellationToken::new();
        let test = async {
            let shop =
                "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: red}}}";
            server.apply_yaml(shop).await.unwrap();
            let key = Key::namespaced("shop", "team");
            let found = maps.wait_for(&key, |map| map.is_some(), Duration::from_secs(60)).await?;
            stop.cancel();
            Ok(found)
        };
        let stopped = stop.clone().cancelled_owned();
        let ((), map) = tokio::try_join!(run(&factory, stopped), test).unwrap();
        assert_eq!(map.unwrap().data.as_ref().unwrap()["name"], "red");
        server.stop().await;
    }
}
