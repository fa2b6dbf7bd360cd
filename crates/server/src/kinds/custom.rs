//! Custom kinds: definitions become rows of the registry, and go again.
//!
//! River: definition objects → **custom** → registry. `crate::upkeep::definitions` keeps them up to date.

use std::sync::Arc;

use headwater_api::structural::Schema;

use crate::kinds::registry::Served;

pub(crate) mod check;
pub(crate) mod definition;
pub(crate) mod definitions;
pub(crate) mod conditions;
mod gate;
pub(crate) mod names;
pub(crate) mod rows;

use crate::kinds::versions::form;
use crate::kinds::versions::webhook::Conversion;
use definition::Scale;
pub(crate) use gate::Gate;

/// Where definitions are kept.
pub(crate) const PREFIX: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// What a row of a custom kind has beyond that of a built-in one.
#[derive(Debug)]
pub(crate) struct Custom {
    /// Objects are created through it.
    pub(crate) gate: Arc<Gate>,
    /// What objects of this version are held to.
    pub(crate) schema: Arc<Schema>,
    /// How stored objects are read.
    pub(crate) form: Arc<form::Stored>,
    /// How objects get from one version to another, if by a webhook.
    pub(crate) conversion: Option<Arc<Conversion>>,
    /// How the bytes of an object of this version begin.
    pub(crate) head: Vec<u8>,
    /// The fields that this version lets selectors name.
    pub(crate) fields: Vec<String>,
    /// Where the figures of a Scale are.
    pub(crate) scale: Option<Scale>,
}

/// Whether objects of this kind define other kinds.
pub(crate) fn is_definition(kind: &Served) -> bool {
    kind.prefix == PREFIX
}
