//! What a relay holds of its upstream: a cache for each resource, and which requests it can answer.
//!
//! River: route → **relayed** → the pipeline of every server, or the upstream.
//! Promise: the relay answers a request only if it holds everything that the request reads; everything else
//! is passed on.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use headwater_api::query::Query;
use headwater_api::selector::{FieldSelector, LabelSelector};
use headwater_api::{Kind, Status};
use headwater_cache::Cache;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::front::identity::Identity;
use crate::kinds::registry::Served;
use crate::lock::lock;
use crate::outgoing::upstream::Upstream;
use crate::request::route::{ResourcePath, Route, Target, Verb};

/// The paths that a relay answers for itself.
const OWN_PATHS: [&str; 4] = ["healthz", "livez", "readyz", "metrics"];

/// The part of a resource that a relay holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPart {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl HeldPart {
    /// The objects of a kind that both selectors select.
    pub fn new(labels: &str, fields: &str, kind: &Kind) -> Result<HeldPart, Status> {
        let labels = LabelSelector::parse(labels)?;
        Ok(HeldPart { labels, fields: FieldSelector::parse(fields, kind)? })
    }

    /// Whether it is the entire resource.
    pub fn is_all(&self) -> bool {
        *self == HeldPart::default()
    }

    /// Whether everything that a list or watch selects is in this part: it has all the requirements of
    /// the part.
    fn includes(&self, kind: &Kind, query: &Query) -> bool {
        if self.is_all() {
            return true;
        }
        let labels = LabelSelector::parse(query.text("labelSelector"));
        let fields = FieldSelector::parse(query.text("fieldSelector"), kind);
        let (Ok(labels), Ok(fields)) = (labels, fields) else { return false };
        let mut needed = self.labels.requirements().iter();
        needed.all(|term| labels.requirements().contains(term)) && fields.implies(&self.fields)
    }
}

/// A resource that a relay holds.
#[derive(Clone)]
pub struct HeldResource {
    /// The kind, in the version that is held.
    pub kind: Arc<Served>,
    /// Its objects.
    pub cache: Cache,
    /// The part that is held.
    pub part: HeldPart,
    /// How long ago the upstream was last heard of about it.
    pub age: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Whether the upstream shows how far the resource is while nothing happens to it. Without that, the
    /// newest state cannot be proven, and reads of it are passed on.
    pub shows_progress: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for HeldResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldResource").field("prefix", &self.kind.prefix).finish_non_exhaustive()
    }
}

type HeldByPrefix = HashMap<String, HeldResource>;

/// What a relay holds.
#[derive(Debug)]
pub(crate) struct Relayed {
    upstream: Arc<dyn Upstream>,
    held: ArcSwap<HeldByPrefix>,
    changing: Mutex<()>,
}

/// The age of the state that a relay answers from, in seconds.
pub(crate) static AGE: HeaderName = HeaderName::from_static("headwater-age");

impl Relayed {
    pub(crate) fn new(upstream: Arc<dyn Upstream>) -> Relayed {
        Relayed { upstream, held: ArcSwap::default(), changing: Mutex::default() }
    }

    pub(crate) fn upstream(&self) -> &Arc<dyn Upstream> {
        &self.upstream
    }

    /// The cache of a held kind.
    pub(crate) fn cache(&self, prefix: &str) -> Option<Cache> {
        Some(self.held.load().get(prefix)?.cache.clone())
    }

    pub(crate) fn caches(&self) -> Vec<Cache> {
        self.held.load().values().map(|held| held.cache.clone()).collect()
    }

    /// Changes what is held. Returns the kinds that are served from then on; they are made known while no
    /// other change runs.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut HashMap<String, HeldResource>),
        announce: impl FnOnce(Vec<Arc<Served>>),
    ) {
        let _changing = lock(&self.changing);
        let mut held = HeldByPrefix::clone(&self.held.load());
        change(&mut held);
        let mut kinds: Vec<Arc<Served>> =
            held.values().map(|held| Arc::clone(&held.kind)).collect();
        kinds.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        self.held.store(Arc::new(held));
        announce(kinds);
    }

    /// Whether the relay itself answers a request.
    pub(crate) fn answers(&self, route: &Route, query: &Query, method: &Method) -> bool {
        match &route.target {
            Target::Path(segments) => {
                segments.first().is_some_and(|first| OWN_PATHS.contains(&first.as_str()))
            }
            Target::Invalid(_) => true,
            Target::Missing { .. } => false,
            Target::Resource(resource) => {
                // Other rows are the relay's own: they show what it is doing.
                let held = self.held.load();
                let Some(held) = held.get(&resource.kind.prefix) else { return true };
                let is_read = matches!(route.verb, Verb::Get | Verb::List | Verb::Watch);
                is_read
                    && method == Method::GET
                    && resource.subresource.is_empty()
                    && held.has(resource, query)
                    && ((held.shows_progress)() || !asks_for_newest(query))
            }
        }
    }

    /// Whether a read whose freshness was not reached in time is passed on.
    pub(crate) fn passes_on_late(&self, route: &Route, method: &Method) -> bool {
        let Target::Resource(resource) = &route.target else { return false };
        matches!(route.verb, Verb::Get | Verb::List)
            && method == Method::GET
            && self.held.load().contains_key(&resource.kind.prefix)
    }

    /// The age of the state of a held resource, for a header.
    pub(crate) fn age(&self, target: &Target) -> Option<HeaderValue> {
        let Target::Resource(resource) = target else { return None };
        let held = self.held.load();
        let age = &held.get(&resource.kind.prefix)?.age;
        HeaderValue::from_str(&format!("{:.3}", age().as_secs_f64())).ok()
    }
}

impl HeldResource {
    /// Whether all objects that a read may concern are held.
    fn has(&self, resource: &ResourcePath, query: &Query) -> bool {
        self.part.is_all()
            || (resource.name.is_empty() && self.part.includes(&resource.kind, query))
    }
}

/// Whether a read asks for the newest state, rather than for one that the client knows of.
fn asks_for_newest(query: &Query) -> bool {
    query.text("resourceVersion").is_empty() && query.text("continue").is_empty()
}

/// Writes the sender of a request into the headers that impersonate a user.
pub(crate) fn impersonate(headers: &mut HeaderMap, identity: &Identity) -> Result<(), Status> {
    let value = |text: &str| {
        HeaderValue::from_str(text).map_err(|_| {
            crate::answer::status::bad_request("the user cannot be written into a header")
        })
    };
    headers.insert("impersonate-user", value(&identity.user)?);
    if !identity.uid.is_empty() {
        headers.insert("impersonate-uid", value(&identity.uid)?);
    }
    for group in &identity.groups {
        headers.append("impersonate-group", value(group)?);
    }
    for (key, values) in &identity.extra {
        let name = format!("impersonate-extra-{}", escaped(key));
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes());
        let name = name.map_err(|_| {
            crate::answer::status::bad_request("the user cannot be written into a header")
        })?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// A key with everything percent-encoded that a header name cannot contain.
fn escaped(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
