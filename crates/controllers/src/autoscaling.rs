//! The autoscaler: sets the number of replicas so that a metric stays at its target.
//!
//! River: HorizontalPodAutoscalers, pods and `metrics.k8s.io` → **autoscaling** → `scale` of the
//! target and a status.
//! Promise: between its limits, and no faster than its policies allow.

mod behavior;
mod metric;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::Clock;
use headwater_api::quantity::Quantity as Amount;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Key, Selector};
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
    MetricSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;

use crate::cluster::Cluster;
use crate::difference::difference;
use crate::ownership::requeue_or_fail;
use crate::pod::Pod;

use self::behavior::{LimitedReplicas, ScalingHistory};
use self::metric::{MetricError, PodSample, Recommendation, ResourceMetric};

const WORKERS: usize = 4;
/// How often metrics are read.
const PERIOD: Duration = Duration::from_secs(15);

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let autoscalers = cluster.informer::<HorizontalPodAutoscaler>()?;
    let pods = cluster.pods()?.informer;
    let autoscaler = Autoscaler {
        pods: pods.clone(),
        clock: Arc::clone(cluster.clock()),
        histories: Mutex::default(),
    };
    Ok(Controller::new("horizontalpodautoscaler", &autoscalers)
        .reads(&pods)
        .workers(WORKERS)
        .with(autoscaler))
}

struct Autoscaler {
    pods: Informer<Pod>,
    clock: Arc<dyn Clock>,
    /// Bound: one entry for each autoscaler.
    histories: Mutex<HashMap<Key, ScalingHistory>>,
}

/// A target and its size.
struct ScaleTarget {
    api: Api<DynamicObject>,
    current: i32,
    selector: String,
}

impl Reconcile<HorizontalPodAutoscaler> for Autoscaler {
    async fn reconcile(
        &self,
        autoscaler: Arc<HorizontalPodAutoscaler>,
        cx: Context,
    ) -> Result<Next, Failure> {
        let now = self.clock.now();
        let mut status = NewStatus::of(&autoscaler, now);
        if let Err(error) = self.scale(&autoscaler, &mut status, now, &cx).await {
            status.set("AbleToScale", "False", "FailedUpdateScale", error.to_string());
            cx.warning(&*autoscaler, "FailedRescale", error.to_string());
        }
        match write_status(&autoscaler, &status.status, &cx).await {
            Ok(()) => Ok(Next::After(PERIOD)),
            Err(error) => requeue_or_fail(error),
        }
    }

    async fn gone(
        &self,
        key: Key,
        _: Option<Arc<HorizontalPodAutoscaler>>,
        _: Context,
    ) -> Result<Next, Failure> {
        self.histories.lock().expect("no code panics while it is held").remove(&key);
        Ok(Next::Done)
    }
}

