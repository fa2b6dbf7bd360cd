//! The number of replicas that one metric asks for.
//!
//! Promise: pure. Pods without metrics never cause a change: they count as being at the target when
//! the others ask for fewer replicas, and as idle when they ask for more.

use std::collections::BTreeMap;

use headwater_api::quantity::Quantity as Amount;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A change of less than this part is ignored.
pub(super) const TOLERANCE: f64 = 0.1;

/// What a pod requests and uses, in billionths by container.
#[derive(Clone, Debug, Default)]
pub(super) struct PodSample {
    pub(super) name: String,
    pub(super) is_ready: bool,
    /// `None` if a container requests nothing.
    pub(super) requests: BTreeMap<String, Option<i128>>,
    /// `None` without metrics.
    pub(super) usage: Option<BTreeMap<String, i128>>,
}

/// What a metric asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recommendation {
    pub(super) replicas: i32,
    pub(super) status: MetricStatus,
    /// Such as `cpu resource utilization (percentage of request)`.
    pub(super) name: String,
}

/// Why a metric cannot be evaluated: the reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricError {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// What could not be read, such as `cpu resource`.
    pub(super) what: String,
}

/// A metric of a resource, of one container or of all.
pub(super) struct ResourceMetric<'a> {
    pub(super) resource: &'a str,
    container: Option<&'a str>,
    target: &'a MetricTarget,
}

impl<'a> ResourceMetric<'a> {
    /// The metric, if it is one of resources; no API serves others.
    pub(super) fn of(
        spec: &'a MetricSpec,
        namespace: &str,
    ) -> Result<ResourceMetric<'a>, MetricError> {
        match (&spec.resource, &spec.container_resource) {
            (Some(source), _) => Ok(ResourceMetric {
                resource: &source.name,
                container: None,
                target: &source.target,
            }),
            (_, Some(source)) => Ok(ResourceMetric {
                resource: &source.name,
                container: Some(&source.container),
                target: &source.target,
            }),
            _ => Err(unserved(spec, namespace)),
        }
    }

    pub(super) fn failed<T>(&self, message: &str) -> Result<T, MetricError> {
        let resource = self.resource;
        let sought =
            if self.target.average_utilization.is_some() { "utilization" } else { "usage" };
        let (reason, what) = match self.container {
            None => ("FailedGetResourceMetric", format!("{resource} resource")),
            Some(container) => {
                ("FailedGetContainerResourceMetric", format!("{container} container"))
            }
        };
        let message = format!("failed to get {resource} {sought}: {message}");
        Err(MetricError { reason, message, what })
    }

    fn counts(&self, container: &str) -> bool {
        self.container.is_none_or(|wanted| wanted == container)
    }

    fn used(&self, pod: &PodSample) -> Option<i128> {
        let usage = pod.usage.as_ref()?;
        Some(usage.iter().filter(|(name, _)| self.counts(name)).map(|(_, amount)| amount).sum())
    }

    fn requested(&self, pod: &PodSample) -> Option<i128> {
        let counted = pod.requests.iter().filter(|(name, _)| self.counts(name));
        counted.map(|(_, amount)| *amount).sum()
    }

    /// Why the target cannot be a part of the requests.
    fn missing_request(&self, pods: &[&PodSample]) -> String {
        let resource = self.resource;
        let missing = pods.iter().find_map(|pod| {
            let mut counted = pod.requests.iter().filter(|(name, _)| self.counts(name));
            Some((counted.find(|(_, amount)| amount.is_none())?.0, &pod.name))
        });
        match missing {
            Some((container, pod)) => {
                format!("missing request for {resource} in container {container} of Pod {pod}")
            }
            None => format!("the requests for {resource} are zero"),
        }
    }

    /// The recommendation for these pods.
    pub(super) fn recommend(
        &self,
        current: i32,
        pods: &[PodSample],
    ) -> Result<Recommendation, MetricError> {
        let measured: Vec<&PodSample> =
            pods.iter().filter(|pod| pod.is_ready && pod.usage.is_some()).collect();
        if measured.is_empty() {
            let resource = self.resource;
            return self.failed(&format!(
                "unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
            ));
        }
        let used: i128 = measured.iter().filter_map(|pod| self.used(pod)).sum();
        let per_pod = used / i128::try_from(measured.len()).unwrap_or(1);
        // The target of one pod.
        let (target, utilization) =
            match (self.target.average_utilization, &self.target.average_value) {
                (Some(percent), _) => {
                    let requests: Option<i128> =
                        measured.iter().map(|pod| self.requested(pod)).sum();
                    let Some(requests) = requests.filter(|requests| *requests > 0) else {
                        return self.failed(&self.missing_request(&measured));
                    };
                    let now = (used as f64 / requests as f64 * 100.0) as i32;
                    let request = requests as f64 / measured.len() as f64;
                    (request * f64::from(percent) / 100.0, Some(now))
                }
                (None, Some(value)) => {
                    let amount = Amount::parse(&value.0).map_or(0, |amount| amount.nano());
                    (amount as f64, None)
                }
                (None, None) => {
                    return self.failed("the target has neither a utilization nor a value");
                }
            };
        if target <= 0.0 {
            return self.failed("the target must be above zero");
        }
        let replicas = replicas(current, used as f64, target, measured.len(), pods.len());
        let name = match utilization {
            Some(_) => format!("{} resource utilization (percentage of request)", self.resource),
            None => format!("{} resource", self.resource),
        };
        Ok(Recommendation { replicas, status: self.status(utilization, per_pod), name })
    }

    fn status(&self, utilization: Option<i32>, per_pod: i128) -> MetricStatus {
        let average = match self.resource {
            "cpu" => format!("{}m", per_pod / 1_000_000),
            _ => (per_pod / 1_000_000_000).to_string(),
        };
        let current = MetricValueStatus {
            average_utilization: utilization,
            average_value: Some(Quantity(average)),
            value: None,
        };
        let name = self.resource.to_owned();
        match self.container {
            None => MetricStatus {
                type_: "Resource".to_owned(),
                resource: Some(ResourceMetricStatus { name, current }),
                ..MetricStatus::default()
            },
            Some(container) => MetricStatus {
                type_: "ContainerResource".to_owned(),
                container_resource: Some(ContainerResourceMetricStatus {
                    container: container.to_owned(),
                    name,
                    current,
                }),
                ..MetricStatus::default()
            },
        }
    }
}

