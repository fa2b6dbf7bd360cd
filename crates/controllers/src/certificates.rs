//! Certificate signing requests: approves those of kubelets, signs what was approved, deletes old ones.
//!
//! River: CertificateSigningRequests → **certificates** → approvals, certificates, deletions.
//! Promise: a request is approved only after the server has confirmed its user's right to it; it is
//! signed only after an approval; a refusal is final and says why.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::Clock;
use headwater_api::clock::rfc3339;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared};
use headwater_client::{Cached, Error};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::Cluster;
use crate::time::{after, until};

/// The signer of client certificates of kubelets: the only one whose requests are approved here.
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The signers that are served.
const SIGNERS: [&str; 3] =
    ["kubernetes.io/kube-apiserver-client", KUBELET_CLIENT, "kubernetes.io/kubelet-serving"];

/// How long a request is kept after it was approved, denied, or has failed.
const KEEP_DECIDED: Duration = Duration::from_secs(3600);
/// How long a request is kept that nobody decides.
const KEEP_PENDING: Duration = Duration::from_secs(24 * 3600);

/// Signs certificates with the key of an authority.
pub trait CertificateSigner: Send + Sync {
    /// The certificate of an approved request, as PEM; an error is a permanent refusal.
    fn sign(&self, asked: &AskedCertificate<'_>, now: Timestamp) -> Result<String, String>;

    /// The common name in a request that follows the rules of its signer.
    fn permitted_name(&self, asked: &AskedCertificate<'_>) -> Option<String>;
}

/// What a request asks a signer for.
#[derive(Clone, Copy, Debug)]
pub struct AskedCertificate<'a> {
    /// The request (PKCS #10), as PEM.
    pub pem: &'a [u8],
    /// The name of the signer.
    pub signer: &'a str,
    /// The usages of the certificate.
    pub usages: &'a [String],
    /// The lifetime, if the request has one.
    pub lifetime: Option<Duration>,
}

fn asked(spec: &CertificateSigningRequestSpec) -> AskedCertificate<'_> {
    let seconds = spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    AskedCertificate {
        pem: &spec.request.0,
        signer: &spec.signer_name,
        usages: spec.usages.as_deref().unwrap_or_default(),
        lifetime: seconds.map(Duration::from_secs),
    }
}

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pending,
    Approved,
    Issued,
    /// Denied or failed.
    Refused,
}

fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    let status = request.status.as_ref();
    status.and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn stage(request: &CertificateSigningRequest) -> Stage {
    let has = |name: &str| conditions(request).iter().any(|held| held.type_ == name);
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    if has("Denied") || has("Failed") {
        Stage::Refused
    } else if !has("Approved") {
        Stage::Pending
    } else if certificate.is_some_and(|certificate| !certificate.0.is_empty()) {
        Stage::Issued
    } else {
        Stage::Approved
    }
}

/// Approves the client certificates of kubelets.
pub(crate) fn prepare_approver(cluster: &Cluster) -> Result<Prepared, Error> {
    let requests = cluster.informer::<CertificateSigningRequest>()?;
    let (signer, clock) = (cluster.signer().cloned(), Arc::clone(cluster.clock()));
    let reconcile = move |request: Arc<CertificateSigningRequest>, cx: Context| {
        let (signer, clock) = (signer.clone(), Arc::clone(&clock));
        async move {
            match signer {
                Some(signer) => approve(&request, &*signer, &*clock, &cx).await,
                None => Ok(Next::Done),
            }
        }
    };
    Ok(Controller::new("csrapproving", &requests).with(reconcile))
}

async fn approve(
    request: &CertificateSigningRequest,
    signer: &dyn CertificateSigner,
    clock: &dyn Clock,
    cx: &Context,
) -> Result<Next, Failure> {
    let spec = &request.spec;
    if spec.signer_name != KUBELET_CLIENT || stage(request) != Stage::Pending {
        return Ok(Next::Done);
    }
    // Another approver may know better what this is.
    let Some(name) = signer.permitted_name(&asked(spec)) else { return Ok(Next::Done) };
    let is_own = spec.username.as_deref() == Some(name.as_str());
    let (right, reason) = match is_own {
        true => (
            "selfnodeclient",
            "Auto approving self kubelet client certificate after SubjectAccessReview.",
        ),
        false => {
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")
        }
    };
    if !may(spec, right, cx).await? {
        return Ok(Next::Done);
    }
    let all = with_condition(request, "Approved", "AutoApproved", reason, clock.now());
    let patch = json!({
        "metadata": { "resourceVersion": request.resource_version() },
        "status": { "conditions": all },
    });
    let requests = Api::<CertificateSigningRequest>::all(cx.calls().kube_client());
    let patch = Patch::Merge(patch);
    requests.patch_approval(request.name(), &PatchParams::default(), &patch).await?;
    Ok(Next::Done)
}

