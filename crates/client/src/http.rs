//! The source over HTTP: lists and watches through a kube client.
//!
//! River: API server → **HTTP source** → reflector. The kube client does credentials, TLS, proxies
//! and the base path; this module does queries, frames and decoding.
//! Promise: the status is checked before the body; nothing is retried; items are decoded while the
//! body arrives; dropping the future or stream closes the connection.

mod bases;
mod decode;
mod list_body;
pub(crate) mod raw;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use headwater_api::frame::FrameSplitter;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;

use crate::list_watch::{BoxError, Error, Event, EventStream, ListWatch, Page, StatusError};
use crate::object::{Cached, ResourceType};
use crate::observe::SourceObserver;
use crate::query::{ListQuery, Selection, WatchQuery};
use crate::strip::Strip;

use self::bases::Bases;
use self::decode::{Decoded, Decoder, Sizes};
use self::list_body::{ListBody, ListHead};

/// The options of an HTTP source. The default suits most programs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The maximum length of a frame or item; a longer one ends the stream with an error.
    pub max_frame: usize,
    /// The fields that are removed from every object.
    pub strip: Strip,
    /// Whether to request metadata only.
    pub metadata_only: bool,
    /// Whether watches may start with all current objects.
    pub watch_list: bool,
    /// The name of the program, for the `User-Agent` header.
    pub component: String,
    /// A list fails if no data arrives for this time.
    pub stall: Duration,
    /// Whether watches may receive deltas; only of objects that keep their text.
    pub deltas: bool,
    /// Whether a watch asks for its first bookmark as soon as it has caught up. Servers that do not know
    /// the parameter send bookmarks as usual.
    pub prompt_bookmark: bool,
}

/// The default maximum length of a frame or item.
pub(crate) const MAX_FRAME: usize = 16 << 20;

impl Default for Options {
    fn default() -> Options {
        Options {
            max_frame: MAX_FRAME,
            strip: Strip { managed_fields: true, ..Strip::default() },
            metadata_only: false,
            watch_list: true,
            component: "unnamed".to_owned(),
            stall: Duration::from_secs(90),
            deltas: true,
            prompt_bookmark: false,
        }
    }
}

/// The maximum length of an error's body; the rest is not read.
const ERROR_BODY_MAX: usize = 1 << 20;

/// A collection of an API server.
pub struct Http<K> {
    endpoint: Endpoint,
    sizes: Arc<Sizes>,
    /// The texts to apply deltas to, if they are asked for.
    bases: Option<Arc<Bases>>,
    object: PhantomData<fn() -> K>,
}

/// What does not depend on the type of the objects, so that it is compiled once.
struct Endpoint {
    client: Client,
    path: String,
    discovery: String,
    plural: String,
    options: Options,
    kind: String,
    api_version: String,
    observer: Option<SourceObserver>,
}

impl<K: Cached> Http<K> {
    /// A source of the objects of a resource type in one namespace, or in all.
    pub fn new(
        client: Client,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: Options,
    ) -> Http<K> {
        let endpoint = Endpoint::new(client, resource, namespace, options);
        let Options { deltas, strip, .. } = &endpoint.options;
        let bases = (K::KEEPS_TEXT && *deltas && !strip.last_applied)
            .then(|| Arc::new(Bases::new(&endpoint.kind, &endpoint.api_version)));
        Http { endpoint, sizes: Arc::default(), bases, object: PhantomData }
    }

    pub(crate) fn observed(mut self, observer: Option<SourceObserver>) -> Http<K> {
        self.endpoint.observer = observer;
        self
    }

    fn decoder(&self, selection: &Selection) -> Decoder<K> {
        Decoder {
            shard: selection.shard.clone(),
            strip: self.endpoint.options.strip.clone(),
            kind: self.endpoint.kind.clone(),
            api_version: self.endpoint.api_version.clone(),
            sizes: Arc::clone(&self.sizes),
            bases: self.bases.clone(),
            object: PhantomData,
        }
    }
}

/// What is asked of a collection.
#[derive(Clone, Copy)]
enum Wanted {
    List,
    Watch { deltas: bool },
}

/// Takes an item of a list.
type TakeItem<'a> = dyn FnMut(&[u8]) -> Result<(), Error> + Send + 'a;

impl Endpoint {
    fn new(
        client: Client,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: Options,
    ) -> Endpoint {
        let (kind, api_version) = match options.metadata_only {
            true => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            false => (resource.kind.clone(), resource.api_version()),
        };
        let path = resource.path(namespace);
        let all = resource.path(None);
        let discovery = all.rsplit_once('/').map_or("/", |(group, _)| group).to_owned();
        Endpoint {
            client,
            path,
            discovery,
            plural: resource.plural.clone(),
            options,
            kind,
            api_version,
            observer: None,
        }
    }

