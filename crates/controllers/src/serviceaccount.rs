//! The service account controller: the service account `default` and the ConfigMap
//! `kube-root-ca.crt` in every namespace.
//!
//! River: namespaces, service accounts and ConfigMaps → **serviceaccount** → missing objects.
//! Promise: a deleted object is created again; fields that others add to the account are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::core::ObjectMeta;
use serde_json::json;

use crate::cluster::Cluster;
use crate::slow_start::is_namespace_terminating;

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// Creates the service account `default`.
pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let namespaces = cluster.informer::<Namespace>()?;
    let accounts = cluster.informer::<ServiceAccount>()?;
    let reconcile = |namespace: Arc<Namespace>, cx: Context| async move {
        let exists = cx.lister::<ServiceAccount>()?.get(namespace.name(), ACCOUNT)?.is_some();
        if exists || is_terminating(&namespace) {
            return Ok::<Next, Failure>(Next::Done);
        }
        let account =
            ServiceAccount { metadata: metadata_for(&namespace, ACCOUNT), ..Default::default() };
        ignore_existing(cx.of::<ServiceAccount>().create(&account).await)?;
        Ok(Next::Done)
    };
    Ok(Controller::new("serviceaccount", &namespaces)
        .watches(&accounts, |account: &ServiceAccount| {
            (account.name() == ACCOUNT)
                .then(|| Key::cluster(account.namespace().unwrap_or_default()))
        })
        .with(reconcile))
}

/// Publishes the server's CA certificate; does nothing if it is not known.
pub(crate) fn prepare_root_ca(cluster: &Cluster) -> Result<Prepared, Error> {
    let namespaces = cluster.informer::<Namespace>()?;
    let builder = cluster.factory().informer::<ConfigMap>().named("configmaps/root-ca");
    let maps = builder.fields(format!("metadata.name={ROOT_CA}")).open()?;
    let certificate: Option<Arc<str>> = cluster.root_ca().map(Into::into);
    let reconcile = move |namespace: Arc<Namespace>, cx: Context| {
        let certificate = certificate.clone();
        async move {
            match certificate {
                Some(certificate) if !is_terminating(&namespace) => {
                    publish(&namespace, &certificate, &cx).await
                }
                _ => Ok(Next::Done),
            }
        }
    };
    Ok(Controller::new("root-ca", &namespaces)
        .watches(&maps, |map: &ConfigMap| [Key::cluster(map.namespace().unwrap_or_default())])
        .with(reconcile))
}

async fn publish(namespace: &Namespace, certificate: &str, cx: &Context) -> Result<Next, Failure> {
    let data: BTreeMap<String, String> = [("ca.crt".to_owned(), certificate.to_owned())].into();
    match cx.lister::<ConfigMap>()?.get(namespace.name(), ROOT_CA)? {
        None => {
            let mut metadata = metadata_for(namespace, ROOT_CA);
            let description = ("kubernetes.io/description".to_owned(), DESCRIPTION.to_owned());
            metadata.annotations = Some([description].into());
            let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            ignore_existing(cx.of::<ConfigMap>().create(&map).await)?;
        }
        Some(map) if map.data.as_ref() != Some(&data) => {
            let patch = json!({ "data": { "ca.crt": certificate } });
            cx.of::<ConfigMap>().merge(&map.key(), &patch).await?;
        }
        Some(_) => {}
    }
    Ok(Next::Done)
}

fn is_terminating(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

fn metadata_for(namespace: &Namespace, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.name().to_owned()),
        ..ObjectMeta::default()
    }
}

/// Ignores that the object already exists, or that the namespace is deleted or terminating.
fn ignore_existing<T>(created: Result<T, Error>) -> Result<(), Error> {
    match created {
        Err(error) if error.is_exists() || error.is_not_found() => Ok(()),
        Err(error) if is_namespace_terminating(&error) => Ok(()),
        created => created.map(drop),
    }
}
