//! Volumes as tables: claims, volumes and nodes, and the chosen node or the reported reason.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::cache::SchedulerCache;
use super::super::schedule_one::{ScheduleResult, schedule_pod};
use super::*;
use crate::pod::Pod;

fn made<K: DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// A claim in the namespace `a`, bound to the volume if one is named.
fn claim(name: &str, class: &str, volume: &str) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "2Gi"}}},
        "status": {"phase": "Pending"},
    });
    if !volume.is_empty() {
        claim["spec"]["volumeName"] = volume.into();
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        claim["status"]["phase"] = "Bound".into();
    }
    claim
}

/// A free volume of 5 GiB on one node, or on all.
fn volume(name: &str, class: &str, host: &str) -> Value {
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "capacity": {"storage": "5Gi"}},
    });
    if !host.is_empty() {
        let rule = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
        volume["spec"]["nodeAffinity"] =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}});
    }
    volume
}

/// The nodes n1 and n2 in the zones z1 and z2, and the classes `now`, `late` (provisioned) and `local`
/// (made by somebody).
fn cluster(claims: &[Value], volumes: &[Value]) -> SchedulerCache {
    let mut cache = SchedulerCache::default();
    for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
        cache.set_node(&made(json!({
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone,
            }},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        })));
    }
    for (name, provisioner, mode) in [
        ("now", "example.com/disk", "Immediate"),
        ("late", "example.com/disk", "WaitForFirstConsumer"),
        ("local", NO_PROVISIONER, "WaitForFirstConsumer"),
    ] {
        let class = made(json!({
            "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
        }));
        cache.storage.classes.insert(Key::cluster(name), class);
    }
    for claim in claims {
        let claim: Arc<PersistentVolumeClaim> = made(claim.clone());
        cache.storage.claims.insert(claim.key(), claim);
    }
    for volume in volumes {
        let volume: Arc<PersistentVolume> = made(volume.clone());
        cache.storage.volumes.insert(volume.key(), volume);
    }
    cache
}

/// A pod with these claims.
fn pod(name: &str, claims: &[&str]) -> Arc<PodInfo> {
    let volumes = claims.iter().map(|claim| {
        json!({
            "name": claim, "persistentVolumeClaim": {"claimName": claim},
        })
    });
    let pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes.collect::<Vec<_>>()},
    });
    Arc::new(PodInfo::new(Arc::new(Pod::decode(&pod.to_string()).unwrap())))
}

/// The node, with what is bound for it: `n1`, `n1 data=disk`, `n1 data=+`; or the reported reason.
fn outcome(cache: &SchedulerCache, claims: &[&str]) -> String {
    match schedule_pod(&pod("p", claims), cache, &mut String::new()) {
        ScheduleResult::Bind(node) => node,
        ScheduleResult::BindClaims { node, choices } => {
            let choice = |choice: &ClaimChoice| {
                let volume = choice.volume.as_ref().map_or("+", |volume| volume.name());
                format!(" {}={volume}", choice.claim.name())
            };
            format!("{node}{}", choices.iter().map(choice).collect::<String>())
        }
        ScheduleResult::Unschedulable(fit_error) => {
            let (reason, _) = fit_error.message.split_once(". preemption").unwrap();
            reason.replace("0/2 nodes are available: ", "")
        }
    }
}

#[test]
fn claims_must_exist_and_be_bound_or_wait_for_a_node() {
    let mut lost = claim("lost", "now", "gone");
    lost["status"]["phase"] = "Lost".into();
    let mut leaving = claim("leaving", "now", "disk");
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let named = json!({"volumeName": "disk"});
    let mut half = claim("half", "late", "");
    half["spec"].as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
    let claims = [
        lost,
        leaving,
        half,
        claim("open", "now", ""),
        claim("gone", "now", "gone"),
        claim("bound", "now", "disk"),
    ];
    let cache = cluster(&claims, &[volume("disk", "now", "")]);
    for (names, expected) in [
        (&["absent"] as &[&str], "persistentvolumeclaim \"absent\" not found"),
        (
            &["lost"],
            "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"gone\"",
        ),
        (&["leaving"], "persistentvolumeclaim \"leaving\" is being deleted"),
        (&["bound", "open"], "pod has unbound immediate PersistentVolumeClaims"),
        (&["half"], "pod has unbound immediate PersistentVolumeClaims"),
        (&["gone"], "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
        (&["bound"], "n1"),
        (&[], "n1"),
    ] {
        assert_eq!(outcome(&cache, names), expected, "{names:?}");
    }
}

#[test]
fn a_bound_volume_restricts_the_pod_to_its_nodes_and_zones() {
    let mut zoned = volume("zoned", "now", "");
    zoned["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z0__z2"});
    let mut away = volume("away", "now", "");
    away["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z0"});
    let names = ["disk", "zoned", "away"];
    let claims = names.map(|name| claim(name, "now", name));
    let cache = cluster(&claims, &[volume("disk", "now", "n2"), zoned, away]);
    assert_eq!(outcome(&cache, &["disk"]), "n2");
    assert_eq!(outcome(&cache, &["zoned"]), "n2");
    assert_eq!(outcome(&cache, &["away"]), "2 node(s) had no available volume zone");
    let far = cluster(&[claim("disk", "now", "disk")], &[volume("disk", "now", "n9")]);
    assert_eq!(outcome(&far, &["disk"]), "2 node(s) didn't match PersistentVolume's node affinity");
}

