//! The server's own objects: the endpoints of `kubernetes` and the client CA (S10.21, S10.22).
//!
//! River: start-up → **presence** → store.
//! Promise: each start updates the objects to this server. With several servers over one store the
//! last one wins.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use headwater_api::Status;
use headwater_json::json;

use crate::admission::service_ranges::ServiceRanges;
use crate::front::request_header::RequestHeaderOptions;
use crate::server::Server;
use crate::upkeep::bootstrap::{OWN_SERVICE, Own, own_service};

/// The addresses and the client CA of a server.
#[derive(Clone, Debug)]
pub struct Presence {
    /// The listening address.
    pub address: SocketAddr,
    /// The CA of client certificates, as PEM.
    pub client_authority: String,
    /// How front proxies name users, if any may.
    pub proxies: Option<RequestHeaderOptions>,
}

impl Server {
    /// Writes the objects from which pods, controllers and extension servers find this server.
    pub async fn appear(&self, presence: Presence) -> Result<(), Status> {
        let today = self.now().strftime("%Y-%m-%d").to_string();
        let services = &self.settings().admission.services;
        for own in objects(presence, &today, services) {
            self.ensure(own).await?;
        }
        Ok(())
    }
}

fn objects(presence: Presence, today: &str, services: &ServiceRanges) -> Vec<Own> {
    let Presence { address, client_authority, proxies } = presence;
    let port = address.port();
    let mut objects = vec![
        authority(&client_authority, proxies.as_ref()),
        tracking(today),
        own_service(port, services),
    ];
    if let Some(ip) = advertised(address.ip().to_canonical()) {
        objects.extend(endpoints(ip, port));
    }
    objects
}

/// The address in the endpoints. Loopback addresses are invalid there: they would lead each client to
/// itself. As in Kubernetes, the one from which this machine reaches others stands in for them, and for
/// all addresses; a machine without a route has none.
fn advertised(bound: IpAddr) -> Option<IpAddr> {
    if !bound.is_loopback() && !bound.is_unspecified() {
        return Some(bound);
    }
    // Addresses for documentation. Connecting a datagram socket sends nothing: it chooses a route.
    let (any, other) = match bound {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    let ip = socket.local_addr().ok()?.ip().to_canonical();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// What this server writes of it; others may publish their proxies if it has none.
const PUBLISHED: &[&[&str]] = &[
    &["data", "client-ca-file"],
    &["data", "requestheader-client-ca-file"],
    &["data", "requestheader-allowed-names"],
    &["data", "requestheader-username-headers"],
    &["data", "requestheader-uid-headers"],
    &["data", "requestheader-group-headers"],
    &["data", "requestheader-extra-headers-prefix"],
];

fn authority(pem: &str, proxies: Option<&RequestHeaderOptions>) -> Own {
    let metadata =
        json!({ "name": "extension-apiserver-authentication", "namespace": "kube-system" });
    let mut data = json!({ "client-ca-file": pem });
    for (key, value) in proxies.map(RequestHeaderOptions::published).into_iter().flatten() {
        data[key] = value.into();
    }
    Own {
        resource: ("", "v1", "configmaps"),
        value: json!({ "metadata": metadata, "data": data }),
        corrected: if proxies.is_some() { PUBLISHED } else { &PUBLISHED[..1] },
    }
}

/// The time since which the use of tokens in Secrets is tracked: kube-controller-manager reads it
/// before it removes unused ones.
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
