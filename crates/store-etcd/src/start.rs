//! Start-up checks: whether an etcd cluster is usable, without writing to it.
//!
//! Promise: an error names the problem and the flag or action that solves it.

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use headwater_api::Revision;

use crate::call_error::CallError;
use crate::client::{Client, Retry};
use crate::compaction;
use crate::convert::{Keyspace, foreign, number, revision};
use crate::options::Options;
use crate::proto::{RANGE, RangeRequest, RangeResponse, STATUS, StatusRequest, StatusResponse};
use crate::session::ClusterInfo;

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options are not valid.
    #[error("{0}")]
    Options(String),
    /// No member responds.
    #[error("no etcd member responds: {0}")]
    NoAnswer(String),
    /// The endpoints belong to different clusters.
    #[error("{0} and {1} belong to different etcd clusters")]
    Different(String, String),
    /// The version of a member is too old.
    #[error("etcd at {url} is version {version}; the oldest supported version is {OLDEST}")]
    TooOld {
        /// The URL of the member.
        url: String,
        /// Its version.
        version: String,
    },
    /// Members respond, but a linearizable read fails.
    #[error("etcd has no quorum: {0}")]
    NoQuorum(String),
    /// etcd rejects our credentials or permissions.
    #[error("{0}")]
    Denied(String),
    /// Another program uses our prefix.
    #[error(
        "{prefix} in etcd is used by another program: {key}: {why}; choose another prefix with \
         --etcd-prefix"
    )]
    Foreign {
        /// Our prefix.
        prefix: String,
        /// A key under it.
        key: String,
        /// Why the key cannot be ours.
        why: String,
    },
    /// A server of an earlier version has not finished a write.
    #[error(
        "etcd holds an unfinished write of an earlier version in {0}; start that version, create \
         an object, stop all its servers, and start this version again"
    )]
    Unfinished(String),
}

/// The oldest supported version.
const OLDEST: EtcdVersion = EtcdVersion(3, 5, 0);

/// The first version that sends progress notifications in order with events (S5.10).
const TRUSTED: EtcdVersion = EtcdVersion(3, 5, 13);

/// The first versions without known defects of watches during compaction and of reads after a
/// pause.
const RECOMMENDED: [EtcdVersion; 2] = [EtcdVersion(3, 5, 28), EtcdVersion(3, 6, 9)];

/// Keys under the prefix that the start checks; the others are checked when the cache loads them.
const CHECKED_KEYS: i64 = 500;

/// How long a member may take to report its status.
const PATIENCE: Duration = Duration::from_secs(3);

/// A client for these options.
pub(crate) fn client(options: &Options) -> Result<Client, Error> {
    if options.endpoints.is_empty() {
        return Err(Error::Options("no etcd endpoint given; use --etcd-endpoints".into()));
    }
    for url in &options.endpoints {
        let is_tls = url.starts_with("https://");
        if !is_tls && !url.starts_with("http://") {
            let why = format!("etcd endpoint {url} must start with http:// or https://");
            return Err(Error::Options(why));
        }
        if is_tls && options.tls.is_none() {
            let why = format!(
                "etcd endpoint {url} needs etcd's certificate authority; use --etcd-cacert"
            );
            return Err(Error::Options(why));
        }
    }
    let prefix = options.prefix.trim_end_matches('/');
    if !prefix.starts_with('/') || prefix.len() < 2 {
        let why = format!("the etcd prefix {:?} must start with / and have a name", options.prefix);
        return Err(Error::Options(why));
    }
    let Options { endpoints, tls, login, deadline, .. } = options;
    let only_tls = tls.as_ref().filter(|_| endpoints.iter().any(|url| url.starts_with("https://")));
    Client::new(endpoints, only_tls, login.clone(), *deadline)
        .map_err(|why| Error::Options(format!("the options for etcd are not valid: {why}")))
}

