//! What objects looked like: the retained versions of one object, and times in place of revisions.
//!
//! River: store → **history** → HTTP. `docs/spec/history.md` describes the wire format.
//! Promise: a request reads a bounded number of versions and bytes, off the threads that serve others;
//! who may get an object may get its versions.

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use headwater_api::query::Query;
use headwater_api::{Revision, Status};
use headwater_json::{push_member, push_string};
use headwater_store::versions::VERSIONS_MAX;
use headwater_store::{ChangeKind, Key, KeyHistory, KeyVersion, Record, RevisionAt, VersionRange};
use http::StatusCode;
use jiff::Timestamp;

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::object::{canonical, wire};
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;

/// The versions of a request without a limit.
const USUAL_LIMIT: i64 = 100;

/// Whether a GET asks for the versions of an object instead of the newest one.
pub(crate) fn is_asked(server: &Server, call: &Call, kind: &Served) -> bool {
    call.query.is_set("history") && !server.live().covers(kind)
}

/// GET with `history=true`: the versions of an object, newest first.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let limit = call.query.integer("limit")?.unwrap_or(USUAL_LIMIT);
    let limit = usize::try_from(limit).ok().filter(|limit| (1..=VERSIONS_MAX).contains(limit));
    let limit = limit.ok_or_else(|| {
        status::bad_request(format!("limit: a number from 1 to {VERSIONS_MAX} is needed"))
    })?;
    let asked = call.query.text("resourceVersion");
    let upto = match asked {
        "" | "0" => None,
        text => match Revision::parse(text) {
            Some(revision) => Some(revision),
            None => Some(at_time(server, text).await?),
        },
    };
    let kind = &resource.kind;
    let cache = server.cache_of(kind);
    let store = cache.store();
    let range =
        VersionRange { key: Key::in_collection(&kind.prefix, &resource.key()), upto, limit };
    let found = store.versions(range).await;
    let found = match found {
        Ok(found) => found,
        Err(headwater_store::Error::Compacted { .. }) => return Err(forgotten(server, asked).await),
        Err(error) => return Err(status::from_store(&error)),
    };
    if found.versions.is_empty() {
        return Err(status::not_found(kind, &resource.name));
    }
    let oldest = oldest(server).await?;
    let size = found.versions.iter().map(|version| version.value.len()).sum();
    let printed = print(server, kind, found, oldest).boxed();
    let bytes = server.work().run(size, printed).await?;
    Ok(body::json(StatusCode::OK, bytes))
}

/// The parameters of a list, with the revision in place of a time.
pub(crate) async fn with_revision<'a>(
    server: &Server,
    query: &'a Query,
) -> Result<Cow<'a, Query>, Status> {
    let asked = query.text("resourceVersion");
    let is_time = query.text("resourceVersionMatch") == "Exact"
        && Revision::parse(asked).is_none()
        && asked.parse::<Timestamp>().is_ok();
    if !is_time {
        return Ok(Cow::Borrowed(query));
    }
    let revision = at_time(server, asked).await?;
    Ok(Cow::Owned(query.with("resourceVersion", &revision.to_string())))
}

/// The newest revision at a time.
async fn at_time(server: &Server, text: &str) -> Result<Revision, Status> {
    let time: Timestamp = text.parse().map_err(|_| {
        status::bad_request(format!("resourceVersion: {text:?} is neither a revision nor a time"))
    })?;
    match looked_up(server, time.as_millisecond()).await? {
        Some(RevisionAt { found: Some(revision), .. }) => Ok(revision),
        Some(RevisionAt { found: None, known_from: Some(known), .. }) => {
            Err(status::bad_request(format!(
                "this server knows the times of revisions since {} only; name a later time or a \
                 revision",
                self::text(known)
            )))
        }
        Some(RevisionAt { found: None, .. }) => Err(forgotten(server, text).await),
        None => {
            Err(status::bad_request("the store of this server keeps no times; name a revision"))
        }
    }
}

