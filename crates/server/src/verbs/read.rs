//! GET of one object and of lists.
//!
//! River: cache → **read** → encode → HTTP. The cache serves every read, as fresh as its
//! resourceVersion requires (S3.2, S3.5).

use std::sync::Arc;

use headwater_api::options::{Freshness, GetOptions, ListOptions, ReadAt};
use headwater_api::token::Token;
use headwater_api::{Object, Status};
use headwater_cache::{Error as CacheError, Filter, Snapshot};
use http::StatusCode;

use crate::answer::body::Response;
use crate::answer::status;
use crate::kinds::versions;
use crate::request::call::Call;
use crate::request::fairness;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::encode;

/// GET on an object.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let options = GetOptions::parse(&call.query)?;
    let object = find(server, resource, options.at).await?;
    let seen = versions::object(server.converter(), &resource.kind, &object).await?;
    Ok(encode::one(server, call, &resource.kind, StatusCode::OK, &seen))
}

/// One object, fresh enough.
pub(crate) async fn find(
    server: &Server,
    resource: &ResourcePath,
    at: Freshness,
) -> Result<Arc<Object>, Status> {
    let kind = &resource.kind;
    let snapshot = fresh(server, resource, at).await?;
    let object = snapshot.get(&resource.key()).cloned();
    object.ok_or_else(|| status::not_found(kind, &resource.name))
}

/// GET on a collection.
pub(crate) async fn list(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let options = ListOptions::parse(&call.query, &resource.kind, resource.kind.storage())?;
    resource.kind.check_fields(&options.fields)?;
    let filter = Filter {
        namespace: resource.namespace.clone(),
        labels: options.labels.clone(),
        fields: options.fields.clone(),
    };
    let snapshot = snapshot(server, resource, &options.at).await?;
    let bytes = fairness::list_bytes(&snapshot, &filter.namespace, options.limit);
    let weight = server.fairness().list(bytes)?;
    let kept = server.cache().resource(&resource.kind.prefix);
    let begin = begin(resource, &options);
    let there = match &begin {
        None if filter.only_namespace().is_empty() => Some(snapshot.len()),
        None => None,
        Some(after) => kept.remaining_after(&snapshot, &place(&filter, after)),
    };
    let mut page = ListPage::cut(&snapshot, &filter, resource, &options, there);
    if !page.continue_token.is_empty() {
        kept.keep(&snapshot);
        if let (Some(last), Some(left)) = (page.objects.last(), page.remaining) {
            kept.note_remaining(&snapshot, place(&filter, &format!("{}\0", last.key())), left);
        }
    }
    page.convert(server, resource, &snapshot, &filter).await?;
    Ok(encode::list(server, call, resource, &snapshot, page, filter, Some(weight)))
}

async fn fresh(
    server: &Server,
    resource: &ResourcePath,
    at: Freshness,
) -> Result<Snapshot, Status> {
    let cache = server.cache();
    let waited = match at {
        Freshness::Latest => cache.consistent().await.map(drop),
        Freshness::NotOlderThan(revision) => cache.reach(revision).await.map(drop),
        Freshness::Any => Ok(()),
    };
    waited.map_err(|error| status::from_cache(&error))?;
    Ok(cache.snapshot(&cache.resource(&resource.kind.prefix)))
}

/// The state that a list shows.
pub(crate) async fn snapshot(
    server: &Server,
    resource: &ResourcePath,
    at: &ReadAt,
) -> Result<Snapshot, Status> {
    let cache = server.cache();
    if resource.kind.traits.expires {
        not_future(server, at).await?;
    }
    let revision = match at {
        ReadAt::Fresh(at) => return fresh(server, resource, *at).await,
        ReadAt::Continue(Token { at: None, .. }) => {
            return fresh(server, resource, Freshness::Latest).await;
        }
        ReadAt::Exact(revision) | ReadAt::Continue(Token { at: Some(revision), .. }) => *revision,
    };
    let found = cache.snapshot_at(&cache.resource(&resource.kind.prefix), revision).await;
    found.map_err(|error| match (at, error) {
        (ReadAt::Continue(token), CacheError::Expired { .. }) => expired(token),
        (_, error) => status::from_cache(&error),
    })
}

