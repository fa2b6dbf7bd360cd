//! The file of `--authorization-config`, read again when it changes.
//!
//! Promise: an invalid new file changes nothing; it raises a metric and a line in the log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Authorization;
use super::configuration::{AuthorizationConfiguration, InvalidAuthorization};
use crate::front::token_file::{FileStamp, stamp};
use crate::system::metrics::Metrics;

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that keeps its [`Authorization`] up to date.
#[derive(Debug)]
pub struct AuthorizationFile {
    path: PathBuf,
    authorization: Authorization,
    metrics: Metrics,
    seen: Option<FileStamp>,
}

impl AuthorizationFile {
    /// Reads the file once.
    pub fn open(path: &Path, metrics: Metrics) -> Result<AuthorizationFile, InvalidAuthorization> {
        let seen = stamp(path);
        let authorization = Authorization::new(read(path)?)?;
        Ok(AuthorizationFile { path: path.to_owned(), authorization, metrics, seen })
    }

    /// The authorizers, now and after every reload.
    pub fn authorization(&self) -> Authorization {
        self.authorization.clone()
    }

    /// Reads the file again whenever it changes, until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.look(),
            }
        }
    }

    fn look(&mut self) {
        let now = stamp(&self.path);
        if now == self.seen {
            return;
        }
        self.seen = now;
        let reloaded = read(&self.path).and_then(|new| self.authorization.replace(new));
        let result = if reloaded.is_ok() { "success" } else { "failure" };
        self.metrics.authorization_reloads.with(&[result]).inc();
        let now = Timestamp::now().as_second();
        self.metrics.authorization_reload_time.with(&[result]).set(now);
        match reloaded {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "authorization configuration reloaded");
            }
            Err(error) => tracing::error!(
                path = %self.path.display(), %error,
                "the authorization configuration is invalid; the previous one stays in effect"
            ),
        }
    }
}

fn read(path: &Path) -> Result<AuthorizationConfiguration, InvalidAuthorization> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| InvalidAuthorization::new(format!("cannot read {shown}: {error}")))?;
    AuthorizationConfiguration::parse(&bytes)
        .map_err(|error| InvalidAuthorization::new(format!("{shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";

    /// S8.24
    #[test]
    fn an_invalid_new_file_changes_nothing_and_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authorization.yaml");
        let write = |rest: &str| std::fs::write(&path, format!("{HEAD}{rest}")).unwrap();
        write("authorizers: [{type: RBAC, name: a}]\n");
        let metrics = Metrics::new();
        let mut file = AuthorizationFile::open(&path, metrics.clone()).unwrap();
        let current = file.authorization();
        let length = || current.authorizers.load().len();
        let count = |result: &str| metrics.authorization_reloads.with(&[result]).get();
        write("authorizers: [{type: Node, name: b}, {type: RBAC, name: a}]\n");
        file.look();
        assert_eq!((length(), count("success"), count("failure")), (2, 1, 0));
        file.look();
        assert_eq!((count("success"), count("failure")), (1, 0), "nothing has changed");
        write("authorizers: [{type: Nobody, name: b}]\n");
        file.look();
        std::fs::remove_file(&path).unwrap();
        file.look();
        assert_eq!((length(), count("success"), count("failure")), (2, 1, 2));
        assert!(AuthorizationFile::open(&path, metrics.clone()).is_err());
    }
}
