//! Fixtures: objects that a test needs before it begins, as YAML.
//!
//! River: text → documents → **fixture** → server-side apply. Documents are applied in order; a
//! CustomResourceDefinition is served before the next document is applied.

use std::time::Duration;

use headwater_client::Key;
use headwater_schema::yaml;
use http::{Request, header};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::TestServer;

/// The field manager of fixtures.
const MANAGER: &str = "headwater-testing";
/// How long a CustomResourceDefinition may take to become established.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);

/// Why a fixture could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document is not valid YAML.
    #[error("document {number}: {why}")]
    Malformed {
        /// The number of the document, from 1.
        number: usize,
        /// The parser's message.
        why: String,
    },
    /// The kind of an object is not served.
    #[error("{name}: the server does not serve kind {kind:?} of {api_version:?}")]
    NoSuchKind {
        /// The kind of the object.
        kind: String,
        /// Its group and version.
        api_version: String,
        /// Its name.
        name: String,
    },
    /// The server rejected an object.
    #[error("{name}: the server rejected the object")]
    Refused {
        /// The name of the object.
        name: String,
        /// The server's response.
        source: kube::Error,
    },
    /// A CustomResourceDefinition was stored and did not become established.
    #[error("{name}: the CustomResourceDefinition did not become established")]
    NotEstablished {
        /// The name of the CustomResourceDefinition.
        name: String,
        /// Why the wait ended.
        source: headwater_client::Error,
    },
}

impl TestServer {
    /// Applies every document of a YAML text and returns the stored objects.
    ///
    /// Items of lists are applied one by one. Namespaced objects without a namespace go to
    /// `default`.
    pub async fn apply_yaml(&self, text: &str) -> Result<Vec<DynamicObject>, Error> {
        let mut applied = Vec::new();
        for (at, document) in documents(text).into_iter().enumerate() {
            let parsed = yaml::parse(document.as_bytes())
                .map_err(|error| Error::Malformed { number: at + 1, why: error.to_string() })?;
            for object in objects(parsed.value.into()) {
                applied.push(self.apply(object).await?);
            }
        }
        Ok(applied)
    }

    /// Applies CustomResourceDefinitions and waits until they are served.
    pub async fn define(&self, definitions: &[CustomResourceDefinition]) -> Result<(), Error> {
        for definition in definitions {
            let mut object = json!(definition);
            object["apiVersion"] = "apiextensions.k8s.io/v1".into();
            object["kind"] = "CustomResourceDefinition".into();
            self.apply(object).await?;
        }
        Ok(())
    }

    async fn apply(&self, object: Value) -> Result<DynamicObject, Error> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let target = self.target(&object, &name)?;
        let request = Request::patch(target)
            .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(object.to_string().into_bytes())
            .map_err(kube::Error::HttpError);
        let client = self.client();
        let response = match request {
            Ok(request) => client.request::<DynamicObject>(request).await,
            Err(error) => Err(error),
        };
        let stored = response.map_err(|source| Error::Refused { name: name.clone(), source })?;
        if object["kind"] == "CustomResourceDefinition" {
            self.await_established(&name).await?;
        }
        Ok(stored)
    }

    fn target(&self, object: &Value, name: &str) -> Result<String, Error> {
        let api_version = object["apiVersion"].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let registry = self.server.registry();
        let row = registry.find_kind(group, version, kind).ok_or_else(|| Error::NoSuchKind {
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
            name: name.to_owned(),
        })?;
        let root = if group.is_empty() { "/api" } else { "/apis" };
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let scope = match row.namespaced {
            true => format!("namespaces/{namespace}/"),
            false => String::new(),
        };
        let plural = &row.plural;
        Ok(format!("{root}/{api_version}/{scope}{plural}/{name}?fieldManager={MANAGER}&force=true"))
    }

    async fn await_established(&self, name: &str) -> Result<(), Error> {
        let established = async {
            let factory = self.factory();
            let definitions = factory.informer::<CustomResourceDefinition>().open()?;
            let stop = CancellationToken::new();
            let wait = async {
                let key = Key::cluster(name);
                let found = definitions.wait_for(&key, is_established, ESTABLISHED_WITHIN).await;
                stop.cancel();
                found
            };
            tokio::try_join!(factory.run(stop.clone()), wait).map(drop)
        };
        let name = name.to_owned();
        established.await.map_err(|source| Error::NotEstablished { name, source })
    }
}

fn is_established(definition: Option<&CustomResourceDefinition>) -> bool {
    let status = definition.and_then(|definition| definition.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|known| known.type_ == "Established" && known.status == "True")
}

/// The documents of a text; a separator is `---` at the beginning of a line.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        match line.strip_prefix("---") {
            Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => {
                documents.push(format!("{rest}\n"));
            }
            _ => {
                let document = documents.last_mut().expect("the list starts with one document");
                document.push_str(line);
                document.push('\n');
            }
        }
    }
    documents.retain(|document| document.lines().any(is_content));
    documents
}

fn is_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// The objects of a document: itself, or the items of a list.
fn objects(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items,
        Some(items) => {
            document["items"] = items;
            vec![document]
        }
        None => vec![document],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_at_its_separators() {
        check("a: 1", &["a: 1\n"]);
        check("---\na: 1\n---\n\n# nothing\n---\nb: 2\n", &["\na: 1\n", "\nb: 2\n"]);
        check("--- {a: 1}\n--- # words\nb: 2", &[" {a: 1}\n", " # words\nb: 2\n"]);
        check("a: |\n  ---\n  x\n", &["a: |\n  ---\n  x\n"]);
        check("a: ---b\n---c: 1\n", &["a: ---b\n---c: 1\n"]);
        check("", &[]);
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(documents(text), expected);
    }

    #[test]
    fn lists_are_split_and_other_fields_named_items_are_not() {
        let list = json!({"kind": "List", "items": [{"kind": "A"}, {"kind": "B"}]});
        assert_eq!(objects(list), [json!({"kind": "A"}), json!({"kind": "B"})]);
        let shop = json!({"kind": "Shop", "items": [1]});
        assert_eq!(objects(shop.clone()), [shop]);
    }
}
