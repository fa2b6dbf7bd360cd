//! The requests of the bench, and the objects that scenarios need before they measure.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};

use super::object::{
    DEFINITION, SPREAD, WIDGETS, config_map, namespace, own_namespace, pod, pod_name, widget,
};
use super::{APPLY, JSON, STRATEGIC, WriteRequest, load};
use crate::connect::{Connection, successful};
use crate::target::TargetServer;

/// Clients that create the objects a scenario needs.
const MAKERS: usize = 16;

/// Poll interval until a new resource is served.
const SERVED_POLL: Duration = Duration::from_millis(20);

/// Creates the namespaces that objects are spread over.
pub(crate) async fn make_namespaces(target: &TargetServer) -> Result<()> {
    make_missing(target, "/api/v1/namespaces", SPREAD, |index| namespaced(&namespace(index)))
        .await?;
    let account =
        r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"web-frontend"}}"#;
    for index in 0..SPREAD {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts", namespace(index));
        make_missing(target, &path, 1, |_| account.to_owned()).await?;
    }
    Ok(())
}

/// Creates a namespace for each watcher.
pub(crate) async fn make_own_namespaces(target: &TargetServer, watchers: usize) -> Result<()> {
    let body = |watcher: usize| namespaced(&own_namespace(watcher));
    make_missing(target, "/api/v1/namespaces", watchers, body).await
}

/// Creates the definition of our custom resource and waits until it is served.
pub(crate) async fn make_definition(target: &TargetServer) -> Result<()> {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    make_missing(target, definitions, 1, |_| DEFINITION.to_owned()).await?;
    let mut connection = Connection::open(&target.endpoint).await?;
    while !serves_widgets(&mut connection).await? {
        tokio::time::sleep(SERVED_POLL).await;
    }
    Ok(())
}

/// Whether the server serves our custom resource.
pub(crate) async fn serves_widgets(connection: &mut Connection) -> Result<bool> {
    let request = Request::get(format!("{WIDGETS}/widgets?limit=1")).body(Full::default())?;
    let response = connection.send(request).await?;
    if response.status() == http::StatusCode::NOT_FOUND {
        response.into_body().collect().await?;
        return Ok(false);
    }
    successful(response).await?.into_body().collect().await?;
    Ok(true)
}

fn namespaced(name: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}"#)
}

/// Creates objects; those of an earlier run may exist.
async fn make_missing(
    target: &TargetServer,
    path: &str,
    count: usize,
    body: impl Fn(usize) -> String,
) -> Result<()> {
    let mut connection = Connection::open(&target.endpoint).await?;
    for index in 0..count {
        let request = Request::post(path).header("content-type", "application/json");
        let response = connection.send(request.body(Full::from(body(index)))?).await?;
        if response.status() == http::StatusCode::CONFLICT {
            response.into_body().collect().await?;
            continue;
        }
        successful(response).await?.into_body().collect().await?;
    }
    Ok(())
}

/// Creates pods until there are `count`; there are `made` already.
pub(crate) async fn make_pods(target: &TargetServer, made: usize, count: usize) -> Result<()> {
    let missing = count.saturating_sub(made);
    load(&target.endpoint, MAKERS, missing, move |index| create_pod(made + index)).await.map(drop)
}

pub(crate) fn create_pod(index: usize) -> WriteRequest {
    let namespace = namespace(index);
    WriteRequest {
        method: Method::POST,
        path: format!("/api/v1/namespaces/{namespace}/pods"),
        content_type: JSON,
        body: pod(index, &namespace, 0),
    }
}

/// An update that differs from every other: one without a change would cause no event.
pub(crate) fn update_pod(index: usize) -> WriteRequest {
    let namespace = namespace(index);
    WriteRequest {
        method: Method::PUT,
        path: pod_path(index),
        content_type: JSON,
        body: pod(index, &namespace, unused_mark()),
    }
}

/// Strategic merge patch of an annotation and a label.
pub(crate) fn patch_pod(index: usize) -> WriteRequest {
    let mark = unused_mark();
    let body = format!(
        r#"{{"metadata":{{"annotations":{{"bench.headwater/mark":"{mark}"}},"labels":{{"mark":"m{mark}"}}}}}}"#
    );
    WriteRequest {
        method: Method::PATCH,
        path: pod_path(index),
        content_type: STRATEGIC,
        body: body.into_bytes(),
    }
}

/// Server-side apply, by a manager that takes over every field of the pod.
pub(crate) fn apply_pod(index: usize) -> WriteRequest {
    let namespace = namespace(index);
    WriteRequest {
        method: Method::PATCH,
        path: format!("{}?fieldManager=bench-apply&force=true", pod_path(index)),
        content_type: APPLY,
        body: pod(index, &namespace, unused_mark()),
    }
}

/// Without a grace period: no kubelet exists to end the pod.
pub(crate) fn delete_pod(index: usize) -> WriteRequest {
    let body = br#"{"gracePeriodSeconds":0}"#.to_vec();
    WriteRequest { method: Method::DELETE, path: pod_path(index), content_type: JSON, body }
}

pub(crate) fn create_config_map(index: usize) -> WriteRequest {
    let namespace = namespace(index);
    WriteRequest {
        method: Method::POST,
        path: format!("/api/v1/namespaces/{namespace}/configmaps"),
        content_type: JSON,
        body: config_map(index, &namespace),
    }
}

/// A custom resource; needs [`make_definition`].
pub(crate) fn create_widget(index: usize) -> WriteRequest {
    let namespace = namespace(index);
    WriteRequest {
        method: Method::POST,
        path: format!("{WIDGETS}/namespaces/{namespace}/widgets"),
        content_type: JSON,
        body: widget(index, &namespace),
    }
}

fn pod_path(index: usize) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", namespace(index), pod_name(index))
}

/// A number that this process has not used before.
pub(crate) fn unused_mark() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Relaxed)
}
