//! The distribution of endpoints over slices, with as few writes as possible.
//!
//! Every change of a slice is sent to every node of a cluster. Therefore an endpoint stays in its
//! slice, new endpoints go to slices that change anyway, and slices are neither merged nor
//! balanced.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::Cached;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;

use crate::ownership::controller_reference;

use super::endpoints::{EndpointGroup, families, is_headless};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// The maximum number of endpoints in a slice.
const ENDPOINTS_MAX: usize = 100;

/// A write to an EndpointSlice.
#[derive(Debug, PartialEq)]
pub(super) enum SliceWrite {
    Create(Box<EndpointSlice>),
    /// The old and the new slice.
    Update(Arc<EndpointSlice>, Box<EndpointSlice>),
    Delete(Arc<EndpointSlice>),
}

/// The object that slices belong to.
pub(super) struct SliceOwner<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: Option<&'a str>,
    /// The labels of its slices.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) reference: OwnerReference,
}

impl<'a> SliceOwner<'a> {
    fn service(service: &'a Service) -> SliceOwner<'a> {
        SliceOwner {
            name: service.name(),
            namespace: service.namespace(),
            labels: labels(service),
            reference: controller_reference(service),
        }
    }
}

/// The writes after which the slices of a Service hold these endpoints. A Service without endpoints
/// has one empty slice, which shows that it was processed.
pub(super) fn writes(
    service: &Service,
    existing: &[Arc<EndpointSlice>],
    mut groups: Vec<EndpointGroup>,
) -> Vec<SliceWrite> {
    if groups.is_empty() {
        let address_type = families(service).remove(0);
        groups.push(EndpointGroup { address_type, ..EndpointGroup::default() });
    }
    writes_for(&SliceOwner::service(service), existing, &groups)
}

/// The writes after which the slices of an owner hold these endpoints.
pub(super) fn writes_for(
    owner: &SliceOwner<'_>,
    existing: &[Arc<EndpointSlice>],
    groups: &[EndpointGroup],
) -> Vec<SliceWrite> {
    let mut writes = Vec::new();
    let mut taken: Vec<&str> = Vec::new();
    for group in groups {
        let own: Vec<&Arc<EndpointSlice>> =
            existing.iter().filter(|slice| holds_group(slice, group)).collect();
        taken.extend(own.iter().map(|slice| slice.name()));
        writes.extend(fill(owner, &own, group));
    }
    let others = existing.iter().filter(|slice| !taken.contains(&slice.name()));
    writes.extend(others.map(|slice| SliceWrite::Delete(Arc::clone(slice))));
    writes
}

fn holds_group(slice: &EndpointSlice, group: &EndpointGroup) -> bool {
    let mut ports = slice.ports.clone().unwrap_or_default();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    slice.address_type == group.address_type && ports == group.ports
}

/// The new content of an existing slice.
struct SliceDraft<'a> {
    slice: &'a Arc<EndpointSlice>,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn fill(
    owner: &SliceOwner<'_>,
    own: &[&Arc<EndpointSlice>],
    group: &EndpointGroup,
) -> Vec<SliceWrite> {
    let mut waiting: BTreeMap<String, &Endpoint> =
        group.endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
    let mut drafts: Vec<SliceDraft<'_>> =
        own.iter().map(|slice| keep(owner, slice, &mut waiting)).collect();
    // Slices that change anyway first, then the fullest.
    drafts.sort_by_key(|it| (!it.changed, std::cmp::Reverse(it.endpoints.len())));
    let mut waiting: Vec<Endpoint> = waiting.into_values().cloned().collect();
    for draft in &mut drafts {
        let room = ENDPOINTS_MAX.saturating_sub(draft.endpoints.len()).min(waiting.len());
        draft.changed |= room > 0;
        draft.endpoints.extend(waiting.drain(..room));
    }
    let mut writes: Vec<SliceWrite> =
        waiting.chunks(ENDPOINTS_MAX).map(|chunk| create(owner, group, chunk)).collect();
    let is_empty = group.endpoints.is_empty();
    let mut has_one = !writes.is_empty();
    for draft in drafts {
        match draft.endpoints.is_empty() && (!is_empty || has_one) {
            true => writes.push(SliceWrite::Delete(Arc::clone(draft.slice))),
            false if draft.changed => writes.push(draft.written(owner)),
            false => {}
        }
        has_one = true;
    }
    if !has_one {
        writes.push(create(owner, group, &[]));
    }
    writes
}

