//! Request options: the parameters of a read or a write, validated together.
//!
//! River: query → **options** → cache reads, watch starts, admission.
//! Promise: parsed options are a valid combination. The matrices of S3.2 (list) and S4.2 (watch)
//! are implemented only here; callers match on an enum.

mod delete;
mod write;

use std::time::Duration;

use crate::kind::Kind;
use crate::query::{Query, bad_request, version_error};
use crate::revision::Revision;
use crate::selector::{FieldSelector, LabelSelector, ShardSelector, field::Unresolved};
use crate::status::{self, FieldError, Status};
use crate::token::Token;

pub use delete::{DeleteOptions, Preconditions, Propagation};
pub use write::{FieldValidation, WriteOptions, manager_name};

/// How fresh the state for a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// At least as new as every write acknowledged before the request.
    Latest,
    /// The current state of the cache; never waits.
    Any,
    /// At least as new as this revision; waits for it for a limited time.
    NotOlderThan(Revision),
}

/// The state that a list returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReadAt {
    /// A state that is fresh enough.
    Fresh(Freshness),
    /// Exactly this state, or 410.
    Exact(Revision),
    /// The continuation of an earlier list.
    Continue(Token),
}

/// Options of GET on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetOptions {
    /// The state to read.
    pub at: Freshness,
}

/// Options of a list, and the selection of a deletecollection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// The state to read.
    pub at: ReadAt,
    /// The maximum number of items of a page. None where the matrix ignores the limit.
    pub limit: Option<usize>,
    /// By label.
    pub labels: LabelSelector,
    /// By field.
    pub fields: FieldSelector,
    /// By hash.
    pub shard: Option<ShardSelector>,
}

/// Options of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Where the stream starts.
    pub start: Start,
    /// Whether bookmarks may be sent.
    pub bookmarks: bool,
    /// When it ends. None: the server decides. Zero: immediately.
    pub timeout: Option<Duration>,
    /// By label.
    pub labels: LabelSelector,
    /// By field.
    pub fields: FieldSelector,
    /// By hash.
    pub shard: Option<ShardSelector>,
}

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// With the current objects, as ADDED events.
    Initial {
        /// Their state.
        at: Freshness,
        /// Whether a bookmark marks their end (S4.10).
        mark: bool,
    },
    /// With the first change after a revision.
    After(Revision),
    /// With the first change after the latest state.
    FromLatest,
    /// With the first change after the current state of the cache.
    FromAny,
}

impl GetOptions {
    /// Parses `resourceVersion`. A malformed one is a 400 here, a 500 in Kubernetes.
    pub fn parse(query: &Query) -> Result<GetOptions, Status> {
        let version = query.text("resourceVersion");
        let at = freshness(version).ok_or_else(|| bad_request(version_error(version)))?;
        Ok(GetOptions { at })
    }
}

/// The options that lists and watches share, decoded in Kubernetes' order: integers first, then
/// selectors.
struct Raw<'a> {
    version: &'a str,
    matching: &'a str,
    initial_events: Option<bool>,
    token: &'a str,
    limit: i64,
    timeout: Option<i64>,
    labels: LabelSelector,
    fields: Unresolved,
    shard: Option<ShardSelector>,
}