/// The reference reads events without a cache: it does not wait for a future version, and sends no
/// `Retry-After` (S3.7).
async fn not_future(server: &Server, at: &ReadAt) -> Result<(), Status> {
    let (ReadAt::Fresh(Freshness::NotOlderThan(asked)) | ReadAt::Exact(asked)) = *at else {
        return Ok(());
    };
    let newest = server.cache().consistent().await;
    let current = newest.map_err(|error| status::from_cache(&error))?;
    if asked <= current {
        return Ok(());
    }
    Err(status::from_cache(&CacheError::TooLarge { asked, current }).retry_after(0))
}

/// 410 for an expired continue token, with a token that continues at the latest state (S3.14).
fn expired(token: &Token) -> Status {
    let message = "The provided continue parameter is too old to display a consistent list result. \
                   You can start a new list without the continue parameter, or use the continue \
                   token in this response to retrieve the remainder of the results. Continuing with \
                   the provided token results in an inconsistent list - objects that were created, \
                   modified, or deleted between the time the first chunk was returned and now may \
                   show up in the list.";
    let mut status = Status::failure(410, "Expired", message);
    status.metadata.continue_token = token.at_latest().encode();
    status
}

/// One page of a list.
pub(crate) struct ListPage {
    /// The objects, if there is a limit.
    pub(crate) objects: Vec<Arc<Object>>,
    /// The page contains everything after `after`: objects are read while they are sent.
    pub(crate) is_complete: bool,
    /// The key after which it begins.
    pub(crate) after: Option<String>,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<usize>,
}

impl ListPage {
    /// Selects the requested page of a snapshot. `there` is the number of objects of the namespace
    /// from the start of the page, if known.
    pub(crate) fn cut(
        snapshot: &Snapshot,
        filter: &Filter,
        resource: &ResourcePath,
        options: &ListOptions,
        there: Option<usize>,
    ) -> ListPage {
        let mut page = ListPage {
            objects: Vec::new(),
            is_complete: true,
            after: begin(resource, options),
            continue_token: String::new(),
            remaining: None,
        };
        let Some(limit) = options.limit else { return page };
        page.is_complete = false;
        let mut matching = snapshot.select(filter, page.after.as_deref());
        page.objects = matching.by_ref().take(limit).cloned().collect();
        let more = matching.next().is_some();
        if let (true, Some(last)) = (more, page.objects.last()) {
            let start = relative(last.key(), &resource.namespace);
            page.continue_token = Token::after(start, snapshot.revision()).encode();
            page.remaining = filter.selects_all().then(|| match there {
                Some(there) => there.saturating_sub(page.objects.len()),
                None => matching.count() + 1,
            });
        }
        page
    }
}

impl ListPage {
    /// Reads all objects of a page without a limit.
    pub(crate) fn gather(&mut self, snapshot: &Snapshot, filter: &Filter) {
        if self.is_complete {
            self.objects = snapshot.select(filter, self.after.as_deref()).cloned().collect();
        }
    }
}

impl ListPage {
    /// Converts the page by webhook if the kind has one. The complete page is converted before any
    /// of it is sent, so that a failure is an error and not half a list.
    pub(crate) async fn convert(
        &mut self,
        server: &Server,
        resource: &ResourcePath,
        snapshot: &Snapshot,
        filter: &Filter,
    ) -> Result<(), Status> {
        if resource.kind.conversion().is_none() {
            return Ok(());
        }
        self.gather(snapshot, filter);
        self.is_complete = false;
        self.objects = versions::objects(server.converter(), &resource.kind, &self.objects).await?;
        Ok(())
    }
}

/// The key after which a page begins.
fn begin(resource: &ResourcePath, options: &ListOptions) -> Option<String> {
    match &options.at {
        ReadAt::Continue(token) => Some(absolute(&token.start, &resource.namespace)),
        ReadAt::Fresh(_) | ReadAt::Exact(_) => None,
    }
}

/// The key of a page boundary: the remainder also depends on the namespace.
fn place(filter: &Filter, after: &str) -> String {
    format!("{}\n{after}", filter.namespace)
}

/// A token's key is relative to the collection of the request (S3.13).
fn absolute(start: &str, namespace: &str) -> String {
    match namespace {
        "" => start.to_owned(),
        namespace => format!("{namespace}/{start}"),
    }
}

fn relative<'a>(key: &'a str, namespace: &str) -> &'a str {
    match namespace {
        "" => key,
        namespace => {
            key.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/')).unwrap_or(key)
        }
    }
}
