//! GET of one object and of lists.
//!
//! River: cache → **read** → encode → HTTP. The cache serves every read, as fresh as its
//! resourceVersion requires (S3.2, S3.5).

use std::sync::Arc;

use futures::FutureExt;
use headwater_api::options::{Freshness, GetOptions, ListOptions, ReadAt};
use headwater_api::token::Token;
use headwater_api::{Object, Status};
use headwater_cache::{Cache, Error as CacheError, Filter, Selection, Snapshot};
use headwater_store::Key;
use http::StatusCode;

use crate::answer::body::Response;
use crate::answer::status;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::recent::PATIENCE;
use crate::request::call::Call;
use crate::request::flow::limits;
use crate::request::observe;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::{encode, history, newest};
use crate::work::INLINE_MAX;

/// GET on an object.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    if history::is_asked(server, call, &resource.kind) {
        return history::get(server, call, resource).await;
    }
    let options = GetOptions::parse(&call.query)?;
    let object = find(server, resource, options.at).await?;
    let kind = &resource.kind;
    let size = object.as_slice().len();
    let answer = async {
        let seen = versions::object(server.converter(), kind, &object).await?;
        Ok(encode::one(server, call, kind, StatusCode::OK, &seen))
    };
    match size > INLINE_MAX && encode::is_derived(call, kind) {
        true => server.work().run(size, answer.boxed()).await,
        false => answer.await,
    }
}

/// One object, fresh enough.
pub(crate) async fn find(
    server: &Server,
    resource: &ResourcePath,
    at: Freshness,
) -> Result<Arc<Object>, Status> {
    let (kind, key) = (&resource.kind, resource.key());
    let cache = server.sampled_cache(kind).await;
    // A relay has nothing but its cache.
    let has_store = server.relayed().is_none();
    let waited = match at {
        Freshness::Latest if has_store => cache.consistent_within(PATIENCE).await.map(drop),
        Freshness::Latest => cache.consistent().await.map(drop),
        Freshness::NotOlderThan(revision) => cache.reach(revision).await.map(drop),
        Freshness::Any => Ok(()),
    };
    let object = match waited {
        // The cache is behind.
        Err(CacheError::TooLarge { .. }) if at == Freshness::Latest && has_store => {
            newest::stored(server, kind, &key).await?.map(Arc::new)
        }
        Err(error) => return Err(status::from_cache(&error)),
        Ok(()) => {
            let snapshot = cache.snapshot(&cache.resource(&kind.prefix));
            if snapshot.unreadable(&key).is_some() {
                return Err(status::unreadable(&Key::in_collection(&kind.prefix, &key)));
            }
            snapshot.get(&key).cloned()
        }
    };
    object.ok_or_else(|| status::not_found(kind, &resource.name))
}

/// GET on a collection.
pub(crate) async fn list(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let query = history::with_revision(server, &call.query).await?;
    let options = ListOptions::parse(&query, &resource.kind, resource.kind.storage())?;
    resource.kind.check_fields(&options.fields)?;
    let filter = Filter {
        namespace: resource.namespace.clone(),
        labels: options.labels.clone(),
        fields: options.fields.clone(),
        shard: options.shard.clone(),
    };
    let snapshot = snapshot(server, resource, &options.at).await?;
    if snapshot.unreadable_count() > 0 {
        let count = snapshot.unreadable_count();
        call.warn([format!(
            "{count} stored values of this resource cannot be read and are omitted"
        )]);
    }
    let bytes = limits::list_bytes(&snapshot, &filter.namespace, options.limit);
    let weight = server.stream_limits().list(bytes)?;
    let mut page = ListPage::new(snapshot, resource, filter, &options);
    if page.selection.rest().is_some() {
        let cache = server.cache_of(&resource.kind);
        cache.resource(&resource.kind.prefix).keep(page.selection.snapshot());
    }
    page.convert(server, &resource.kind).await?;
    Ok(encode::list(server, call, &resource.kind, page, Some(weight)).await)
}

async fn fresh(
    server: &Server,
    resource: &ResourcePath,
    at: Freshness,
) -> Result<Snapshot, Status> {
    let cache = server.sampled_cache(&resource.kind).await;
    let wait = async {
        match at {
            Freshness::Latest => cache.consistent().await.map(drop),
            Freshness::NotOlderThan(revision) => cache.reach(revision).await.map(drop),
            Freshness::Any => Ok(()),
        }
    };
    let waited = observe::waiting(server.metrics(), &resource.kind, at, wait).await;
    waited.map_err(|error| status::from_cache(&error))?;
    Ok(cache.snapshot(&cache.resource(&resource.kind.prefix)))
}

/// The state that a list shows.
pub(crate) async fn snapshot(
    server: &Server,
    resource: &ResourcePath,
    at: &ReadAt,
) -> Result<Snapshot, Status> {
    let cache = server.cache_of(&resource.kind);
    if resource.kind.traits.expires {
        not_future(&cache, at).await?;
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
async fn not_future(cache: &Cache, at: &ReadAt) -> Result<(), Status> {
    let (ReadAt::Fresh(Freshness::NotOlderThan(asked)) | ReadAt::Exact(asked)) = *at else {
        return Ok(());
    };
    let newest = cache.consistent().await;
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

/// A list or one of its pages.
pub(crate) struct ListPage {
    pub(crate) selection: Selection,
    pub(crate) continue_token: String,
}

impl ListPage {
    /// Selects the requested objects of a snapshot.
    pub(crate) fn new(
        snapshot: Snapshot,
        resource: &ResourcePath,
        filter: Filter,
        options: &ListOptions,
    ) -> ListPage {
        let selection = Selection::new(snapshot, filter, begin(resource, options), options.limit);
        let continue_token = selection.rest().map(|rest| {
            let start = relative(rest.after.key(), &resource.namespace);
            Token::after(start, selection.snapshot().revision()).encode()
        });
        ListPage { continue_token: continue_token.unwrap_or_default(), selection }
    }

    /// Converts the page by webhook if the kind has one. The complete page is converted before any
    /// of it is sent, so that a failure is an error and not half a list.
    pub(crate) async fn convert(&mut self, server: &Server, kind: &Served) -> Result<(), Status> {
        if kind.conversion().is_some() {
            let objects = self.selection.read_all();
            let converted = versions::objects(server.converter(), kind, objects).boxed();
            let converted = server.work().compute(converted).await?;
            self.selection.replace(converted);
        }
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
