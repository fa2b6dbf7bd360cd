//! Audit events: what is known of a request, and its form as one line of `audit.k8s.io/v1`.
//!
//! Requests only collect; the writer's thread parses bodies and prints lines.

use std::borrow::Cow;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::GzDecoder;
use headwater_json::{Map, Value, json};
use headwater_schema::decode::{self, Format};
use headwater_schema::protobuf;
use jiff::Timestamp;

use super::policy::{Level, Stage};
use crate::front::identity::Identity;

/// The largest object in an event; larger ones are left out (`audit.k8s.io/truncated`).
pub(super) const OBJECT_MAX: usize = 1024 * 1024;

const TRUNCATED: &str = "audit.k8s.io/truncated";

/// What does not change while a request is served.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) level: Level,
    pub(super) omit_managed_fields: bool,
    pub(super) id: String,
    pub(super) uri: String,
    pub(super) verb: String,
    /// `None` if the credential was invalid.
    pub(super) user: Option<Arc<Identity>>,
    /// How a user without a valid credential tried to authenticate.
    pub(super) attempted: &'static str,
    pub(super) addresses: Vec<String>,
    pub(super) agent: String,
    pub(super) target: Option<ObjectReference>,
    pub(super) received: Timestamp,
}

/// The object of a request, as far as its path names it.
#[derive(Clone, Debug)]
pub(super) struct ObjectReference {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What becomes known while a request is served.
#[derive(Clone, Debug, Default)]
pub(super) struct TrailState {
    pub(super) impersonated: Option<Arc<Identity>>,
    /// The right that allowed it, if it was a constrained impersonation.
    pub(super) constraint: Option<&'static str>,
    pub(super) annotations: Vec<(String, String)>,
    /// The body of the request, as a tree in JSON.
    pub(super) request: Option<Bytes>,
    pub(super) code: Option<u16>,
    pub(super) response: ResponseCopy,
    pub(super) panicked: bool,
}

/// The body of a response, as it was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseCopy {
    pub(super) pieces: Vec<Bytes>,
    /// The bytes of the body so far.
    pub(super) size: usize,
    pub(super) encoding: CopyEncoding,
    /// The body is larger than [`OBJECT_MAX`].
    pub(super) is_cut: bool,
}

/// How the body of a response is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CopyEncoding {
    /// Not an object.
    #[default]
    Other,
    Json,
    GzippedJson,
    Yaml,
    Protobuf,
}

/// One event.
#[derive(Debug)]
pub(super) struct AuditEvent {
    pub(super) head: Arc<RequestHead>,
    pub(super) stage: Stage,
    pub(super) at: Timestamp,
    pub(super) progress: TrailState,
}

impl AuditEvent {
    /// The approximate memory that the event holds.
    pub(super) fn size(&self) -> usize {
        let response: usize = self.progress.response.pieces.iter().map(Bytes::len).sum();
        response + self.progress.request.as_ref().map_or(0, Bytes::len) + 1024
    }

