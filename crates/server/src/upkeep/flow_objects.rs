//! The objects of flow control: repaired, and with a condition that tells whether a schema is in
//! force.
//!
//! River: a schema or a level is written → **flow objects** → store. Promise: mandatory objects are
//! restored whatever was changed; suggested ones only while they are annotated so (S7.4); a schema
//! whose level is missing is `Dangling` (S7.2).

use std::time::Duration;

use headwater_api::{Object, Status};
use headwater_cache::Snapshot;
use headwater_json::{Value, json};
use headwater_store::{Guard, Key, key};
use jiff::Timestamp;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::answer::status;
use crate::commit::put;
use crate::kinds::custom::conditions::set_condition;
use crate::kinds::custom::definition::DefinitionCondition;
use crate::object::{Current, canonical, is_deleting, meta, metadata};
use crate::request::flow::defaults::{self, AUTOUPDATE, MANDATORY};
use crate::request::flow::{ADJUSTED_EVERY, GROUP};
use crate::server::Server;
use crate::upkeep::bootstrap::Own;
use crate::upkeep::follow::ObjectChanges;

/// How often the objects are compared although none has changed: a write may have failed.
const COMPARED_EVERY: Duration = Duration::from_secs(60);

const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";

impl Server {
    /// Divides the seats among the levels by demand and repairs the objects, until stopped.
    pub(crate) async fn keep_flow_control(self, stop: CancellationToken) {
        let mut adjusted = tokio::time::interval(ADJUSTED_EVERY);
        let mut compared = tokio::time::interval(COMPARED_EVERY);
        adjusted.set_missed_tick_behavior(MissedTickBehavior::Delay);
        compared.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let flow = self.clone();
        let mut releases = std::pin::pin!(flow.flow().release_on_time());
        let mut changes = [SCHEMAS, LEVELS]
            .map(|plural| ObjectChanges::new(&self, &key::collection(GROUP, plural)));
        loop {
            let [schemas, levels] = &mut changes;
            let is_open = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = &mut releases => return,
                _ = adjusted.tick() => {
                    self.flow().adjust();
                    continue;
                }
                is_open = schemas.next(&self) => is_open,
                is_open = levels.next(&self) => is_open,
                _ = compared.tick() => true,
            };
            if !is_open {
                return stop.cancelled().await;
            }
            let settled = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = &mut releases => return,
                settled = self.settle_flow_objects() => settled,
            };
            if let Err(error) = settled {
                tracing::warn!(%error, "cannot repair the objects of flow control, will retry");
            }
        }
    }

    /// Creates and repairs the objects that every server has, and sets the conditions of schemas.
    async fn settle_flow_objects(&self) -> Result<(), Status> {
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        for (plural, wanted) in
            [(LEVELS, defaults::priority_levels()), (SCHEMAS, defaults::flow_schemas())]
        {
            let known = self.flow_objects(plural);
            for wanted in wanted {
                match known.get(meta(&wanted, "name")) {
                    None => drop(self.ensure(own(plural, wanted)).await?),
                    Some(object) => {
                        self.change_flow_object(plural, object, |there| repair(there, &wanted))
                            .await?;
                    }
                }
            }
        }
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        let levels = self.flow_objects(LEVELS);
        for schema in self.flow_objects(SCHEMAS).iter("", None) {
            let conclude = |schema: &mut Value| conclude(schema, &levels, || self.now());
            self.change_flow_object(SCHEMAS, schema, conclude).await?;
        }
        Ok(())
    }

    fn flow_objects(&self, plural: &str) -> Snapshot {
        self.cache().snapshot(&self.cache().resource(&key::collection(GROUP, plural)))
    }

    /// Stores an object if `change` changes it. A conflict means that it is compared again.
    async fn change_flow_object(
        &self,
        plural: &str,
        object: &Object,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Status> {
        let there = Current::of(object)?;
        let mut value = there.value.clone();
        change(&mut value);
        let registry = self.registry();
        let Some(kind) = registry.find(GROUP, "v1", plural) else { return Ok(()) };
        if value == there.value || is_deleting(&value) {
            return Ok(());
        }
        if value["spec"] != there.value["spec"] {
            let generation = value["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            metadata(&mut value).insert("generation".into(), generation.into());
        }
        let key = Key::in_collection(&kind.prefix, object.name());
        let guard = Guard::At(there.revision);
        put(self.store(), kind, key, guard, canonical(&value).into()).await.map(drop)
    }
}

fn own(plural: &'static str, value: Value) -> Own {
    Own { resource: (GROUP, "v1", plural), value, corrected: &[] }
}

/// Restores an object that every server has.
fn repair(there: &mut Value, wanted: &Value) {
    let is_mandatory = MANDATORY.contains(&meta(wanted, "name"));
    let annotation = there["metadata"]["annotations"][AUTOUPDATE].as_str();
    // Without the annotation, an object that nobody has changed is updated.
    let is_current = match annotation {
        Some(annotation) => matches!(annotation, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => there["metadata"]["generation"].as_i64() == Some(1),
    };
    let wanted_annotation = is_mandatory || is_current;
    if annotation.is_none() || (is_mandatory && !is_current) {
        let annotations = metadata(there).entry("annotations").or_insert_with(|| json!({}));
        annotations[AUTOUPDATE] = wanted_annotation.to_string().into();
    }
    if !wanted_annotation {
        return;
    }
    let mut spec = wanted["spec"].clone();
    // The shares of the exempt level are the administrator's (S7.4).
    if spec["type"] == "Exempt" && there["spec"]["exempt"].is_object() {
        spec["exempt"] = there["spec"]["exempt"].clone();
    }
    there["spec"] = spec;
}

/// A schema whose level exists, as it is created.
pub(super) fn in_force(mut schema: Value, now: Timestamp) -> Value {
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
    let condition = dangling(level, false);
    set_condition(&mut schema, &condition, || now);
    schema
}

/// Says in the condition `Dangling` whether the level of a schema exists.
fn conclude(schema: &mut Value, levels: &Snapshot, now: impl FnOnce() -> Timestamp) {
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
    let condition = dangling(level, levels.get(level).is_none());
    set_condition(schema, &condition, now);
}

fn dangling(level: &str, is_missing: bool) -> DefinitionCondition {
    let text = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named \"{level}\""
    );
    let (status, reason, rest) = match is_missing {
        true => ("True", "NotFound", "but there is no such object"),
        false => ("False", "Found", "and it exists"),
    };
    DefinitionCondition {
        kind: "Dangling".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: format!("{text} {rest}"),
    }
}
