//! Start-up: is this a cluster we can use?
//!
//! Everything here only reads. What is wrong is said in one sentence, with a way out.

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use headwater_api::Revision;

use crate::client::{Calls, Client};
use crate::compaction;
use crate::convert::{Space, foreign, number, revision};
use crate::engine::Options;
use crate::failure::Failure;
use crate::proto::{RANGE, RangeRequest, RangeResponse, STATUS, StatusRequest, StatusResponse};

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options are not usable.
    #[error("{0}")]
    Options(String),
    /// No member answers.
    #[error("no etcd member responds: {0}")]
    NoAnswer(String),
    /// Members of different clusters.
    #[error("{0} and {1} belong to different etcd clusters")]
    Different(String, String),
    /// Too old.
    #[error("etcd at {url} is version {version}; the oldest supported version is {OLDEST}")]
    TooOld {
        /// Which member.
        url: String,
        /// Its version.
        version: String,
    },
    /// Members answer, and nothing can be decided.
    #[error("etcd has no quorum: {0}")]
    NoQuorum(String),
    /// etcd does not let us in.
    #[error("{0}")]
    Denied(String),
    /// Something else lives under our prefix.
    #[error(
        "{prefix} in etcd is used by another program: {key}: {why}; choose another prefix with \
         --etcd-prefix"
    )]
    Foreign {
        /// Our prefix.
        prefix: String,
        /// A key under it.
        key: String,
        /// Why it cannot be ours.
        why: String,
    },
}

/// The oldest version that is supported.
const OLDEST: Version = Version(3, 5, 0);

/// From here on, notices of progress come in order with events (reliability 2.7).
const TRUSTED: Version = Version(3, 5, 13);

/// From here on, the known defects of watches around compaction and of reads after a pause are gone.
const RECOMMENDED: [Version; 2] = [Version(3, 5, 28), Version(3, 6, 9)];

/// Keys under the prefix that are looked at; the rest is looked at when it is loaded.
const LOOK: i64 = 500;

/// How long a member has to say who it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was found.
pub(crate) struct Found {
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    pub(crate) trusts_progress: bool,
}

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

/// Asks every member who it is, and a quorum what is under the prefix.
pub(crate) async fn check(client: &Client, options: &Options) -> Result<Found, Error> {
    let oldest = check_members(client).await?;
    let space = Space::new(&options.prefix, &options.root);
    let (key, range_end) = space.objects(&options.root);
    let request = RangeRequest { key, range_end, limit: LOOK, ..RangeRequest::default() };
    let answer = read(client, request, options).await?;
    for kv in &answer.kvs {
        let why = foreign(&kv.value)
            .or_else(|| (!is_ours(&kv.key)).then_some("the key is not valid UTF-8"));
        if let Some(why) = why {
            let (prefix, key) = (options.prefix.clone(), String::from_utf8_lossy(&kv.key).into());
            return Err(Error::Foreign { prefix, key, why: why.into() });
        }
    }
    Ok(Found {
        revision: answer.header.map_or(Revision::ZERO, |header| revision(header.revision)),
        compacted: compacted(client, &space).await,
        trusts_progress: oldest >= TRUSTED,
    })
}

/// How far history is compacted already.
async fn compacted(client: &Client, space: &Space) -> Revision {
    let first = Revision(1);
    let request =
        RangeRequest { key: space.journal(), revision: number(first), ..RangeRequest::default() };
    match client.call::<_, RangeResponse>(RANGE, request, Calls::Freely).await {
        Err(Failure::Compacted) => {
            compaction::learn(client, space, first).await.unwrap_or(first.next())
        }
        _ => Revision::ZERO,
    }
}

fn is_ours(key: &[u8]) -> bool {
    std::str::from_utf8(key).is_ok()
}