/// Whether the user of a request may have it approved without a person.
async fn may(
    spec: &CertificateSigningRequestSpec,
    subresource: &str,
    cx: &Context,
) -> Result<bool, Failure> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: spec.username.clone(),
            uid: spec.uid.clone(),
            groups: spec.groups.clone(),
            extra: spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("certificates.k8s.io".to_owned()),
                resource: Some("certificatesigningrequests".to_owned()),
                verb: Some("create".to_owned()),
                subresource: Some(subresource.to_owned()),
                version: Some("*".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(cx.calls().kube_client());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// The conditions of a request with one more.
fn with_condition(
    request: &CertificateSigningRequest,
    type_: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<serde_json::Value> {
    let held = conditions(request).iter().map(|held| json!(held));
    let now = rfc3339(now);
    let added = json!({
        "type": type_, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now,
    });
    held.chain([added]).collect()
}

/// Signs approved requests.
pub(crate) fn prepare_signer(cluster: &Cluster) -> Result<Prepared, Error> {
    let requests = cluster.informer::<CertificateSigningRequest>()?;
    let (signer, clock) = (cluster.signer().cloned(), Arc::clone(cluster.clock()));
    let reconcile = move |request: Arc<CertificateSigningRequest>, cx: Context| {
        let (signer, clock) = (signer.clone(), Arc::clone(&clock));
        async move {
            match signer {
                Some(signer) => sign(&request, &*signer, &*clock, &cx).await,
                None => Ok(Next::Done),
            }
        }
    };
    Ok(Controller::new("csrsigning", &requests).with(reconcile))
}

async fn sign(
    request: &CertificateSigningRequest,
    signer: &dyn CertificateSigner,
    clock: &dyn Clock,
    cx: &Context,
) -> Result<Next, Failure> {
    let spec = &request.spec;
    if !SIGNERS.contains(&spec.signer_name.as_str()) || stage(request) != Stage::Approved {
        return Ok(Next::Done);
    }
    let status = match signer.sign(&asked(spec), clock.now()) {
        Ok(certificate) => {
            json!({ "certificate": k8s_openapi::ByteString(certificate.into_bytes()) })
        }
        Err(why) => {
            let reason = "SignerValidationFailure";
            json!({ "conditions": with_condition(request, "Failed", reason, &why, clock.now()) })
        }
    };
    let patch = json!({
        "metadata": { "resourceVersion": request.resource_version() },
        "status": status,
    });
    cx.of::<CertificateSigningRequest>().merge_status(&request.key(), &patch).await?;
    Ok(Next::Done)
}

/// Deletes requests that nobody needs any more.
pub(crate) fn prepare_cleaner(cluster: &Cluster) -> Result<Prepared, Error> {
    let requests = cluster.informer::<CertificateSigningRequest>()?;
    let clock = Arc::clone(cluster.clock());
    let reconcile = move |request: Arc<CertificateSigningRequest>, cx: Context| {
        let now = clock.now();
        async move {
            let Some(due) = due(&request) else { return Ok::<Next, Failure>(Next::Done) };
            if now < due {
                return Ok(Next::After(until(now, due)));
            }
            cx.of::<CertificateSigningRequest>().delete_this(&request).await?;
            Ok(Next::Done)
        }
    };
    Ok(Controller::new("csrcleaner", &requests).with(reconcile))
}

/// When a request is deleted.
fn due(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let seconds = |keep: Duration| keep.as_secs() as i64;
    if stage(request) == Stage::Pending {
        let created = request.metadata.creation_timestamp.as_ref()?;
        return Some(after(created.0, seconds(KEEP_PENDING)));
    }
    let decided = conditions(request).iter().filter_map(|held| held.last_update_time.as_ref());
    let last = decided.map(|time| time.0).max()?;
    Some(after(last, seconds(KEEP_DECIDED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(conditions: &[(&str, &str)], certificate: &str) -> CertificateSigningRequest {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(name, time)| json!({"type": name, "status": "True", "lastUpdateTime": time}))
            .collect();
        let mut object = json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"request": "", "signerName": KUBELET_CLIENT},
            "status": {"conditions": conditions},
        });
        if !certificate.is_empty() {
            object["status"]["certificate"] = certificate.into();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_request_is_kept_for_a_day_undecided_and_for_an_hour_decided() {
        let (one, two) = ("2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z");
        for (conditions, certificate, stage_expected, due_expected) in [
            (&[][..], "", Stage::Pending, "2026-01-02T00:00:00Z"),
            (&[("Other", one)], "", Stage::Pending, "2026-01-02T00:00:00Z"),
            (&[("Approved", one)], "", Stage::Approved, two),
            (&[("Approved", one)], "QQ==", Stage::Issued, two),
            (&[("Denied", one)], "", Stage::Refused, two),
            (&[("Approved", one), ("Failed", two)], "", Stage::Refused, "2026-01-01T03:00:00Z"),
        ] {
            let request = request(conditions, certificate);
            assert_eq!(stage(&request), stage_expected, "{conditions:?}");
            assert_eq!(due(&request), Some(due_expected.parse().unwrap()), "{conditions:?}");
        }
    }
}
