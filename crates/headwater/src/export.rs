//! `headwater export` and `headwater import`: the present state of a cluster as a file, and back.
//!
//! River: lists → **export** → YAML documents → **import** → requests.
//! Promise: the file has no fields that a server sets, and its documents are in an order in which they
//! can be created. An import continues after a refused object and fails at the end.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, anyhow, bail};
use headwater_json::Value;
use headwater_schema::yaml;

use crate::copy::order;
use crate::copy::placer::{Placed, Placer};
use crate::copy::plain::{is_made_by_the_server, plain};
use crate::flags::{ExportFlags, ImportFlags};
use crate::print;
use crate::remote::kinds::{RemoteKind, RemoteKinds};
use crate::remote::{RemoteCluster, ResponseForm, together};
use crate::watch::key;

/// The largest file that is imported, in bytes.
const FILE_MAX: u64 = 1 << 30;

/// The refused objects that are printed; all are counted.
const REFUSED_MAX: usize = 20;

/// Kinds that describe one cluster, or that its controllers make again.
const NOT_EXPORTED: &[&str] = &[
    "events",
    "nodes",
    "csinodes",
    "endpoints",
    "endpointslices",
    "leases",
    "leasecandidates",
    "componentstatuses",
    "certificatesigningrequests",
    "volumeattachments",
    "csistoragecapacities",
    "resourceslices",
    "ipaddresses",
    "servicecidrs",
    "storageversions",
    "apiservices",
];

/// Writes the objects of a cluster to a file.
pub(crate) async fn export(flags: &ExportFlags) -> Result<()> {
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let kinds = RemoteKinds::discover(&cluster).await?;
    let mut chosen = kinds.selected(&flags.resources)?;
    let namespace = flags.scope.namespace(cluster.namespace());
    if flags.resources.is_empty() {
        chosen.retain(|kind| {
            let is_builtin =
                !kind.resource.group.contains('.') || kind.resource.group.ends_with(".k8s.io");
            let is_in_scope = namespace.is_none() || kind.namespaced;
            is_in_scope && !(is_builtin && NOT_EXPORTED.contains(&kind.resource.plural.as_str()))
        });
    }
    let mut objects = Vec::new();
    let lists = together(chosen.iter().map(|kind| listed(&cluster, kind, namespace.as_deref())));
    for list in lists.await {
        objects.extend(list?);
    }
    if let Some(namespace) = &namespace {
        objects.push(cluster.get(&format!("/api/v1/namespaces/{namespace}")).await?);
    }
    let mut objects: Vec<Value> = objects
        .into_iter()
        .filter(|object| !is_made_by_the_server(object))
        .filter(|object| !object["metadata"]["deletionTimestamp"].is_string())
        .filter_map(|object| flags.secrets.apply(object))
        .collect();
    objects.iter_mut().for_each(|object| plain(object, flags.state));
    order::sort(&mut objects, |object| object);
    let path = &flags.output;
    let written = || -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        for object in &objects {
            file.write_all(format!("---\n{}", yaml::to_string(object)).as_bytes())?;
        }
        Ok(file.sync_all()?)
    };
    written().with_context(|| format!("cannot write {}", path.display()))?;
    print::note(&format!("exported {} objects to {}", objects.len(), path.display()));
    Ok(())
}

async fn listed(
    cluster: &RemoteCluster,
    kind: &RemoteKind,
    namespace: Option<&str>,
) -> Result<Vec<Value>> {
    let list = cluster.list(&kind.collection(namespace), "", ResponseForm::Full).await;
    let list = list.with_context(|| format!("cannot list {}", kind.resource.resource()))?;
    Ok(list.items)
}

/// Creates the objects of a file.
pub(crate) async fn import(flags: &ImportFlags) -> Result<()> {
    let path = &flags.file;
    let mut objects =
        documents(&flags.file).with_context(|| format!("cannot read {}", path.display()))?;
    order::sort(&mut objects, |object| object);
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let mut placer = Placer::new(cluster, flags.state).await?;
    let (mut created, mut changed, mut left, mut refused) = (0, 0, 0, 0);
    for object in &objects {
        let placed = match flags.overwrite {
            false if placer.exists(object).await.unwrap_or_default() => Ok(Placed::Unchanged),
            _ => placer.put(object).await,
        };
        match placed {
            Ok(Placed::Created) => created += 1,
            Ok(Placed::Updated) => changed += 1,
            Ok(Placed::Unchanged) => left += 1,
            Err(error) => {
                refused += 1;
                if refused <= REFUSED_MAX {
                    let kind = object["kind"].as_str().unwrap_or_default();
                    print::note(&format!("not imported: {kind} {}: {error:#}", key(object)));
                }
            }
        }
    }
    print::note(&format!("created {created} objects, changed {changed}, left {left} as they were"));
    if placer.owners_dropped > 0 {
        let count = placer.owners_dropped;
        print::note(&format!("{count} references to owners that do not exist were left out"));
    }
    match refused {
        0 => Ok(()),
        count => bail!("the server refused {count} objects"),
    }
}

/// The YAML documents of a file. Lists are taken apart.
fn documents(path: &std::path::Path) -> Result<Vec<Value>> {
    let size = std::fs::metadata(path)?.len();
    if size > FILE_MAX {
        bail!("it has {size} bytes; at most {FILE_MAX} are read");
    }
    let text = std::fs::read_to_string(path)?;
    let mut objects = Vec::new();
    for (number, document) in split(&text) {
        let parsed = yaml::parse(document.as_bytes())
            .map_err(|error| anyhow!("the document at line {number}: {error}"))?;
        let mut value = parsed.value;
        match value["items"].take() {
            Value::Array(items) => objects.extend(items),
            _ if value.is_null() => {}
            _ => objects.push(value),
        }
    }
    if let Some(wrong) = objects.iter().find(|object| !object["metadata"]["name"].is_string()) {
        bail!("a document has no metadata.name: {}", wrong["kind"]);
    }
    Ok(objects)
}

/// The documents between lines of `---`, with their first lines' numbers.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut found = vec![(1, String::new())];
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_end() == "---" {
            found.push((number + 1, String::new()));
        } else if let Some((_, document)) = found.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    found.retain(|(_, document)| {
        document.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#'))
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_separated_by_dashes() {
        let text = "---\na: 1\n---\n# nothing\n\n---\nb: |\n  x\n  ---\n  y\n";
        let parts = split(text);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0], (2, "a: 1\n".to_owned()));
        assert_eq!(parts[1].0, 7);
    }

    #[test]
    fn a_file_with_something_else_is_an_error_with_its_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let why = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            format!("{:#}", documents(file.path()).unwrap_err())
        };
        assert!(why("---\na: [\n").contains("line 2"));
        assert!(why("kind: Pod\n").contains("no metadata.name"));
    }
}
