//! Paths of kinds: which operations each path has.

use headwater_json::{Map, Value};

use super::operation::{DescribedOperation, OperationTarget};
use super::parameters::{self, Parameter};
use super::roots;
use super::style::{Style, of_version};
use super::types::Schemas;
use crate::kinds::registry::Served;

/// The subresources that are connections: each method is an operation of its own.
const CONNECT: &[&str] = &["attach", "exec", "portforward", "proxy"];
/// The methods of a proxy, as verbs.
const PROXY_METHODS: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];

/// The paths of a group version, or of everything in version 2.
pub(super) fn of(rows: &[&Served], schemas: &mut Schemas<'_>, style: Style) -> Value {
    let mut paths = Paths { paths: Map::new(), schemas, style };
    for row in rows {
        paths.kind(row);
    }
    paths.paths.extend(roots::of_versions(rows, paths.schemas, style));
    Value::Object(paths.paths)
}

struct Paths<'a, 'b> {
    paths: Map,
    schemas: &'a mut Schemas<'b>,
    style: Style,
}

/// An operation with the parameters of its query and path.
type Entry = (&'static str, Value, Vec<Parameter>);

impl Paths<'_, '_> {
    fn kind(&mut self, row: &Served) {
        let root = of_version(&row.group, &row.version);
        let plural = &row.plural;
        let collection = match row.namespaced {
            true => format!("{root}/namespaces/{{namespace}}/{plural}"),
            false => format!("{root}/{plural}"),
        };
        let target = OperationTarget::new(row);
        let scope = scope(row);
        if row.namespaced {
            let all = target.for_all_namespaces();
            self.add(format!("{root}/{plural}"), &[], &["list"], &all);
        }
        self.add(collection.clone(), scope, &["list", "create", "deletecollection"], &target);
        let object = format!("{collection}/{{name}}");
        let named: Vec<Parameter> = [parameters::NAME].iter().chain(scope).copied().collect();
        self.add(object.clone(), &named, &["get", "update", "patch", "delete"], &target);
        for sub in &row.subresources {
            let path = format!("{object}/{}", sub.name);
            let target = target.subresource(sub);
            match CONNECT.contains(&&*sub.name) {
                true => self.connections(path, &named, &target),
                false => self.add(path, &named, &["get", "create", "update", "patch"], &target),
            }
        }
        if row.allows("watch") && !row.custom {
            self.watches(&root, row, &target);
        }
    }

    /// The paths that only watch, which the list with `watch` replaced.
    fn watches(&mut self, root: &str, row: &Served, target: &OperationTarget<'_>) {
        let (root, plural, scope) = (format!("{root}/watch"), &row.plural, scope(row));
        let collection = match row.namespaced {
            true => format!("{root}/namespaces/{{namespace}}/{plural}"),
            false => format!("{root}/{plural}"),
        };
        if row.namespaced {
            let all = target.for_all_namespaces();
            self.add(format!("{root}/{plural}"), &[], &["watchlist"], &all);
        }
        self.add(collection.clone(), scope, &["watchlist"], target);
        if row.allows("get") {
            let named: Vec<Parameter> = [parameters::NAME].iter().chain(scope).copied().collect();
            self.add(format!("{collection}/{{name}}"), &named, &["watch"], target);
        }
    }

    /// Adds a path with those of these verbs that the kind has.
    fn add(
        &mut self,
        path: String,
        of_path: &[Parameter],
        verbs: &[&'static str],
        target: &OperationTarget<'_>,
    ) {
        let allowed = verbs.iter().filter(|verb| target.allows(verb));
        let entries: Vec<Entry> = allowed
            .map(|verb| {
                let operation = DescribedOperation::of(target, verb);
                let mut parameters = operation.parameters();
                parameters.extend(of_path);
                parameters.extend(parameters::of("pretty"));
                (operation.method(), operation.write(self.schemas, self.style), parameters)
            })
            .collect();
        self.insert(path, entries);
    }

    /// Adds the operations of a connection, and those of a path below a proxy.
    fn connections(&mut self, path: String, named: &[Parameter], target: &OperationTarget<'_>) {
        let own = parameters::of(&target.use_of_parameters());
        let of_path: Vec<Parameter> = named.iter().chain(own).copied().collect();
        if !target.is_proxy() {
            return self.connect(path, &["get", "post"], &of_path, target);
        }
        let below: Vec<Parameter> =
            of_path.iter().chain(parameters::of("proxy path")).copied().collect();
        self.connect(format!("{path}/{{path}}"), PROXY_METHODS, &below, &target.with_path());
        self.connect(path, PROXY_METHODS, &of_path, target);
    }

    fn connect(
        &mut self,
        path: String,
        methods: &[&'static str],
        of_path: &[Parameter],
        target: &OperationTarget<'_>,
    ) {
        let entries = methods.iter().map(|method| {
            let operation = DescribedOperation::connect(target, method);
            (*method, operation.write(self.schemas, self.style), of_path.to_vec())
        });
        let entries = entries.collect();
        self.insert(path, entries);
    }

    /// Adds a path. What all its operations have in common is a parameter of the path.
    fn insert(&mut self, path: String, entries: Vec<Entry>) {
        let Some((_, _, first)) = entries.first() else { return };
        let is_common = |one: &&Parameter| entries.iter().all(|(_, _, own)| own.contains(one));
        let mut common: Vec<Parameter> = first.iter().filter(is_common).copied().collect();
        common.sort_unstable();
        let mut item = Map::new();
        for (method, mut operation, mut own) in entries {
            own.retain(|parameter| !common.contains(parameter));
            own.sort_unstable();
            let written = own.into_iter().map(|parameter| parameter.write(self.style));
            match operation.get_mut("parameters").and_then(Value::as_array_mut) {
                Some(body) => body.extend(written),
                None if written.len() > 0 => operation["parameters"] = written.collect(),
                None => {}
            }
            item.insert(method.into(), operation);
        }
        let common: Vec<Value> =
            common.into_iter().map(|parameter| parameter.write(self.style)).collect();
        if !common.is_empty() {
            item.insert("parameters".into(), common.into());
        }
        self.paths.insert(path.into(), Value::Object(item));
    }
}

fn scope(row: &Served) -> &'static [Parameter] {
    if row.namespaced { parameters::of("namespace") } else { &[] }
}
