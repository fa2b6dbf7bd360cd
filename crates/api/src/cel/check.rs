//! The check of an expression before it ever runs: are its names known, do its fields exist, do
//! its types go together?
//!
//! What cannot be told from the shapes alone is `dyn` and passes; the evaluation finds out.

use std::rc::Rc;

use super::functions::{self, Style};
use super::parse::{Expr, Fold, FoldKind, Node, Op};
use super::{Fault, Shape};

/// The names that an expression may use.
#[derive(Clone, Debug, Default)]
pub struct Known<'s> {
    names: Vec<(&'s str, &'s Shape, bool)>,
    /// What objects may be written as `Name{...}`.
    types: &'s [&'s str],
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

    /// How long a text of this name may be, where its shape says.
    pub(super) fn text_max(&self, name: &str) -> Option<u64> {
        let found = self.names.iter().find(|(known, _, _)| *known == name);
        found.and_then(|(_, shape, _)| if let Shape::Text(max) = shape { *max } else { None })
    }

    pub(super) fn get(&self, name: &str) -> Option<Ty<'s>> {
        let (_, shape, optional) = self.names.iter().find(|(known, _, _)| *known == name)?;
        let ty = Ty::of(shape);
        Some(if *optional { Ty::Optional(Rc::new(ty)) } else { ty })
    }
}

