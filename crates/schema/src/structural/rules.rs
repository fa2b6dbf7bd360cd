//! CEL rules of schemas (`x-kubernetes-validations`, S9.12).
//!
//! River: a value that fits its schema → **rules** → store. A rule with `oldSelf` is a transition rule
//! and runs only if the old value is known; other rules tolerate unchanged values (S9.15).
//! Promise: the rules of one object share a budget; an object that exhausts it is rejected.

use headwater_json::Value;

use super::effort::Effort;
use super::{Node, number, validate};
use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_cel::pattern;
use headwater_cel::{
    Budget, DeclType, DeclTypes, Environment, Error, Program, Value as Cel, Variables,
};
use headwater_cel::{EXPRESSION_COST_MAX, OBJECT_COST_MAX};
use headwater_json::path::Path;

mod check;

pub(super) use check::errors;

/// The maximum length of a message expression's result.
const MESSAGE_MAX: usize = 5 * 1024;

/// The rules of one node and its declared type.
pub(super) struct Expressions {
    shape: DeclType,
    /// The type of the schema, for messages.
    kind: Box<str>,
    rules: Box<[Rule]>,
}

/// One rule.
struct Rule {
    text: Box<str>,
    program: Result<Program, String>,
    uses_old: bool,
    optional_old: bool,
    message: Box<str>,
    message_expression: Option<Program>,
    reason: FieldErrorKind,
    /// The field path of the error.
    field: Box<str>,
}

/// The variables of a rule.
fn known(shape: &DeclType, optional_old: bool) -> Environment<'_> {
    let known = Environment::default().with("self", shape);
    match optional_old {
        true => known.with_optional("oldSelf", shape),
        false => known.with("oldSelf", shape),
    }
}

/// Compiles the rules of `schema` for values of type `typed`. The patterns of all rules share the
/// budget of the schema's own patterns.
pub(super) fn compile<'a>(
    schema: &'a Value,
    typed: &'a Value,
    is_root: bool,
    types: &mut DeclTypes<'a>,
    budget: &mut pattern::Budget,
) -> Option<Box<Expressions>> {
    let rules = schema["x-kubernetes-validations"].as_array().filter(|rules| !rules.is_empty())?;
    let shape = types.of(typed, is_root);
    let rules = rules.iter().map(|rule| Rule::compile(rule, &shape, typed, budget)).collect();
    let kind = typed["type"].as_str().unwrap_or_default().into();
    Some(Box::new(Expressions { shape, kind, rules }))
}

impl Rule {
    fn compile(
        rule: &Value,
        shape: &DeclType,
        schema: &Value,
        budget: &mut pattern::Budget,
    ) -> Rule {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().trim();
        let optional_old = rule["optionalOldSelf"] == true;
        let known = known(shape, optional_old);
        let program = Program::compile_within(text("rule"), &known, budget);
        let program = program.map_err(|error| error.to_string());
        let known = self::known(shape, false);
        let message = Program::compile_within(text("messageExpression"), &known, budget);
        Rule {
            text: text("rule").into(),
            uses_old: program.as_ref().is_ok_and(|program| program.mentions("oldSelf")),
            program,
            optional_old,
            message: text("message").into(),
            message_expression: message.ok().filter(|_| !text("messageExpression").is_empty()),
            reason: match text("reason") {
                "FieldValueForbidden" => FieldErrorKind::Forbidden,
                "FieldValueRequired" => FieldErrorKind::Required,
                "FieldValueDuplicate" => FieldErrorKind::Duplicate,
                _ => FieldErrorKind::Invalid,
            },
            field: field_path(text("fieldPath"), schema).unwrap_or_default().into(),
        }
    }

    /// The name in messages.
    fn shown(&self) -> &str {
        if self.message.is_empty() { &self.text } else { &self.message }
    }
}

/// Adds the errors of rules to the errors so far.
pub(super) fn check(
    root: &Node,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    if !root.below.expressions {
        return;
    }
    let blocks = |error: &FieldError| {
        use FieldErrorKind::{Required, TooLong, TooMany, TypeInvalid};
        matches!(error.kind, Required | TooLong | TooMany | TypeInvalid)
    };
    if errors.iter().any(blocks) {
        // Rules assume a valid value.
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        errors.push(FieldError::invalid("<nil>", &Value::Null, why));
        return;
    }
    let effort = Effort::default();
    let mut walk = Walk { left: OBJECT_COST_MAX, effort: &effort, compared: None, errors };
    // An exhausted budget ends the walk and is already reported.
    let _ = walk.value(root, object, Before { old, nearest: None }, &Path::Root);
    errors.extend(effort.error(""));
}

