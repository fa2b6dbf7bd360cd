//! `headwater tree`: the owners of an object, and what they own.
//!
//! River: metadata of all kinds → **tree** → lines. Objects are linked by the uids in their
//! `ownerReferences`, as garbage collection does.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use headwater_json::Value;
use jiff::Timestamp;

use crate::flags::TreeFlags;
use crate::print;
use crate::remote::kinds::{RemoteKind, RemoteKinds, items};
use crate::remote::{RemoteCluster, ResponseForm, together};
use crate::style::{Emphasis, Paint};

/// The objects whose state is asked for; the lines of others show only their names.
const STATES_MAX: usize = 500;

/// One object of a tree.
#[derive(Clone, Debug)]
struct Leaf {
    uid: String,
    kind: String,
    namespace: String,
    name: String,
    path: String,
    created: String,
    owners: Vec<String>,
}

/// Prints the tree of an object.
pub(crate) async fn run(flags: &TreeFlags) -> Result<()> {
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let kinds = RemoteKinds::discover(&cluster).await?;
    let (kind, name) = kinds.object(&flags.object)?;
    let namespace = flags.namespace.as_deref().unwrap_or(cluster.namespace());
    let asked = leaf(kind, &cluster.get(&kind.object(namespace, &name)).await?);

    // Owners of a namespaced object are in its namespace or in none.
    let scope = kind.namespaced.then_some(namespace);
    let listed: Vec<&RemoteKind> =
        kinds.iter().filter(|kind| kind.allows("list") && is_owned(kind)).collect();
    let lists = together(listed.iter().map(async |kind| {
        let collection = kind.collection(scope);
        (*kind, cluster.list(&collection, "", ResponseForm::Metadata).await)
    }))
    .await;
    let mut all = BTreeMap::from([(asked.uid.clone(), asked.clone())]);
    let mut unread = Vec::new();
    for (kind, list) in lists {
        match list {
            Ok(list) => {
                let leaves = list.items.iter().map(|item| leaf(kind, item));
                all.extend(leaves.map(|leaf| (leaf.uid.clone(), leaf)));
            }
            Err(error) => {
                tracing::debug!("cannot list {}: {error:#}", kind.resource.resource());
                unread.push(kind.resource.resource());
            }
        }
    }
    let tree = OwnerTree::new(&all, &asked.uid);
    let states = states(&cluster, &tree).await;
    if tree.lines.is_empty() {
        bail!("the object has no uid");
    }
    let paint = Paint::of_stdout();
    for line in tree.print(&states, &asked.uid, Timestamp::now(), paint) {
        print::data(&line);
    }
    if !unread.is_empty() {
        print::note(&format!("not listed, so not in the tree: {}", unread.join(", ")));
    }
    Ok(())
}

/// Events and views of other objects have no owners.
fn is_owned(kind: &RemoteKind) -> bool {
    let group = kind.resource.group.as_str();
    kind.resource.plural != "events" && !["metrics.k8s.io", "headwater.dev"].contains(&group)
}

fn leaf(kind: &RemoteKind, object: &Value) -> Leaf {
    let meta = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&meta["namespace"]), text(&meta["name"]));
    Leaf {
        uid: text(&meta["uid"]),
        kind: kind.resource.kind.clone(),
        path: kind.object(&namespace, &name),
        namespace,
        name,
        created: text(&meta["creationTimestamp"]),
        owners: items(&meta["ownerReferences"]).map(|owner| text(&owner["uid"])).collect(),
    }
}

/// The state of each object of the tree, by uid.
async fn states(cluster: &RemoteCluster, tree: &OwnerTree<'_>) -> BTreeMap<String, String> {
    let asked = tree.lines.iter().take(STATES_MAX).map(async |line| {
        let object = cluster.get(&line.leaf.path).await.ok()?;
        Some((line.leaf.uid.clone(), state(&object)))
    });
    together(asked).await.into_iter().flatten().collect()
}

