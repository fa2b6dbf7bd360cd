//! Custom resources, from the definition to the last object (S9).

use std::time::Duration;

use headwater_json::{Value, json};

use crate::api::{Answer, Api, Watch, version};

mod conversion;
mod life;
mod objects;
mod rules;
mod versions;

/// The path of definitions.
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The widgets of `ns`.
pub(crate) const WIDGETS: &str = "/apis/example.com/v1/namespaces/ns/widgets";

/// A server with helpers for definitions.
pub(crate) struct World {
    api: Api,
}

impl std::ops::Deref for World {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl World {
    async fn start() -> World {
        World { api: Api::start().await }
    }

    /// A server that serves widgets, with a changed definition.
    pub(crate) async fn with_widgets(change: impl FnOnce(&mut Value)) -> World {
        let world = World::start().await;
        world.define(change).await;
        world
    }

    async fn define(&self, change: impl FnOnce(&mut Value)) -> Value {
        let mut definition = widgets();
        change(&mut definition);
        self.create(CRDS, &definition).await
    }

    /// Changes the stored definition of widgets.
    async fn redefine(&self, change: impl FnOnce(&mut Value)) {
        let target = format!("{CRDS}/widgets.example.com");
        let mut definition = self.get(&target).await.json();
        change(&mut definition);
        self.put(&target, &definition).await.is(200, "");
    }

    async fn widget(&self, name: &str, spec: Value) -> Value {
        self.create(WIDGETS, &widget(name, spec)).await
    }
}

/// The definition that most tests use.
fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [version_of("v1", true)],
        },
    })
}

fn version_of(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 100},
                "colour": {"type": "string", "default": "blue"},
                "replicas": {"type": "integer"},
            }},
            "status": {"type": "object", "properties": {
                "ready": {"type": "boolean"},
                "replicas": {"type": "integer"}, "selector": {"type": "string"},
            }},
        }}},
    })
}

pub(crate) fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// The schema of a version of a definition.
fn schema(definition: &mut Value, index: usize) -> &mut Value {
    &mut definition["spec"]["versions"][index]["schema"]["openAPIV3Schema"]
}

/// The properties of `spec` in the only version.
fn spec_fields(definition: &mut Value) -> &mut Value {
    &mut schema(definition, 0)["properties"]["spec"]["properties"]
}

async fn ends(watch: &mut Watch) -> Vec<String> {
    watch.rest().await.iter().map(crate::api::word).collect()
}