/// The old value.
#[derive(Clone, Copy)]
struct Before<'a> {
    /// The value that this one replaces, if known.
    old: Option<&'a Value>,
    /// The nearest enclosing value with a known old value, and that old value.
    nearest: Option<(&'a Value, &'a Value)>,
}

impl<'a> Before<'a> {
    /// The old value of a child.
    fn below(self, value: &'a Value, old: Option<&'a Value>) -> Before<'a> {
        let nearest = self.old.map(|old| (value, old)).or(self.nearest);
        Before { old, nearest }
    }

    /// The value that is known to be unchanged if it equals the other one.
    fn pair(self, value: &'a Value) -> Option<(&'a Value, &'a Value)> {
        self.old.map(|old| (value, old)).or(self.nearest)
    }
}

/// The budget is exhausted.
struct Exhausted;

struct Walk<'e> {
    left: u64,
    effort: &'e Effort,
    /// The last pair of values that were compared because a rule failed, and whether they are equal.
    /// All elements of a list without keys have the same pair.
    compared: Option<(*const Value, bool)>,
    errors: &'e mut Vec<FieldError>,
}

impl Walk<'_> {
    fn value<'a>(
        &mut self,
        node: &Node,
        value: &'a Value,
        before: Before<'a>,
        at: &Path<'_>,
    ) -> Result<(), Exhausted> {
        if !node.below.expressions || value.is_null() {
            return Ok(());
        }
        self.own(node, value, before, at)?;
        let elements = validate::Before::of(node, before.old);
        for (inner, part, path) in node.children(value, at) {
            let old = match path {
                Path::Field(_, name) | Path::Bracket(_, name) => {
                    let old = before.old.filter(|_| !node.atomic).and_then(|old| old.get(name));
                    old.filter(|old| !old.is_null())
                }
                _ => elements.get(part),
            };
            self.value(inner, part, before.below(value, old), &path)?;
        }
        Ok(())
    }

    /// Runs the rules of this node.
    fn own<'a>(
        &mut self,
        node: &Node,
        value: &'a Value,
        before: Before<'a>,
        at: &Path<'_>,
    ) -> Result<(), Exhausted> {
        if let Some(expressions) = &node.expressions {
            self.expressions(expressions, value, before, at)?;
        }
        for inner in node.rules.iter().flat_map(|rules| &rules.all_of) {
            if let Some(expressions) = &inner.expressions {
                self.expressions(expressions, value, before, at)?;
            }
        }
        Ok(())
    }

    fn expressions<'a>(
        &mut self,
        expressions: &'a Expressions,
        value: &'a Value,
        before: Before<'a>,
        at: &Path<'_>,
    ) -> Result<(), Exhausted> {
        for rule in &expressions.rules {
            if rule.uses_old && before.old.is_none() && !rule.optional_old {
                continue;
            }
            let one = Judged { rule, expressions, value, before };
            self.judge(&one, at)?;
        }
        Ok(())
    }

    fn judge(&mut self, one: &Judged<'_>, at: &Path<'_>) -> Result<(), Exhausted> {
        let kind = &one.expressions.kind;
        let program = match &one.rule.program {
            Ok(program) => program,
            Err(why) => {
                return self.tell(at, "", kind, &format!("rule compile error: {why}"));
            }
        };
        let variables = one.variables(one.rule.optional_old);
        let mut budget = Budget::new(EXPRESSION_COST_MAX.min(self.left));
        let found = program.run(&variables, &mut budget);
        let shown = one.rule.shown();
        if budget.spent() > self.left {
            let why = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.tell(at, "", kind, why)?;
            return Err(Exhausted);
        }
        self.left -= budget.spent();
        match found {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => self.refuse(one, at)?,
            Err(Error::CostExceeded) => {
                let why = format!(
                    "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}",
                    Error::CostExceeded
                );
                self.tell(at, "", kind, &why)?;
                return Err(Exhausted);
            }
            Err(error @ Error::NoSuchOverload) => {
                let why = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                );
                self.tell(at, "", kind, &why)?;
            }
            Err(error) => self.tell(at, "", kind, &format!("{error} evaluating rule: {shown}"))?,
        }
        Ok(())
    }

    /// Whether the value is known to be unchanged.
    fn is_unchanged(&mut self, one: &Judged<'_>) -> bool {
        let Some((value, old)) = one.before.pair(one.value) else { return false };
        match self.compared {
            Some((known, is_equal)) if std::ptr::eq(known, value) => is_equal,
            _ => {
                let is_equal = value == old;
                self.compared = Some((value, is_equal));
                is_equal
            }
        }
    }

    /// Reports a violated rule.
    fn refuse(&mut self, one: &Judged<'_>, at: &Path<'_>) -> Result<(), Exhausted> {
        let rule = one.rule;
        if !rule.uses_old && self.is_unchanged(one) {
            return Ok(());
        }
        let message = match &rule.message_expression {
            Some(program) => self.message(program, one, at)?,
            None => None,
        };
        let message = message.unwrap_or_else(|| match rule.message.is_empty() {
            true => format!("failed rule: {}", rule.text),
            false => rule.message.to_string(),
        });
        let holds = matches!(&*one.expressions.kind, "object" | "array");
        let shown = (!holds).then(|| number::show_value(one.value));
        let detail = match (rule.reason, shown) {
            (FieldErrorKind::Duplicate, shown) => shown.unwrap_or_default(),
            (FieldErrorKind::Invalid, Some(shown)) => format!("{shown}: {message}"),
            _ => message,
        };
        let field = place(at, &rule.field);
        self.add(FieldError { kind: rule.reason, field, detail })
    }

    fn add(&mut self, error: FieldError) -> Result<(), Exhausted> {
        if !self.effort.message(&error) {
            return Err(Exhausted);
        }
        self.errors.push(error);
        Ok(())
    }

    /// The result of the rule's message expression; `None` if it is unusable.
    fn message(
        &mut self,
        program: &Program,
        one: &Judged<'_>,
        at: &Path<'_>,
    ) -> Result<Option<String>, Exhausted> {
        let variables = one.variables(false);
        let mut budget = Budget::new(EXPRESSION_COST_MAX.min(self.left));
        let found = program.run(&variables, &mut budget);
        let kind = &one.expressions.kind;
        if budget.spent() > self.left {
            let why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            self.tell(at, &one.rule.field, kind, why)?;
            return Err(Exhausted);
        }
        self.left -= budget.spent();
        match found {
            Ok(value) => {
                let text = value.as_text().unwrap_or_default().trim();
                let fits = !text.is_empty() && text.len() <= MESSAGE_MAX;
                Ok((fits && !text.contains(['\n', '\r'])).then(|| text.to_owned()))
            }
            Err(Error::CostExceeded) => {
                let why = format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {:?}",
                    program.text()
                );
                self.tell(at, &one.rule.field, kind, &why)?;
                Err(Exhausted)
            }
            Err(_) => Ok(None),
        }
    }

    fn tell(&mut self, at: &Path<'_>, below: &str, kind: &str, why: &str) -> Result<(), Exhausted> {
        self.add(FieldError::invalid(place(at, below), &kind.into(), why))
    }
}

