//! The rules of the validation table.

use std::collections::HashSet;

use headwater_json::Value;

use super::{Check, Path};
use headwater_api::name::{self, LABEL_BYTES_MAX, Part, Problems};
use headwater_api::quantity::Quantity;

/// One rule for one value.
pub(super) enum Rule {
    Required(&'static str),
    /// There, though it may be empty.
    Present(&'static str),
    /// A number that is not zero.
    Set(&'static str),
    Forbidden(&'static str),
    Enum(Vec<&'static str>),
    /// A text of a form; an empty one is checked only if it is `strict`.
    Text {
        form: fn(&str) -> Problems,
        strict: bool,
    },
    /// At most so many bytes.
    Bytes(usize),
    /// The name of a storage or device driver.
    Driver,
    /// A quantity above zero.
    Positive(String),
    Between {
        min: i64,
        max: i64,
        why: String,
    },
    Port,
    PortOrName,
    Count,
    Percentage,
    Amount,
    Amounts,
    Labels,
    Unique(Option<&'static str>),
    Many(usize),
}

/// The port rule and its messages.
pub(super) const PORT: &str = "must be between 1 and 65535, inclusive";

impl Rule {
    pub(super) fn read(text: &'static str) -> Rule {
        let (name, args) = text.split_once(' ').unwrap_or((text, ""));
        let int = |text: &str| text.parse::<i64>().expect("a bound is a number");
        match name {
            "required" => Rule::Required(args),
            "present" => Rule::Present(args),
            "set" => Rule::Set(args),
            "forbidden" => Rule::Forbidden(args),
            "enum" => {
                let word = |word| if word == "\"\"" { "" } else { word };
                Rule::Enum(args.split(' ').map(word).collect())
            }
            "bytes" => Rule::Bytes(args.parse().expect("a limit is a number")),
            "driver" => Rule::Driver,
            "above-zero" => Rule::Positive(args.to_owned()),
            "min" => Rule::Between {
                min: int(args),
                max: i64::MAX,
                why: format!("must be greater than or equal to {args}"),
            },
            "positive" => {
                Rule::Between { min: 1, max: i64::MAX, why: "must be greater than 0".into() }
            }
            "range" | "between" => {
                let mut words = args.splitn(3, ' ');
                let mut next = || words.next().expect("a range has two ends");
                let (min, max) = (next(), next());
                let why = match name {
                    "between" => next().to_owned(),
                    _ => format!("must be between {min} and {max}, inclusive"),
                };
                Rule::Between { min: int(min), max: int(max), why }
            }
            "mode" => Rule::Between {
                min: 0,
                max: 0o777,
                why: "must be a number between 0 and 0777 (octal), both inclusive".into(),
            },
            "port" => Rule::Port,
            "port-or-name" => Rule::PortOrName,
            "count" => Rule::Count,
            "percentage" => Rule::Percentage,
            "amount" => Rule::Amount,
            "amounts" => Rule::Amounts,
            "labels" => Rule::Labels,
            "unique" => Rule::Unique(Some(args).filter(|key| !key.is_empty())),
            "many" => Rule::Many(args.parse().expect("a limit is a number")),
            form => match form.strip_suffix('!') {
                Some(form) => Rule::Text { form: form_of(form), strict: true },
                None => Rule::Text { form: form_of(form), strict: false },
            },
        }
    }

    /// Checks a value; returns `false` if no further rules apply.
    pub(super) fn check(
        &self,
        check: &mut Check<'_>,
        value: Option<&Value>,
        path: &Path<'_>,
    ) -> bool {
        match (self, value) {
            (Rule::Required(why), value) if is_empty(value) => {
                check.required(path, why);
                return false;
            }
            (Rule::Present(why), None) => {
                check.required(path, why);
                return false;
            }
            (Rule::Set(why), value) if value.is_none_or(|value| value.as_i64() == Some(0)) => {
                check.required(path, why);
                return false;
            }
            (Rule::Forbidden(why), Some(_)) => check.forbidden(path, why),
            (Rule::Enum(words), Some(value)) => one_of(check, words, value, path),
            (Rule::Text { form, strict }, Some(Value::String(text)))
                if *strict || !text.is_empty() =>
            {
                check.problems(path, text, form(text));
            }
            (Rule::Bytes(max), Some(Value::String(text))) if text.len() > *max => {
                check.too_long(path, *max);
            }
            (Rule::Driver, value) => {
                driver(check, value.and_then(Value::as_str).unwrap_or_default(), path);
            }
            (Rule::Positive(why), Some(value)) => {
                let amount = value.as_str().and_then(|text| Quantity::parse(text).ok());
                if amount.is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
                    check.invalid(path, value, why);
                }
            }
            (Rule::Between { min, max, why }, Some(value))
                if value.as_i64().is_some_and(|number| !(*min..=*max).contains(&number)) =>
            {
                check.invalid(path, value, why);
            }
            (Rule::Port, Some(value)) => port(check, value, path),
            (Rule::PortOrName, Some(Value::String(text))) => {
                check.problems(path, text, name::port_name(text));
            }
            (Rule::PortOrName, Some(value)) => port(check, value, path),
            (Rule::Count, Some(value)) => count(check, value, path),
            (Rule::Percentage, Some(value))
                if percent(value).is_some_and(|percent| percent > 100) =>
            {
                check.invalid(path, value, "must not be greater than 100%");
            }
            (Rule::Amount, Some(value)) => amount(check, value, path),
            (Rule::Amounts, Some(Value::Object(amounts))) => {
                for (key, value) in amounts {
                    amount(check, value, &path.bracket(key));
                }
            }
            (Rule::Labels, Some(Value::Object(labels))) => {
                for (key, value) in labels {
                    check.problems(path, key, name::qualified(key));
                    let value = value.as_str().unwrap_or_default();
                    check.problems(path, value, name::label_value(value));
                }
            }
            (Rule::Unique(key), Some(Value::Array(items))) => unique(check, items, *key, path),
            (Rule::Many(max), Some(Value::Array(items))) if items.len() > *max => {
                check.too_many(path, items.len(), *max);
            }
            _ => {}
        }
        true
    }
}

fn form_of(name: &str) -> fn(&str) -> Problems {
    match name {
        "label" => name::label,
        "subdomain" => name::subdomain,
        "qualified" => name::qualified,
        "label-value" => name::label_value,
        "env-name" => name::env_name,
        "config-key" => name::config_key,
        "port-name" => name::port_name,
        "ip" => name::ip,
        "cidr" => cidr,
        "segment" => |text| name::path_segment(text, Part::Whole),
        "lower-qualified" => |text| name::qualified(&text.to_lowercase()),
        "path-of-domain" => path_of_domain,
        "relative" => relative,
        "no-dots" => no_dots,
        other => unreachable!("no form {other}"),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn one_of(check: &mut Check<'_>, words: &[&str], value: &Value, path: &Path<'_>) {
    if value.as_str().is_some_and(|text| !words.contains(&text)) {
        check.not_supported(path, value, words);
    }
}

fn port(check: &mut Check<'_>, value: &Value, path: &Path<'_>) {
    if value.as_i64().is_some_and(|port| !(1..=65535).contains(&port)) {
        check.invalid(path, value, PORT);
    }
}

/// An integer from zero, or a percentage.
fn count(check: &mut Check<'_>, value: &Value, path: &Path<'_>) {
    match value {
        Value::String(text) => {
            for problem in name::percent(text) {
                check.invalid(path, value, &problem);
            }
        }
        number if number.as_i64().is_some_and(|number| number < 0) => {
            check.invalid(path, value, "must be greater than or equal to 0");
        }
        _ => {}
    }
}

/// The number of a percentage; `None` if it is not one.
pub(super) fn percent(value: &Value) -> Option<i64> {
    let text = value.as_str()?;
    if !name::percent(text).is_empty() {
        return None;
    }
    Some(text.trim_end_matches('%').parse().unwrap_or(i64::MAX))
}

fn amount(check: &mut Check<'_>, value: &Value, path: &Path<'_>) {
    let parsed = value.as_str().and_then(|text| Quantity::parse(text).ok());
    if parsed.is_some_and(|amount| amount.is_negative()) {
        check.invalid(path, value, "must be greater than or equal to 0");
    }
}

fn unique(check: &mut Check<'_>, items: &[Value], key: Option<&str>, path: &Path<'_>) {
    let mut seen = Seen::default();
    for (index, item) in items.iter().enumerate() {
        let value = key.map_or(Some(item), |key| item.get(key));
        let Some(text) = value.and_then(Value::as_str).filter(|text| !text.is_empty()) else {
            continue;
        };
        if !seen.insert(text) {
            let at = path.index(index);
            match key {
                Some(key) => check.duplicate(at.field(key), &text.into()),
                None => check.duplicate(at, &text.into()),
            }
        }
    }
}

/// The old value. Most lists are short and a look at each is cheapest; the long ones must
/// not cost the square of their length.
#[derive(Default)]
pub(super) struct Seen<'a> {
    few: Vec<&'a str>,
    many: HashSet<&'a str>,
}

impl<'a> Seen<'a> {
    /// Adds a string; returns `false` if it was present.
    pub(super) fn insert(&mut self, text: &'a str) -> bool {
        const FEW: usize = 16;
        if self.few.contains(&text) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(text);
            return true;
        }
        self.many.insert(text)
    }

    pub(super) fn contains(&self, text: &str) -> bool {
        self.few.contains(&text) || self.many.contains(text)
    }
}

pub(super) fn cidr(text: &str) -> Problems {
    let refused = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let Some((address, bits)) = text.trim().split_once('/') else { return vec![refused.into()] };
    let bits_max = match address.parse() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return vec![refused.into()],
    };
    let plain = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    match bits.parse::<u8>() {
        Ok(bits) if plain && bits <= bits_max => Vec::new(),
        _ => vec![refused.into()],
    }
}

/// The maximum length of the name of a driver.
const DRIVER_BYTES_MAX: usize = 63;

/// Checks the name of a storage or device driver.
pub(super) fn driver(check: &mut Check<'_>, name: &str, path: &Path<'_>) {
    if name.is_empty() {
        return check.required(path, "");
    }
    if name.len() > DRIVER_BYTES_MAX {
        check.too_long(path, DRIVER_BYTES_MAX);
    }
    check.problems(path, name, name::subdomain(&name.to_lowercase()));
}

/// `example.com/path`.
fn path_of_domain(text: &str) -> Problems {
    let Some((domain, path)) = text.split_once('/') else {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".into()];
    };
    if path.is_empty() || domain.is_empty() {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".into()];
    }
    let domain = name::subdomain(domain);
    if !domain.is_empty() {
        return domain;
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if path.bytes().all(is_plain) {
        return Vec::new();
    }
    vec!["Invalid path (e.g. 'acme.io/foo', regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')".into()]
}

fn relative(path: &str) -> Problems {
    let mut problems = no_dots(path);
    if path.starts_with('/') {
        problems.insert(0, "must be a relative path".into());
    }
    if path.starts_with("..") && path != ".." && !path.starts_with("../") {
        problems.push("must not start with '..'".into());
    }
    problems
}

fn no_dots(path: &str) -> Problems {
    if path.split('/').any(|part| part == "..") {
        return vec!["must not contain '..'".into()];
    }
    Vec::new()
}

/// The maximum length of a name from which a controller derives pod names.
pub(super) const CRON_JOB_NAME_BYTES_MAX: usize = LABEL_BYTES_MAX - 11;
