//! Health checks: `/livez`, `/readyz` and `/healthz` over one list of checks.
//!
//! Promise: readiness fails as soon as a shutdown begins, liveness does not (S1.10). The reason of a
//! failure is logged, not returned: the endpoints need no credential.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

/// The checks. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub struct HealthChecks {
    checks: Arc<Vec<Check>>,
    stopping: Arc<AtomicBool>,
}

/// The endpoints that a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// All three.
    All,
    /// `/readyz` only: a failure is no reason to restart the process.
    Readiness,
}

struct Check {
    name: &'static str,
    answers: Answers,
    passes: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl fmt::Debug for HealthChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks.iter().map(|check| check.name)).finish()
    }
}

/// Collects checks.
#[derive(Default)]
pub struct Builder(Vec<Check>);

impl Builder {
    /// Adds a check; `passes` must not block.
    #[must_use]
    pub fn check(
        mut self,
        name: &'static str,
        answers: Answers,
        passes: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Builder {
        self.0.push(Check { name, answers, passes: Box::new(passes) });
        self
    }

    /// Builds the list, `ping` first and `shutdown` last.
    pub fn build(self) -> HealthChecks {
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = stopping.clone();
        let shutdown = move || match stops.load(Ordering::Relaxed) {
            true => Err("the process is shutting down".to_owned()),
            false => Ok(()),
        };
        let mut checks = Builder::default().check("ping", Answers::All, || Ok(())).0;
        checks.extend(self.0);
        let checks = Builder(checks).check("shutdown", Answers::Readiness, shutdown).0;
        HealthChecks { checks: Arc::new(checks), stopping }
    }
}

impl HealthChecks {
    /// Collects checks.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Makes readiness fail from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The response to a health path; `None` for other paths.
    pub fn answer(&self, path: &str, query: Option<&str>) -> Option<Response<Bytes>> {
        let (name, sub) = path
            .strip_prefix('/')?
            .split_once('/')
            .map_or_else(|| (path.trim_start_matches('/'), None), |(name, sub)| (name, Some(sub)));
        let asks = |check: &&Check| name == "readyz" || check.answers == Answers::All;
        if !matches!(name, "livez" | "readyz" | "healthz") {
            return None;
        }
        let mut checks = self.checks.iter().filter(asks);
        Some(match sub {
            None => summary(name, checks, query.unwrap_or_default()),
            Some(sub) => checks.find(|check| check.name == sub).map_or_else(not_found, one),
        })
    }
}

fn summary<'a>(
    name: &str,
    checks: impl Iterator<Item = &'a Check>,
    query: &str,
) -> Response<Bytes> {
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let excluded: Vec<&str> =
        pairs().filter(|(key, _)| *key == "exclude").map(|(_, value)| value).collect();
    let mut unknown = excluded.clone();
    let (mut lines, mut failed) = (String::new(), false);
    for check in checks {
        unknown.retain(|name| *name != check.name);
        let _ = match (excluded.contains(&check.name), (check.passes)()) {
            (true, _) => writeln!(lines, "[+]{} excluded: ok", check.name),
            (false, Ok(())) => writeln!(lines, "[+]{} ok", check.name),
            (false, Err(why)) => {
                tracing::warn!(check = check.name, why, "{name} check failed");
                failed = true;
                writeln!(lines, "[-]{} failed: reason withheld", check.name)
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

fn one(check: &Check) -> Response<Bytes> {
    match (check.passes)() {
        Ok(()) => {
            let mut response = plain(StatusCode::OK, "ok".to_owned());
            response.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
            response
        }
        Err(why) => {
            tracing::warn!(check = check.name, why, "check failed");
            let text = "internal server error: reason withheld\n".to_owned();
            plain(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

fn not_found() -> Response<Bytes> {
    plain(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

fn plain(status: StatusCode, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(store_works: bool) -> HealthChecks {
        let store = move || if store_works { Ok(()) } else { Err("disk full".to_owned()) };
        HealthChecks::builder().check("store", Answers::All, store).build()
    }

    #[track_caller]
    fn check(health: &HealthChecks, target: &str, status: u16, body: &str) {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        let answer = health.answer(path, query).expect("a health path");
        assert_eq!(std::str::from_utf8(answer.body()).unwrap(), body);
        assert_eq!(answer.status().as_u16(), status);
    }

    #[test]
    fn a_healthy_server_says_ok() {
        let health = health(true);
        for path in ["/livez", "/readyz", "/healthz", "/livez/ping", "/readyz/store"] {
            check(&health, path, 200, "ok");
        }
        check(&health, "/livez/", 404, "404 page not found\n");
        check(&health, "/readyz/nosuch", 404, "404 page not found\n");
        check(&health, "/livez/shutdown", 404, "404 page not found\n");
        assert!(health.answer("/live", None).is_none());
    }

    #[test]
    fn verbose_lists_every_check() {
        let health = health(true);
        check(&health, "/livez?verbose", 200, "[+]ping ok\n[+]store ok\nlivez check passed\n");
        check(
            &health,
            "/readyz?verbose&exclude=store",
            200,
            "[+]ping ok\n[+]store excluded: ok\n[+]shutdown ok\nreadyz check passed\n",
        );
        check(
            &health,
            "/livez?exclude=x&verbose=1",
            200,
            "[+]ping ok\n[+]store ok\n\
             warn: some health checks cannot be excluded: no matches for \"x\"\n\
             livez check passed\n",
        );
    }

    #[test]
    fn a_failing_check_is_named_and_its_reason_is_not() {
        let health = health(false);
        let text = "[+]ping ok\n[-]store failed: reason withheld\nlivez check failed\n";
        check(&health, "/livez", 500, text);
        check(&health, "/livez?exclude=store", 200, "ok");
    }

    #[test]
    fn a_stopping_server_is_alive_and_not_ready() {
        let health = health(true);
        health.stop();
        check(&health, "/livez", 200, "ok");
        check(&health, "/healthz", 200, "ok");
        let text = "[+]ping ok\n[+]store ok\n[-]shutdown failed: reason withheld\n\
                    readyz check failed\n";
        check(&health, "/readyz", 500, text);
    }

    #[test]
    fn headers_are_those_of_the_reference() {
        let answer = health(true).answer("/livez", None).unwrap();
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let answer = health(true).answer("/livez/ping", None).unwrap();
        assert!(!answer.headers().contains_key(X_CONTENT_TYPE_OPTIONS));
    }
}