/// Checks the status of every member and the first keys under the prefix.
pub(crate) async fn check(client: &Client, options: &Options) -> Result<ClusterInfo, Error> {
    let oldest = check_members(client).await?;
    let keyspace = Keyspace::new(&options.prefix, &options.root);
    let (key, range_end) = keyspace.objects(&options.root);
    let request = RangeRequest { key, range_end, limit: CHECKED_KEYS, ..RangeRequest::default() };
    let response = read(client, request, options).await?;
    for kv in &response.kvs {
        let why = foreign(&kv.value)
            .or_else(|| (!is_ours(&kv.key)).then_some("the key is not valid UTF-8"));
        let Some(why) = why else { continue };
        let (prefix, key) = (options.prefix.clone(), String::from_utf8_lossy(&kv.key).into());
        let foreign = Error::Foreign { prefix, key, why: why.into() };
        if !has_our_objects(client, options, &keyspace).await? {
            return Err(foreign);
        }
        // One such value among our objects must not end every server.
        tracing::error!("{foreign}");
        break;
    }
    let journal = RangeRequest { key: keyspace.journal(), ..RangeRequest::default() };
    if !read(client, journal, options).await?.kvs.is_empty() {
        return Err(Error::Unfinished(String::from_utf8_lossy(&keyspace.journal()).into()));
    }
    Ok(ClusterInfo {
        revision: response.header.map_or(Revision::ZERO, |header| revision(header.revision)),
        compacted: compacted(client, &keyspace).await,
        trusts_progress: oldest >= TRUSTED,
    })
}

/// Whether the prefix has an object that every server of ours creates, under a key that no other
/// program uses.
async fn has_our_objects(
    client: &Client,
    options: &Options,
    keyspace: &Keyspace,
) -> Result<bool, Error> {
    let key = format!("{}core/namespaces/default", options.root);
    let key = keyspace.to_etcd(&key).map_err(|error| Error::Options(error.to_string()))?;
    let request = RangeRequest { key, ..RangeRequest::default() };
    let response = read(client, request, options).await?;
    Ok(response.kvs.iter().any(|kv| kv.value.starts_with(b"{")))
}

/// The compacted revision.
async fn compacted(client: &Client, keyspace: &Keyspace) -> Revision {
    let (key, first) = (keyspace.compaction(), Revision(1));
    let request = RangeRequest { key, revision: number(first), ..RangeRequest::default() };
    match client.call::<_, RangeResponse>(RANGE, request, Retry::Always).await {
        Err(CallError::Compacted) => {
            compaction::learn(client, keyspace, first).await.unwrap_or(first.next())
        }
        _ => Revision::ZERO,
    }
}

fn is_ours(key: &[u8]) -> bool {
    std::str::from_utf8(key).is_ok()
}

/// The oldest version of the members that respond.
async fn check_members(client: &Client) -> Result<EtcdVersion, Error> {
    let status = |member| client.once(member, STATUS, StatusRequest {}, PATIENCE);
    let responses: Vec<Result<StatusResponse, CallError>> =
        join_all((0..client.members()).map(status)).await;
    let (mut silent, mut clusters, mut oldest) = (String::new(), Vec::new(), None);
    for (member, response) in responses.into_iter().enumerate() {
        let url = client.url(member);
        match response {
            Ok(status) => {
                let version = EtcdVersion::parse(&status.version);
                check_version(url, &status.version, version)?;
                clusters.extend(status.header.map(|header| (url, header.cluster_id)));
                oldest = oldest.min(version).or(version);
            }
            Err(CallError::Unreachable { why, .. }) => {
                let separator = if silent.is_empty() { "" } else { "; " };
                let _ = write!(silent, "{separator}{}", explained(url, &why));
            }
            Err(failure) => return Err(denied(&failure)),
        }
    }
    if let [(first, cluster), rest @ ..] = clusters.as_slice()
        && let Some((other, _)) = rest.iter().find(|(_, other)| other != cluster)
    {
        return Err(Error::Different((*first).to_owned(), (*other).to_owned()));
    }
    match oldest {
        Some(oldest) => {
            if !silent.is_empty() {
                tracing::warn!("some etcd members do not respond: {silent}");
            }
            Ok(oldest)
        }
        None => Err(Error::NoAnswer(silent)),
    }
}

