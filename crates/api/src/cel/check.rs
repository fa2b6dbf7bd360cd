//! The check of an expression before it ever runs: are its names known, do its fields exist, do
//! its types go together?
//!
//! What cannot be told from the shapes alone is `dyn` and passes; the evaluation finds out.

use super::declarations::{self, Meaningless};
use super::parse::{Expr, Fold, FoldKind, Node, Op};
use super::types::{BOOL, DURATION, INT, ORDERED, STRING, TIMESTAMP, Ty};
use super::{Fault, Shape, Uncompilable, parse, time};

/// The names that an expression may use.
#[derive(Clone, Debug, Default)]
pub struct Known<'s> {
    names: Vec<(&'s str, &'s Shape, bool)>,
    /// What objects may be written as `Name{...}`.
    types: &'s [&'s str],
    /// What `variables` has, each with its type; nobody knows if nobody says.
    variables: Option<Vec<(&'s str, Ty<'s>)>>,
}

impl<'s> Known<'s> {
    /// The same and one more name.
    #[must_use]
    pub fn with(mut self, name: &'s str, shape: &'s Shape) -> Known<'s> {
        self.names.push((name, shape, false));
        self
    }

    /// The same and a name for what may not be there.
    #[must_use]
    pub fn with_optional(mut self, name: &'s str, shape: &'s Shape) -> Known<'s> {
        self.names.push((name, shape, true));
        self
    }

    /// The same and names of types that may be made; their parts too.
    #[must_use]
    pub fn with_types(mut self, types: &'s [&'s str]) -> Known<'s> {
        self.types = types;
        self
    }

    /// The same and `variables`, of which there are none yet.
    #[must_use]
    pub fn with_variables(mut self) -> Known<'s> {
        self.variables = Some(Vec::new());
        self
    }

    /// One more of `variables`: it has the type of this expression. Where that does not compile it
    /// may be anything.
    pub fn add_variable(&mut self, name: &'s str, text: &str) -> Result<(), Uncompilable> {
        let fail = |fault: Fault| Uncompilable(fault.show(text));
        let checker = Checker { known: self, mixes: false };
        let found = parse::parse(text).and_then(|root| checker.ty(&root, None)).map_err(fail);
        let (ty, found) = match found {
            Ok(ty) => (ty, Ok(())),
            Err(error) => (Ty::Dyn, Err(error)),
        };
        self.variables.get_or_insert_default().push((name, ty));
        found
    }

    /// The type of one of `variables`.
    fn variable(&self, name: &str) -> Option<Result<Ty<'s>, String>> {
        let variables = self.variables.as_ref()?;
        let found = variables.iter().rfind(|(known, _)| *known == name);
        Some(match found {
            Some((_, ty)) => Ok(ty.clone()),
            None => Err(format!("undefined field '{name}'")),
        })
    }

    /// The shape that all sizes are told from: that of the first name.
    pub(super) fn root(&self) -> &'s Shape {
        self.names.first().map_or(&super::shape::DYN, |(_, shape, _)| shape)
    }

    /// The type of a name, or of a type's name.
    pub(super) fn ty(&self, name: &str) -> Option<Ty<'s>> {
        if name == "variables" && self.variables.is_some() {
            return Some(Ty::map(STRING, Ty::Dyn));
        }
        let Some((_, shape, optional)) = self.names.iter().rfind(|(known, _, _)| *known == name)
        else {
            return declarations::type_named(name).map(|_| Ty::Basic("type"));
        };
        let ty = Ty::of(shape);
        Some(if *optional { Ty::optional(ty) } else { ty })
    }
}

/// Checks an expression and answers the type of its result: its name, and with its parts.
pub(super) fn check(root: &Expr, known: &Known<'_>) -> Result<(&'static str, String), Fault> {
    let ty = Checker { known, mixes: false }.ty(root, None)?;
    Ok((ty.name(), ty.show()))
}

/// A name that a macro bound, and those around it.
pub(super) struct Scope<'o, 's> {
    pub(super) name: &'o str,
    pub(super) ty: Ty<'s>,
    pub(super) outer: Option<&'o Scope<'o, 's>>,
}

type Outer<'o, 's> = Option<&'o Scope<'o, 's>>;

struct Checker<'k, 's> {
    known: &'k Known<'s>,
    /// Whether the elements of a list may be of different types: in what is formatted they may.
    mixes: bool,
}

