//! Named formats, such as DNS labels.

use crate::format::Format;
use crate::value::Value;
use headwater_api::name;

#[rustfmt::skip]
pub(super) fn named(name: &str) -> Option<&'static str> {
    const FORMATS: [&str; 13] = [
        "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix",
        "dns1123SubdomainPrefix", "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date",
        "datetime",
    ];
    FORMATS.into_iter().find(|known| *known == name)
}

/// The errors of a text; empty if it has the format.
pub(super) fn validate<'a>(format: &str, text: &str) -> Value<'a> {
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