/// A type, as far as it is known.
#[derive(Clone, Debug)]
pub(super) enum Ty<'s> {
    Dyn,
    Basic(&'static str),
    List(Rc<Ty<'s>>),
    Map(Rc<Ty<'s>>),
    Optional(Rc<Ty<'s>>),
    /// A list, a map or an object of a schema.
    Shape(&'s Shape),
}

pub(super) const BOOL: Ty<'static> = Ty::Basic("bool");
const TIMESTAMP: &str = "google.protobuf.Timestamp";
const DURATION: &str = "google.protobuf.Duration";

impl<'s> Ty<'s> {
    pub(super) fn of(shape: &'s Shape) -> Ty<'s> {
        match shape {
            Shape::Dyn => Ty::Dyn,
            Shape::Bool => BOOL,
            Shape::Int => Ty::Basic("int"),
            Shape::Double => Ty::Basic("double"),
            Shape::Text(_) => Ty::Basic("string"),
            Shape::Bytes => Ty::Basic("bytes"),
            Shape::Timestamp => Ty::Basic(TIMESTAMP),
            Shape::Duration => Ty::Basic(DURATION),
            Shape::List(_) | Shape::Map(_) | Shape::Object(_) => Ty::Shape(shape),
        }
    }

    fn named(name: &'static str) -> Ty<'s> {
        match name {
            "dyn" => Ty::Dyn,
            "list" => Ty::List(Rc::new(Ty::Dyn)),
            "map" => Ty::Map(Rc::new(Ty::Dyn)),
            "optional_type" => Ty::Optional(Rc::new(Ty::Dyn)),
            name => Ty::Basic(name),
        }
    }

    /// The name of the type, without its parts.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Ty::Dyn => "dyn",
            Ty::Basic(name) => name,
            Ty::List(_) | Ty::Shape(Shape::List(_)) => "list",
            Ty::Optional(_) => "optional_type",
            Ty::Map(_) | Ty::Shape(_) => "map",
        }
    }

    /// With its parts, for messages.
    fn show(&self) -> String {
        match self {
            Ty::List(inner) => format!("list({})", inner.show()),
            Ty::Map(inner) => format!("map(string, {})", inner.show()),
            Ty::Optional(inner) => format!("optional_type({})", inner.show()),
            Ty::Shape(Shape::List(list)) => format!("list({})", Ty::of(&list.items).show()),
            Ty::Shape(Shape::Map(map)) => format!("map(string, {})", Ty::of(&map.values).show()),
            Ty::Shape(_) => "object".to_owned(),
            other => other.name().to_owned(),
        }
    }

    /// What a list holds, or the keys of a map.
    fn elements(&self) -> Ty<'s> {
        match self {
            Ty::List(inner) => (**inner).clone(),
            Ty::Shape(Shape::List(list)) => Ty::of(&list.items),
            Ty::Map(_) | Ty::Shape(_) => Ty::Basic("string"),
            _ => Ty::Dyn,
        }
    }

    /// What a list or map holds.
    fn values(&self) -> Ty<'s> {
        match self {
            Ty::Map(inner) => (**inner).clone(),
            Ty::Shape(Shape::Map(map)) => Ty::of(&map.values),
            Ty::Shape(Shape::Object(_)) => Ty::Dyn,
            other => other.elements(),
        }
    }
}

/// Checks an expression and answers the type of its result.
pub(super) fn check(root: &Expr, known: &Known<'_>) -> Result<&'static str, Fault> {
    Checker { known }.ty(root, None).map(|ty| ty.name())
}

struct Scope<'o, 's> {
    name: &'o str,
    ty: Ty<'s>,
    outer: Option<&'o Scope<'o, 's>>,
}

type Outer<'o, 's> = Option<&'o Scope<'o, 's>>;

struct Checker<'k, 's> {
    known: &'k Known<'s>,
}

impl<'s> Checker<'_, 's> {
    fn ty(&self, expr: &Expr, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        Ok(match &expr.node {
            Node::Null => Ty::Basic("null_type"),
            Node::Bool(_) => BOOL,
            Node::Int(_) => Ty::Basic("int"),
            Node::Uint(_) => Ty::Basic("uint"),
            Node::Double(_) => Ty::Basic("double"),
            Node::Text(_) => Ty::Basic("string"),
            Node::Bytes(_) => Ty::Basic("bytes"),
            Node::Name(name) => return self.name(name, expr.at, scope),
            Node::Select { of, field, optional } => {
                let found = self.select(of, field, expr.at, scope)?;
                if *optional && !matches!(found, Ty::Optional(_)) {
                    Ty::Optional(Rc::new(found))
                } else {
                    found
                }
            }
            Node::Has { of, field } => {
                self.select(of, field, expr.at, scope)?;
                BOOL
            }
            Node::Index { of, key, optional } => {
                let of = self.ty(of, scope)?;
                self.ty(key, scope)?;
                let found = match &of {
                    Ty::Optional(inner) => Ty::Optional(Rc::new(inner.values())),
                    Ty::Dyn | Ty::List(_) | Ty::Map(_) | Ty::Shape(_) => of.values(),
                    Ty::Basic(_) => {
                        return Err(no_overload(expr.at, "_[_]", &[&of, &Ty::Dyn]));
                    }
                };
                if *optional { Ty::Optional(Rc::new(found)) } else { found }
            }
            Node::Not(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.name() {
                    "bool" | "dyn" => BOOL,
                    _ => return Err(no_overload(expr.at, "!_", &[&inner])),
                }
            }
            Node::Negate(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.name() {
                    "int" | "double" | "dyn" => inner,
                    _ => return Err(no_overload(expr.at, "-_", &[&inner])),
                }
            }
            Node::Binary(op, sides) => {
                let (left, right) = (self.ty(&sides[0], scope)?, self.ty(&sides[1], scope)?);
                return binary(*op, left, &right, expr.at);
            }
            Node::All(terms) => return self.junction(terms, "_&&_", expr.at, scope),
            Node::Any(terms) => return self.junction(terms, "_||_", expr.at, scope),
            Node::If(parts) => return self.conditional(parts, expr.at, scope),
            Node::List(elements) => {
                let mut ty: Option<Ty<'s>> = None;
                for (element, _) in elements {
                    let found = self.ty(element, scope)?;
                    ty = Some(match ty {
                        Some(ty) if ty.name() != found.name() => Ty::Dyn,
                        Some(ty) => ty,
                        None => found,
                    });
                }
                Ty::List(Rc::new(ty.unwrap_or(Ty::Dyn)))
            }
            Node::Map(entries) => {
                for (key, value, _) in entries {
                    self.ty(key, scope)?;
                    self.ty(value, scope)?;
                }
                Ty::Map(Rc::new(Ty::Dyn))
            }
            Node::Struct { name, fields } => {
                let root = name.split('.').next().unwrap_or_default();
                if !self.known.types.contains(&root) {
                    return Err(undeclared(expr.at, name));
                }
                for (_, value, _) in fields {
                    self.ty(value, scope)?;
                }
                Ty::Map(Rc::new(Ty::Dyn))
            }
            Node::Call { name, of, args } => {
                return self.call(name, of.as_deref(), args, expr.at, scope);
            }
            Node::Fold(fold) => return self.fold(fold, expr.at, scope),
            Node::Bind { name, value, body } => {
                let ty = self.ty(value, scope)?;
                return self.ty(body, Some(&Scope { name, ty, outer: scope }));
            }
            Node::OptMap { of, name, body, flat } => {
                let ty = match self.ty(of, scope)? {
                    Ty::Optional(inner) => (*inner).clone(),
                    Ty::Dyn => Ty::Dyn,
                    other => return Err(no_overload(expr.at, "optMap", &[&other])),
                };
                let made = self.ty(body, Some(&Scope { name, ty, outer: scope }))?;
                if *flat { made } else { Ty::Optional(Rc::new(made)) }
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
        match (self.known.get(name), functions::type_named(name)) {
            (Some(ty), _) => Ok(ty),
            (None, Some(_)) => Ok(Ty::Basic("type")),
            (None, None) => Err(undeclared(at, name)),
        }
    }

    fn select(
        &self,
        of: &Expr,
        field: &str,
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let of = self.ty(of, scope)?;
        field_of(&of, field, at)
    }

    fn junction(
        &self,
        terms: &[Expr],
        name: &str,
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        for term in terms {
            let ty = self.ty(term, scope)?;
            if !matches!(ty.name(), "bool" | "dyn") {
                return Err(no_overload(at, name, &[&ty, &BOOL]));
            }
        }
        Ok(BOOL)
    }

    fn conditional(
        &self,
        parts: &[Expr; 3],
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let condition = self.ty(&parts[0], scope)?;
        let (yes, no) = (self.ty(&parts[1], scope)?, self.ty(&parts[2], scope)?);
        if !matches!(condition.name(), "bool" | "dyn") {
            return Err(no_overload(at, "_?_:_", &[&condition, &yes, &no]));
        }
        Ok(if yes.name() == no.name() { yes } else { Ty::Dyn })
    }

    fn call(
        &self,
        name: &str,
        of: Option<&Expr>,
        args: &[Expr],
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let types = of.into_iter().chain(args).map(|arg| self.ty(arg, scope));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let is_method = of.is_some();
        let fits = |style: Style| match style {
            Style::Function => !is_method,
            Style::Method => is_method,
            Style::Either => true,
        };
        let mut named = functions::SIGNATURES.iter().filter(|known| known.name == name);
        let Some(signature) = named.find(|known| fits(known.style)) else {
            return Err(undeclared(at, name));
        };
        if let Some(first) = types.first() {
            let allowed =
                |ty: &str| signature.of.split('|').any(|known| known == "dyn" || known == ty);
            if first.name() != "dyn" && !allowed(first.name()) {
                return Err(match of {
                    Some(_) => {
                        let rest: Vec<String> = types[1..].iter().map(Ty::show).collect();
                        let shown = format!("{}.({})", first.show(), rest.join(", "));
                        let why =
                            format!("found no matching overload for '{name}' applied to '{shown}'");
                        Fault::new(at, why)
                    }
                    None => no_overload(at, name, &types.iter().collect::<Vec<_>>()),
                });
            }
        }
        Ok(match (name, types.as_slice()) {
            ("optional.of" | "optional.ofNonZeroValue", [inner]) => {
                Ty::Optional(Rc::new(inner.clone()))
            }
            ("value" | "orValue", [Ty::Optional(inner), ..]) => (**inner).clone(),
            ("or", [of, ..]) => of.clone(),
            ("split" | "findAll", _) => Ty::List(Rc::new(Ty::Basic("string"))),
            ("min" | "max", [list]) => list.elements(),
            ("sum", [list]) => list.elements(),
            ("sort" | "slice" | "distinct" | "reverse", [of, ..]) => of.clone(),
            ("first" | "last", [list]) => Ty::Optional(Rc::new(list.elements())),
            _ => Ty::named(signature.answers),
        })
    }

    fn fold(&self, fold: &Fold, at: usize, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let range = self.ty(&fold.range, scope)?;
        if matches!(range, Ty::Basic(_) | Ty::Optional(_)) {
            let why = format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                range.show()
            );
            return Err(Fault::new(fold.range.at, why));
        }
        let is_list = range.name() == "list";
        let first = match (&fold.second, is_list) {
            (Some(_), true) => Ty::Basic("int"),
            (Some(_), false) | (None, false) if !matches!(range, Ty::Dyn) => Ty::Basic("string"),
            _ => range.elements(),
        };
        let element = first.clone();
        let outer = Scope { name: &fold.first, ty: first, outer: scope };
        let inner = fold.second.as_deref().map(|name| Scope {
            name,
            ty: range.values(),
            outer: Some(&outer),
        });
        let scope = inner.as_ref().unwrap_or(&outer);
        let condition = |expr: &Expr| -> Result<(), Fault> {
            let ty = self.ty(expr, Some(scope))?;
            match ty.name() {
                "bool" | "dyn" => Ok(()),
                _ => {
                    let why = format!("expected type 'bool' but found '{}'", ty.show());
                    Err(Fault::new(expr.at, why))
                }
            }
        };
        if let Some(filter) = &fold.filter {
            condition(filter)?;
        }
        let _ = at;
        Ok(match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => {
                condition(&fold.body)?;
                BOOL
            }
            FoldKind::Filter => {
                condition(&fold.body)?;
                Ty::List(Rc::new(element))
            }
            FoldKind::Map => Ty::List(Rc::new(self.ty(&fold.body, Some(scope))?)),
            FoldKind::TransformMap => Ty::Map(Rc::new(self.ty(&fold.body, Some(scope))?)),
            FoldKind::TransformMapEntry => {
                self.ty(&fold.body, Some(scope))?;
                Ty::Map(Rc::new(Ty::Dyn))
            }
            FoldKind::SortBy => {
                self.ty(&fold.body, Some(scope))?;
                range
            }
        })
    }
}

fn field_of<'s>(of: &Ty<'s>, field: &str, at: usize) -> Result<Ty<'s>, Fault> {
    match of {
        Ty::Dyn => Ok(Ty::Dyn),
        Ty::Shape(shape @ Shape::Object(_)) => match shape.named(field) {
            Some(field) => Ok(Ty::of(&field.shape)),
            None => Err(Fault::new(at, format!("undefined field '{field}'"))),
        },
        Ty::Map(_) | Ty::Shape(Shape::Map(_)) => Ok(of.values()),
        Ty::Optional(inner) => {
            let found = field_of(inner, field, at)?;
            Ok(Ty::Optional(Rc::new(found)))
        }
        other => {
            let why = format!("type '{}' does not support field selection", other.show());
            Err(Fault::new(at, why))
        }
    }
}

fn undeclared(at: usize, name: &str) -> Fault {
    Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))
}

