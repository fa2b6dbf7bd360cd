//! The expressions of a configuration: compiled once, evaluated within a budget.

use std::sync::LazyLock;

use headwater_cel::{
    Budget, DeclType, EXPRESSION_COST_MAX, Environment, Program, Value as Cel, Variables,
};
use headwater_json::{Value, json};

use super::config::ConfigurationError;

/// The type of `claims`: any JSON object.
static CLAIMS: LazyLock<DeclType> = LazyLock::new(|| DeclType::map(DeclType::Dyn));

/// The type of `user`.
static USER: LazyLock<DeclType> = LazyLock::new(|| {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    DeclType::of_plain(&json!({ "type": "object", "properties": {
        "username": text, "uid": text, "groups": texts,
        "extra": { "type": "object", "additionalProperties": texts },
    }}))
});

/// What an expression is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Claims,
    User,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Claims => "claims",
            Subject::User => "user",
        }
    }

    fn shape(self) -> &'static DeclType {
        match self {
            Subject::Claims => &CLAIMS,
            Subject::User => &USER,
        }
    }
}

/// A compiled expression.
pub(super) struct Expression {
    program: Program,
    subject: Subject,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Expression").field(&self.program.text()).finish()
    }
}

impl Expression {
    /// Compiles an expression whose result has one of these types, or is only known when it runs.
    pub(super) fn compile(
        text: &str,
        subject: Subject,
        results: &[&str],
        field: &str,
    ) -> Result<Expression, ConfigurationError> {
        let wrong = |why: String| ConfigurationError::new(format!("{field}: {why}"));
        let known = Environment::default().with(subject.name(), subject.shape());
        let program = Program::compile(text, &known).map_err(|error| wrong(error.to_string()))?;
        let result = program.result();
        if result != "dyn" && !results.contains(&result) {
            return Err(wrong(format!("must return {}, not {result}", results.join(" or "))));
        }
        Ok(Expression { program, subject })
    }

    /// Evaluates it over claims or a user. The error does not show them.
    fn run<'a>(&'a self, about: &'a Value) -> Result<Cel<'a>, String> {
        let shape = self.subject.shape();
        let variables = Variables::default().with_json(self.subject.name(), about, shape);
        let mut budget = Budget::new(EXPRESSION_COST_MAX);
        let found = self.program.run(&variables, &mut budget);
        found.map_err(|_| "an expression of the configuration failed".to_owned())
    }

    /// Whether the expression is true.
    pub(super) fn holds(&self, about: &Value) -> Result<bool, String> {
        match self.run(about)? {
            Cel::Bool(holds) => Ok(holds),
            _ => Err("an expression of the configuration returned no bool".to_owned()),
        }
    }

    /// The result, a string.
    pub(super) fn text(&self, about: &Value) -> Result<String, String> {
        match self.run(about)?.to_json() {
            Some(Value::String(text)) => Ok(text.to_string()),
            _ => Err("an expression of the configuration returned no string".to_owned()),
        }
    }

    /// The result, a string or a list of strings; null and empty strings are left out.
    pub(super) fn texts(&self, about: &Value) -> Result<Vec<String>, String> {
        let wrong = || "an expression of the configuration returned no strings".to_owned();
        texts(&self.run(about)?.to_json().ok_or_else(wrong)?).ok_or_else(wrong)
    }
}

/// A string or a list of strings.
pub(super) fn texts(value: &Value) -> Option<Vec<String>> {
    let mut all = match value {
        Value::Null => Vec::new(),
        Value::Array(list) => {
            let each = list.iter().map(|item| item.as_str().map(str::to_owned));
            each.collect::<Option<Vec<_>>>()?
        }
        text => vec![text.as_str()?.to_owned()],
    };
    all.retain(|text| !text.is_empty());
    Some(all)
}