/// Adds a probable cause to a connection error.
fn explained(url: &str, why: &str) -> String {
    let hint = if why.contains("certificate") || why.contains("UnknownIssuer") {
        " (see --etcd-cacert, --etcd-cert and --etcd-key)"
    } else if url.starts_with("https://") && why.contains("corrupt message") {
        " (if this member does not use TLS, use http://)"
    } else if url.starts_with("http://") && (why.contains("frame") || why.contains("reset")) {
        " (if this member uses TLS, use https://)"
    } else {
        ""
    };
    match why.starts_with(url) {
        true => format!("{why}{hint}"),
        false => format!("{url}: {why}{hint}"),
    }
}

fn check_version(url: &str, text: &str, version: Option<EtcdVersion>) -> Result<(), Error> {
    let Some(version) = version.filter(|version| *version >= OLDEST) else {
        return Err(Error::TooOld { url: url.to_owned(), version: text.to_owned() });
    };
    let newer = RECOMMENDED.iter().find(|good| (good.0, good.1) == (version.0, version.1));
    if version < EtcdVersion(3, 5, 3) {
        tracing::error!(
            url, %version, "this etcd version may leave members inconsistent after a crash; upgrade it"
        );
    } else if let Some(good) = newer.filter(|good| version < **good) {
        tracing::warn!(
            url, %version, recommended = %good,
            "this etcd version may lose or misplace watch events during compaction and on lagging \
             members; upgrade it"
        );
    }
    Ok(())
}

/// A linearizable read.
async fn read(
    client: &Client,
    request: RangeRequest,
    options: &Options,
) -> Result<RangeResponse, Error> {
    client.call(RANGE, request, Retry::Always).await.map_err(|failure| match failure {
        CallError::Unreachable { why, .. } => {
            Error::NoQuorum(format!("members respond, but a read fails: {why}"))
        }
        CallError::Refused(why) if why.contains("permission denied") => Error::Denied(format!(
            "the etcd user may not read {prefix}: {why}; grant it readwrite on the prefix {prefix}",
            prefix = options.prefix
        )),
        failure => denied(&failure),
    })
}

fn denied(failure: &CallError) -> Error {
    let text = failure.to_string();
    Error::Denied(match () {
        () if text.contains("user name is empty") => {
            "etcd requires authentication; use --etcd-user".to_owned()
        }
        () if text.contains("invalid user ID or password") => {
            "etcd rejected the user name or password of --etcd-user".to_owned()
        }
        () if text.contains("authentication is not enabled") => {
            "authentication is disabled in etcd; omit --etcd-user".to_owned()
        }
        () => text,
    })
}

/// A version of etcd: major, minor and patch number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EtcdVersion(u32, u32, u32);

impl EtcdVersion {
    fn parse(text: &str) -> Option<EtcdVersion> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.splitn(3, '.').map(|part| part.parse().ok());
        Some(EtcdVersion(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl std::fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(EtcdVersion::parse("3.5.16"), Some(EtcdVersion(3, 5, 16)));
        assert_eq!(EtcdVersion::parse("3.6.0-rc.1"), Some(EtcdVersion(3, 6, 0)));
        assert_eq!(EtcdVersion::parse("3.5"), None);
        assert!(EtcdVersion(3, 5, 16) > EtcdVersion(3, 5, 9));
    }

    #[test]
    fn unsupported_versions_are_rejected() {
        let check = |text: &str, is_supported: bool| {
            let result = check_version("http://etcd", text, EtcdVersion::parse(text));
            assert_eq!(result.is_ok(), is_supported, "{text}: {result:?}");
        };
        check("3.4.23", false);
        check("2.3.8", false);
        check("", false);
        check("3.5.0", true);
        check("3.5.28", true);
        check("3.6.4", true);
        check("4.0.0", true);
    }

    #[test]
    fn invalid_options_are_rejected_without_connecting() {
        let check = |endpoints: &[&str], prefix: &str, expected: &str| {
            let endpoints = endpoints.iter().map(|url| (*url).to_owned()).collect();
            let prefix = prefix.to_owned();
            let options = Options { endpoints, prefix, ..Options::default() };
            let error = client(&options).err().expect("an error").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "/registry", "--etcd-endpoints");
        check(&["localhost:2379"], "/registry", "must start with http://");
        check(&["https://localhost:2379"], "/registry", "--etcd-cacert");
        check(&["http://localhost:2379"], "registry", "must start with /");
        check(&["http://localhost:2379"], "/", "must start with /");
    }
}