    /// Reads a list of at most `max` bytes and passes on each item.
    async fn list(
        &self,
        query: &ListQuery,
        max: usize,
        take: &mut TakeItem<'_>,
    ) -> Result<ListHead, Error> {
        let request = self.request(&query.to_query(), Wanted::List)?;
        let sent = timeout(self.options.stall, self.send(request)).await;
        let mut body = sent.map_err(|_| Error::Stalled)??.into_body();
        let mut reader = ListBody::new(self.options.max_frame);
        let mut size = 0;
        while let Some(chunk) = next_chunk(&mut body, self.options.stall).await? {
            size += chunk.len();
            if size > max {
                return Err(Error::TooLong { max });
            }
            self.received(chunk.len());
            let timer = self.observer.as_ref().map(Timer::start);
            reader.feed(&chunk, take)?;
            drop(timer);
        }
        reader.finish()
    }

    async fn watch(&self, query: &WatchQuery, deltas: bool) -> Result<FrameReader, Error> {
        let request = self.request(&query.to_query(), Wanted::Watch { deltas })?;
        let body = self.send(request).await?.into_body();
        Ok(FrameReader {
            body: Some(body),
            frames: FrameSplitter::new(self.options.max_frame),
            observer: self.observer.clone(),
        })
    }

    async fn is_served(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct List {
            resources: Vec<NamedKind>,
        }
        #[derive(serde::Deserialize)]
        struct NamedKind {
            name: String,
        }
        let Ok(request) = Request::get(&self.discovery).body(Vec::new()) else { return false };
        match self.client.request::<List>(request).await {
            Ok(list) => list.resources.iter().any(|resource| resource.name == self.plural),
            Err(_) => false,
        }
    }

    fn request(&self, query: &str, wanted: Wanted) -> Result<Request<Body>, Error> {
        let uri =
            if query.is_empty() { self.path.clone() } else { format!("{}?{query}", self.path) };
        let mut request = Request::get(uri)
            .body(Body::empty())
            .map_err(|error| Error::Malformed(format!("invalid request: {error}")))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, self.accept(wanted));
        if let Wanted::Watch { .. } = wanted {
            // Servers may compress each event as its own gzip member, and some decoders read only the
            // first member.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let agent = user_agent(&self.options.component);
        headers.insert(USER_AGENT, agent);
        Ok(request)
    }

    /// The best form first. Servers that do not know a parameter ignore it or skip its clause.
    fn accept(&self, wanted: Wanted) -> HeaderValue {
        const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        const METADATA_LIST: &str =
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        // A server refuses a list as the metadata of one object, even if it could skip the clause.
        let (media, deltas, is_prompt) = match wanted {
            Wanted::List => (METADATA_LIST, false, false),
            Wanted::Watch { deltas } => (METADATA, deltas, self.options.prompt_bookmark),
        };
        let media = if self.options.metadata_only { media } else { "application/json" };
        let drop =
            if self.options.strip.managed_fields { ";drop=metadata.managedFields" } else { "" };
        let delta = if deltas { ";delta=v1" } else { "" };
        let prompt = if is_prompt { ";bookmark=prompt" } else { "" };
        let mut clauses = vec![format!("{media}{drop}{delta}{prompt}")];
        if !drop.is_empty() || deltas || is_prompt {
            clauses.push(media.to_owned());
        }
        HeaderValue::from_str(&clauses.join(","))
            .unwrap_or(HeaderValue::from_static("application/json"))
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let response = self.client.send(request).await.map_err(transport)?;
        if let Some(observer) = &self.observer {
            observer.answered(response.status().as_u16());
        }
        match response.status().as_u16() {
            200 => Ok(response),
            code => Err(Error::Status(self.refusal(code, response).await)),
        }
    }

    async fn refusal(&self, code: u16, response: Response<Body>) -> StatusError {
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let body = read_some(response.into_body(), self.options.stall).await;
        StatusError::from_body(code, retry_after.as_deref(), &body)
    }

    fn received(&self, bytes: usize) {
        if let Some(observer) = &self.observer {
            observer.bytes.add(bytes as u64);
        }
    }
}

/// `component headwater-client/version`.
fn user_agent(component: &str) -> HeaderValue {
    let text = format!("{component} headwater-client/{}", env!("CARGO_PKG_VERSION"));
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("headwater-client"))
}

/// Reads an error's body up to the maximum length, as far as it arrives in time.
async fn read_some(mut body: Body, patience: Duration) -> Vec<u8> {
    let mut read = Vec::new();
    while let Ok(Some(Ok(frame))) = timeout(patience, body.frame()).await {
        let Ok(data) = frame.into_data() else { continue };
        let room = ERROR_BODY_MAX - read.len();
        read.extend_from_slice(data.get(..room).unwrap_or(&data));
        if read.len() == ERROR_BODY_MAX {
            break;
        }
    }
    read
}

/// Distinguishes a refused connection from other failures.
fn transport(error: kube::Error) -> Error {
    let error: BoxError = Box::new(error);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return Error::Refused(error);
        }
        cause = inner.source();
    }
    Error::Transport(error)
}

#[async_trait]
impl<K: Cached> ListWatch for Http<K> {
    type Object = K;