/// A rule and its value.
struct Judged<'a> {
    rule: &'a Rule,
    expressions: &'a Expressions,
    value: &'a Value,
    before: Before<'a>,
}

impl<'a> Judged<'a> {
    fn variables(&self, optional_old: bool) -> Variables<'a> {
        let shape = &self.expressions.shape;
        let variables = Variables::default().with_json("self", self.value, shape);
        let old = self.before.old.map(|old| Cel::read(old, shape));
        match (old, optional_old) {
            (Some(old), true) => variables.with("oldSelf", Cel::some(old)),
            (Some(old), false) => variables.with("oldSelf", old),
            (None, true) => variables.with("oldSelf", Cel::NONE),
            (None, false) => variables,
        }
    }
}

fn place(at: &Path<'_>, below: &str) -> String {
    match (at, below) {
        (Path::Root, "") => "<nil>".to_owned(),
        (Path::Root, below) => below.to_owned(),
        (at, "") => at.to_string(),
        (at, below) => format!("{at}.{below}"),
    }
}

/// A `fieldPath` such as `.spec.ports['http']` in the notation of errors, if the schema has that field.
pub(super) fn field_path(path: &str, schema: &Value) -> Option<String> {
    let (mut shown, mut schema, mut rest) = (String::new(), schema, path);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (name, after) = if let Some(dotted) = rest.strip_prefix('.') {
            dotted.split_at(dotted.find(['.', '[']).unwrap_or(dotted.len()))
        } else {
            let quoted = rest.strip_prefix("['")?;
            let end = quoted.find("']")?;
            (&quoted[..end], &quoted[end + 2..])
        };
        if name.is_empty() {
            return None;
        }
        let values = &schema["additionalProperties"];
        match schema["properties"].get(name) {
            Some(inner) => {
                if !shown.is_empty() {
                    shown.push('.');
                }
                shown.push_str(name);
                schema = inner;
            }
            None if values.is_object() => {
                shown.push_str(&format!("[{name}]"));
                schema = values;
            }
            None => return None,
        }
        rest = after;
    }
    Some(shown)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests;