impl Autoscaler {
    /// Reads metrics and scales the target if they ask for it.
    async fn scale(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        status: &mut NewStatus,
        now: Timestamp,
        cx: &Context,
    ) -> Result<(), kube::Error> {
        let spec = &autoscaler.spec;
        let client = cx.calls().kube_client();
        let target = match target(autoscaler, &client).await {
            Ok(target) => target,
            Err(error) => {
                let why = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                status.set("AbleToScale", "False", "FailedGetScale", why);
                cx.warning(autoscaler, "FailedGetScale", error.to_string());
                return Ok(());
            }
        };
        status.status.current_replicas = Some(target.current);
        status.set(
            "AbleToScale",
            "True",
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale".to_owned(),
        );
        if target.current == 0 && spec.min_replicas != Some(0) {
            let why = "scaling is disabled since the replica count of the target is zero";
            status.set("ScalingActive", "False", "ScalingDisabled", why.to_owned());
            status.status.desired_replicas = 0;
            return Ok(());
        }
        let recommendation = match self.recommend(autoscaler, &target, status, &client).await {
            Ok(recommendation) => recommendation,
            Err(invalid) => {
                let error = &invalid.first;
                let why =
                    format!("the HPA was unable to compute the replica count: {}", error.message);
                status.set("ScalingActive", "False", error.reason, why);
                cx.warning(autoscaler, error.reason, error.message.clone());
                let event = format!(
                    "invalid metrics ({} invalid out of {}), first error is: failed to get {} metric \
                     value: {}",
                    invalid.count,
                    spec.metrics.as_ref().map_or(0, Vec::len),
                    error.what,
                    error.message
                );
                cx.warning(autoscaler, "FailedComputeMetricsReplicas", event);
                return Ok(());
            }
        };
        let valid = format!(
            "the HPA was able to successfully calculate a replica count from {}",
            recommendation.name
        );
        status.set("ScalingActive", "True", "ValidMetricFound", valid);
        let LimitedReplicas { replicas, limited, is_stabilized } = self
            .limited(autoscaler, |history| {
                history.limit(spec, target.current, recommendation.replicas, now)
            });
        let (limited, reason, message) = limited;
        status.set("ScalingLimited", limited, reason, message.to_owned());
        if is_stabilized {
            let why = "recent recommendations were higher than current one, applying the highest recent recommendation";
            status.set("AbleToScale", "True", "ScaleDownStabilized", why.to_owned());
        } else {
            let why = "recommended size matches current size";
            status.set("AbleToScale", "True", "ReadyForNewScale", why.to_owned());
        }
        status.status.desired_replicas = replicas;
        if replicas == target.current {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        let name = &spec.scale_target_ref.name;
        target.api.patch_scale(name, &PatchParams::default(), &patch).await?;
        let by = replicas.saturating_sub(target.current);
        self.limited(autoscaler, |history| history.changed(now, by));
        status.status.last_scale_time = Some(Time(now));
        let why = match replicas > target.current {
            true => format!("{} above target", recommendation.name),
            false => "All metrics below target".to_owned(),
        };
        cx.normal(autoscaler, "SuccessfulRescale", format!("New size: {replicas}; reason: {why}"));
        let scaled =
            format!("the HPA controller was able to update the target scale to {replicas}");
        status.set("AbleToScale", "True", "SucceededRescale", scaled);
        Ok(())
    }

    fn limited<T>(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        with: impl FnOnce(&mut ScalingHistory) -> T,
    ) -> T {
        let mut histories = self.histories.lock().expect("no code panics while it is held");
        with(histories.entry(autoscaler.key()).or_default())
    }

    /// The largest recommendation of all metrics. One that fails prevents a smaller size.
    async fn recommend(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        target: &ScaleTarget,
        status: &mut NewStatus,
        client: &Client,
    ) -> Result<Recommendation, InvalidMetrics> {
        let namespace = autoscaler.namespace().unwrap_or_default();
        let specs = autoscaler.spec.metrics.as_deref().unwrap_or_default();
        let is_measured =
            |spec: &MetricSpec| spec.resource.is_some() || spec.container_resource.is_some();
        let usage = match specs.iter().any(is_measured) {
            true => usage(client, namespace, &target.selector).await,
            false => Ok(UsageByPod::new()),
        };
        let selector = target.selector.parse::<Selector>().map_err(|error| InvalidMetrics {
            first: MetricError {
                reason: "InvalidSelector",
                message: format!("the target's selector is invalid: {error}"),
                what: "any".to_owned(),
            },
            count: specs.len(),
        })?;
        let snapshot = self.pods.snapshot();
        let pods = snapshot.in_namespace(namespace).map(|(_, pod)| Arc::clone(pod));
        let pods: Vec<Arc<Pod>> =
            pods.filter(|pod| selector.matches(&**pod) && pod.is_active()).collect();
        let (mut best, mut invalid): (Option<Recommendation>, Option<InvalidMetrics>) =
            (None, None);
        let mut current_metrics = Vec::new();
        for spec in specs {
            let found = ResourceMetric::of(spec, namespace).and_then(|metric| {
                let usage = match &usage {
                    Ok(usage) => usage,
                    Err(why) => {
                        let resource = metric.resource;
                        let why = format!("unable to get metrics for resource {resource}: {why}");
                        return metric.failed(&why);
                    }
                };
                let samples: Vec<PodSample> =
                    pods.iter().map(|pod| sample(pod, metric.resource, usage)).collect();
                metric.recommend(target.current, &samples)
            });
            match found {
                Ok(found) => {
                    current_metrics.push(found.status.clone());
                    if best.as_ref().is_none_or(|best| found.replicas > best.replicas) {
                        best = Some(found);
                    }
                }
                Err(first) => {
                    invalid.get_or_insert(InvalidMetrics { first, count: 0 }).count += 1;
                }
            }
        }
        status.status.current_metrics = (!current_metrics.is_empty()).then_some(current_metrics);
        let none = || InvalidMetrics {
            first: MetricError {
                reason: "InvalidMetricSourceType",
                message: "the autoscaler has no metrics".to_owned(),
                what: "any".to_owned(),
            },
            count: 0,
        };
        match (best, invalid) {
            (Some(best), None) => Ok(best),
            (Some(best), Some(_)) if best.replicas >= target.current => Ok(best),
            (_, invalid) => Err(invalid.unwrap_or_else(none)),
        }
    }
}

/// Metrics that cannot be evaluated.
struct InvalidMetrics {
    first: MetricError,
    count: usize,
}

async fn target(
    autoscaler: &HorizontalPodAutoscaler,
    client: &Client,
) -> Result<ScaleTarget, kube::Error> {
    let reference = &autoscaler.spec.scale_target_ref;
    let api_version = reference.api_version.as_deref().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, &reference.kind);
    let resource = ApiResource::from_gvk(&kind);
    let namespace = autoscaler.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let scale = api.get_scale(&reference.name).await?;
    let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    let selector = scale.status.and_then(|status| status.selector).unwrap_or_default();
    Ok(ScaleTarget { api, current, selector })
}

