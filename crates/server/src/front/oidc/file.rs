//! The file of `--authentication-config`, read again when it changes.
//!
//! Promise: an invalid new file changes nothing; it raises a metric and a line in the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::OidcIssuers;
use super::config::{AuthenticationConfiguration, ConfigurationError};
use crate::front::token_file::{FileStamp, stamp};
use crate::system::metrics::Metrics;

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The issuers in force. Cheap to clone; all clones see a reload.
#[derive(Clone, Debug, Default)]
pub struct Authentication(pub(crate) Arc<ArcSwap<OidcIssuers>>);

impl Authentication {
    /// The issuers and rules of a configuration.
    pub fn new(
        configuration: AuthenticationConfiguration,
    ) -> Result<Authentication, ConfigurationError> {
        let authentication = Authentication::default();
        authentication.replace(configuration)?;
        Ok(authentication)
    }

    fn replace(&self, new: AuthenticationConfiguration) -> Result<(), ConfigurationError> {
        let before = self.0.load_full();
        let issuers = OidcIssuers::new(new.jwt, new.anonymous, &before)?;
        self.0.store(Arc::new(issuers));
        Ok(())
    }
}

/// A file that keeps its [`Authentication`] up to date.
#[derive(Debug)]
pub struct AuthenticationFile {
    path: PathBuf,
    authentication: Authentication,
    metrics: Metrics,
    seen: Option<FileStamp>,
}

impl AuthenticationFile {
    /// Reads the file once.
    pub fn open(path: &Path, metrics: Metrics) -> Result<AuthenticationFile, ConfigurationError> {
        let seen = stamp(path);
        let authentication = Authentication::new(read(path)?)?;
        Ok(AuthenticationFile { path: path.to_owned(), authentication, metrics, seen })
    }

    /// The issuers and rules, now and after every reload.
    pub fn authentication(&self) -> Authentication {
        self.authentication.clone()
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
        let reloaded = read(&self.path).and_then(|new| self.authentication.replace(new));
        let result = if reloaded.is_ok() { "success" } else { "failure" };
        self.metrics.authentication_reloads.with(&[result]).inc();
        let now = Timestamp::now().as_second();
        self.metrics.authentication_reload_time.with(&[result]).set(now);
        match reloaded {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "authentication configuration reloaded");
            }
            Err(error) => tracing::error!(
                path = %self.path.display(), %error,
                "the authentication configuration is invalid; the previous one stays in effect"
            ),
        }
    }
}

fn read(path: &Path) -> Result<AuthenticationConfiguration, ConfigurationError> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| ConfigurationError::new(format!("cannot read {shown}: {error}")))?;
    AuthenticationConfiguration::parse(&bytes)
        .map_err(|error| ConfigurationError::new(format!("{shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

    /// S8.16
    #[test]
    fn an_invalid_new_file_changes_nothing_and_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authentication.yaml");
        let write = |rest: &str| std::fs::write(&path, format!("{HEAD}{rest}")).unwrap();
        write("anonymous: {enabled: false}\n");
        let metrics = Metrics::new();
        let mut file = AuthenticationFile::open(&path, metrics.clone()).unwrap();
        let current = file.authentication();
        let is_open = || current.0.load().anonymous.as_ref().unwrap().allows("/version");
        let count = |result: &str| metrics.authentication_reloads.with(&[result]).get();
        assert!(!is_open());
        write("anonymous: {enabled: true}\n# longer\n");
        file.look();
        assert!(is_open());
        assert_eq!((count("success"), count("failure")), (1, 0));
        file.look();
        assert_eq!((count("success"), count("failure")), (1, 0), "nothing has changed");
        write("anonymous: {enabled: false, path: /livez}\n");
        file.look();
        std::fs::remove_file(&path).unwrap();
        file.look();
        assert!(is_open());
        assert_eq!((count("success"), count("failure")), (1, 2));
        assert!(AuthenticationFile::open(&path, metrics.clone()).is_err());
    }
}
