//! Conversion by webhook (S9.25).
//!
//! River: cache → **conversion** → encode; admission → **conversion** → store.
//! Promise: a webhook is called only for objects that are not in the requested version. Each revision
//! of an object is converted once, however many watchers need it at the same time. A failed conversion
//! affects only the requests that need it: no lock is held during a call, and the cache makes none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use headwater_api::{Object, Status};
use headwater_json::Value;

use super::Converter;
use super::form::Stored;
use crate::answer::status;
use crate::lock::lock;
use crate::object::{canonical, packed_tree, wire};
use crate::outgoing::WebhookEndpoint;
use crate::random;

mod made;
mod review;

use made::{CachedConversion, Calling, ConversionKey, Made};
use review::{Failure, Question};

/// The timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum size of the objects in one call, so that the response stays within its limit.
const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// The maximum number of objects in one call: the usual page of clients.
const BATCH_MAX: usize = 500;

/// The maximum number of concurrent calls of one request.
const CALLS_MAX: usize = 4;

/// The conversion webhook of a definition.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// The name of the definition.
    name: String,
    kind: String,
    place: Result<WebhookEndpoint, String>,
    /// The version of the review that the webhook accepts.
    review: &'static str,
    form: Arc<Stored>,
    made: Mutex<Made>,
}