#[test]
fn a_waiting_claim_is_bound_for_the_node_that_is_chosen() {
    let claims = [claim("a", "local", ""), claim("b", "local", ""), claim("late", "late", "")];
    let volumes = [volume("one", "local", "n2"), volume("two", "local", "n2")];
    let cache = cluster(&claims, &volumes);
    // No volume is given away twice.
    assert_eq!(outcome(&cache, &["a", "b"]), "n2 a=one b=two");
    assert_eq!(outcome(&cache, &["a", "late"]), "n2 a=one late=+");
    assert_eq!(outcome(&cache, &["late"]), "n1 late=+");
    let few = cluster(&claims, &volumes[..1]);
    let absent = "2 node(s) didn't find available persistent volumes to bind";
    assert_eq!(outcome(&few, &["a", "b"]), absent);
    // A claim that is provisioned already keeps its node.
    let mut chosen = claim("late", "late", "");
    chosen["metadata"]["annotations"] = json!({SELECTED_NODE: "n2"});
    assert_eq!(outcome(&cluster(&[chosen], &[]), &["late"]), "n2 late=+");
    // A volume that was reserved for the claim is its volume.
    let mut reserved = volume("mine", "local", "n2");
    reserved["spec"]["claimRef"] = json!({"name": "a", "namespace": "a"});
    assert_eq!(outcome(&cluster(&claims, &[reserved]), &["a"]), "n2 a=mine");
    let mut cache = cluster(&[claim("late", "late", "")], &[]);
    let topology = json!([{"matchLabelExpressions":
        [{"key": "topology.kubernetes.io/zone", "values": ["z2"]}]}]);
    let class = made(json!({
        "metadata": {"name": "late"}, "provisioner": "example.com/disk",
        "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topology,
    }));
    cache.storage.classes.insert(Key::cluster("late"), class);
    assert_eq!(outcome(&cache, &["late"]), "n2 late=+");
}

#[test]
fn a_claim_for_one_pod_is_not_given_to_two() {
    let mut sole = claim("sole", "now", "disk");
    sole["spec"]["accessModes"] = json!([SOLE]);
    let mut cache = cluster(&[sole], &[volume("disk", "now", "")]);
    assert_eq!(outcome(&cache, &["sole"]), "n1");
    cache.assign(&pod("other", &["sole"]), "n2");
    assert_eq!(
        outcome(&cache, &["sole"]),
        "2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    );
}

#[test]
fn a_driver_attaches_as_many_volumes_to_a_node_as_it_can() {
    let disk = |name: &str| {
        let mut disk = volume(name, "now", "");
        disk["spec"]["csi"] = json!({"driver": "d", "volumeHandle": name});
        disk
    };
    let names = ["v1", "v2"];
    let mut cache = cluster(&names.map(|name| claim(name, "now", name)), &names.map(disk));
    for name in ["n1", "n2"] {
        let node = made(json!({
            "metadata": {"name": name},
            "spec": {"drivers": [{"name": "d", "nodeID": name, "allocatable": {"count": 1}}]},
        }));
        cache.storage.nodes.insert(Key::cluster(name), node);
    }
    cache.assign(&pod("first", &["v1"]), "n1");
    assert_eq!(outcome(&cache, &["v2"]), "n2");
    cache.assign(&pod("second", &["v1"]), "n2");
    assert_eq!(outcome(&cache, &["v2"]), "2 node(s) exceed max volume count");
    // A volume that is attached already takes no more room.
    assert_eq!(outcome(&cache, &["v1"]), "n1");
}
