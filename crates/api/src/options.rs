//! Request options: what a query asks of a read or a write, checked against every rule at once.
//!
//! River: query → **options** → cache reads, watch starts, admission.
//! Promise: what comes out is a valid combination. The matrices of S3.2 (list) and S4.2 (watch)
//! are decided here and nowhere else; whoever acts on the result matches over an enum.

mod delete;
mod write;

use std::time::Duration;

use crate::kind::Kind;
use crate::query::{Query, bad_request, version_error};
use crate::revision::Revision;
use crate::selector::{FieldSelector, LabelSelector, field::Unresolved};
use crate::status::{self, FieldError, Status};
use crate::token::Token;

pub use delete::{DeleteOptions, Preconditions, Propagation};
pub use write::{FieldValidation, WriteOptions, manager_name};

/// How fresh a state must be to answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// At least as new as any write acknowledged before the request came.
    Latest,
    /// Whatever is at hand; never waits.
    Any,
    /// At least as new as this revision; waits for it, for a while.
    NotOlderThan(Revision),
}

/// Which state a list shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReadAt {
    /// One that is fresh enough.
    Fresh(Freshness),
    /// Exactly this one, or 410.
    Exact(Revision),
    /// The rest of an earlier list.
    Continue(Token),
}

/// Options of GET on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetOptions {
    /// Which state to answer from.
    pub at: Freshness,
}

/// Options of a list, and the selection of a deletecollection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// Which state to answer from.
    pub at: ReadAt,
    /// Most items of a page. None where the matrix says that a limit is ignored.
    pub limit: Option<usize>,
    /// By label.
    pub labels: LabelSelector,
    /// By field.
    pub fields: FieldSelector,
}

/// Options of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Where the stream begins.
    pub start: Start,
    /// Whether bookmarks may be sent.
    pub bookmarks: bool,
    /// When it ends. None: the server chooses. Zero: at once.
    pub timeout: Option<Duration>,
    /// By label.
    pub labels: LabelSelector,
    /// By field.
    pub fields: FieldSelector,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// With what is there, as ADDED events.
    Initial {
        /// In which state.
        at: Freshness,
        /// Whether a bookmark marks the end of it (S4.10).
        mark: bool,
    },
    /// With the first change after a revision.
    After(Revision),
    /// With the first change after the latest state.
    FromLatest,
    /// With the first change after about now.
    FromAny,
}

impl GetOptions {
    /// Reads `resourceVersion`. A malformed one is 400 here, unlike the 500 of the reference.
    pub fn parse(query: &Query) -> Result<GetOptions, Status> {
        let version = query.text("resourceVersion");
        let at = freshness(version).ok_or_else(|| bad_request(version_error(version)))?;
        Ok(GetOptions { at })
    }
}

/// What lists and watches share, as the reference decodes it: integers first, then selectors.
struct Raw<'a> {
    version: &'a str,
    matching: &'a str,
    initial_events: Option<bool>,
    token: &'a str,
    limit: i64,
    timeout: Option<i64>,
    labels: LabelSelector,
    fields: Unresolved,
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
        })
    }
}

impl ListOptions {
    /// Reads the options of a list of a kind whose objects are stored as another, or as it is.
    pub fn parse(query: &Query, kind: &Kind, stored: &Kind) -> Result<ListOptions, Status> {
        let raw = Raw::parse(query)?;
        refuse("ListOptions", &list_errors(&raw))?;
        let fields = raw.fields.clone().resolve(kind, stored)?;
        let at = match read_at(&raw)? {
            // Events are read from the store in the reference, which has the latest and no other
            // state at hand, and counts from the first object on (S3.7).
            ReadAt::Fresh(Freshness::Any) if kind.traits.expires => {
                ReadAt::Fresh(Freshness::Latest)
            }
            at => at,
        };
        let limit = match at {
            // A cached read at "0" is complete whatever the limit, also after a token.
            ReadAt::Fresh(Freshness::Any) => None,
            ReadAt::Continue(_) if raw.version == "0" => None,
            _ => usize::try_from(raw.limit).ok().filter(|limit| *limit > 0),
        };
        Ok(ListOptions { at, limit, labels: raw.labels, fields })
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
        // Pages of one list must agree, so a limit without a match means exactly that revision.
        (Freshness::NotOlderThan(at), "") if raw.limit > 0 => ReadAt::Exact(at),
        (fresh, _) => ReadAt::Fresh(fresh),
    })
}

impl WatchOptions {
    /// Whether the query of a collection GET asks for a watch instead of a list.
    pub fn asked(query: &Query) -> bool {
        query.is_set("watch")
    }

    /// Reads the options of a watch.
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
    // A watch from nowhere asks for initial events, and with them for a match (S4.3).
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
    // Answered before the stream, as 400: the reference says 500.
    let fresh = freshness(raw.version).ok_or_else(|| bad_request(version_error(raw.version)))?;
    // A watch without a revision to go on from begins with what is there unless told not to, and
    // counts as asking for initial events: it gets the mark too if it takes bookmarks (S4.3).
    let initial = raw.initial_events.unwrap_or(!matches!(fresh, Freshness::NotOlderThan(_)));
    Ok(match (initial, fresh) {
        (true, at) => Start::Initial { at, mark: bookmarks },
        (false, Freshness::NotOlderThan(at)) => Start::After(at),
        (false, Freshness::Latest) => Start::FromLatest,
        (false, Freshness::Any) => Start::FromAny,
    })
}

fn watch_timeout(seconds: Option<i64>) -> Option<Duration> {
    match seconds {
        None | Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
    }
}

/// What a resourceVersion asks for when nothing else is said; none if it is not one.
fn freshness(version: &str) -> Option<Freshness> {
    if version.is_empty() {
        return Some(Freshness::Latest);
    }
    Some(match Revision::parse(version)? {
        Revision::ZERO => Freshness::Any,
        at => Freshness::NotOlderThan(at),
    })
}

/// 422 about the options themselves, if there is anything to say.
fn refuse(options: &str, errors: &[FieldError]) -> Result<(), Status> {
    match errors {
        [] => Ok(()),
        errors => Err(status::invalid("meta.k8s.io", options, "", errors)),
    }
}

#[cfg(test)]
mod tests;