    async fn list(&self, query: ListQuery) -> Result<Page<K>, Error> {
        if let Some(bases) = self.bases.as_ref().filter(|_| query.continue_token.is_none()) {
            bases.clear();
        }
        let mut page = PageReader::new(self.decoder(&query.selection));
        let head =
            self.endpoint.list(&query, usize::MAX, &mut |item: &[u8]| page.item(item)).await?;
        let page = page.finish(head);
        if let Some(bases) = self.bases.as_ref().filter(|_| page.continue_token.is_none()) {
            bases.complete();
        }
        Ok(page)
    }

    async fn watch(&self, query: WatchQuery) -> Result<EventStream<K>, Error> {
        if let Some(bases) = self.bases.as_ref().filter(|_| query.initial_events) {
            bases.clear();
            bases.complete();
        }
        let deltas = self.bases.as_ref().is_some_and(|bases| bases.are_complete());
        let reader = WatchReader {
            frames: self.endpoint.watch(&query, deltas).await?,
            decoder: self.decoder(&query.selection),
            scratch: String::new(),
        };
        Ok(stream::unfold(reader, WatchReader::next).boxed())
    }

    fn supports_watch_list(&self) -> bool {
        self.endpoint.options.watch_list
    }

    fn mean_object_bytes(&self) -> Option<usize> {
        self.sizes.mean()
    }

    async fn is_served(&self) -> bool {
        self.endpoint.is_served().await
    }
}

async fn next_chunk(body: &mut Body, patience: Duration) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = timeout(patience, body.frame()).await.map_err(|_| Error::Stalled)?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(transport(error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                } // ignore trailers
            }
        }
    }
}

/// Measures how long decoding takes, in real time, not in tokio's.
struct Timer<'a> {
    observer: &'a SourceObserver,
    started: std::time::Instant,
}

impl<'a> Timer<'a> {
    fn start(observer: &'a SourceObserver) -> Timer<'a> {
        Timer { observer, started: std::time::Instant::now() }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.observer.decode.observe_time(self.started.elapsed());
    }
}

/// Collects the items of one page.
struct PageReader<K> {
    decoder: Decoder<K>,
    scratch: String,
    items: Vec<K>,
    undecodable: Vec<crate::list_watch::Undecodable>,
    skipped: usize,
}

impl<K: Cached> PageReader<K> {
    fn new(decoder: Decoder<K>) -> PageReader<K> {
        PageReader {
            decoder,
            scratch: String::new(),
            items: Vec::new(),
            undecodable: Vec::new(),
            skipped: 0,
        }
    }

    fn item(&mut self, item: &[u8]) -> Result<(), Error> {
        match self.decoder.item(item, &mut self.scratch)? {
            Decoded::Object(object) => self.items.push(object),
            Decoded::Undecodable(undecodable) => self.undecodable.push(undecodable),
            Decoded::Skipped(_) => self.skipped += 1,
            Decoded::Elsewhere => {}
        }
        Ok(())
    }

    fn finish(self, head: ListHead) -> Page<K> {
        let metadata = head.metadata;
        Page {
            items: self.items,
            undecodable: self.undecodable,
            skipped: self.skipped,
            resource_version: metadata.resource_version.unwrap_or_else(|| "".into()),
            continue_token: metadata.continue_token.filter(|token| !token.is_empty()),
            remaining: metadata.remaining_item_count,
        }
    }
}

/// Reads the events of one watch, only while the stream is polled.
struct WatchReader<K> {
    frames: FrameReader,
    decoder: Decoder<K>,
    scratch: String,
}

type StreamItem<K> = Result<crate::list_watch::Event<K>, Error>;

impl<K: Cached> WatchReader<K> {
    async fn next(mut self) -> Option<(StreamItem<K>, WatchReader<K>)> {
        let event = loop {
            let decoded = match self.frames.next().await {
                Ok(None) => return None,
                Ok(Some(frame)) => {
                    let _timer = self.frames.observer.as_ref().map(Timer::start);
                    self.decoder.event(&frame, &mut self.scratch)
                }
                Err(error) => Err(error),
            };
            if let Some(event) = decoded.transpose() {
                break event;
            }
        };
        // After an error, nothing can follow.
        if matches!(event, Err(_) | Ok(Event::Error(_))) {
            self.frames.end();
        }
        Some((event, self))
    }
}

/// Reads the frames of one watch.
struct FrameReader {
    /// `None` after a failure: an error is the last item.
    body: Option<Body>,
    frames: FrameSplitter,
    observer: Option<SourceObserver>,
}

impl FrameReader {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(Some(frame));
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match body.frame().await {
                None => {
                    self.body = None;
                    self.frames.finish()?;
                    return Ok(None);
                }
                Some(Err(error)) => return Err(transport(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        if let Some(observer) = &self.observer {
                            observer.bytes.add(data.len() as u64);
                        }
                        self.frames.feed(data);
                    }
                }
            }
        }
    }

    /// Ends the stream after a failure.
    fn end(&mut self) {
        self.body = None;
        self.frames = FrameSplitter::new(0);
    }
}