fn no_overload(at: usize, name: &str, types: &[&Ty<'_>]) -> Fault {
    let types: Vec<String> = types.iter().map(|ty| ty.show()).collect();
    let types = types.join(", ");
    Fault::new(at, format!("found no matching overload for '{name}' applied to '({types})'"))
}

/// Types of which two different ones never go together.
const PLAIN: [&str; 6] = ["bool", "int", "uint", "double", "string", "bytes"];

fn binary<'s>(op: Op, left: Ty<'s>, right: &Ty<'s>, at: usize) -> Result<Ty<'s>, Fault> {
    let (a, b) = (left.name(), right.name());
    let wrong = |left: &Ty<'s>| Err(no_overload(at, op.name(), &[left, right]));
    let either_dyn = a == "dyn" || b == "dyn";
    match op {
        Op::Equal | Op::NotEqual => {
            let differ = PLAIN.contains(&a) && PLAIN.contains(&b) && a != b;
            let plain_and_not = PLAIN.contains(&a) != PLAIN.contains(&b)
                && ["list", "map"].iter().any(|holder| *holder == a || *holder == b);
            if differ || (plain_and_not && !either_dyn) { wrong(&left) } else { Ok(BOOL) }
        }
        Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
            let number = |name: &str| matches!(name, "int" | "uint" | "double");
            let ordered = |name: &str| {
                number(name) || matches!(name, "bool" | "string" | "bytes" | TIMESTAMP | DURATION)
            };
            let fits = either_dyn || (number(a) && number(b)) || (ordered(a) && a == b);
            if fits { Ok(BOOL) } else { wrong(&left) }
        }
        Op::In => match b {
            "list" | "map" | "dyn" => Ok(BOOL),
            _ => wrong(&left),
        },
        _ if either_dyn => Ok(Ty::Dyn),
        Op::Add => match (a, b) {
            (a, b)
                if a == b
                    && matches!(
                        a,
                        "int" | "uint" | "double" | "string" | "bytes" | "list" | DURATION
                    ) =>
            {
                Ok(left)
            }
            (TIMESTAMP, DURATION) | (DURATION, TIMESTAMP) => Ok(Ty::Basic(TIMESTAMP)),
            _ => wrong(&left),
        },
        Op::Subtract => match (a, b) {
            (TIMESTAMP, TIMESTAMP) => Ok(Ty::Basic(DURATION)),
            (TIMESTAMP, DURATION) => Ok(left),
            (a, b) if a == b && matches!(a, "int" | "uint" | "double" | DURATION) => Ok(left),
            _ => wrong(&left),
        },
        Op::Multiply | Op::Divide => match a {
            "int" | "uint" | "double" if a == b => Ok(left),
            _ => wrong(&left),
        },
        Op::Modulo => match a {
            "int" | "uint" if a == b => Ok(left),
            _ => wrong(&left),
        },
    }
}
