//! Health checks: `/livez`, `/readyz` and `/healthz` over one list of checks.
//!
//! Promise: readiness fails as soon as a shutdown begins, liveness does not (S1.10). The reason of a
//! failure is logged, not returned: the endpoints need no credential.

use std::fmt::Write;

use headwater_store::KeyServiceHealth;
use http::StatusCode;
use http::header::X_CONTENT_TYPE_OPTIONS;

use crate::answer::body::{self, Response};

/// The state of a server that the checks are about.
pub(crate) struct Health {
    /// Why the store does not work, if so.
    pub(crate) store_trouble: Option<String>,
    /// The health of the key services, if stored values are encrypted with any.
    pub(crate) key_services: Option<KeyServiceHealth>,
    /// Whether the server has begun to stop.
    pub(crate) is_stopping: bool,
}

/// What is complete when a server accepts its first connection, as Kubernetes names it.
const STARTED: [&str; 27] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/storage-readiness",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// A check: its name and its result.
type Check = (&'static str, CheckResult);

enum CheckResult {
    Passed,
    /// With the reason.
    Failed(String),
    /// It failed, but the endpoint does not fail for it. With the reason.
    Ignored(String),
}

impl CheckResult {
    fn of(trouble: Option<String>) -> CheckResult {
        trouble.map_or(CheckResult::Passed, CheckResult::Failed)
    }
}

impl Health {
    /// The response to a health path; `None` for other paths.
    pub(crate) fn answer(&self, path: &str, query: &str) -> Option<Response> {
        let path = path.strip_prefix('/')?;
        let (name, sub) =
            path.split_once('/').map_or((path, None), |(name, sub)| (name, Some(sub)));
        let mut checks = self.checks(name)?;
        Some(match sub {
            None => summary(name, &checks, query),
            Some(sub) => match checks.iter().position(|(name, _)| *name == sub) {
                Some(at) => one(checks.swap_remove(at)),
                None => body::page_not_found(),
            },
        })
    }

    /// The checks of an endpoint, under the names of Kubernetes. A store or a key service that does not
    /// work and a stop are no reasons to restart the process, so only `readyz` fails for them.
    fn checks(&self, endpoint: &str) -> Option<Vec<Check>> {
        let started = STARTED.map(|name| (name, CheckResult::Passed));
        let mut checks: Vec<Check> =
            vec![("ping", CheckResult::Passed), ("log", CheckResult::Passed)];
        let trouble = self.store_trouble.clone();
        match endpoint {
            "livez" | "healthz" => {
                let store = trouble.map_or(CheckResult::Passed, CheckResult::Ignored);
                checks.push(("etcd", store));
                checks.extend(started);
            }
            "readyz" => {
                let stopping = self.is_stopping.then(|| "the process is shutting down".to_owned());
                checks.push(("etcd", CheckResult::of(trouble)));
                if let Some(services) = &self.key_services {
                    checks.push(("kms-providers", CheckResult::of(services.trouble.clone())));
                }
                checks.push(("informer-sync", CheckResult::Passed));
                checks.extend(started);
                checks.push(("shutdown", CheckResult::of(stopping)));
            }
            _ => return None,
        }
        Some(checks)
    }
}

fn summary(name: &str, checks: &[Check], query: &str) -> Response {
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let excluded: Vec<&str> =
        pairs().filter(|(key, _)| *key == "exclude").map(|(_, value)| value).collect();
    let mut unknown = excluded.clone();
    let (mut lines, mut failed) = (String::new(), false);
    for (check, result) in checks {
        unknown.retain(|name| name != check);
        let _ = match (excluded.contains(check), result) {
            (true, _) | (_, CheckResult::Ignored(_)) => writeln!(lines, "[+]{check} excluded: ok"),
            (false, CheckResult::Passed) => writeln!(lines, "[+]{check} ok"),
            (false, CheckResult::Failed(why)) => {
                tracing::warn!(check, why, "{name} check failed");
                failed = true;
                writeln!(lines, "[-]{check} failed: reason withheld")
            }
        };
    }
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        let _ =
            writeln!(lines, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if failed {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{name} check failed\n"));
    }
    match pairs().any(|(key, _)| key == "verbose") {
        true => plain(StatusCode::OK, format!("{lines}{name} check passed\n")),
        false => plain(StatusCode::OK, "ok".to_owned()),
    }
}

fn one((check, result): Check) -> Response {
    match result {
        CheckResult::Passed => body::text(StatusCode::OK, "ok"),
        CheckResult::Failed(why) | CheckResult::Ignored(why) => {
            tracing::warn!(check, why, "check failed");
            let text = "internal server error: reason withheld\n".to_owned();
            plain(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response {
    let mut response = body::text(status, text);
    body::set(&mut response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt;

    use super::*;

    fn health(store_works: bool) -> Health {
        let store_trouble = (!store_works).then(|| "disk full".to_owned());
        Health { store_trouble, key_services: None, is_stopping: false }
    }

    #[track_caller]
    fn check(health: &Health, target: &str, status: u16, body: &str) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let answer = health.answer(path, query).expect("a health path");
        assert_eq!(answer.status().as_u16(), status);
        let bytes = answer.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), body);
    }

    #[test]
    fn a_healthy_server_says_ok() {
        let health = health(true);
        for path in ["/livez", "/readyz", "/healthz", "/livez/etcd", "/readyz/etcd"] {
            check(&health, path, 200, "ok");
        }
        check(&health, "/livez/", 404, "404 page not found\n");
        check(&health, "/readyz/nosuch", 404, "404 page not found\n");
        check(&health, "/livez/shutdown", 404, "404 page not found\n");
        assert!(health.answer("/live", "").is_none());
    }

    fn started() -> String {
        STARTED.map(|name| format!("[+]{name} ok\n")).concat()
    }

    #[test]
    fn verbose_lists_every_check() {
        let (health, started) = (health(true), started());
        let text = format!("[+]ping ok\n[+]log ok\n[+]etcd ok\n{started}livez check passed\n");
        check(&health, "/livez?verbose", 200, &text);
        let text = format!(
            "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n[+]informer-sync ok\n{started}\
             [+]shutdown ok\nreadyz check passed\n"
        );
        check(&health, "/readyz?verbose&exclude=etcd", 200, &text);
        let text = format!(
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]informer-sync ok\n{started}[+]shutdown ok\n\
             warn: some health checks cannot be excluded: no matches for \"x\"\n\
             readyz check passed\n"
        );
        check(&health, "/readyz?exclude=x&verbose=1", 200, &text);
        check(&health, "/livez/poststarthook/rbac/bootstrap-roles", 200, "ok");
    }

    #[test]
    fn a_failing_check_is_named_and_its_reason_is_not() {
        let (health, started) = (health(false), started());
        let text = format!(
            "[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n[+]informer-sync ok\n\
             {started}[+]shutdown ok\nreadyz check failed\n"
        );
        check(&health, "/readyz", 500, &text);
        check(&health, "/readyz/etcd", 500, "internal server error: reason withheld\n");
        check(&health, "/readyz?exclude=etcd", 200, "ok");
        check(&health, "/livez", 200, "ok");
        let text =
            format!("[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n{started}livez check passed\n");
        check(&health, "/livez?verbose", 200, &text);
        check(&health, "/livez/etcd", 500, "internal server error: reason withheld\n");
    }

    #[test]
    fn key_services_are_a_check_where_they_are_configured() {
        let with = |trouble: Option<&str>| Health {
            key_services: Some(KeyServiceHealth { trouble: trouble.map(str::to_owned) }),
            ..health(true)
        };
        let started = started();
        let text = format!(
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]kms-providers ok\n[+]informer-sync ok\n\
             {started}[+]shutdown ok\nreadyz check passed\n"
        );
        check(&with(None), "/readyz?verbose", 200, &text);
        let failing = with(Some("the HSM is closed"));
        let text = format!(
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[-]kms-providers failed: reason withheld\n\
             [+]informer-sync ok\n{started}[+]shutdown ok\nreadyz check failed\n"
        );
        check(&failing, "/readyz", 500, &text);
        check(&failing, "/livez", 200, "ok");
        check(&health(true), "/readyz/kms-providers", 404, "404 page not found\n");
    }

    #[test]
    fn a_stopping_server_is_alive_and_not_ready() {
        let health = Health { is_stopping: true, ..health(true) };
        check(&health, "/livez", 200, "ok");
        check(&health, "/healthz", 200, "ok");
        let started = started();
        let text = format!(
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]informer-sync ok\n{started}\
             [-]shutdown failed: reason withheld\nreadyz check failed\n"
        );
        check(&health, "/readyz", 500, &text);
    }

    #[test]
    fn headers_are_those_of_the_reference() {
        let answer = health(true).answer("/livez", "").unwrap();
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let answer = health(true).answer("/livez/ping", "").unwrap();
        assert!(!answer.headers().contains_key(X_CONTENT_TYPE_OPTIONS));
    }
}
