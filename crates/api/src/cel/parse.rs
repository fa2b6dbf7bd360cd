//! From words to a tree. Macros become nodes of their own, so that an evaluation needs no
//! accumulators.

use std::sync::Arc;

use super::lex::{Token, Word, words};
use super::{Fault, declarations};

/// An expression and where it stands.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) at: usize,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
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
    /// Elements; those marked are left out if they are optional and empty.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    /// `Object.spec{field: value}`.
    Struct {
        name: Box<str>,
        fields: Vec<(Box<str>, Expr, bool)>,
    },
    Call {
        name: Box<str>,
        of: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    Fold(Box<Fold>),
    /// `of.optMap(name, body)`; flat if the body is optional itself.
    OptMap {
        of: Box<Expr>,
        name: Box<str>,
        body: Box<Expr>,
        flat: bool,
    },
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
    /// As the reference calls it in messages.
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

/// How deep a tree may be: evaluation recurses as deep as the tree, on the stack of a worker.
const DEPTH_MAX: usize = 120;

/// Reads an expression.
pub(super) fn parse(text: &str) -> Result<Expr, Fault> {
    let mut parser = Parser { words: words(text)?, next: 0, depth: 0 };
    let root = parser.expression()?;
    parser.expect_end()?;
    Ok(root)
}

impl Expr {
    /// Every expression inside, itself first.
    pub(super) fn visit<'a>(&'a self, look: &mut dyn FnMut(&'a Expr)) {
        look(self);
        self.children(&mut |inner| inner.visit(look));
    }

    fn depth(&self) -> usize {
        let mut deepest = 0;
        self.children(&mut |inner| deepest = deepest.max(inner.depth()));
        deepest + 1
    }

    pub(super) fn children<'a>(&'a self, look: &mut dyn FnMut(&'a Expr)) {
        match &self.node {
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Uint(_) | Node::Double(_) => {}
            Node::Text(_) | Node::Bytes(_) | Node::Name(_) => {}
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
            Node::Call { of, args, .. } => of.as_deref().into_iter().chain(args).for_each(look),
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

struct Parser {
    words: Vec<Token>,
    next: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Word {
        &self.words[self.next].word
    }

    fn at(&self) -> usize {
        self.words[self.next].at
    }

    fn advance(&mut self) -> Word {
        let word = self.words[self.next].word.clone();
        // The last word is the end, and stays.
        self.next = (self.next + 1).min(self.words.len() - 1);
        word
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Word::Sign(known) if *known == sign);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Fault> {
        if self.takes(sign) { Ok(()) } else { Err(self.unexpected(&format!("expecting '{sign}'"))) }
    }

    fn expect_end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Word::End => Ok(()),
            _ => Err(self.unexpected("expecting <EOF>")),
        }
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.peek() {
            Word::End => "<EOF>".to_owned(),
            Word::Sign(sign) => (*sign).to_owned(),
            Word::Name(name) => name.to_string(),
            Word::Text(text) => format!("{text:?}"),
            _ => "literal".to_owned(),
        };
        Fault::new(self.at(), format!("Syntax error: mismatched input '{found}' {wanted}"))
    }

    /// Refuses a tree that is too deep before it is part of a deeper one: whoever walks a tree, or
    /// drops it, does so on the stack.
    fn bounded(&self, made: Expr) -> Result<Expr, Fault> {
        match made.depth() > DEPTH_MAX {
            true => Err(self.too_deep()),
            false => Ok(made),
        }
    }

    fn too_deep(&self) -> Fault {
        Fault::new(self.at(), format!("expression recursion limit exceeded: {DEPTH_MAX}"))
    }

    /// Guards the parser's own recursion.
    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Parser) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.depth >= DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }

    fn expression(&mut self) -> Result<Expr, Fault> {
        let made = self.deeper(Parser::conditional)?;
        self.bounded(made)
    }

    fn conditional(&mut self) -> Result<Expr, Fault> {
        let condition = self.any()?;
        let at = self.at();
        if !self.takes("?") {
            return Ok(condition);
        }
        let yes = self.deeper(Parser::any)?;
        self.expect(":")?;
        let no = self.expression()?;
        Ok(Expr { at, node: Node::If(Box::new([condition, yes, no])) })
    }

    fn any(&mut self) -> Result<Expr, Fault> {
        self.chain("||", Parser::all, Node::Any)
    }

    fn all(&mut self) -> Result<Expr, Fault> {
        self.chain("&&", Parser::relation, Node::All)
    }

    fn chain(
        &mut self,
        sign: &str,
        term: fn(&mut Parser) -> Result<Expr, Fault>,
        make: fn(Vec<Expr>) -> Node,
    ) -> Result<Expr, Fault> {
        let first = term(self)?;
        let at = self.at();
        if !self.takes(sign) {
            return Ok(first);
        }
        let mut terms = vec![first, term(self)?];
        while self.takes(sign) {
            terms.push(term(self)?);
        }
        Ok(Expr { at, node: make(terms) })
    }

    fn relation(&mut self) -> Result<Expr, Fault> {
        self.binary(Parser::sum, |word| match word {
            Word::Sign("==") => Some(Op::Equal),
            Word::Sign("!=") => Some(Op::NotEqual),
            Word::Sign("<") => Some(Op::Less),
            Word::Sign("<=") => Some(Op::LessEqual),
            Word::Sign(">") => Some(Op::Greater),
            Word::Sign(">=") => Some(Op::GreaterEqual),
            Word::Name(name) if **name == *"in" => Some(Op::In),
            _ => None,
        })
    }

    fn sum(&mut self) -> Result<Expr, Fault> {
        self.binary(Parser::product, |word| match word {
            Word::Sign("+") => Some(Op::Add),
            Word::Sign("-") => Some(Op::Subtract),
            _ => None,
        })
    }

    fn product(&mut self) -> Result<Expr, Fault> {
        self.binary(Parser::unary, |word| match word {
            Word::Sign("*") => Some(Op::Multiply),
            Word::Sign("/") => Some(Op::Divide),
            Word::Sign("%") => Some(Op::Modulo),
            _ => None,
        })
    }

    fn binary(
        &mut self,
        side: fn(&mut Parser) -> Result<Expr, Fault>,
        op: fn(&Word) -> Option<Op>,
    ) -> Result<Expr, Fault> {
        let mut left = side(self)?;
        while let Some(op) = op(self.peek()) {
            let at = self.at();
            self.advance();
            let right = side(self)?;
            left = self.bounded(Expr { at, node: Node::Binary(op, Box::new([left, right])) })?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, Fault> {
        let at = self.at();
        if self.takes("!") {
            let inner = self.deeper(Parser::unary)?;
            return Ok(Expr { at, node: Node::Not(Box::new(inner)) });
        }
        if self.takes("-") {
            if let Word::Int(value) = *self.peek() {
                self.advance();
                let value = 0i64.checked_sub_unsigned(value);
                let value =
                    value.ok_or_else(|| Fault::new(at, "Syntax error: invalid int literal"))?;
                return self.member(Expr { at, node: Node::Int(value) });
            }
            if let Word::Double(value) = *self.peek() {
                self.advance();
                return self.member(Expr { at, node: Node::Double(-value) });
            }
            let inner = self.deeper(Parser::unary)?;
            return Ok(Expr { at, node: Node::Negate(Box::new(inner)) });
        }
        let primary = self.primary()?;
        self.member(primary)
    }

    /// Everything that may follow a value: fields, indices, calls, braces.
    fn member(&mut self, mut of: Expr) -> Result<Expr, Fault> {
        loop {
            let at = self.at();
            of = if self.takes(".?") {
                let field = self.name()?;
                Expr { at, node: Node::Select { of: Box::new(of), field, optional: true } }
            } else if self.takes(".") {
                let field = self.name()?;
                match self.takes("(") {
                    true => self.method(of, field, at)?,
                    false => select(of, field, at),
                }
            } else if self.takes("[?") {
                self.index(of, at, true)?
            } else if self.takes("[") {
                self.index(of, at, false)?
            } else if matches!(self.peek(), Word::Sign("{")) && type_name(&of).is_some() {
                self.structure(&of, at)?
            } else {
                return Ok(of);
            };
            of = self.bounded(of)?;
        }
    }

    fn index(&mut self, of: Expr, at: usize, optional: bool) -> Result<Expr, Fault> {
        let key = self.expression()?;
        self.expect("]")?;
        Ok(Expr { at, node: Node::Index { of: Box::new(of), key: Box::new(key), optional } })
    }

    fn structure(&mut self, of: &Expr, at: usize) -> Result<Expr, Fault> {
        let name = type_name(of).unwrap_or_default().into();
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.takes("}") {
            let optional = self.takes("?");
            let field = self.name()?;
            self.expect(":")?;
            fields.push((field, self.expression()?, optional));
            if !self.takes(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { at, node: Node::Struct { name, fields } })
    }

    fn name(&mut self) -> Result<Box<str>, Fault> {
        match self.peek().clone() {
            // Words of the language itself name nothing.
            Word::Name(name) if !matches!(&*name, "true" | "false" | "null" | "in") => {
                self.advance();
                Ok(name)
            }
            _ => Err(self.unexpected("expecting IDENTIFIER")),
        }
    }

    fn primary(&mut self) -> Result<Expr, Fault> {
        let at = self.at();
        let node = match self.peek().clone() {
            Word::Sign("(") => {
                self.advance();
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Word::Sign("[") => {
                self.advance();
                return self.list(at);
            }
            Word::Sign("[?") => {
                // The first element is optional.
                self.advance();
                let first = (self.expression()?, true);
                return self.list_after(at, first);
            }
            Word::Sign("{" | "{?") => {
                let optional = matches!(self.advance(), Word::Sign("{?"));
                return self.map(at, optional);
            }
            Word::Sign(".") => {
                self.advance();
                return self.named(at);
            }
            Word::Name(_) => return self.named(at),
            Word::Int(value) => match i64::try_from(value) {
                Ok(value) => Node::Int(value),
                Err(_) => return Err(Fault::new(at, "Syntax error: invalid int literal")),
            },
            Word::Uint(value) => Node::Uint(value),
            Word::Double(value) => Node::Double(value),
            Word::Text(text) => Node::Text(text),
            Word::Bytes(bytes) => Node::Bytes(bytes),
            Word::Sign(_) | Word::End => return Err(self.unexpected("expecting an expression")),
        };
        self.advance();
        Ok(Expr { at, node })
    }

    fn list(&mut self, at: usize) -> Result<Expr, Fault> {
        if self.takes("]") {
            return Ok(Expr { at, node: Node::List(Vec::new()) });
        }
        let optional = self.takes("?");
        let first = (self.expression()?, optional);
        self.list_after(at, first)
    }

    fn list_after(&mut self, at: usize, first: (Expr, bool)) -> Result<Expr, Fault> {
        let mut elements = vec![first];
        while self.takes(",") {
            if matches!(self.peek(), Word::Sign("]")) {
                break;
            }
            let optional = self.takes("?");
            elements.push((self.expression()?, optional));
        }
        self.expect("]")?;
        Ok(Expr { at, node: Node::List(elements) })
    }

    fn map(&mut self, at: usize, mut optional: bool) -> Result<Expr, Fault> {
        let mut entries = Vec::new();
        while !self.takes("}") {
            optional |= self.takes("?");
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?, std::mem::take(&mut optional)));
            if !self.takes(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { at, node: Node::Map(entries) })
    }

    /// A word: a constant, a variable, or a function.
    fn named(&mut self, at: usize) -> Result<Expr, Fault> {
        let constant = match self.peek() {
            Word::Name(name) => match &**name {
                "true" => Some(Node::Bool(true)),
                "false" => Some(Node::Bool(false)),
                "null" => Some(Node::Null),
                _ => None,
            },
            _ => None,
        };
        if let Some(node) = constant {
            self.advance();
            return Ok(Expr { at, node });
        }
        let name = self.name()?;
        if self.takes("(") {
            let args = self.arguments()?;
            return function(name, args, at);
        }
        Ok(Expr { at, node: Node::Name(name) })
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, Fault> {
        let mut args = Vec::new();
        while !self.takes(")") {
            args.push(self.expression()?);
            if !self.takes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(args)
    }

    fn method(&mut self, of: Expr, name: Box<str>, at: usize) -> Result<Expr, Fault> {
        let args = self.arguments()?;
        if let Node::Name(space) = &of.node {
            let full = format!("{space}.{name}");
            if declarations::is_qualified(&full) {
                return Ok(Expr { at, node: Node::Call { name: full.into(), of: None, args } });
            }
        }
        macros(of, name, args, at)
    }
}

/// A field, or the name of a type that has dots in it.
fn select(of: Expr, field: Box<str>, at: usize) -> Expr {
    let start = of.at;
    let made = Expr { at, node: Node::Select { of: Box::new(of), field, optional: false } };
    match type_name(&made).filter(|name| declarations::type_named(name).is_some()) {
        Some(name) => Expr { at: start, node: Node::Name(name.into()) },
        None => made,
    }
}

/// `Object.spec.containers`, if it is nothing but names.
fn type_name(expr: &Expr) -> Option<String> {
    match &expr.node {
        Node::Name(name) => Some(name.to_string()),
        Node::Select { of, field, optional: false } => {
            type_name(of).map(|above| format!("{above}.{field}"))
        }
        _ => None,
    }
}

fn function(name: Box<str>, mut args: Vec<Expr>, at: usize) -> Result<Expr, Fault> {
    if &*name != "has" || args.len() != 1 {
        return Ok(Expr { at, node: Node::Call { name, of: None, args } });
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

/// A method, or a macro that looks like one.
fn macros(of: Expr, name: Box<str>, args: Vec<Expr>, at: usize) -> Result<Expr, Fault> {
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
            let of = Some(Box::new(of));
            return Ok(Expr { at, node: Node::Call { name, of, args } });
        }
    };
    // Which of the arguments are names, and whether there is a filter, is told by their number.
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
