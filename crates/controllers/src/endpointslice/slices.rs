//! How endpoints are spread over slices: with as few writes as possible.
//!
//! Every change of a slice goes to every node of a cluster. So an endpoint stays in the slice it is
//! in, new ones go where something changes anyway, and slices are neither merged nor balanced.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::Cached;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::core::ObjectMeta;

use crate::ownership::controller_reference;

use super::wanted::{Group, families, is_headless};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// A slice has at most so many endpoints.
const ENDPOINTS_MAX: usize = 100;

/// One write.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create(Box<EndpointSlice>),
    /// The slice as it was, and as it is to be.
    Update(Arc<EndpointSlice>, Box<EndpointSlice>),
    Delete(Arc<EndpointSlice>),
}

/// What has to be written so that the slices of a Service hold these endpoints. A Service without
/// any has one empty slice, so that one can tell it from a Service that nobody has looked at.
pub(super) fn steps(
    service: &Service,
    existing: &[Arc<EndpointSlice>],
    mut groups: Vec<Group>,
) -> Vec<Step> {
    if groups.is_empty() {
        let address_type = families(service).remove(0);
        groups.push(Group { address_type, ..Group::default() });
    }
    let mut steps = Vec::new();
    let mut taken: Vec<&str> = Vec::new();
    for group in &groups {
        let own: Vec<&Arc<EndpointSlice>> =
            existing.iter().filter(|slice| is_of(slice, group)).collect();
        taken.extend(own.iter().map(|slice| slice.name()));
        steps.extend(fill(service, &own, group));
    }
    let others = existing.iter().filter(|slice| !taken.contains(&slice.name()));
    steps.extend(others.map(|slice| Step::Delete(Arc::clone(slice))));
    steps
}

fn is_of(slice: &EndpointSlice, group: &Group) -> bool {
    let mut ports = slice.ports.clone().unwrap_or_default();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    slice.address_type == group.address_type && ports == group.ports
}

/// What a slice holds, before and after.
struct Filling<'a> {
    slice: &'a Arc<EndpointSlice>,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn fill(service: &Service, own: &[&Arc<EndpointSlice>], group: &Group) -> Vec<Step> {
    let mut waiting: BTreeMap<String, &Endpoint> =
        group.endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
    let mut fillings: Vec<Filling<'_>> =
        own.iter().map(|slice| keep(service, slice, &mut waiting)).collect();
    // Those that change anyway first, then the fullest.
    fillings.sort_by_key(|it| (!it.changed, std::cmp::Reverse(it.endpoints.len())));
    let mut waiting: Vec<Endpoint> = waiting.into_values().cloned().collect();
    for filling in &mut fillings {
        let room = ENDPOINTS_MAX.saturating_sub(filling.endpoints.len()).min(waiting.len());
        filling.changed |= room > 0;
        filling.endpoints.extend(waiting.drain(..room));
    }
    let mut steps: Vec<Step> =
        waiting.chunks(ENDPOINTS_MAX).map(|chunk| fresh(service, group, chunk)).collect();
    let is_empty = group.endpoints.is_empty();
    let mut has_one = !steps.is_empty();
    for filling in fillings {
        match filling.endpoints.is_empty() && (!is_empty || has_one) {
            true => steps.push(Step::Delete(Arc::clone(filling.slice))),
            false if filling.changed => steps.push(filling.written(service)),
            false => {}
        }
        has_one = true;
    }
    if !has_one {
        steps.push(fresh(service, group, &[]));
    }
    steps
}

fn fresh(service: &Service, group: &Group, endpoints: &[Endpoint]) -> Step {
    Step::Create(Box::new(EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: group.address_type.clone(),
        endpoints: Some(endpoints.to_vec()),
        ports: Some(group.ports.clone()),
    }))
}

impl Filling<'_> {
    fn written(self, service: &Service) -> Step {
        let mut slice = (**self.slice).clone();
        slice.endpoints = Some(self.endpoints);
        slice.metadata.labels = Some(labels(service));
        Step::Update(Arc::clone(self.slice), Box::new(slice))
    }
}