/// The oldest version among the members that answer.
async fn check_members(client: &Client) -> Result<Version, Error> {
    let ask = |member| client.once(member, STATUS, StatusRequest {}, PATIENCE);
    let answers: Vec<Result<StatusResponse, Failure>> =
        join_all((0..client.members()).map(ask)).await;
    let (mut silent, mut clusters, mut oldest) = (String::new(), Vec::new(), None);
    for (member, answer) in answers.into_iter().enumerate() {
        let url = client.url(member);
        match answer {
            Ok(status) => {
                let version = Version::parse(&status.version);
                check_version(url, &status.version, version)?;
                clusters.extend(status.header.map(|header| (url, header.cluster_id)));
                oldest = oldest.min(version).or(version);
            }
            Err(Failure::Unreachable { why, .. }) => {
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

/// What a failure to connect may come from.
fn explained(url: &str, why: &str) -> String {
    let hint = if why.contains("certificate") || why.contains("UnknownIssuer") {
        " (see --etcd-cacert, --etcd-cert and --etcd-key)"
    } else if url.starts_with("https://") && why.contains("corrupt message") {
        " (does it speak TLS? if not, use http://)"
    } else if url.starts_with("http://") && (why.contains("frame") || why.contains("reset")) {
        " (does it speak TLS? if so, use https://)"
    } else {
        ""
    };
    match why.starts_with(url) {
        true => format!("{why}{hint}"),
        false => format!("{url}: {why}{hint}"),
    }
}

fn check_version(url: &str, text: &str, version: Option<Version>) -> Result<(), Error> {
    let Some(version) = version.filter(|version| *version >= OLDEST) else {
        return Err(Error::TooOld { url: url.to_owned(), version: text.to_owned() });
    };
    let newer = RECOMMENDED.iter().find(|good| (good.0, good.1) == (version.0, version.1));
    if version < Version(3, 5, 3) {
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

/// Asks a quorum.
async fn read(
    client: &Client,
    request: RangeRequest,
    options: &Options,
) -> Result<RangeResponse, Error> {
    client.call(RANGE, request, Calls::Freely).await.map_err(|failure| match failure {
        Failure::Unreachable { why, .. } => {
            Error::NoQuorum(format!("members respond, but a read fails: {why}"))
        }
        Failure::Refused(why) if why.contains("permission denied") => Error::Denied(format!(
            "the etcd user may not read {prefix}: {why}; grant it readwrite on the prefix {prefix}",
            prefix = options.prefix
        )),
        failure => denied(&failure),
    })
}

fn denied(failure: &Failure) -> Error {
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

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    fn parse(text: &str) -> Option<Version> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.splitn(3, '.').map(|part| part.parse().ok());
        Some(Version(parts.next()??, parts.next()??, parts.next()??))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(Version::parse("3.5.16"), Some(Version(3, 5, 16)));
        assert_eq!(Version::parse("3.6.0-rc.1"), Some(Version(3, 6, 0)));
        assert_eq!(Version::parse("3.5"), None);
        assert!(Version(3, 5, 16) > Version(3, 5, 9));
    }

    #[test]
    fn versions_that_are_too_old_are_refused() {
        let check = |text: &str, is_taken: bool| {
            let result = check_version("http://etcd", text, Version::parse(text));
            assert_eq!(result.is_ok(), is_taken, "{text}: {result:?}");
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
    fn endpoints_that_cannot_work_are_refused_before_anything_is_tried() {
        let check = |endpoints: &[&str], prefix: &str, expected: &str| {
            let endpoints = endpoints.iter().map(|url| (*url).to_owned()).collect();
            let prefix = prefix.to_owned();
            let options = Options { endpoints, prefix, ..Options::default() };
            let error = client(&options).err().expect("it is refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "/registry", "--etcd-endpoints");
        check(&["localhost:2379"], "/registry", "must start with http://");
        check(&["https://localhost:2379"], "/registry", "--etcd-cacert");
        check(&["http://localhost:2379"], "registry", "must start with /");
        check(&["http://localhost:2379"], "/", "must start with /");
    }
}
