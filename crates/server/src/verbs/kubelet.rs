//! Subresources that need a kubelet: logs, commands and ports of containers.
//!
//! River: route → **kubelet** → refused. There is no kubelet to stream from. Errors that need no
//! node are those of the reference: no such pod, no such container, not scheduled yet.

use headwater_api::Status;
use headwater_api::options::Freshness;
use headwater_json::Value;
use http::StatusCode;

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::object::{meta, tree};
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::read;

/// Responds for a pod without a node; rejects all others.
pub(crate) async fn stream(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let what = resource.subresource.as_str();
    if resource.kind.plural != "pods" || what == "proxy" {
        return Err(not_served(what));
    }
    let pod = read::find(server, resource, Freshness::Latest).await?;
    let pod = tree(pod.as_slice())?;
    if what != "portforward" {
        check_container(call.query.text("container"), &pod)?;
    }
    let is_placed = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    match what {
        _ if is_placed => Err(not_served(what)),
        // A pod that never ran has an empty log.
        "log" => Ok(body::text(StatusCode::OK, "")),
        _ => {
            let why = format!("pod {} does not have a host assigned", meta(&pod, "name"));
            Err(status::bad_request(why))
        }
    }
}

fn check_container(asked: &str, pod: &Value) -> Result<(), Status> {
    let name = meta(pod, "name");
    let names = containers(pod);
    let count = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    match asked {
        "" if count == 1 => Ok(()),
        "" => Err(status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
        asked if names.contains(&asked) => Ok(()),
        asked => Err(status::bad_request(format!("container {asked} is not valid for pod {name}"))),
    }
}

/// The names of all containers, in the order in which the reference lists them.
fn containers(pod: &Value) -> Vec<&str> {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect()
}

/// The error of a request that needs a kubelet or a proxy to one.
fn not_served(what: &str) -> Status {
    status::not_implemented(format!("{what} needs a running container; this server runs none"))
}
