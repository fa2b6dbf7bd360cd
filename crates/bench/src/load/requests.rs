//! The writes of the bench: what is asked of a server for each object.

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

/// Clients that make what a scenario needs before it measures.
const MAKERS: usize = 16;

/// How long to wait before asking for a new resource again.
const SERVED_POLL: Duration = Duration::from_millis(20);

/// The namespaces everything is spread over.
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

/// A namespace for each of so many watchers.
pub(crate) async fn make_own_namespaces(target: &TargetServer, watchers: usize) -> Result<()> {
    let body = |watcher: usize| namespaced(&own_namespace(watcher));
    make_missing(target, "/api/v1/namespaces", watchers, body).await
}

/// The definition of our custom resource; a server may need a moment to serve it.
pub(crate) async fn make_definition(target: &TargetServer) -> Result<()> {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    make_missing(target, definitions, 1, |_| DEFINITION.to_owned()).await?;
    let mut connection = Connection::open(&target.endpoint).await?;
    while !serves_widgets(&mut connection).await? {
        tokio::time::sleep(SERVED_POLL).await;
    }
    Ok(())
}

/// Whether there is such a resource.
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

/// Creates what may be there from an earlier run.
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

/// Makes the pods that are missing for `count`, of which there are `made`.
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

/// A write that differs from every other: one that changes nothing makes no event.
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

/// At once: nobody is there to end the pod on its node.
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

/// A custom resource; [`make_definition`] comes first.
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

/// Marks are never used twice in a run of the program.
pub(crate) fn unused_mark() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Relaxed)
}
