//! What a server says of itself: where it is, and who signs the certificates of its clients (S10.21,
//! S10.22).
//!
//! River: start-up → **presence** → store.
//! Promise: after each start the objects are as this server is, whatever an earlier one left. Of
//! several servers over one store the last one counts.

use std::net::{IpAddr, SocketAddr};

use headwater_api::Status;
use headwater_api::json::json;

use crate::pipeline::Server;
use crate::upkeep::bootstrap::{OWN_SERVICE, Own, own_service};

/// Where a server is and whom it knows.
#[derive(Clone, Copy, Debug)]
pub struct Presence<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// The authority that certificates of clients come from, as PEM.
    pub client_authority: &'a str,
}

impl Server {
    /// Writes down where this server is: for pods, controllers and extension servers.
    pub async fn appear(&self, presence: Presence<'_>) -> Result<(), Status> {
        for own in objects(presence, &self.now().strftime("%Y-%m-%d").to_string()) {
            self.ensure(own).await?;
        }
        Ok(())
    }
}

fn objects(Presence { address, client_authority }: Presence<'_>, today: &str) -> Vec<Own> {
    let port = address.port();
    let mut objects = vec![authority(client_authority), tracking(today), own_service(port)];
    // Endpoints on loopback are invalid, and lead everybody to themselves.
    let ip = address.ip().to_canonical();
    if !ip.is_loopback() && !ip.is_unspecified() {
        objects.extend(endpoints(ip, port));
    }
    objects
}

fn authority(pem: &str) -> Own {
    let metadata =
        json!({ "name": "extension-apiserver-authentication", "namespace": "kube-system" });
    Own {
        resource: ("", "v1", "configmaps"),
        value: json!({ "metadata": metadata, "data": { "client-ca-file": pem } }),
        corrected: &[&["data", "client-ca-file"]],
    }
}

/// Since when it is known which tokens that lie in Secrets are used: the controller of the
/// reference that removes the others asks.
fn tracking(today: &str) -> Own {
    let name = "kube-apiserver-legacy-service-account-token-tracking";
    let metadata = json!({ "name": name, "namespace": "kube-system" });
    Own {
        resource: ("", "v1", "configmaps"),
        value: json!({ "metadata": metadata, "data": { "since": today } }),
        corrected: &[],
    }
}

fn endpoints(ip: IpAddr, port: u16) -> [Own; 2] {
    let metadata = |key: &str, value: &str| json!({ "name": OWN_SERVICE, "namespace": "default", "labels": { key: value } });
    let ports = json!([{ "name": "https", "port": port, "protocol": "TCP" }]);
    let endpoints = json!({
        "metadata": metadata("endpointslice.kubernetes.io/skip-mirror", "true"),
        "subsets": [{ "addresses": [{ "ip": ip.to_string() }], "ports": ports }],
    });
    let slice = json!({
        "metadata": metadata("kubernetes.io/service-name", OWN_SERVICE),
        "addressType": if ip.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [ip.to_string()], "conditions": { "ready": true } }],
        "ports": ports,
    });
    [
        Own { resource: ("", "v1", "endpoints"), value: endpoints, corrected: &[&["subsets"]] },
        Own {
            resource: ("discovery.k8s.io", "v1", "endpointslices"),
            value: slice,
            corrected: &[&["endpoints"], &["ports"]],
        },
    ]
}
