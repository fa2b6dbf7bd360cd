//! Validation and decoding of a webhook's response.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_api::Status;
use headwater_json::Value;

/// The maximum length of a warning in memory and their maximum number: more could not be sent.
const WARNING_MAX: usize = 4096;
const WARNINGS_MAX: usize = 256;

/// A response.
pub(super) struct Answer {
    pub(super) refusal: Option<Refusal>,
    /// Operations of a JSON patch.
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
}

/// The rejection by a webhook.
pub(super) struct Refusal(Value);

impl Answer {
    pub(super) fn read(
        review: &Value,
        uid: &str,
        api_version: &str,
        is_mutating: bool,
    ) -> Result<Answer, String> {
        let (found, kind) = (&review["apiVersion"], &review["kind"]);
        // v1beta1 allows both to be absent.
        let silent = found.is_null() && kind.is_null() && api_version.ends_with("v1beta1");
        if !silent && (found != api_version || kind != "AdmissionReview") {
            let show = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (version, kind) = (show(found), show(kind));
            return Err(format!(
                "expected webhook response of {api_version}, Kind=AdmissionReview, got {version}, Kind={kind}"
            ));
        }
        let response = &review["response"];
        if !response.is_object() {
            return Err("webhook response was absent".to_owned());
        }
        let actual = response["uid"].as_str().unwrap_or_default();
        if actual != uid && !api_version.ends_with("v1beta1") {
            return Err(format!("expected response.uid={uid:?}, got {actual:?}"));
        }
        let allowed = response["allowed"] == true;
        Ok(Answer {
            refusal: (!allowed).then(|| Refusal(response["status"].clone())),
            patch: patch(response, is_mutating)?.filter(|_| allowed),
            warnings: warnings(&response["warnings"]),
        })
    }
}

fn patch(response: &Value, is_mutating: bool) -> Result<Option<Value>, String> {
    let text = response["patch"].as_str().unwrap_or_default();
    let kind = response["patchType"].as_str().unwrap_or_default();
    if !is_mutating {
        return match (text, kind) {
            ("", "") => Ok(None),
            ("", _) => Err("validating webhook may not return response.patchType".to_owned()),
            _ => Err("validating webhook may not return response.patch".to_owned()),
        };
    }
    match (text, kind) {
        ("", "") => return Ok(None),
        ("", _) => return Err("webhook returned response.patchType but not response.patch".into()),
        (_, "") => return Err("webhook returned response.patch but not response.patchType".into()),
        (_, "JSONPatch") => {}
        (_, other) => {
            return Err(format!("webhook returned invalid response.patchType of {other:?}"));
        }
    }
    let undecodable =
        |why: String| format!("received undecodable patch in webhook response: {why}");
    let bytes = STANDARD.decode(text).map_err(|error| undecodable(error.to_string()))?;
    let operations: Value =
        serde_json::from_slice(&bytes).map_err(|error| undecodable(error.to_string()))?;
    match &operations {
        Value::Array(list) if list.is_empty() => Ok(None),
        Value::Null => Ok(None),
        _ => Ok(Some(operations)),
    }
}

/// The warnings of a webhook. They are cut where they are sent, if those of all webhooks are too long.
fn warnings(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.take(WARNINGS_MAX).map(|text| text.chars().take(WARNING_MAX).collect()).collect()
}

impl Refusal {
    /// The status for the client: the webhook's own, with the webhook's name.
    pub(super) fn status(&self, webhook: &str) -> Status {
        let denied = format!("admission webhook {webhook:?} denied the request");
        let text = |key: &str| self.0[key].as_str().unwrap_or_default();
        let code = self.0["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        let mut status = Status::failure(code.unwrap_or(0), text("reason"), text("message"));
        status.details = headwater_json::from_value(&self.0["details"]).ok().flatten();
        if !(400..600).contains(&status.code) {
            status.code = 400;
        }
        status.message = match (status.message.as_str(), status.reason.as_str()) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        status
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
    fn read(response: Value, is_mutating: bool) -> Result<Answer, String> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        });
        Answer::read(&review, "u", "admission.k8s.io/v1", is_mutating)
    }

    #[test]
    fn answers_to_something_else_are_not_taken() {
        let check = |response: Value, is_mutating: bool, expected: &str| {
            let error = read(response, is_mutating).err().unwrap_or_default();
            assert!(error.starts_with(expected), "{error}");
        };
        check(json!({"uid": "u", "allowed": true}), true, "");
        check(json!({"uid": "x", "allowed": true}), true, "expected response.uid=\"u\", got \"x\"");
        check(json!(null), true, "webhook response was absent");
        let with = |patch: &str, kind: &str| json!({"uid": "u", "allowed": true, "patch": patch, "patchType": kind});
        check(with("W10=", "JSONPatch"), true, "");
        check(with("W10=", ""), true, "webhook returned response.patch but not response.patchType");
        check(with("", "JSONPatch"), true, "webhook returned response.patchType but not");
        check(
            with("W10=", "Merge"),
            true,
            "webhook returned invalid response.patchType of \"Merge\"",
        );
        check(with("!", "JSONPatch"), true, "received undecodable patch");
        check(with("W10=", "JSONPatch"), false, "validating webhook may not return response.patch");
        let other = json!({"kind": "Pod", "apiVersion": "v1"});
        let error = Answer::read(&other, "u", "admission.k8s.io/v1", true).err().unwrap();
        assert_eq!(
            error,
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod"
        );
    }

    #[test]
    fn a_refusal_names_its_webhook() {
        let check = |status: Value, code: u16, message: &str| {
            let answer = read(json!({"uid": "u", "allowed": false, "status": status}), false);
            let status = answer.unwrap().refusal.unwrap().status("w");
            assert_eq!((status.code, status.message.as_str()), (code, message));
            assert_eq!(status.status, "Failure");
        };
        let denied = "admission webhook \"w\" denied the request";
        check(json!(null), 400, &format!("{denied} without explanation"));
        check(json!({"message": "no"}), 400, &format!("{denied}: no"));
        check(json!({"code": 403, "reason": "Forbidden"}), 403, &format!("{denied}: Forbidden"));
        check(
            json!({"code": 200, "status": "Success"}),
            400,
            &format!("{denied} without explanation"),
        );
        check(json!("nonsense"), 400, &format!("{denied} without explanation"));
    }

    #[test]
    fn warnings_are_cut() {
        let long = "x".repeat(1000);
        let many = vec![long; 100];
        let answer = read(json!({"uid": "u", "allowed": true, "warnings": many}), false).unwrap();
        assert_eq!(answer.warnings.len(), 100);
        let longer = json!({"uid": "u", "allowed": true, "warnings": ["x".repeat(5_000)]});
        assert_eq!(read(longer, false).unwrap().warnings[0].len(), 4096);
    }
}
