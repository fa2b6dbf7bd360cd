//! The state of all definitions: which are served, and which must be reconciled or compiled.
//!
//! River: definition objects → **definitions** → rows of the registry. Pure state: `upkeep` reads it
//! and makes the changes that it requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Object;
use headwater_cache::{ObjectDecoder, Snapshot};

use super::definition::Definition;
use super::gate::Gate;
use super::rows::Compiled;
use super::{names, rows};
use crate::kinds::registry::{Registry, Served};
use crate::object::tree;

/// The definitions by name.
pub(crate) struct Definitions {
    pub(crate) builtin: Registry,
    pub(crate) known: BTreeMap<String, Arc<Definition>>,
    pub(crate) served: BTreeMap<String, Kept>,
}

/// A definition that is served.
pub(crate) struct Kept {
    pub(crate) definition: Arc<Definition>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) rows: Vec<Arc<Served>>,
}

impl Kept {
    /// Whether these rows match the definition.
    fn is_current(&self, definition: &Definition) -> bool {
        let mine = &self.definition;
        mine.uid == definition.uid
            && mine.generation == definition.generation
            && mine.status.accepted_names == definition.status.accepted_names
    }
}

/// A definition to be compiled.
pub(crate) struct Outdated {
    pub(crate) definition: Arc<Definition>,
    pub(crate) object: Arc<Object>,
    pub(crate) gate: Arc<Gate>,
}

impl Outdated {
    /// Compiles the definition. One that cannot be compiled is not served.
    pub(crate) fn compile(&self) -> Option<Compiled> {
        let compiled = tree(self.object.as_slice()).map_err(|status| status.message);
        let compiled =
            compiled.and_then(|object| rows::compile(&self.definition, &object, &self.gate));
        match compiled {
            Ok(compiled) => Some(compiled),
            Err(why) => {
                tracing::error!(
                    name = self.definition.name,
                    "a CustomResourceDefinition cannot be compiled and is not served: {why}"
                );
                None
            }
        }
    }
}

/// The updates of the cache after a change of the registry.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) registry: Option<Registry>,
    pub(crate) reshaped: Vec<(String, ObjectDecoder)>,
    pub(crate) retired: Vec<String>,
    /// Definitions whose objects are to be deleted.
    pub(crate) closing: Vec<Arc<Gate>>,
}

impl Definitions {
    /// The built-in kinds, without definitions.
    pub(crate) fn new(builtin: Registry) -> Definitions {
        Definitions { builtin, known: BTreeMap::new(), served: BTreeMap::new() }
    }

    /// Reads the changed definitions of a snapshot.
    pub(crate) fn read(&mut self, snapshot: &Snapshot) {
        self.known.retain(|name, _| snapshot.get(name).is_some());
        for object in snapshot.iter("", None) {
            let known = self.known.get(object.name());
            if known.is_some_and(|known| known.revision == object.revision()) {
                continue;
            }
            let read = tree(object.as_slice()).map_err(|status| status.message).and_then(|tree| {
                Definition::read(&tree, object.revision()).map_err(|error| error.to_string())
            });
            match read {
                Ok(definition) => {
                    self.known.insert(object.name().to_owned(), Arc::new(definition));
                }
                Err(why) => {
                    tracing::error!(
                        name = object.name(),
                        "a stored CustomResourceDefinition cannot be parsed and is ignored: {why}"
                    )
                }
            }
        }
    }

    /// The definitions whose status must change, with the wanted status.
    pub(crate) fn unsettled(&self) -> Vec<(Arc<Definition>, names::Wanted)> {
        let mut taken = names::Taken::by(self.known.values().map(|definition| &**definition));
        let mut unsettled = Vec::new();
        for definition in self.known.values() {
            if let Some(wanted) = names::wanted(definition, &taken) {
                taken.take(&definition.spec.group, &wanted.accepted);
                unsettled.push((Arc::clone(definition), wanted));
            }
        }
        unsettled
    }

    /// The definitions whose rows are missing or outdated.
    pub(crate) fn outdated(&self, snapshot: &Snapshot) -> Vec<Outdated> {
        let established = self.known.values().filter(|known| known.is("Established"));
        established
            .filter_map(|definition| {
                let kept = self.served.get(&definition.name);
                if kept.is_some_and(|kept| kept.is_current(definition)) {
                    return None;
                }
                let gate = kept.filter(|kept| kept.definition.uid == definition.uid);
                Some(Outdated {
                    definition: Arc::clone(definition),
                    object: Arc::clone(snapshot.get(&definition.name)?),
                    gate: gate.map(|kept| Arc::clone(&kept.gate)).unwrap_or_default(),
                })
            })
            .collect()
    }

    /// Updates the rows to the definitions, with these newly compiled ones.
    pub(crate) fn serve(&mut self, compiled: Vec<Compiled>) -> News {
        let mut news = News::default();
        let mut changed = !compiled.is_empty();
        self.served.retain(|name, kept| {
            let stays = self.known.get(name).is_some_and(|known| known.uid == kept.definition.uid);
            if !stays {
                news.retired.push(rows::prefix(&kept.definition));
                changed = true;
            }
            stays
        });
        for Compiled { definition, gate, rows, shape } in compiled {
            news.reshaped.push((rows::prefix(&definition), shape));
            self.served.insert(definition.name.clone(), Kept { definition, gate, rows });
        }
        let deleting = self.known.values().filter(|known| known.is_deleting);
        let closing = deleting.filter_map(|known| self.served.get(&known.name));
        news.closing = closing.map(|kept| Arc::clone(&kept.gate)).collect();
        news.registry = changed.then(|| self.registry());
        news
    }

    /// Built-in kinds, then custom ones by group, version and name.
    fn registry(&self) -> Registry {
        let mut rows: Vec<Arc<Served>> =
            self.served.values().flat_map(|kept| kept.rows.iter().cloned()).collect();
        rows.sort_by(|a, b| {
            let versions = rows::compare(&b.version, &a.version);
            a.group.cmp(&b.group).then(versions).then_with(|| a.plural.cmp(&b.plural))
        });
        self.builtin.with(rows)
    }
}
