//! Custom kinds: definitions and the rows that they add to the registry.
//!
//! River: definition objects → **custom** → registry. `crate::upkeep::definitions` keeps them up to date.

use std::sync::Arc;

use headwater_schema::structural::Schema;

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

/// The key prefix of definitions.
pub(crate) const PREFIX: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// The additional properties of a custom kind.
#[derive(Debug)]
pub(crate) struct Custom {
    /// The gate that creates pass.
    pub(crate) gate: Arc<Gate>,
    /// The schema of this version.
    pub(crate) schema: Arc<Schema>,
    /// The reader of stored objects.
    pub(crate) form: Arc<form::Stored>,
    /// The conversion webhook, if any.
    pub(crate) conversion: Option<Arc<Conversion>>,
    /// The beginning of the bytes of an object of this version.
    pub(crate) head: Vec<u8>,
    /// The selectable fields of this version.
    pub(crate) fields: Vec<String>,
    /// The field paths of the `scale` subresource.
    pub(crate) scale: Option<Scale>,
}

/// Whether the kind is CustomResourceDefinition.
pub(crate) fn is_definition(kind: &Served) -> bool {
    kind.prefix == PREFIX
}