    /// The event as one line of JSON, without its end.
    pub(super) fn line(&self) -> Vec<u8> {
        let head = &*self.head;
        let mut annotations: Map = Map::default();
        for (key, value) in &self.progress.annotations {
            annotations.insert(key.as_str().into(), value.as_str().into());
        }
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": head.level.as_str(),
            "auditID": head.id,
            "stage": self.stage.as_str(),
            "requestURI": head.uri,
            "verb": head.verb,
            "user": head.user.as_deref().map_or_else(|| json!({}), user),
            "requestReceivedTimestamp": time(head.received),
            "stageTimestamp": time(self.at),
        });
        if !head.addresses.is_empty() {
            event["sourceIPs"] = head.addresses.as_slice().into();
        }
        if !head.agent.is_empty() {
            event["userAgent"] = head.agent.as_str().into();
        }
        if let Some(acting) = &self.progress.impersonated {
            event["impersonatedUser"] = user(acting);
        }
        if let Some(constraint) = self.progress.constraint {
            event["authenticationMetadata"] = json!({ "impersonationConstraint": constraint });
        }
        let request = self.progress.request.as_ref().and_then(|bytes| read(bytes));
        if let Some(target) = &head.target {
            event["objectRef"] = target.print(request.as_ref());
        }
        if let (Some(object), true) = (request, head.level >= Level::Request) {
            event["requestObject"] = self.trimmed(object);
        }
        self.add_response(&mut event, &mut annotations);
        if !annotations.is_empty() {
            event["annotations"] = annotations.into();
        }
        headwater_json::to_vec(&event)
    }

    fn add_response(&self, event: &mut Value, annotations: &mut Map) {
        if self.progress.panicked {
            event["responseStatus"] = json!({
                "metadata": {}, "status": "Failure", "code": 500, "reason": "InternalError",
                "message": "the handler of this request panicked",
            });
            return;
        }
        let Some(code) = self.progress.code else { return };
        let mut status = json!({"metadata": {}, "code": code});
        let response = &self.progress.response;
        let object = match response.is_cut {
            true => None,
            false => response.read(),
        };
        if let Some(found) = object.as_ref().filter(|object| object["kind"] == "Status") {
            for field in ["status", "message", "reason", "details"] {
                if !found[field].is_null() {
                    status[field] = found[field].clone();
                }
            }
        }
        if self.head.user.is_none() {
            let message = format!("Authentication failed, {}", self.head.attempted);
            status["message"] = message.into();
        }
        event["responseStatus"] = status;
        if self.head.level == Level::RequestResponse {
            if let Some(object) = object {
                event["responseObject"] = self.trimmed(object);
            }
            if response.is_cut {
                annotations.insert(TRUNCATED.into(), "true".into());
            }
        }
    }

    /// Without `managedFields`, if the policy omits them.
    fn trimmed(&self, mut object: Value) -> Value {
        if self.head.omit_managed_fields {
            drop_managed_fields(&mut object);
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(drop_managed_fields);
        }
        object
    }
}

fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

impl ResponseCopy {
    fn read(&self) -> Option<Value> {
        let body = match self.pieces.as_slice() {
            [] => return None,
            [one] => Cow::Borrowed(&one[..]),
            many => Cow::Owned(many.concat()),
        };
        match self.encoding {
            CopyEncoding::Other => None,
            CopyEncoding::Json => read(&body),
            CopyEncoding::Yaml => Some(decode::parse(Format::Yaml, &body).ok()?.value),
            CopyEncoding::Protobuf => protobuf::document(&body).ok(),
            CopyEncoding::GzippedJson => {
                let mut plain = Vec::new();
                GzDecoder::new(&*body).take(OBJECT_MAX as u64 * 4).read_to_end(&mut plain).ok()?;
                read(&plain)
            }
        }
    }
}

impl ObjectReference {
    /// The reference; what the path does not name is taken from the object that was sent.
    fn print(&self, object: Option<&Value>) -> Value {
        let metadata = object.map(|object| &object["metadata"]).unwrap_or(&Value::Null);
        let or_sent = |known: &str, field: &str| match known {
            "" => metadata[field].as_str().unwrap_or_default().to_owned(),
            known => known.to_owned(),
        };
        let fields = [
            ("resource", self.resource.clone()),
            ("namespace", or_sent(&self.namespace, "namespace")),
            ("name", or_sent(&self.name, "name")),
            ("uid", or_sent("", "uid")),
            ("apiGroup", self.group.clone()),
            ("apiVersion", self.version.clone()),
            ("resourceVersion", or_sent("", "resourceVersion")),
            ("subresource", self.subresource.clone()),
        ];
        fields.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }
}

fn read(body: &[u8]) -> Option<Value> {
    Some(headwater_json::parse(body).ok()?.value)
}

fn user(identity: &Identity) -> Value {
    let mut shown = json!({"username": identity.user, "groups": identity.groups.as_slice()});
    if !identity.uid.is_empty() {
        shown["uid"] = identity.uid.as_str().into();
    }
    if !identity.extra.is_empty() {
        let extra = identity.extra.iter();
        shown["extra"] =
            extra.map(|(key, values)| (key.as_str(), Value::from(values.as_slice()))).collect();
    }
    shown
}

/// A time with microseconds.
fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}