/// What stays in a slice; it is taken out of what waits.
fn keep<'a>(
    service: &Service,
    slice: &'a Arc<EndpointSlice>,
    waiting: &mut BTreeMap<String, &Endpoint>,
) -> Filling<'a> {
    let before = slice.endpoints.clone().unwrap_or_default();
    let endpoints: Vec<Endpoint> =
        before.iter().filter_map(|it| waiting.remove(&identity(it)).cloned()).collect();
    let changed = endpoints != before || slice.metadata.labels != Some(labels(service));
    Filling { slice, endpoints, changed }
}

/// The pod of an endpoint; its address if it has none.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
    uid.or_else(|| endpoint.addresses.first().cloned()).unwrap_or_default()
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::groups;
    use super::super::wanted::tests::{pod, service};
    use super::*;

    fn wanted(numbers: std::ops::Range<usize>) -> Vec<Group> {
        let pods: Vec<_> = numbers.map(|number| pod(number, &json!({}))).collect();
        groups(&service(&json!({})), &pods, |_| None)
    }

    /// Does the steps; answers the slices and how many writes it took.
    fn apply(
        existing: &[Arc<EndpointSlice>],
        groups: Vec<Group>,
    ) -> (Vec<Arc<EndpointSlice>>, usize) {
        let steps = steps(&service(&json!({})), existing, groups);
        let writes = steps.len();
        let mut slices = existing.to_vec();
        let newest = slices.iter().filter_map(|slice| slice.name().parse::<usize>().ok()).max();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Create(mut slice) => {
                    slice.metadata.name = Some((newest.unwrap_or(0) + 1 + number).to_string());
                    slices.push(Arc::new(*slice));
                }
                Step::Update(old, new) => {
                    slices.retain(|slice| slice.name() != old.name());
                    slices.push(Arc::new(*new));
                }
                Step::Delete(old) => slices.retain(|slice| slice.name() != old.name()),
            }
        }
        (slices, writes)
    }

    fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
        let mut sizes: Vec<usize> =
            slices.iter().map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len)).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn a_slice_holds_a_hundred_and_changes_only_when_it_must() {
        let (slices, writes) = apply(&[], wanted(0..250));
        assert_eq!((sizes(&slices), writes), (vec![50, 100, 100], 3));
        let (same, writes) = apply(&slices, wanted(0..250));
        assert_eq!((sizes(&same), writes), (vec![50, 100, 100], 0), "nothing to do twice");
        let (fewer, writes) = apply(&slices, wanted(0..249));
        assert_eq!((fewer.len(), writes), (3, 1), "one goes, one slice changes");
        let (more, writes) = apply(&slices, wanted(0..300));
        assert_eq!((sizes(&more), writes), (vec![100, 100, 100], 1), "room is used first");
        // One goes and one comes: both in the same slice.
        let (moved, writes) = apply(&slices, wanted(1..251));
        assert_eq!((moved.len(), writes), (3, 1));
    }

    #[test]
    fn a_service_without_endpoints_has_one_empty_slice() {
        let (none, writes) = apply(&[], wanted(0..0));
        assert_eq!((sizes(&none), writes), (vec![0], 1));
        let (same, writes) = apply(&none, wanted(0..0));
        assert_eq!((sizes(&same), writes), (vec![0], 0));
        let (some, _) = apply(&none, wanted(0..2));
        assert_eq!(sizes(&some), [2]);
        let (none, _) = apply(&some, wanted(0..0));
        assert_eq!(sizes(&none), [0]);
    }

    #[test]
    fn other_ports_are_other_slices() {
        let named = service(&json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}));
        let other = json!({"spec": {"containers": [
            {"name": "c", "ports": [{"name": "http", "containerPort": 9090}]},
        ]}});
        let pods = [pod(1, &json!({})), pod(2, &other)];
        let steps = steps(&named, &[], groups(&named, &pods, |_| None));
        assert_eq!(steps.len(), 2);
    }

    #[test]
    fn slices_carry_the_labels_of_their_service() {
        let headless = service(&json!({
            "metadata": {"labels": {"team": "shop"}}, "spec": {"clusterIP": "None"},
        }));
        let labels = labels(&headless);
        let pairs =
            [("team", "shop"), (SERVICE_NAME, "web"), (MANAGED_BY, MANAGER), (HEADLESS, "")];
        for (name, value) in pairs {
            assert_eq!(labels[name], value, "{name}");
        }
    }
}