/// What an object says of itself in one word.
fn state(object: &Value) -> String {
    if object["metadata"]["deletionTimestamp"].is_string() {
        return "Deleting".to_owned();
    }
    let status = &object["status"];
    let conditions = || items(&status["conditions"]);
    for wanted in ["Ready", "Available", "Complete", "Failed", "Established"] {
        let Some(found) = conditions().find(|condition| condition["type"] == wanted) else {
            continue;
        };
        if found["status"] == "True" {
            return wanted.to_owned();
        }
        if wanted == "Ready" || wanted == "Available" {
            let phase = status["phase"].as_str().filter(|phase| *phase != "Running");
            return phase.map_or_else(|| format!("Not{wanted}"), str::to_owned);
        }
    }
    let ready = status["readyReplicas"].as_u64().unwrap_or_default();
    match (status["replicas"].as_u64(), status["phase"].as_str()) {
        (Some(replicas), _) => format!("{ready}/{replicas}"),
        (None, phase) => phase.unwrap_or("-").to_owned(),
    }
}

/// The objects above and below one object.
struct OwnerTree<'a> {
    lines: Vec<TreeLine<'a>>,
}

struct TreeLine<'a> {
    /// The branches in front of the name.
    branches: String,
    leaf: &'a Leaf,
}

impl<'a> OwnerTree<'a> {
    fn new(all: &'a BTreeMap<String, Leaf>, asked: &str) -> OwnerTree<'a> {
        let mut owned: BTreeMap<&str, Vec<&Leaf>> = BTreeMap::new();
        for leaf in all.values() {
            for owner in &leaf.owners {
                owned.entry(owner).or_default().push(leaf);
            }
        }
        for leaves in owned.values_mut() {
            leaves.sort_by_key(|leaf| (&leaf.kind, &leaf.name));
        }
        // Above, only the owners of the object are shown, not everything that they own.
        let mut kept = BTreeSet::from([asked.to_owned()]);
        let mut roots = BTreeSet::new();
        let mut above = vec![asked.to_owned()];
        while let Some(uid) = above.pop() {
            let owners = all.get(&uid).map(|leaf| leaf.owners.as_slice()).unwrap_or_default();
            let known: Vec<&String> = owners.iter().filter(|uid| all.contains_key(*uid)).collect();
            if known.is_empty() {
                roots.insert(uid);
            }
            above.extend(known.into_iter().filter(|uid| kept.insert((*uid).clone())).cloned());
        }
        let mut below = vec![asked];
        while let Some(uid) = below.pop() {
            for leaf in owned.get(uid).into_iter().flatten() {
                if kept.insert(leaf.uid.clone()) {
                    below.push(&leaf.uid);
                }
            }
        }
        let mut tree = OwnerTree { lines: Vec::new() };
        let mut shown = BTreeSet::new();
        // Owners in a circle have no root.
        if roots.is_empty() {
            roots.insert(asked.to_owned());
        }
        for root in &roots {
            if let Some(leaf) = all.get(root) {
                tree.add(leaf, "", "", &owned, &kept, &mut shown);
            }
        }
        tree
    }

    fn add(
        &mut self,
        leaf: &'a Leaf,
        branch: &str,
        rest: &str,
        owned: &BTreeMap<&str, Vec<&'a Leaf>>,
        kept: &BTreeSet<String>,
        shown: &mut BTreeSet<&'a str>,
    ) {
        self.lines.push(TreeLine { branches: branch.to_owned(), leaf });
        if !shown.insert(&leaf.uid) {
            return;
        }
        let below: Vec<&'a Leaf> = owned
            .get(leaf.uid.as_str())
            .into_iter()
            .flatten()
            .filter(|leaf| kept.contains(&leaf.uid))
            .copied()
            .collect();
        for (index, child) in below.iter().enumerate() {
            let (mark, line) =
                if index + 1 == below.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let (branch, rest) = (format!("{rest}{mark}"), format!("{rest}{line}"));
            self.add(child, &branch, &rest, owned, kept, shown);
        }
    }

    fn print(
        &self,
        states: &BTreeMap<String, String>,
        asked: &str,
        now: Timestamp,
        paint: Paint,
    ) -> Vec<String> {
        let names = self.lines.iter().map(|line| {
            let Leaf { kind, name, namespace, .. } = line.leaf;
            let inside = if namespace.is_empty() { " (cluster)" } else { "" };
            (line.branches.as_str(), format!("{kind}/{name}{inside}"), line.leaf)
        });
        let names: Vec<_> = names.collect();
        let width = |(branches, name, _): &(&str, String, &Leaf)| {
            branches.chars().count() + name.chars().count()
        };
        let widest = names.iter().map(width).max().unwrap_or_default();
        let lines = names.iter().map(|line| {
            let (branches, name, leaf) = line;
            let pad = " ".repeat(widest - width(line));
            let name = match leaf.uid == asked {
                true => paint.text(Emphasis::Strong, name),
                false => name.clone(),
            };
            let state = states.get(&leaf.uid).map_or("", String::as_str);
            let emphasis = match state {
                "Ready" | "Available" | "Complete" => Emphasis::Added,
                "-" | "" => Emphasis::Faint,
                _ => Emphasis::Changed,
            };
            let state = paint.text(emphasis, &format!("{state:<12}"));
            let text = format!("{branches}{name}{pad}  {state} {}", age(&leaf.created, now));
            text.trim_end().to_owned()
        });
        lines.collect()
    }
}

/// The time since a timestamp: `5s`, `3m`, `2h`, `4d`.
pub(crate) fn age(created: &str, now: Timestamp) -> String {
    let Ok(created) = created.parse::<Timestamp>() else { return String::new() };
    let seconds = now.as_second() - created.as_second();
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn all(objects: &[(&str, &[&str])]) -> BTreeMap<String, Leaf> {
        let made = objects.iter().map(|(name, owners)| {
            let leaf = Leaf {
                uid: (*name).to_owned(),
                kind: "K".to_owned(),
                namespace: "ns".to_owned(),
                name: (*name).to_owned(),
                path: String::new(),
                created: String::new(),
                owners: owners.iter().map(|owner| (*owner).to_owned()).collect(),
            };
            (leaf.uid.clone(), leaf)
        });
        made.collect()
    }

    #[track_caller]
    fn check(objects: &[(&str, &[&str])], asked: &str, expected: &[&str]) {
        let all = all(objects);
        let tree = OwnerTree::new(&all, asked);
        let now = Timestamp::UNIX_EPOCH;
        let lines = tree.print(&BTreeMap::new(), asked, now, Paint::with(false));
        let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn owners_are_above_and_owned_objects_below() {
        let objects: &[(&str, &[&str])] = &[
            ("web", &[]),
            ("rs1", &["web"]),
            ("rs2", &["web"]),
            ("p1", &["rs1"]),
            ("p2", &["rs1"]),
            ("other", &[]),
        ];
        check(objects, "web", &["K/web", "├─ K/rs1", "│  ├─ K/p1", "│  └─ K/p2", "└─ K/rs2"]);
        check(objects, "p2", &["K/web", "└─ K/rs1", "   └─ K/p2"]);
        check(objects, "other", &["K/other"]);
    }

    #[test]
    fn several_owners_missing_owners_and_circles_end() {
        check(&[("a", &["b"]), ("b", &["a"])], "a", &["K/a", "└─ K/b", "   └─ K/a"]);
        check(&[("a", &["gone"])], "a", &["K/a"]);
        check(
            &[("x", &[]), ("y", &[]), ("c", &["x", "y"])],
            "c",
            &["K/x", "└─ K/c", "K/y", "└─ K/c"],
        );
    }

    #[test]
    fn a_state_is_one_word() {
        for (object, expected) in [
            (json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), "Ready"),
            (
                json!({"status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}}),
                "Pending",
            ),
            (json!({"status": {"replicas": 3, "readyReplicas": 2}}), "2/3"),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "Deleting"),
            (json!({}), "-"),
        ] {
            assert_eq!(state(&object), expected);
        }
    }
}
