//! The resolution of names and calls to fields, functions, types and macros.

use super::tree::{Call, Expr, Fold, FoldKind, Node};
use super::types::type_named;
use super::{Fault, functions};

/// A field, or a type name with dots.
pub(super) fn select(of: Expr, field: Box<str>, at: usize) -> Expr {
    let start = of.at;
    let made = Expr { at, node: Node::Select { of: Box::new(of), field, optional: false } };
    match type_name(&made).filter(|name| type_named(name).is_some()) {
        Some(name) => Expr { at: start, node: Node::Name(name.into()) },
        None => made,
    }
}

/// A dotted name such as `Object.spec.containers`, if the expression is one.
pub(super) fn type_name(expr: &Expr) -> Option<String> {
    match &expr.node {
        Node::Name(name) => Some(name.to_string()),
        Node::Select { of, field, optional: false } => {
            type_name(of).map(|above| format!("{above}.{field}"))
        }
        _ => None,
    }
}

/// A call, resolved to the overloads of its function.
fn call(name: Box<str>, is_method: bool, args: Vec<Expr>, at: usize) -> Expr {
    let overloads = functions::named(&name);
    Expr { at, node: Node::Call(Call { name, overloads, is_method, args }) }
}

pub(super) fn function(name: Box<str>, mut args: Vec<Expr>, at: usize) -> Result<Expr, Fault> {
    if &*name != "has" || args.len() != 1 {
        return Ok(call(name, false, args, at));
    }
    match args.remove(0).node {
        Node::Select { of, field, optional: false } => {
            Ok(Expr { at, node: Node::Has { of, field } })
        }
        _ => Err(Fault::new(at, "invalid argument to has() macro")),
    }
}

fn variable(expr: Expr) -> Result<Box<str>, Fault> {
    match expr.node {
        Node::Name(name) => Ok(name),
        _ => Err(Fault::new(expr.at, "argument must be a simple name")),
    }
}

/// A method call or a macro in method form.
pub(super) fn method(of: Expr, name: Box<str>, args: Vec<Expr>, at: usize) -> Result<Expr, Fault> {
    let kind = match (&*name, args.len()) {
        ("all", 2 | 3) => FoldKind::All,
        ("exists", 2 | 3) => FoldKind::Exists,
        ("exists_one" | "existsOne", 2 | 3) => FoldKind::ExistsOne,
        ("map", 2 | 3) | ("transformList", 3 | 4) => FoldKind::Map,
        ("filter", 2) => FoldKind::Filter,
        ("transformMap", 3 | 4) => FoldKind::TransformMap,
        ("transformMapEntry", 3 | 4) => FoldKind::TransformMapEntry,
        ("sortBy", 2) => FoldKind::SortBy,
        ("optMap" | "optFlatMap", 2) => return opt_map(of, &name, args, at),
        _ => {
            let args = [of].into_iter().chain(args).collect();
            return Ok(call(name, true, args, at));
        }
    };
    // The number of arguments determines which are names and whether there is a filter.
    let has_two = match kind {
        FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => args.len() == 3,
        FoldKind::Map => &*name == "transformList",
        FoldKind::Filter | FoldKind::SortBy => false,
        FoldKind::TransformMap | FoldKind::TransformMapEntry => true,
    };
    let mut args = args.into_iter();
    let mut next = || args.next().ok_or_else(|| Fault::new(at, "too few arguments"));
    let first = variable(next()?)?;
    let second = if has_two { Some(variable(next()?)?) } else { None };
    if second.as_ref() == Some(&first) {
        return Err(Fault::new(at, format!("duplicate variable name: {first}")));
    }
    let body = next()?;
    let (filter, body) = match args.next() {
        Some(last) => (Some(body), last),
        None => (None, body),
    };
    let fold = Fold { kind, range: of, first, second, filter, body };
    Ok(Expr { at, node: Node::Fold(Box::new(fold)) })
}

fn opt_map(of: Expr, name: &str, args: Vec<Expr>, at: usize) -> Result<Expr, Fault> {
    let Ok([variable, body]) = <[Expr; 2]>::try_from(args) else {
        return Err(Fault::new(at, "optMap() takes a name and an expression"));
    };
    let (flat, name) = (name == "optFlatMap", self::variable(variable)?);
    Ok(Expr { at, node: Node::OptMap { of: Box::new(of), name, body: Box::new(body), flat } })
}