/// The error of a metric that an adapter would have to serve, in the words of Kubernetes.
fn unserved(spec: &MetricSpec, namespace: &str) -> MetricError {
    const CUSTOM: &str = "unable to fetch metrics from custom metrics API: no custom metrics API \
                          (custom.metrics.k8s.io) registered";
    let (reason, what, message) = if let Some(source) = &spec.pods {
        let name = &source.metric.name;
        ("FailedGetPodsMetric", "pods".to_owned(), format!("unable to get metric {name}: {CUSTOM}"))
    } else if let Some(source) = &spec.object {
        let (name, object) = (&source.metric.name, &source.described_object);
        // The order of the words is that of Kubernetes.
        let about = format!("{} on {namespace} {}/{CUSTOM}", object.kind, object.name);
        (
            "FailedGetObjectMetric",
            "object".to_owned(),
            format!("unable to get metric {name}: {about}"),
        )
    } else if let Some(source) = &spec.external {
        let name = &source.metric.name;
        let selector = source.metric.selector.as_ref().map_or_else(|| "nil".to_owned(), printed);
        let message = format!(
            "unable to get external metric {namespace}/{name}/{selector}: unable to fetch metrics from \
             external metrics API: the server could not find the requested resource (get \
             {name}.external.metrics.k8s.io)"
        );
        ("FailedGetExternalMetric", format!("{name} external"), message)
    } else {
        let message = format!("unknown metric source type {:?}", spec.type_);
        ("InvalidMetricSourceType", spec.type_.clone(), message)
    };
    MetricError { reason, message, what }
}

/// A selector as Go prints it.
fn printed(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ");
        let (key, operator) = (&one.key, &one.operator);
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    });
    let expressions: String = expressions.collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// The replicas for a usage: `measured` of `all` pods have metrics.
fn replicas(current: i32, used: f64, target: f64, measured: usize, all: usize) -> i32 {
    let ratio = used / (target * measured as f64);
    if (ratio - 1.0).abs() <= TOLERANCE {
        return current;
    }
    let missing = all.saturating_sub(measured) as f64;
    if missing == 0.0 {
        return whole(ratio * measured as f64);
    }
    let assumed = if ratio < 1.0 { used + missing * target } else { used };
    let corrected = assumed / (target * all as f64);
    let turned = (ratio < 1.0) != (corrected < 1.0);
    if turned || (corrected - 1.0).abs() <= TOLERANCE {
        return current;
    }
    let wanted = whole(corrected * all as f64);
    let is_wrong_way = if corrected < 1.0 { wanted > current } else { wanted < current };
    if is_wrong_way { current } else { wanted }
}

