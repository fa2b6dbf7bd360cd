//! Deletes the objects of earlier runs from a running server.
//!
//! Promise: only pods, config maps and widgets in namespaces with the prefixes of the bench are
//! deleted. The namespaces stay: without controllers their deletion would not complete.

use anyhow::{Result, bail};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde::Deserialize;

use super::object::{PREFIXES, WIDGETS};
use super::requests::serves_widgets;
use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

pub(crate) async fn delete_leftovers(endpoint: &Endpoint) -> Result<()> {
    let mut connection = Connection::open(endpoint).await?;
    let mut resources = vec![("/api/v1", "pods"), ("/api/v1", "configmaps")];
    if serves_widgets(&mut connection).await? {
        resources.push((WIDGETS, "widgets"));
    }
    for namespace in namespaces(&mut connection).await? {
        for (version, resource) in &resources {
            let path = format!("{version}/namespaces/{namespace}/{resource}");
            call(&mut connection, Method::DELETE, &path).await?;
        }
    }
    let pods = call(&mut connection, Method::GET, "/api/v1/pods?limit=1").await?;
    let others = serde_json::from_slice::<List>(&pods)?.items.len();
    if others > 0 {
        bail!("the server has other pods, which lists would include; use a server without pods");
    }
    Ok(())
}

async fn namespaces(connection: &mut Connection) -> Result<Vec<String>> {
    let body = call(connection, Method::GET, "/api/v1/namespaces").await?;
    let names = serde_json::from_slice::<List>(&body)?.items.into_iter();
    let names = names.map(|item| item.metadata.name);
    Ok(names.filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix))).collect())
}

async fn call(connection: &mut Connection, method: Method, path: &str) -> Result<Bytes> {
    let body: &[u8] = match method {
        Method::DELETE => br#"{"gracePeriodSeconds":0}"#,
        _ => b"",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))?;
    let response = successful(connection.send(request).await?).await?;
    Ok(response.into_body().collect().await?.to_bytes())
}