impl<'a> Raw<'a> {
    fn parse(query: &'a Query) -> Result<Raw<'a>, Status> {
        let timeout = query.integer("timeoutSeconds")?;
        let limit = query.integer("limit")?.unwrap_or(0);
        Ok(Raw {
            version: query.text("resourceVersion"),
            matching: query.text("resourceVersionMatch"),
            initial_events: query.flag("sendInitialEvents"),
            token: query.text("continue"),
            limit,
            timeout,
            labels: LabelSelector::parse(query.text("labelSelector"))?,
            fields: Unresolved::parse(query.text("fieldSelector"))?,
            shard: ShardSelector::parse(query.text("shardSelector"))?,
        })
    }
}

impl ListOptions {
    /// Parses the options of a list of a kind; `stored` is the kind that its objects are stored as.
    pub fn parse(query: &Query, kind: &Kind, stored: &Kind) -> Result<ListOptions, Status> {
        let raw = Raw::parse(query)?;
        refuse("ListOptions", &list_errors(&raw))?;
        let fields = raw.fields.clone().resolve(kind, stored)?;
        let at = match read_at(&raw)? {
            // Kubernetes reads events from the store, which only has the latest state, and applies
            // the limit from the first object on (S3.7).
            ReadAt::Fresh(Freshness::Any) if kind.traits.expires => {
                ReadAt::Fresh(Freshness::Latest)
            }
            at => at,
        };
        let limit = match at {
            // A cached read at "0" ignores the limit, also with a token.
            ReadAt::Fresh(Freshness::Any) => None,
            ReadAt::Continue(_) if raw.version == "0" => None,
            _ => usize::try_from(raw.limit).ok().filter(|limit| *limit > 0),
        };
        Ok(ListOptions { at, limit, labels: raw.labels, fields, shard: raw.shard })
    }
}

fn list_errors(raw: &Raw<'_>) -> Vec<FieldError> {
    const MATCH: &str = "resourceVersionMatch";
    let mut errors = Vec::new();
    let mut forbid = |why| errors.push(FieldError::forbidden(MATCH, why));
    if !raw.matching.is_empty() {
        if raw.version.is_empty() {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !raw.token.is_empty() {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(raw.matching, "Exact" | "NotOlderThan") {
            let supported = &["Exact", "NotOlderThan", ""];
            errors.push(FieldError::not_supported(MATCH, &raw.matching.into(), supported));
        } else if raw.matching == "Exact" && Revision::parse(raw.version) == Some(Revision::ZERO) {
            forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if raw.initial_events.is_some() {
        let why = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden("sendInitialEvents", why));
    }
    errors
}

fn read_at(raw: &Raw<'_>) -> Result<ReadAt, Status> {
    if !raw.token.is_empty() {
        let token = Token::decode(raw.token)?;
        return match raw.version {
            "" | "0" => Ok(ReadAt::Continue(token)),
            _ => Err(bad_request("specifying resource version is not allowed when using continue")),
        };
    }
    let fresh = freshness(raw.version).ok_or_else(|| {
        bad_request(format!("invalid resource version: {}", version_error(raw.version)))
    })?;
    Ok(match (fresh, raw.matching) {
        (Freshness::NotOlderThan(at), "Exact") => ReadAt::Exact(at),
        // The pages of one list must be consistent, so a limit without a match means exactly that
        // revision.
        (Freshness::NotOlderThan(at), "") if raw.limit > 0 => ReadAt::Exact(at),
        (fresh, _) => ReadAt::Fresh(fresh),
    })
}

impl WatchOptions {
    /// Whether the query of a collection GET requests a watch instead of a list.
    pub fn asked(query: &Query) -> bool {
        query.is_set("watch")
    }

    /// Parses the options of a watch.
    pub fn parse(query: &Query, kind: &Kind, stored: &Kind) -> Result<WatchOptions, Status> {
        let raw = Raw::parse(query)?;
        refuse("ListOptions", &watch_errors(&raw))?;
        let fields = raw.fields.clone().resolve(kind, stored)?;
        let bookmarks = query.is_set("allowWatchBookmarks");
        Ok(WatchOptions {
            start: start(&raw, bookmarks)?,
            bookmarks,
            timeout: watch_timeout(raw.timeout),
            labels: raw.labels,
            fields,
            shard: raw.shard,
        })
    }
}

fn watch_errors(raw: &Raw<'_>) -> Vec<FieldError> {
    const MATCH: &str = "resourceVersionMatch";
    let mut errors = Vec::new();
    if raw.initial_events.is_some() && raw.matching != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    let continued = "resourceVersionMatch is forbidden when continue is provided";
    // A watch without a start implies initial events, and with them a match (S4.3).
    let from_nowhere = raw.initial_events.is_none() && matches!(raw.version, "" | "0");
    if raw.matching.is_empty() {
        if from_nowhere && !raw.token.is_empty() {
            errors.push(FieldError::forbidden(MATCH, continued));
        }
        return errors;
    }
    if raw.initial_events.is_none() {
        let why =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if raw.matching != "NotOlderThan" {
        errors.push(FieldError::not_supported(MATCH, &raw.matching.into(), &["NotOlderThan"]));
    }
    if !raw.token.is_empty() {
        errors.push(FieldError::forbidden(MATCH, continued));
    }
    errors
}

fn start(raw: &Raw<'_>, bookmarks: bool) -> Result<Start, Status> {
    // A 400 before the stream starts; Kubernetes returns 500.
    let fresh = freshness(raw.version).ok_or_else(|| bad_request(version_error(raw.version)))?;
    // A watch without a revision starts with the current objects by default, and counts as a
    // request for initial events: it also gets the bookmark that ends them, if it accepts bookmarks
    // (S4.3).
    let initial = raw.initial_events.unwrap_or(!matches!(fresh, Freshness::NotOlderThan(_)));
    Ok(match (initial, fresh) {
        (true, at) => Start::Initial { at, mark: bookmarks },
        (false, Freshness::NotOlderThan(at)) => Start::After(at),
        (false, Freshness::Latest) => Start::FromLatest,
        (false, Freshness::Any) => Start::FromAny,
    })
}

/// The longest watch, a year: a later end may not be a valid time.
const WATCH_SECONDS_MAX: u64 = 365 * 24 * 3600;

fn watch_timeout(seconds: Option<i64>) -> Option<Duration> {
    match seconds {
        None | Some(0) => None,
        Some(seconds) => {
            let seconds = u64::try_from(seconds).unwrap_or(0);
            Some(Duration::from_secs(seconds.min(WATCH_SECONDS_MAX)))
        }
    }
}

/// The meaning of a resourceVersion without a match; none if it is malformed.
fn freshness(version: &str) -> Option<Freshness> {
    if version.is_empty() {
        return Some(Freshness::Latest);
    }
    Some(match Revision::parse(version)? {
        Revision::ZERO => Freshness::Any,
        at => Freshness::NotOlderThan(at),
    })
}

/// A 422 about the options, if there are errors.
fn refuse(options: &str, errors: &[FieldError]) -> Result<(), Status> {
    match errors {
        [] => Ok(()),
        errors => Err(status::invalid("meta.k8s.io", options, "", errors)),
    }
}

#[cfg(test)]
mod tests;