/// What the containers of each pod use: container, resource, amount in billionths.
type UsageByPod = BTreeMap<String, BTreeMap<String, BTreeMap<String, i128>>>;

async fn usage(client: &Client, namespace: &str, selector: &str) -> Result<UsageByPod, String> {
    let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
    let resource = ApiResource::from_gvk_with_plural(&kind, "pods");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let listed = api.list(&ListParams::default().labels(selector)).await;
    let listed = listed
        .map_err(|error| format!("unable to fetch metrics from resource metrics API: {error}"))?;
    let containers = |pod: &DynamicObject| {
        let all = pod.data["containers"].as_array().into_iter().flatten();
        let each = all.filter_map(|container| {
            let amounts =
                container["usage"].as_object()?.iter().filter_map(|(resource, amount)| {
                    let amount = Amount::parse(amount.as_str()?).ok()?;
                    Some((resource.clone(), amount.nano()))
                });
            Some((container["name"].as_str()?.to_owned(), amounts.collect()))
        });
        each.collect::<BTreeMap<_, _>>()
    };
    let pods = listed.items.iter();
    Ok(pods.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), containers(pod))).collect())
}

fn sample(pod: &Pod, resource: &str, usage: &UsageByPod) -> PodSample {
    let requests = pod.spec.containers.iter().map(|container| {
        let amount = container.resources.requests.get(resource);
        let amount = amount.and_then(|amount| Amount::parse(&amount.0).ok());
        (container.name.clone(), amount.map(|amount| amount.nano()))
    });
    let used = usage.get(pod.name()).map(|containers| {
        let each = containers.iter();
        each.filter_map(|(name, used)| Some((name.clone(), *used.get(resource)?))).collect()
    });
    let name = pod.name().to_owned();
    PodSample { name, is_ready: pod.is_ready(), requests: requests.collect(), usage: used }
}

/// A status that is being computed.
struct NewStatus {
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl NewStatus {
    fn of(autoscaler: &HorizontalPodAutoscaler, now: Timestamp) -> NewStatus {
        let mut status = autoscaler.status.clone().unwrap_or_default();
        status.observed_generation = autoscaler.metadata.generation;
        NewStatus { status, now }
    }

    /// Sets a condition; an unchanged status keeps its transition time.
    fn set(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let conditions = self.status.conditions.get_or_insert_default();
        let known = conditions.iter().find(|it| it.type_ == type_ && it.status == status);
        let since = known.and_then(|known| known.last_transition_time.clone());
        conditions.retain(|it| it.type_ != type_);
        conditions.push(HorizontalPodAutoscalerCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or(Time(self.now))),
        });
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    }
}

async fn write_status(
    autoscaler: &HorizontalPodAutoscaler,
    after: &HorizontalPodAutoscalerStatus,
    cx: &Context,
) -> Result<(), Error> {
    let before = autoscaler.status.clone().unwrap_or_default();
    let Some(status) = difference(&before, after) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": autoscaler.resource_version().text() },
        "status": status,
    });
    cx.of::<HorizontalPodAutoscaler>().merge_status(&autoscaler.key(), &patch).await.map(drop)
}