fn create(owner: &SliceOwner<'_>, group: &EndpointGroup, endpoints: &[Endpoint]) -> SliceWrite {
    SliceWrite::Create(Box::new(EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name)),
            namespace: owner.namespace.map(str::to_owned),
            labels: Some(owner.labels.clone()),
            owner_references: Some(vec![owner.reference.clone()]),
            ..ObjectMeta::default()
        },
        address_type: group.address_type.clone(),
        endpoints: Some(endpoints.to_vec()),
        ports: Some(group.ports.clone()),
    }))
}

impl SliceDraft<'_> {
    fn written(self, owner: &SliceOwner<'_>) -> SliceWrite {
        let mut slice = (**self.slice).clone();
        slice.endpoints = Some(self.endpoints);
        slice.metadata.labels = Some(owner.labels.clone());
        SliceWrite::Update(Arc::clone(self.slice), Box::new(slice))
    }
}

/// Keeps the slice's endpoints that still exist, and removes them from `waiting`.
fn keep<'a>(
    owner: &SliceOwner<'_>,
    slice: &'a Arc<EndpointSlice>,
    waiting: &mut BTreeMap<String, &Endpoint>,
) -> SliceDraft<'a> {
    let before = slice.endpoints.clone().unwrap_or_default();
    let endpoints: Vec<Endpoint> =
        before.iter().filter_map(|it| waiting.remove(&identity(it)).cloned()).collect();
    let changed = endpoints != before || slice.metadata.labels.as_ref() != Some(&owner.labels);
    SliceDraft { slice, endpoints, changed }
}

/// The UID of an endpoint's pod; its address if it has no pod.
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

    use super::super::endpoints::endpoint_groups;
    use super::super::endpoints::tests::{pod, service};
    use super::*;

    fn wanted(numbers: std::ops::Range<usize>) -> Vec<EndpointGroup> {
        let pods: Vec<_> = numbers.map(|number| pod(number, &json!({}))).collect();
        endpoint_groups(&service(&json!({})), &pods, |_| None)
    }

    /// Applies the writes; returns the slices and the number of writes.
    fn apply(
        existing: &[Arc<EndpointSlice>],
        groups: Vec<EndpointGroup>,
    ) -> (Vec<Arc<EndpointSlice>>, usize) {
        let writes = writes(&service(&json!({})), existing, groups);
        let count = writes.len();
        let mut slices = existing.to_vec();
        let newest = slices.iter().filter_map(|slice| slice.name().parse::<usize>().ok()).max();
        for (number, write) in writes.into_iter().enumerate() {
            match write {
                SliceWrite::Create(mut slice) => {
                    slice.metadata.name = Some((newest.unwrap_or(0) + 1 + number).to_string());
                    slices.push(Arc::new(*slice));
                }
                SliceWrite::Update(old, new) => {
                    slices.retain(|slice| slice.name() != old.name());
                    slices.push(Arc::new(*new));
                }
                SliceWrite::Delete(old) => slices.retain(|slice| slice.name() != old.name()),
            }
        }
        (slices, count)
    }

    fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
        let mut sizes: Vec<usize> =
            slices.iter().map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len)).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn a_slice_holds_a_hundred_endpoints_and_changes_only_if_necessary() {
        let (slices, writes) = apply(&[], wanted(0..250));
        assert_eq!((sizes(&slices), writes), (vec![50, 100, 100], 3));
        let (same, writes) = apply(&slices, wanted(0..250));
        assert_eq!((sizes(&same), writes), (vec![50, 100, 100], 0), "nothing to do twice");
        let (fewer, writes) = apply(&slices, wanted(0..249));
        assert_eq!((fewer.len(), writes), (3, 1), "one goes, one slice changes");
        let (more, writes) = apply(&slices, wanted(0..300));
        assert_eq!((sizes(&more), writes), (vec![100, 100, 100], 1), "room is used first");
        // One endpoint is removed and one added: both in the same slice.
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
    fn pods_with_other_ports_get_their_own_slice() {
        let named = service(&json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}));
        let other = json!({"spec": {"containers": [
            {"name": "c", "ports": [{"name": "http", "containerPort": 9090}]},
        ]}});
        let pods = [pod(1, &json!({})), pod(2, &other)];
        let writes = writes(&named, &[], endpoint_groups(&named, &pods, |_| None));
        assert_eq!(writes.len(), 2);
    }

    #[test]
    fn slices_have_the_labels_of_their_service() {
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
