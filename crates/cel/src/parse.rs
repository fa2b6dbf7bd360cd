//! The parser: recursive descent from tokens to a tree.
//!
//! Promise: no tree is ever deeper than [`DEPTH_MAX`] plus one level.

use super::lex::{Token, Word, words};
use super::macros::{function, method, select, type_name};
use super::tree::{Expr, Node, Op};
use super::value::{Text, Value};
use super::{Fault, functions};

/// The maximum depth of a tree: evaluation recurses to this depth on the stack of a worker.
const DEPTH_MAX: usize = 120;

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Expr, Fault> {
    let mut parser = Parser { words: words(text)?, next: 0, depth: 0 };
    let root = parser.expression()?;
    parser.expect_end()?;
    Ok(root)
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
        // The last token is the end and is not consumed.
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

    /// Rejects a tree that is too deep before it becomes part of a deeper one: walking and dropping
    /// a tree use the stack.
    fn bounded(&self, made: Expr) -> Result<Expr, Fault> {
        match made.depth() > DEPTH_MAX {
            true => Err(self.too_deep()),
            false => Ok(made),
        }
    }

    fn too_deep(&self) -> Fault {
        Fault::new(self.at(), format!("expression recursion limit exceeded: {DEPTH_MAX}"))
    }

    /// Limits the parser's own recursion.
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
                return self.member(Expr { at, node: Node::Literal(Value::Int(value)) });
            }
            if let Word::Double(value) = *self.peek() {
                self.advance();
                return self.member(Expr { at, node: Node::Literal(Value::Double(-value)) });
            }
            let inner = self.deeper(Parser::unary)?;
            return Ok(Expr { at, node: Node::Negate(Box::new(inner)) });
        }
        let primary = self.primary()?;
        self.member(primary)
    }

    /// The suffixes of a value: fields, indexes, calls, braces.
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
            // Reserved words are not names.
            Word::Name(name) if !matches!(&*name, "true" | "false" | "null" | "in") => {
                self.advance();
                Ok(name)
            }
            _ => Err(self.unexpected("expecting IDENTIFIER")),
        }
    }

    fn primary(&mut self) -> Result<Expr, Fault> {
        let at = self.at();
        let value = match self.peek().clone() {
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
                Ok(value) => Value::Int(value),
                Err(_) => return Err(Fault::new(at, "Syntax error: invalid int literal")),
            },
            Word::Uint(value) => Value::Uint(value),
            Word::Double(value) => Value::Double(value),
            Word::Text(text) => Value::Text(Text::Shared(text)),
            Word::Bytes(bytes) => Value::Bytes(bytes),
            Word::Sign(_) | Word::End => return Err(self.unexpected("expecting an expression")),
        };
        self.advance();
        Ok(Expr { at, node: Node::Literal(value) })
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

    /// An identifier: a constant, a variable or a function.
    fn named(&mut self, at: usize) -> Result<Expr, Fault> {
        let constant = match self.peek() {
            Word::Name(name) => match &**name {
                "true" => Some(Value::Bool(true)),
                "false" => Some(Value::Bool(false)),
                "null" => Some(Value::Null),
                _ => None,
            },
            _ => None,
        };
        if let Some(value) = constant {
            self.advance();
            return Ok(Expr { at, node: Node::Literal(value) });
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
            if !functions::named(&full).is_empty() {
                return function(full.into(), args, at);
            }
        }
        method(of, name, args, at)
    }
}
