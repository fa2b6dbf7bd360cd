//! The cost of functions and the size of their results.

use super::size::{Size, UNKNOWN, scaled};
use super::{Found, LIST, Place, STRUCT, TRAVERSAL};
use crate::DeclType;
use crate::declarations;
use crate::tree::{Expr, Node};
use crate::types::Ty;

/// The cost factor of a pattern: a quarter of its length, for each tenth of the text.
const PATTERN: f64 = 0.25;

/// The maximum length of the pattern and of the name of a named format.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_NAME: u64 = 64;

/// The cost of an authorization check: an expression can afford two.
const CHECK: u64 = 350_000;

/// A call with the estimates of its arguments.
pub(super) fn call<'s>(
    name: &str,
    of: Option<&Found<'s>>,
    args: &[Found<'s>],
    written: &[Expr],
) -> Found<'s> {
    let types = of.into_iter().chain(args).map(|arg| arg.ty.clone()).collect::<Vec<_>>();
    let ty = declarations::answer(name, of.is_some(), &types).unwrap_or(Ty::Dyn);
    let costs = of.into_iter().chain(args).map(|arg| arg.cost);
    let cost = costs.fold(0, u64::saturating_add);
    if let ("dyn", [arg]) = (name, args) {
        return Found { size: arg.size, entry: arg.entry, ..Found::of(ty, cost.saturating_add(1)) };
    }
    let own = match of {
        Some(of) => method(name, of, args, written),
        None => function(name, args, written),
    };
    let found = Found::of(ty, cost.saturating_add(own.cost));
    match own.size {
        Some(size) => found.sized(size),
        None => found,
    }
}

/// The cost and result size of a call.
struct Own {
    cost: u64,
    size: Option<Size>,
}

impl Own {
    fn cost(cost: u64) -> Own {
        Own { cost, size: None }
    }

    fn sized(cost: u64, size: Size) -> Own {
        Own { cost, size: Some(size) }
    }

    /// The cost of creating a list, per element.
    fn list(size: Size, factor: f64) -> Own {
        Own::sized(scaled(size.max, factor).saturating_add(1 + LIST), size)
    }
}

/// The cost of one traversal of a string.
fn read(size: Size) -> u64 {
    scaled(size.max, TRAVERSAL)
}

