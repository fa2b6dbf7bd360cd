//! CEL: the expressions of rules, match conditions and policies, evaluated within a budget.
//!
//! River: text → [`Program`], once; then objects → **cel** → a verdict, for every write.
//! Promise: an evaluation ends. Text length, nesting and evaluation steps are bounded, memory is charged
//! before it is allocated, patterns match in linear time, and objects are read without copying.
//!
//! This is our own implementation because none of the available interpreters supports a budget.

pub mod pattern;
pub mod format;
mod lex;
mod tree;
mod macros;
mod parse;
mod decl_type;
mod types;
mod typing;
mod estimate;
mod overload;
mod scope;
mod environment;
mod check;
mod cost;
mod value;
mod budget;
mod eval;
mod comprehension;
mod operators;
mod functions;
mod time;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use pattern::Pattern;

pub use budget::{Budget, Error};
pub use decl_type::{DeclField, DeclType, DeclTypes, TEXT_MAX, escape};
pub use environment::Environment;
pub use eval::Variables;
pub use functions::signatures;
pub use value::authorizer::{Access, AccessedResource, Authority, Decision};
pub use value::{MapKey, Value};

/// The maximum cost of one expression (Kubernetes' limit).
pub const EXPRESSION_COST_MAX: u64 = 1_000_000;

/// The maximum cost of all rules of one object (Kubernetes' limit).
pub const OBJECT_COST_MAX: u64 = 10_000_000;

/// A compiled expression.
pub struct Program {
    text: Box<str>,
    root: tree::Expr,
    /// The compiled literal patterns.
    patterns: HashMap<Arc<str>, Pattern>,
    result: &'static str,
    shown: Box<str>,
}

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Uncompilable(String);

/// An error at a position of a text.
#[derive(Debug)]
struct Fault {
    at: usize,
    why: String,
}

impl Fault {
    fn new(at: usize, why: impl Into<String>) -> Fault {
        Fault { at, why: why.into() }
    }

    /// The error in CEL's format: the line, and a pointer below it.
    fn show(&self, text: &str) -> String {
        let before = &text[..floor(text, self.at)];
        let line = before.matches('\n').count();
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count();
        let shown = text.lines().nth(line).unwrap_or_default();
        let dots = ".".repeat(column);
        format!("ERROR: <input>:{}:{}: {}\n | {shown}\n | {dots}^", line + 1, column + 1, self.why)
    }
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl Program {
    /// Compiles an expression in an environment.
    pub fn compile(text: &str, known: &Environment<'_>) -> Result<Program, Uncompilable> {
        Program::compile_within(text, known, &mut pattern::Budget::of_expression())
    }

    /// Compiles an expression whose patterns share a budget with others.
    pub fn compile_within(
        text: &str,
        known: &Environment<'_>,
        budget: &mut pattern::Budget,
    ) -> Result<Program, Uncompilable> {
        let fail = |fault: &Fault| Uncompilable(fault.show(text));
        let root = parse::parse(text).map_err(|fault| fail(&fault))?;
        let ty = check::ty(&root, known).map_err(|fault| fail(&fault))?;
        let (result, shown) = (ty.name(), ty.show());
        let patterns = patterns(&root, budget).map_err(|fault| fail(&fault))?;
        Ok(Program { text: text.into(), root, patterns, result, shown: shown.into() })
    }

    /// The source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The type of the result; `dyn` if it is unknown before evaluation.
    pub fn result(&self) -> &'static str {
        self.result
    }

    /// The type of the result with its parameters, such as `list(string)`.
    pub fn result_shown(&self) -> &str {
        &self.shown
    }

    /// Whether it uses a variable.
    pub fn mentions(&self, name: &str) -> bool {
        let mut found = false;
        self.root.visit(&mut |expr| {
            found |= matches!(&expr.node, tree::Node::Name(known) if **known == *name);
        });
        found
    }

    /// The maximum cost of an evaluation, from the declared sizes.
    pub fn cost_max(&self, known: &Environment<'_>) -> u64 {
        cost::of(&self.root, known)
    }

    /// Evaluates the expression.
    pub fn run<'a>(
        &'a self,
        variables: &Variables<'a>,
        budget: &mut Budget,
    ) -> Result<Value<'a>, Error> {
        eval::run(self, variables, budget)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({:?})", self.text)
    }
}

/// Compiles the patterns that an expression writes out.
fn patterns(
    root: &tree::Expr,
    budget: &mut pattern::Budget,
) -> Result<HashMap<Arc<str>, Pattern>, Fault> {
    let mut found = HashMap::new();
    let mut failed = None;
    root.visit(&mut |expr| {
        let tree::Node::Call(call) = &expr.node else { return };
        if !matches!(&*call.name, "matches" | "find" | "findAll") {
            return;
        }
        // Either `text.matches(pattern)` or `matches(text, pattern)`; a number may follow.
        let text = call.given().iter().rev().find_map(|arg| match &arg.node {
            tree::Node::Literal(Value::Text(text)) => Some((arg.at, &**text)),
            _ => None,
        });
        let Some((at, text)) = text else { return };
        if found.contains_key(text) {
            return;
        }
        match Pattern::compile(text, budget) {
            Ok(pattern) => drop(found.insert(Arc::from(text), pattern)),
            Err(why) => {
                failed.get_or_insert(Fault::new(at, format!("invalid matches argument: {why}")));
            }
        }
    });
    match failed {
        Some(fault) => Err(fault),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests;
