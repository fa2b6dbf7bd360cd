//! Type rules: the result types of fields, elements, operators and macros, for the type check and the
//! cost estimate.

use super::DeclType;
use super::tree::{Fold, FoldKind, Op};
use super::types::{BOOL, DURATION, ORDERED, TIMESTAMP, Ty};

/// The result type of a macro.
pub(super) fn folded<'s>(fold: &Fold, range: &Ty<'s>, body: Ty<'s>) -> Ty<'s> {
    match fold.kind {
        FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => BOOL,
        FoldKind::Filter => Ty::list(range.steps(false).0),
        FoldKind::Map => Ty::list(body),
        FoldKind::TransformMap => Ty::map(range.steps(true).0, body),
        FoldKind::TransformMapEntry => body,
        FoldKind::SortBy => range.clone(),
    }
}

/// The more general of two compatible types.
pub(super) fn either<'s>(yes: Ty<'s>, no: Ty<'s>) -> Ty<'s> {
    match (&yes, &no) {
        (_, Ty::Dyn) | (Ty::Basic("null_type"), _) => no,
        _ => yes,
    }
}

/// The type of `of.field`, or the error.
pub(super) fn field_of<'s>(of: &Ty<'s>, field: &str, optional: bool) -> Result<Ty<'s>, String> {
    let found = match of {
        Ty::Dyn => Ty::Dyn,
        Ty::DeclType(shape @ DeclType::Object(_)) => match shape.named(field) {
            Some(field) => Ty::of(&field.shape),
            None => return Err(format!("undefined field '{field}'")),
        },
        Ty::Map(_) | Ty::DeclType(DeclType::Map(_)) => of.values(),
        Ty::Optional(inner) => return field_of(inner, field, false).map(Ty::optional),
        Ty::Basic("kubernetes.authorization.Authorizer") if field == "requestResource" => {
            Ty::Basic("kubernetes.authorization.ResourceCheck")
        }
        other => {
            return Err(format!("type '{}' does not support field selection", other.show()));
        }
    };
    Ok(if optional { Ty::optional(found) } else { found })
}

/// The type of `of[key]`, if there can be one.
pub(super) fn element_of<'s>(of: &Ty<'s>, key: &Ty<'s>, optional: bool) -> Option<Ty<'s>> {
    let fits = match of {
        Ty::Dyn => true,
        Ty::Optional(inner) => {
            let found = element_of(inner, key, false)?;
            return Some(Ty::optional(found));
        }
        _ if of.is_object() => false,
        _ => match of.name() {
            "list" => key.may_be("int"),
            "map" => of.keys().goes_with(key),
            _ => false,
        },
    };
    let found = fits.then(|| of.values())?;
    Some(if optional { Ty::optional(found) } else { found })
}

/// The result type of an operator, if it accepts these operands.
pub(super) fn binary<'s>(op: Op, left: &Ty<'s>, right: &Ty<'s>) -> Option<Ty<'s>> {
    let (a, b) = (left.name(), right.name());
    let either_dyn = left.is_dyn() || right.is_dyn();
    let both = |names: &[&str]| {
        let fits = |ty: &Ty<'_>| ty.is_dyn() || names.contains(&ty.name());
        fits(left) && fits(right) && (either_dyn || a == b)
    };
    let known = || if left.is_dyn() { right.clone() } else { left.clone() };
    match op {
        Op::Equal | Op::NotEqual => left.goes_with(right).then_some(BOOL),
        Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
            let is_number = |name: &str| matches!(name, "int" | "uint" | "double");
            (both(&ORDERED) || (is_number(a) && is_number(b))).then_some(BOOL)
        }
        Op::In => match b {
            "dyn" => Some(BOOL),
            "list" => right.values().goes_with(left).then_some(BOOL),
            "map" if !right.is_object() => right.keys().goes_with(left).then_some(BOOL),
            _ => None,
        },
        Op::Add | Op::Subtract => sum(op, left, right, &both),
        Op::Multiply | Op::Divide => both(&["int", "uint", "double"]).then(known),
        Op::Modulo => both(&["int", "uint"]).then(known),
    }
}

fn sum<'s>(
    op: Op,
    left: &Ty<'s>,
    right: &Ty<'s>,
    both: &dyn Fn(&[&str]) -> bool,
) -> Option<Ty<'s>> {
    let time = |ty: &Ty<'_>| matches!(ty.name(), "dyn" | TIMESTAMP | DURATION);
    let (a, b) = (left.name(), right.name());
    match (op, a, b) {
        (Op::Add, TIMESTAMP, DURATION) | (Op::Add, DURATION, TIMESTAMP) => {
            Some(Ty::Basic(TIMESTAMP))
        }
        (Op::Add, TIMESTAMP, TIMESTAMP) => None,
        (Op::Subtract, TIMESTAMP, TIMESTAMP) => Some(Ty::Basic(DURATION)),
        (Op::Subtract, TIMESTAMP, DURATION) => Some(Ty::Basic(TIMESTAMP)),
        (_, "dyn", "dyn") => Some(Ty::Dyn),
        // A timestamp and a duration may be added in either order.
        (_, TIMESTAMP | DURATION, "dyn") | (_, "dyn", TIMESTAMP | DURATION) => {
            (time(left) && time(right)).then_some(Ty::Dyn)
        }
        (Op::Add, "list", "list") => left.goes_with(right).then(|| left.clone()),
        (Op::Add, ..) if both(&["int", "uint", "double", "string", "bytes", "list", DURATION]) => {
            Some(if a == "dyn" { right.clone() } else { left.clone() })
        }
        (Op::Subtract, ..) if both(&["int", "uint", "double", DURATION]) => {
            Some(if a == "dyn" { right.clone() } else { left.clone() })
        }
        _ => None,
    }
}