/// A number of replicas, rounded up; a tiny excess is an error of the arithmetic.
fn whole(replicas: f64) -> i32 {
    (replicas - 1e-9).ceil() as i32
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MILLI: i128 = 1_000_000;

    fn pod(request: i128, usage: Option<i128>) -> PodSample {
        PodSample {
            name: "web-0".to_owned(),
            is_ready: true,
            requests: [("c".to_owned(), Some(request * MILLI))].into(),
            usage: usage.map(|usage| [("c".to_owned(), usage * MILLI)].into()),
        }
    }

    fn metric(target: Value) -> MetricSpec {
        let resource = json!({"name": "cpu", "target": target});
        serde_json::from_value(json!({"type": "Resource", "resource": resource})).unwrap()
    }

    #[track_caller]
    fn check(usages: &[Option<i128>], expected: i32) {
        let spec = metric(json!({"type": "Utilization", "averageUtilization": 50}));
        let pods: Vec<PodSample> = usages.iter().map(|usage| pod(100, *usage)).collect();
        let current = i32::try_from(pods.len()).unwrap();
        let found = ResourceMetric::of(&spec, "shop").unwrap().recommend(current, &pods).unwrap();
        assert_eq!(found.replicas, expected, "{usages:?}");
    }

    #[test]
    fn replicas_follow_the_utilization() {
        check(&[Some(50)], 1);
        check(&[Some(54)], 1); // within the tolerance
        check(&[Some(100)], 2);
        check(&[Some(101)], 3);
        check(&[Some(20), Some(20)], 1);
        check(&[Some(0), Some(0)], 0);
        check(&[Some(200), Some(200), Some(200)], 12);
    }

    #[test]
    fn pods_without_metrics_cause_no_change() {
        check(&[Some(100), None], 2);
        check(&[Some(200), None], 4);
        check(&[Some(10), None], 2);
        check(&[Some(10), Some(10), Some(10), None], 2);
    }

    #[test]
    fn a_value_is_an_amount_per_pod() {
        let spec = metric(json!({"type": "AverageValue", "averageValue": "200m"}));
        let pods = [pod(100, Some(500)), pod(100, Some(300))];
        let found = ResourceMetric::of(&spec, "shop").unwrap().recommend(2, &pods).unwrap();
        assert_eq!((found.replicas, found.name.as_str()), (4, "cpu resource"));
        let current = found.status.resource.unwrap().current;
        assert_eq!(current.average_value.unwrap().0, "400m");
    }

    #[test]
    fn missing_metrics_and_requests_are_reported() {
        let spec = metric(json!({"type": "Utilization", "averageUtilization": 50}));
        let metric = ResourceMetric::of(&spec, "shop").unwrap();
        let none = metric.recommend(1, &[pod(100, None)]).unwrap_err();
        assert_eq!(none.reason, "FailedGetResourceMetric");
        let mut unlimited = pod(100, Some(5));
        unlimited.requests.insert("c".to_owned(), None);
        let missing = metric.recommend(1, &[unlimited]).unwrap_err();
        assert_eq!(
            missing.message,
            "failed to get cpu utilization: missing request for cpu in container c of Pod web-0"
        );
    }

    #[test]
    fn metrics_that_need_an_adapter_fail_in_the_words_of_kubernetes() {
        let target = json!({"type": "AverageValue", "averageValue": "10"});
        let metric = json!({"name": "hits"});
        let queue = json!({"name": "hits", "selector": {"matchLabels": {"queue": "jobs"}}});
        let object =
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "main"});
        let custom = "unable to fetch metrics from custom metrics API: no custom metrics API \
                      (custom.metrics.k8s.io) registered";
        for (type_, field, source, reason, what, message) in [
            (
                "Pods",
                "pods",
                json!({"metric": metric, "target": target}),
                "FailedGetPodsMetric",
                "pods",
                format!("unable to get metric hits: {custom}"),
            ),
            (
                "Object",
                "object",
                json!({"metric": metric, "target": target, "describedObject": object}),
                "FailedGetObjectMetric",
                "object",
                format!("unable to get metric hits: Ingress on shop main/{custom}"),
            ),
            (
                "External",
                "external",
                json!({"metric": queue, "target": target}),
                "FailedGetExternalMetric",
                "hits external",
                "unable to get external metric \
                 shop/hits/&LabelSelector{MatchLabels:map[string]string{queue: jobs,},\
                 MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from \
                 external metrics API: the server could not find the requested resource (get \
                 hits.external.metrics.k8s.io)"
                    .to_owned(),
            ),
        ] {
            let spec: MetricSpec =
                serde_json::from_value(json!({"type": type_, field: source})).unwrap();
            let refused = ResourceMetric::of(&spec, "shop").err().unwrap();
            assert_eq!((refused.reason, refused.what.as_str()), (reason, what));
            assert_eq!(refused.message, message);
        }
    }
}
