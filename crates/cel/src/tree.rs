//! The syntax tree. Macros are nodes of their own, so that evaluation needs no accumulators.

use super::overload::Overload;
use super::value::Value;

/// An expression and its position.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) at: usize,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Node {
    Literal(Value<'static>),
    Name(Box<str>),
    Select {
        of: Box<Expr>,
        field: Box<str>,
        optional: bool,
    },
    /// `has(of.field)`.
    Has {
        of: Box<Expr>,
        field: Box<str>,
    },
    Index {
        of: Box<Expr>,
        key: Box<Expr>,
        optional: bool,
    },
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Op, Box<[Expr; 2]>),
    /// `a && b && c`, flat: long chains must not be deep.
    All(Vec<Expr>),
    Any(Vec<Expr>),
    If(Box<[Expr; 3]>),
    /// Elements; marked ones are omitted if they are empty optionals.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    /// `Object.spec{field: value}`.
    Struct {
        name: Box<str>,
        fields: Vec<(Box<str>, Expr, bool)>,
    },
    Call(Call),
    Fold(Box<Fold>),
    /// `of.optMap(name, body)`; flat if the body is optional itself.
    OptMap {
        of: Box<Expr>,
        name: Box<str>,
        body: Box<Expr>,
        flat: bool,
    },
}

/// A call of a function.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: Box<str>,
    /// The overloads of all functions with this name.
    pub(super) overloads: &'static [Overload],
    pub(super) is_method: bool,
    /// The arguments, the receiver first.
    pub(super) args: Vec<Expr>,
}

impl Call {
    /// The arguments in parentheses.
    pub(super) fn given(&self) -> &[Expr] {
        &self.args[usize::from(self.is_method)..]
    }
}

/// A macro over a list or a map.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) kind: FoldKind,
    pub(super) range: Expr,
    pub(super) first: Box<str>,
    pub(super) second: Option<Box<str>>,
    pub(super) filter: Option<Expr>,
    pub(super) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
    SortBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Op {
    /// The name in Kubernetes' messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Equal => "_==_",
            Op::NotEqual => "_!=_",
            Op::Less => "_<_",
            Op::LessEqual => "_<=_",
            Op::Greater => "_>_",
            Op::GreaterEqual => "_>=_",
            Op::In => "@in",
            Op::Add => "_+_",
            Op::Subtract => "_-_",
            Op::Multiply => "_*_",
            Op::Divide => "_/_",
            Op::Modulo => "_%_",
        }
    }
}

impl Expr {
    /// All expressions of the tree, itself first.
    pub(super) fn visit<'a>(&'a self, look: &mut dyn FnMut(&'a Expr)) {
        look(self);
        self.children(&mut |inner| inner.visit(look));
    }

    pub(super) fn depth(&self) -> usize {
        let mut deepest = 0;
        self.children(&mut |inner| deepest = deepest.max(inner.depth()));
        deepest + 1
    }

    pub(super) fn children<'a>(&'a self, look: &mut dyn FnMut(&'a Expr)) {
        match &self.node {
            Node::Literal(_) | Node::Name(_) => {}
            Node::Select { of, .. } | Node::Has { of, .. } => look(of),
            Node::Index { of, key, .. } => [of, key].into_iter().for_each(|inner| look(inner)),
            Node::Not(inner) | Node::Negate(inner) => look(inner),
            Node::Binary(_, sides) => sides.iter().for_each(look),
            Node::All(terms) | Node::Any(terms) => terms.iter().for_each(look),
            Node::If(parts) => parts.iter().for_each(look),
            Node::List(elements) => elements.iter().for_each(|(inner, _)| look(inner)),
            Node::Map(entries) => entries.iter().for_each(|(key, value, _)| {
                look(key);
                look(value);
            }),
            Node::Struct { fields, .. } => fields.iter().for_each(|(_, inner, _)| look(inner)),
            Node::Call(call) => call.args.iter().for_each(look),
            Node::Fold(fold) => {
                look(&fold.range);
                fold.filter.iter().for_each(&mut *look);
                look(&fold.body);
            }
            Node::OptMap { of, body, .. } => {
                look(of);
                look(body);
            }
        }
    }
}