impl<'s> Checker<'_, 's> {
    fn ty(&self, expr: &Expr, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let at = expr.at;
        Ok(match &expr.node {
            Node::Null => Ty::Basic("null_type"),
            Node::Bool(_) => BOOL,
            Node::Int(_) => INT,
            Node::Uint(_) => Ty::Basic("uint"),
            Node::Double(_) => Ty::Basic("double"),
            Node::Text(_) => STRING,
            Node::Bytes(_) => Ty::Basic("bytes"),
            Node::Name(name) => return self.name(name, at, scope),
            Node::Select { of, field, optional } => {
                if let Some(found) = self.variable(of, field, scope) {
                    let found = found.map_err(|why| Fault::new(at, why))?;
                    return Ok(if *optional { Ty::optional(found) } else { found });
                }
                let of = self.ty(of, scope)?;
                return field_of(&of, field, *optional).map_err(|why| Fault::new(at, why));
            }
            Node::Has { of, field } => {
                let of = self.ty(of, scope)?;
                field_of(&of, field, false).map_err(|why| Fault::new(at, why))?;
                BOOL
            }
            Node::Index { of, key, optional } => {
                let (of, key) = (self.ty(of, scope)?, self.ty(key, scope)?);
                let name = if *optional { "_[?_]" } else { "_[_]" };
                let found = element_of(&of, &key, *optional);
                found.ok_or_else(|| no_overload(at, name, &[&of, &key]))?
            }
            Node::Not(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.may_be("bool") {
                    true => BOOL,
                    false => return Err(no_overload(at, "!_", &[&inner])),
                }
            }
            Node::Negate(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.name() {
                    "int" | "double" | "dyn" => inner,
                    _ => return Err(no_overload(at, "-_", &[&inner])),
                }
            }
            Node::Binary(op, sides) => {
                let (left, right) = (self.ty(&sides[0], scope)?, self.ty(&sides[1], scope)?);
                let found = binary(*op, &left, &right);
                found.ok_or_else(|| no_overload(at, op.name(), &[&left, &right]))?
            }
            Node::All(terms) | Node::Any(terms) => {
                for term in terms {
                    self.condition(term, scope)?;
                }
                BOOL
            }
            Node::If(parts) => return self.conditional(parts, at, scope),
            Node::List(elements) => {
                let elements = elements.iter().map(|(element, optional)| (element, *optional));
                Ty::list(self.joined(elements, scope)?)
            }
            Node::Map(entries) => {
                let keys = entries.iter().map(|(key, _, _)| (key, false));
                let values = entries.iter().map(|(_, value, optional)| (value, *optional));
                Ty::map(self.joined(keys, scope)?, self.joined(values, scope)?)
            }
            Node::Struct { name, fields } => {
                let root = name.split('.').next().unwrap_or_default();
                if !self.known.types.contains(&root) {
                    return Err(undeclared(at, name));
                }
                for (_, value, _) in fields {
                    self.ty(value, scope)?;
                }
                match &**name {
                    "Object" => Ty::Basic("Object"),
                    "JSONPatch" => Ty::Basic("JSONPatch"),
                    _ => Ty::map(STRING, Ty::Dyn),
                }
            }
            Node::Call { name, of, args } => {
                return self.call(name, of.as_deref(), args, at, scope);
            }
            Node::Fold(fold) => return self.fold(fold, scope),
            Node::OptMap { of, name, body, flat } => {
                let ty = match self.ty(of, scope)? {
                    Ty::Optional(inner) => (*inner).clone(),
                    Ty::Dyn => Ty::Dyn,
                    other => return Err(no_method(at, "optMap", &[other])),
                };
                let made = self.ty(body, Some(&Scope { name, ty, outer: scope }))?;
                if *flat { made } else { Ty::optional(made) }
            }
        })
    }

    fn name(&self, name: &str, at: usize, mut scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        while let Some(bound) = scope {
            if bound.name == name {
                return Ok(bound.ty.clone());
            }
            scope = bound.outer;
        }
        self.known.ty(name).ok_or_else(|| undeclared(at, name))
    }

    /// `variables.field`, unless a macro calls something else `variables`.
    fn variable(
        &self,
        of: &Expr,
        field: &str,
        mut scope: Outer<'_, 's>,
    ) -> Option<Result<Ty<'s>, String>> {
        if !matches!(&of.node, Node::Name(name) if **name == *"variables") {
            return None;
        }
        while let Some(bound) = scope {
            if bound.name == "variables" {
                return None;
            }
            scope = bound.outer;
        }
        self.known.variable(field)
    }

    /// What must be true or false.
    fn condition(&self, expr: &Expr, scope: Outer<'_, 's>) -> Result<(), Fault> {
        let ty = self.ty(expr, scope)?;
        match ty.may_be("bool") {
            true => Ok(()),
            false => Err(mismatch(expr.at, &BOOL, &ty)),
        }
    }

    /// The type that all elements of a list or map have.
    fn joined<'e>(
        &self,
        elements: impl Iterator<Item = (&'e Expr, bool)>,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let mut joined: Option<Ty<'s>> = None;
        for (element, optional) in elements {
            let found = match (self.ty(element, scope)?, optional) {
                (Ty::Optional(inner), true) => (*inner).clone(),
                (Ty::Dyn, true) => Ty::Dyn,
                (found, true) => {
                    return Err(mismatch(element.at, &Ty::optional(found.clone()), &found));
                }
                (found, false) => found,
            };
            joined = Some(match joined {
                Some(known) if self.mixes && !known.goes_with(&found) => Ty::Dyn,
                Some(known) if !known.goes_with(&found) => {
                    return Err(mismatch(element.at, &known, &found));
                }
                Some(known) if found.is_dyn() || known.is_dyn() => Ty::Dyn,
                Some(Ty::Basic("null_type")) | None => found,
                Some(known) => known,
            });
        }
        Ok(joined.unwrap_or(Ty::Dyn))
    }

    fn conditional(
        &self,
        parts: &[Expr; 3],
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let condition = self.ty(&parts[0], scope)?;
        let (yes, no) = (self.ty(&parts[1], scope)?, self.ty(&parts[2], scope)?);
        match condition.may_be("bool") && yes.goes_with(&no) {
            true => Ok(either(yes, no)),
            false => Err(no_overload(at, "_?_:_", &[&condition, &yes, &no])),
        }
    }

    fn call(
        &self,
        name: &str,
        of: Option<&Expr>,
        args: &[Expr],
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let inside = Checker { mixes: self.mixes || name == "format", ..*self };
        let types = of.into_iter().chain(args).map(|arg| inside.ty(arg, scope));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        if name.starts_with("jsonpatch.") && !self.known.types.contains(&"JSONPatch") {
            return Err(undeclared(at, name));
        }
        literals(name, args)?;
        declarations::answer(name, of.is_some(), &types).map_err(|why| match (why, of) {
            (Meaningless::NoSuchFunction, _) => undeclared(at, name),
            (Meaningless::NoSuchOverload, Some(_)) => no_method(at, name, &types),
            (Meaningless::NoSuchOverload, None) => {
                no_overload(at, name, &types.iter().collect::<Vec<_>>())
            }
        })
    }

    fn fold(&self, fold: &Fold, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let range = self.ty(&fold.range, scope)?;
        if !range.is_dyn() && (range.is_object() || !matches!(range.name(), "list" | "map")) {
            let why = format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                range.show()
            );
            return Err(Fault::new(fold.range.at, why));
        }
        let (first, second) = range.steps(fold.second.is_some());
        let outer = Scope { name: &fold.first, ty: first, outer: scope };
        let inner = fold.second.as_deref().zip(second);
        let inner = inner.map(|(name, ty)| Scope { name, ty, outer: Some(&outer) });
        let scope = Some(inner.as_ref().unwrap_or(&outer));
        if let Some(filter) = &fold.filter {
            self.condition(filter, scope)?;
        }
        if matches!(
            fold.kind,
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne | FoldKind::Filter
        ) {
            self.condition(&fold.body, scope)?;
            return Ok(folded(fold, &range, Ty::Dyn));
        }
        let body = self.ty(&fold.body, scope)?;
        if fold.kind == FoldKind::SortBy && !body.is_dyn() && !ORDERED.contains(&body.name()) {
            let types = [range, Ty::list(body)];
            return Err(no_method(fold.body.at, "@sortByAssociatedKeys", &types));
        }
        Ok(folded(fold, &range, body))
    }
}

