//! An operator: `cargo run -p headwater-client --example operator`
//! Each WebApp owns a Deployment and has a line in a shared ConfigMap, which a finalizer removes.

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next};
use headwater_client::{Cached, Factory, calls::Calls, error::BoxError, owner, predicate};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{CustomResource, CustomResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, from_value, json};

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "WebApp", namespaced)]
pub struct WebAppSpec {
    image: String,
    replicas: i32,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    operate(&Factory::connect().await?, async { drop(tokio::signal::ctrl_c().await) }).await
}

pub async fn operate(factory: &Factory, stop: impl Future<Output = ()>) -> Result<(), BoxError> {
    Calls::new(factory.client().clone()).of().apply(&WebApp::crd(), "operator").await?;
    let apps = factory.informer::<WebApp>().open()?;
    let deployments = factory.informer::<Deployment>().labels("managed-by=webapp").open()?;
    let controller = Controller::new("webapp", &apps)
        .owns(&deployments) // a change of one reconciles its WebApp
        .when(predicate::generation_changed())
        .finalizer("example.com/directory", forget)?;
    controller.run(factory, stop, reconcile).await?;
    Ok(())
}

async fn reconcile(app: Arc<WebApp>, cx: Context) -> Result<Next, Failure> {
    let (name, container) = (app.name(), json!({"name": "web", "image": app.spec.image}));
    let labels = json!({"app": name, "managed-by": "webapp"});
    let mut wanted: Deployment = from_value(json!({
        "metadata": {"name": name, "namespace": app.namespace(), "labels": labels},
        "spec": {"replicas": app.spec.replicas, "selector": {"matchLabels": labels}, "template":
            {"metadata": {"labels": labels}, "spec": {"containers": [container]}}},
    }))?;
    owner::set_controller(&*app, &mut wanted)?;
    cx.apply(&wanted, "webapp").await?; // the next reconcile sees this write
    cx.apply(&directory(&app, &json!({name: app.spec.image}))?, name).await?;
    Ok(Next::Done) // an error is retried, with a delay for this object only
}

async fn forget(app: Arc<WebApp>, cx: Context) -> Result<Next, Failure> {
    cx.apply(&directory(&app, &json!({}))?, app.name()).await?;
    Ok(Next::Done) // now the finalizer is removed and the WebApp deleted
}

fn directory(app: &WebApp, data: &Value) -> serde_json::Result<ConfigMap> {
    let metadata = json!({"name": "directory", "namespace": app.namespace()});
    from_value(json!({"metadata": metadata, "data": data}))
}
