//! Named formats, such as DNS labels.

use crate::budget::text_cost;
use crate::estimate::rule;
use crate::format::Format;
use crate::value::{Other, Value};
use headwater_api::name;

rows! {
    "format.named(string) -> optional(NamedFormat)", rule::ONE, |_, name: text| {
        let format = FORMATS.into_iter().find(|known| *known == name);
        format.map(|format| Value::from(Other::Format(format)))
    };
    "format.dns1123Label() -> NamedFormat", rule::ONE, |_| Other::Format("dns1123Label");
    "format.dns1123Subdomain() -> NamedFormat", rule::ONE, |_| Other::Format("dns1123Subdomain");
    "format.dns1035Label() -> NamedFormat", rule::ONE, |_| Other::Format("dns1035Label");
    "format.qualifiedName() -> NamedFormat", rule::ONE, |_| Other::Format("qualifiedName");
    "format.dns1123LabelPrefix() -> NamedFormat", rule::ONE,
        |_| Other::Format("dns1123LabelPrefix");
    "format.dns1123SubdomainPrefix() -> NamedFormat", rule::ONE,
        |_| Other::Format("dns1123SubdomainPrefix");
    "format.dns1035LabelPrefix() -> NamedFormat", rule::ONE,
        |_| Other::Format("dns1035LabelPrefix");
    "format.labelValue() -> NamedFormat", rule::ONE, |_| Other::Format("labelValue");
    "format.uri() -> NamedFormat", rule::ONE, |_| Other::Format("uri");
    "format.uuid() -> NamedFormat", rule::ONE, |_| Other::Format("uuid");
    "format.byte() -> NamedFormat", rule::ONE, |_| Other::Format("byte");
    "format.date() -> NamedFormat", rule::ONE, |_| Other::Format("date");
    "format.datetime() -> NamedFormat", rule::ONE, |_| Other::Format("datetime");
    "NamedFormat.validate(string) -> optional(list(string))", rule::VALIDATED,
        |m, format: format, text: text| {
            m.spend(text_cost(text.len()) * 4)?;
            validate(format, text)
        };
}

#[rustfmt::skip]
const FORMATS: [&str; 13] = [
    "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix",
    "dns1123SubdomainPrefix", "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date",
    "datetime",
];

/// The errors of a text; empty if it has the format.
fn validate<'a>(format: &str, text: &str) -> Value<'a> {
    // A name prefix may end with characters that a name may not.
    let whole = text.strip_suffix('-').map_or_else(|| text.to_owned(), |rest| format!("{rest}a"));
    let problems = match format {
        "dns1123Label" => name::label(text),
        "dns1123Subdomain" => name::subdomain(text),
        "dns1035Label" => name::label_1035(text),
        "qualifiedName" => name::qualified(text),
        "dns1123LabelPrefix" => name::label(&whole),
        "dns1123SubdomainPrefix" => name::subdomain(&whole),
        "dns1035LabelPrefix" => name::label_1035(&whole),
        "labelValue" => name::label_value(text),
        other => match Format::of(other) {
            Some(format) if !format.accepts(text) => vec![format!("invalid {other}")],
            _ => Vec::new(),
        },
    };
    if problems.is_empty() {
        return Value::NONE;
    }
    let problems: Vec<Value<'a>> = problems.iter().map(|text| Value::from(&**text)).collect();
    Value::some(problems.into())
}