impl Conversion {
    /// Parses `spec.conversion` of a definition. `None` if it needs no webhook.
    pub(crate) fn read(definition: &Value, form: &Arc<Stored>) -> Option<Arc<Conversion>> {
        let spec = &definition["spec"];
        if spec["conversion"]["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &spec["conversion"]["webhook"];
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let mut known = versions.filter_map(|version| match version.as_str()? {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Arc::new(Conversion {
            name: text(&definition["metadata"]["name"]),
            kind: text(&spec["names"]["kind"]),
            place: WebhookEndpoint::read(&webhook["clientConfig"]),
            review: known.next().unwrap_or("v1"),
            form: Arc::clone(form),
            made: Mutex::default(),
        }))
    }

    /// Calls the webhook and prunes its response by the schema of the version.
    async fn ask(
        &self,
        converter: &Converter,
        to: &str,
        originals: &[Value],
    ) -> Result<Vec<Value>, Status> {
        let from = originals.first().map_or(&Value::Null, |original| &original["apiVersion"]);
        let from = from.as_str().unwrap_or_default();
        let Some(schema) = self.form.schema(to) else {
            let why = "request to convert CR to an invalid group/version";
            return Err(status::unknown(format!("{why}: {to}")));
        };
        if self.form.schema(from).is_none() {
            let why = "request to convert CR from an invalid group/version";
            return Err(status::unknown(format!("{why}: {from}")));
        }
        let begun = tokio::time::Instant::now();
        let answered = self.call(converter, to, originals).await;
        let trouble = answered.as_ref().err().map_or("", |failure| failure.trouble.label());
        let versions = [from, to].map(|version| version.rsplit('/').next().unwrap_or_default());
        let took = begun.elapsed();
        converter.metrics.conversions.called(&self.name, versions, trouble, took);
        match answered {
            Ok(mut made) => {
                made.iter_mut().for_each(|object| drop(schema.prune(object)));
                Ok(made)
            }
            Err(Failure { why, .. }) => {
                let kind = &self.kind;
                let message = format!("conversion webhook for {from}, Kind={kind} {why}");
                tracing::warn!("{message}");
                Err(status::unknown(message))
            }
        }
    }

    async fn call(
        &self,
        converter: &Converter,
        to: &str,
        originals: &[Value],
    ) -> Result<Vec<Value>, Failure> {
        let place = self.place.as_ref().map_err(|why| Failure::call(why))?;
        let uid = random::id().to_string();
        let question = Question { uid: &uid, review: self.review, to, kind: &self.kind };
        let objects: Vec<Vec<u8>> = originals.iter().map(canonical).collect();
        let body = question.text(&objects);
        let answered = converter.post(place, body, TIMEOUT).await;
        question.read(answered.map_err(|why| Failure::call(&why))?, originals)
    }

    /// Converts a tree.
    pub(crate) async fn tree(
        &self,
        converter: &Converter,
        to: &str,
        value: Value,
    ) -> Result<Value, Status> {
        let mut made = Box::pin(self.ask(converter, to, &[value])).await?;
        made.pop().ok_or_else(|| status::internal("a conversion made nothing"))
    }

    /// Starts a call for cached objects, which other requests may join.
    fn begin(
        self: &Arc<Self>,
        converter: &Converter,
        to: &Arc<str>,
        objects: Vec<Arc<Object>>,
    ) -> Calling {
        let (conversion, converter, to) = (Arc::clone(self), converter.clone(), Arc::clone(to));
        let call = async move {
            let originals = objects.iter().map(|object| packed_tree(object.as_slice()));
            let originals = originals.collect::<Result<Vec<Value>, Status>>()?;
            let made = conversion.ask(&converter, &to, &originals).await?;
            let made = made
                .iter()
                .zip(&objects)
                .map(|(made, object)| wire(&canonical(made), object.revision()).map(Arc::new));
            let made = made.collect::<Result<Arc<[Arc<Object>]>, Status>>()?;
            let mut known = lock(&conversion.made);
            for (object, made) in objects.iter().zip(&*made) {
                known.keep(ConversionKey::of(object, &to), Arc::clone(made));
            }
            Ok(made)
        };
        call.boxed().shared()
    }

    /// Converts the objects at these indexes in place.
    pub(super) async fn convert(
        self: &Arc<Self>,
        converter: &Converter,
        to: &Arc<str>,
        objects: &[Arc<Object>],
        wanted: Vec<usize>,
        seen: &mut [Arc<Object>],
    ) -> Result<(), Status> {
        let joined = self.join(converter, to, objects, wanted, seen);
        let calls = joined.into_iter().map(|joined| async { (joined.call.await, joined.places) });
        let mut calls = futures::stream::iter(calls).buffered(CALLS_MAX);
        while let Some((made, places)) = calls.next().await {
            let made = made?;
            for (at, index) in places {
                seen[at] = Arc::clone(&made[index]);
            }
        }
        Ok(())
    }

    /// Uses cached results, joins conversions in flight, and starts calls for the remainder.
    fn join(
        self: &Arc<Self>,
        converter: &Converter,
        to: &Arc<str>,
        objects: &[Arc<Object>],
        wanted: Vec<usize>,
        seen: &mut [Arc<Object>],
    ) -> Vec<Joined> {
        let mut known = lock(&self.made);
        let mut joined: Vec<Joined> = Vec::new();
        let mut rest = Vec::new();
        for at in wanted {
            match known.find(&ConversionKey::of(&objects[at], to)) {
                Some(CachedConversion::Ready(object)) => seen[at] = object,
                Some(CachedConversion::Underway(call, index)) => {
                    match joined.iter_mut().find(|joined| joined.call.ptr_eq(&call)) {
                        Some(joined) => joined.places.push((at, index)),
                        None => joined.push(Joined { call, places: vec![(at, index)] }),
                    }
                }
                None => rest.push(at),
            }
        }
        for batch in batches(objects, &rest) {
            let asked: Vec<Arc<Object>> =
                batch.iter().map(|at| Arc::clone(&objects[*at])).collect();
            let keys = asked.iter().map(|object| ConversionKey::of(object, to)).collect();
            let call = self.begin(converter, to, asked);
            known.begin(keys, &call);
            let places = batch.iter().enumerate().map(|(index, at)| (*at, index)).collect();
            joined.push(Joined { call, places });
        }
        joined
    }
}

/// A call and the destination of its results.
struct Joined {
    call: Calling,
    /// Indexes into the requested objects and into the response.
    places: Vec<(usize, usize)>,
}

/// Splits the objects to convert into calls.
fn batches<'a>(objects: &[Arc<Object>], mut wanted: &'a [usize]) -> Vec<&'a [usize]> {
    let mut batches = Vec::new();
    while !wanted.is_empty() {
        let mut bytes = 0;
        let fits = wanted.iter().take(BATCH_MAX).take_while(|at| {
            bytes += objects[**at].as_slice().len();
            bytes <= BATCH_BYTES_MAX
        });
        let (batch, rest) = wanted.split_at(fits.count().max(1));
        batches.push(batch);
        wanted = rest;
    }
    batches
}

#[cfg(test)]
mod tests {
    use headwater_api::{EventType, Revision};

    use super::*;

    fn object(size: usize) -> Arc<Object> {
        let text = "x".repeat(size);
        let stored = format!(
            r#"{{"kind":"K","apiVersion":"g/v","metadata":{{"name":"n"}},"spec":"{text}"}}"#
        );
        let revision = Revision::parse("7").unwrap();
        Arc::new(Object::decode(stored.as_bytes(), revision, EventType::Modified, &[]).unwrap())
    }

    #[test]
    fn calls_are_cut_by_bytes_and_by_number() {
        let sizes = |objects: &[Arc<Object>]| -> Vec<usize> {
            let wanted: Vec<usize> = (0..objects.len()).collect();
            batches(objects, &wanted).iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&vec![object(10); 1201]), [500, 500, 201]);
        assert_eq!(sizes(&vec![object(400 * 1024); 5]), [2, 2, 1]);
        // An object above the limit gets a call of its own.
        assert_eq!(sizes(&[object(10), object(2 * BATCH_BYTES_MAX), object(10)]), [1, 1, 1]);
    }
}