fn function(name: &str, args: &[Found<'_>], written: &[Expr]) -> Own {
    let [first, ..] = args else { return Own::cost(1) };
    let size = first.size();
    match name {
        "url" | "jsonpatch.escapeKey" => Own::sized(read(size), size),
        "isIP" | "cidr" | "isCIDR" | "ip" => Own::cost(read(size)),
        "quantity" | "isQuantity" | "semver" | "isSemver" => Own::cost(read(size)),
        "ip.isCanonical" => Own::cost(scaled(size.max, 2.0 * TRAVERSAL)),
        "strings.quote" => {
            let quoted = size.plus(size).plus(Size::exactly(2));
            Own::sized(read(size), Size { min: size.min.saturating_add(2), max: quoted.max })
        }
        "bytes" if first.ty.may_be("string") => {
            let most = Size { min: size.min, max: size.max.saturating_mul(4) };
            Own::sized(read(size).max(u64::from(first.ty.is_dyn())), most)
        }
        "string" if first.ty.may_be("bytes") => {
            let least = Size { min: size.min / 4, max: size.max };
            Own::sized(read(size).max(u64::from(first.ty.is_dyn())), least)
        }
        "lists.range" => Own::list(Size::exactly(number(written.first(), u64::MAX)), 1.0),
        "sets.contains" | "sets.intersects" => Own::cost(sets(args, 1.0)),
        "sets.equivalent" => Own::cost(sets(args, 2.0)),
        _ => Own::cost(1),
    }
}

fn sets(args: &[Found<'_>], factor: f64) -> u64 {
    let sizes = args.iter().map(Found::size).reduce(Size::times).unwrap_or(UNKNOWN);
    scaled(sizes.max, factor).saturating_add(1)
}

fn method(name: &str, of: &Found<'_>, args: &[Found<'_>], written: &[Expr]) -> Own {
    let size = of.size();
    let first = args.first().map_or(UNKNOWN, Found::size);
    match name {
        "contains" => Own::cost(read(size).saturating_mul(read(first))),
        "startsWith" | "endsWith" => Own::cost(read(first)),
        "matches" => Own::cost(pattern(size, first)),
        "find" | "findAll" => Own::sized(pattern(size, first), Size { min: 0, max: size.max }),
        "format" => Own::cost(read(size)),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => Own::sized(read(size), size),
        "replace" => {
            let second = args.get(1).map_or(UNKNOWN, Found::size);
            let made = replaced(size, first, second);
            Own::sized(scaled(size.max, 2.0 * TRAVERSAL), made)
        }
        "split" => {
            let max = number(written.get(1), size.max);
            Own::sized(scaled(size.max, 2.0 * TRAVERSAL), Size { min: 0, max })
        }
        "join" => {
            let made = joined(of, args);
            Own::sized(read(made), made)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => Own::cost(each(of)),
        "slice" => {
            let (start, end) = (number(written.first(), 0), number(written.get(1), size.max));
            Own::list(Size::exactly(end.wrapping_sub(start)), 1.0)
        }
        "reverse" => Own::list(size, 1.0),
        "flatten" => {
            let depth = if written.is_empty() { 1 } else { number(written.first(), u64::MAX) };
            Own::list(size, depth as f64)
        }
        "distinct" => Own::list(size.times(size), 2.0),
        "sort" => {
            let of = of.ty.values();
            let is_text = of.may_be("string") || of.may_be("bytes");
            Own::list(size.times(size), if is_text { 2.0 + TRAVERSAL } else { 2.0 })
        }
        "containsIP" => Own::cost(4u64.saturating_add(parsed(args))),
        "containsCIDR" => Own::cost(7u64.saturating_add(parsed(args))),
        "validate" => Own::cost(scaled(read(first), FORMAT_PATTERN * PATTERN)),
        "check" => Own::cost(CHECK),
        "fieldSelector" | "labelSelector" => Own::cost(selector(first)),
        _ => Own::cost(1),
    }
}

/// The cost of parsing an address that is a string.
fn parsed(args: &[Found<'_>]) -> u64 {
    match args {
        [arg] if arg.ty.may_be("string") => read(arg.size()),
        _ => 0,
    }
}

/// The cost of a selector requirement: at least two characters, an object and a list.
fn selector(size: Size) -> u64 {
    let requirements = scaled(size.max, 0.5).saturating_mul(LIST + STRUCT);
    LIST.saturating_add(read(size)).saturating_add(requirements)
}

/// The cost of matching; an empty text costs as much as one character.
fn pattern(text: Size, pattern: Size) -> u64 {
    let text = read(text.plus(Size::exactly(1)));
    text.saturating_mul(scaled(pattern.max, PATTERN))
}

/// The cost of searching a list; strings are compared.
fn each(of: &Found<'_>) -> u64 {
    if of.ty.name() != "list" {
        return read(of.size());
    }
    let element = of.ty.values();
    let one = match element.name() {
        "string" | "bytes" => read(elements(of)).saturating_add(1),
        _ => 1,
    };
    of.size().max.saturating_mul(one)
}

/// The size of the elements of a list, from its path in the schema.
fn elements(of: &Found<'_>) -> Size {
    match of.place {
        Place::At(DeclType::List(list)) => Size { min: 0, max: list.items.elements_max() },
        _ => UNKNOWN,
    }
}

fn joined(of: &Found<'_>, args: &[Found<'_>]) -> Size {
    let count = of.size();
    let texts = match of.ty.name() {
        "list" => count.times(elements(of)),
        _ => Size::NOTHING,
    };
    let Some(between) = args.first() else { return texts };
    let gaps = Size { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
    texts.plus(between.size().times(gaps))
}

/// The minimum and maximum size after a replacement.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let most = if from.min == 0 {
        // Before and after every character.
        text.max.saturating_add(1).saturating_mul(to.max).saturating_add(text.max)
    } else if to.max <= from.min {
        text.max
    } else {
        text.max.div_ceil(from.min).saturating_mul(to.max)
    };
    let least = if from.max == 0 {
        text.min.saturating_add(1).saturating_mul(to.min).saturating_add(text.min)
    } else if from.max <= to.min {
        text.min
    } else {
        text.min.div_ceil(from.max).saturating_mul(to.min)
    };
    Size { min: least, max: most }
}

/// A literal number.
fn number(expr: Option<&Expr>, default: u64) -> u64 {
    match expr.map(|expr| &expr.node) {
        Some(Node::Int(value)) => u64::try_from(*value).unwrap_or(0),
        _ => default,
    }
}

/// The cost of comparing two values of Kubernetes' types.
pub(super) fn equality(left: &Found<'_>, right: &Found<'_>) -> Option<u64> {
    let (Ty::Basic(a), Ty::Basic(b)) = (&left.ty, &right.ty) else { return None };
    if a != b {
        return None;
    }
    match *a {
        "kubernetes.NamedFormat" => Some(scaled(FORMAT_NAME, TRAVERSAL)),
        "kubernetes.URL" => Some(scaled(right.size.map_or(1, |size| size.max).max(1), TRAVERSAL)),
        name if name.starts_with("kubernetes.") || name.starts_with("net.") => Some(1),
        _ => None,
    }
}