/// The type of what a macro makes.
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

/// The more general of two types that go together.
pub(super) fn either<'s>(yes: Ty<'s>, no: Ty<'s>) -> Ty<'s> {
    match (&yes, &no) {
        (_, Ty::Dyn) | (Ty::Basic("null_type"), _) => no,
        _ => yes,
    }
}

/// The type of `of.field`, or why there is none.
pub(super) fn field_of<'s>(of: &Ty<'s>, field: &str, optional: bool) -> Result<Ty<'s>, String> {
    let found = match of {
        Ty::Dyn => Ty::Dyn,
        Ty::Shape(shape @ Shape::Object(_)) => match shape.named(field) {
            Some(field) => Ty::of(&field.shape),
            None => return Err(format!("undefined field '{field}'")),
        },
        Ty::Map(_) | Ty::Shape(Shape::Map(_)) => of.values(),
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

/// The type of what an operator makes, if it takes such sides.
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
        // A time may be added to a span, and the other way round.
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

/// Times and spans that are written out must be some.
fn literals(name: &str, args: &[Expr]) -> Result<(), Fault> {
    let [Expr { at, node }] = args else { return Ok(()) };
    let fits = match (name, node) {
        ("duration", Node::Text(text)) => time::parse_duration(text).is_some(),
        ("timestamp", Node::Text(text)) => time::parse_timestamp(text).is_some(),
        ("timestamp", Node::Int(seconds)) => time::from_seconds(*seconds).is_some(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(Fault::new(*at, format!("invalid {name} argument"))) }
}

fn undeclared(at: usize, name: &str) -> Fault {
    Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))
}

fn mismatch(at: usize, expected: &Ty<'_>, found: &Ty<'_>) -> Fault {
    let why = format!("expected type '{}' but found '{}'", expected.show(), found.show());
    Fault::new(at, why)
}

fn no_overload(at: usize, name: &str, types: &[&Ty<'_>]) -> Fault {
    let types: Vec<String> = types.iter().map(|ty| ty.show()).collect();
    let types = types.join(", ");
    Fault::new(at, format!("found no matching overload for '{name}' applied to '({types})'"))
}

fn no_method(at: usize, name: &str, types: &[Ty<'_>]) -> Fault {
    let mut shown = types.iter().map(Ty::show);
    let of = shown.next().unwrap_or_default();
    let rest = shown.collect::<Vec<_>>().join(", ");
    Fault::new(at, format!("found no matching overload for '{name}' applied to '{of}.({rest})'"))
}
