//! Field management of kinds with a conversion webhook.
//!
//! River: admission → **track** → store. The rules do no I/O and return what they lack; this module
//! calls the webhook and runs them again.

use headwater_api::Status;
use headwater_json::Value;
use headwater_schema::managed;

use super::{Manager, OriginalObject};
use crate::answer::status;
use crate::backend::Backend;
use crate::kinds::registry::Served;
use crate::kinds::versions::from_storage;
use crate::object::metadata;

/// An object and its conversion to another version.
pub(crate) struct LearnedVersion {
    pub(crate) object: Value,
    pub(crate) to: String,
    pub(crate) made: Value,
}

/// Why a change could not be computed.
pub(crate) enum Unfinished {
    /// The change is invalid.
    Refused(Status),
    /// An object must first be converted to another version.
    Unconverted { object: Box<Value>, to: String },
}

impl From<Status> for Unfinished {
    fn from(status: Status) -> Unfinished {
        Unfinished::Refused(status)
    }
}

impl From<managed::Error> for Unfinished {
    fn from(error: managed::Error) -> Unfinished {
        match error {
            managed::Error::Unconverted { object, to } => Unfinished::Unconverted { object, to },
            error => Unfinished::Refused(error.into()),
        }
    }
}

/// The maximum number of conversions for the field management of one write.
pub(crate) const LEARN_MAX: usize = 32;

/// Updates `managedFields`, in the version of the request and from the object that the client `made`:
/// as in Kubernetes, fields set by the server, webhooks and policies have no manager.
pub(crate) async fn track(
    backend: &Backend,
    manager: &mut Manager<'_>,
    kind: &Served,
    old: Option<&Value>,
    new: &mut Value,
    made: Option<OriginalObject>,
) -> Result<(), Status> {
    let entries = match made {
        None => return track_all(backend, manager, kind, old, new).await,
        Some(OriginalObject::Entries(entries)) => entries,
        Some(OriginalObject::Object(mut made)) => {
            track_all(backend, manager, kind, old, &mut made).await?;
            managed::take(&mut made)
        }
    };
    managed::take(new);
    if let Some(entries) = entries {
        managed::put(new, entries);
    }
    Ok(())
}

/// The same, of the whole object.
async fn track_all(
    backend: &Backend,
    manager: &mut Manager<'_>,
    kind: &Served,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Status> {
    if kind.conversion().is_none() {
        return Ok(track_alike(manager, kind, old, new)?);
    }
    for _ in 0..LEARN_MAX {
        let mut tracked = new.clone();
        match manager.track(old, &mut tracked) {
            Err(managed::Error::Unconverted { object, to }) => {
                manager.learn(learn(backend, kind, *object, to).await?);
            }
            done => {
                *new = tracked;
                return Ok(done?);
            }
        }
    }
    Err(status::internal("managed fields are in too many versions"))
}

/// Converts an object to another version.
pub(crate) async fn learn(
    backend: &Backend,
    kind: &Served,
    object: Value,
    to: String,
) -> Result<LearnedVersion, Status> {
    let conversion = kind.conversion().ok_or_else(|| status::internal("there is no webhook"))?;
    let made = conversion.tree(backend.converter(), &to, object.clone()).await?;
    Ok(LearnedVersion { object, to, made })
}

pub(super) fn track_alike(
    manager: &Manager<'_>,
    kind: &Served,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), managed::Error> {
    if !kind.is_converted() {
        return manager.track(old, new);
    }
    let seen = |value: &Value| {
        let mut value = value.clone();
        from_storage(kind, &mut value);
        value
    };
    let (old, mut asked) = (old.map(seen), seen(new));
    manager.track(old.as_ref(), &mut asked)?;
    match asked["metadata"]["managedFields"].take() {
        Value::Null => metadata(new).remove("managedFields"),
        fields => metadata(new).insert("managedFields".into(), fields),
    };
    Ok(())
}