async fn looked_up(server: &Server, time: i64) -> Result<Option<RevisionAt>, Status> {
    let found = server.cache().store().revision_at(time).await;
    found.map_err(|error| status::from_store(&error))
}

/// The oldest state that can be read.
async fn oldest(server: &Server) -> Result<(Revision, Option<i64>), Status> {
    let compacted = server.cache().store().condition().compacted;
    let oldest = looked_up(server, i64::MAX).await?.map(|found| found.oldest);
    Ok(oldest.map_or((compacted, None), |oldest| (oldest.revision, oldest.time)))
}

/// 410 with what is still there.
async fn forgotten(server: &Server, asked: &str) -> Status {
    let message = match oldest(server).await {
        Ok((revision, time)) => {
            let since = time.map(|time| format!(", of {}", text(time))).unwrap_or_default();
            format!(
                "the state at {asked} is forgotten; the oldest one is revision {revision}{since}"
            )
        }
        Err(_) => format!("the state at {asked} is forgotten"),
    };
    Status::failure(410, "Expired", message)
}

fn text(time: i64) -> String {
    Timestamp::from_millisecond(time).unwrap_or_default().to_string()
}

/// The document, with the objects in the version of the request.
async fn print(
    server: &Server,
    kind: &Served,
    found: KeyHistory,
    oldest: (Revision, Option<i64>),
) -> Result<Vec<u8>, Status> {
    let mut objects = Vec::new();
    for version in &found.versions {
        objects.push(match version.kind {
            ChangeKind::Deleted => None,
            _ => Some(decoded(kind, version)?),
        });
    }
    let each: Vec<_> = objects.iter().flatten().cloned().collect();
    let mut shown = match kind.conversion() {
        Some(_) => versions::objects(server.converter(), kind, &each).await?,
        None => {
            let made = each.iter().map(|object| -> Result<_, Status> {
                Ok(match versions::converted(kind, object)? {
                    versions::ConvertedObject::Stored(_) => Arc::clone(object),
                    versions::ConvertedObject::Made(made) => made,
                })
            });
            made.collect::<Result<Vec<_>, Status>>()?
        }
    }
    .into_iter();
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(
        b"{\"kind\":\"History\",\"apiVersion\":\"history.headwater.dev/v1\",\"metadata\":{",
    );
    push_member(&mut out, "oldestResourceVersion", &oldest.0.to_string().into());
    if let Some(time) = oldest.1 {
        out.push(b',');
        push_member(&mut out, "oldestTime", &text(time).into());
    }
    if let Some(last) = found.versions.last().filter(|_| found.more) {
        out.push(b',');
        push_member(&mut out, "continue", &(last.revision.0 - 1).to_string().into());
    }
    out.extend_from_slice(b"},\"items\":[");
    for (index, (version, object)) in found.versions.iter().zip(&objects).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_version(&mut out, version);
        if object.is_some()
            && let Some(object) = shown.next()
        {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(object.as_slice());
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}\n");
    Ok(out)
}

/// The beginning of an item.
fn push_version(out: &mut Vec<u8>, version: &KeyVersion) {
    let word = match version.kind {
        ChangeKind::Created => "ADDED",
        ChangeKind::Updated => "MODIFIED",
        ChangeKind::Deleted => "DELETED",
    };
    out.extend_from_slice(b"{\"resourceVersion\":");
    push_string(out, &version.revision.to_string());
    if let Some(time) = version.time {
        out.extend_from_slice(b",\"time\":");
        push_string(out, &text(time));
    }
    out.extend_from_slice(b",\"type\":");
    push_string(out, word);
}

/// A stored version as an object of today's form of its kind.
fn decoded(kind: &Served, version: &KeyVersion) -> Result<Arc<headwater_api::Object>, Status> {
    let record =
        Record { key: Key::new(""), revision: version.revision, value: version.value.clone() };
    let current = versions::read_stored(kind, &record)?;
    Ok(Arc::new(wire(&canonical(&current.value), version.revision)?))
}
