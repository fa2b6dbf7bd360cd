//! Functions that Kubernetes adds: quantities, addresses, URLs, versions, named formats.

use super::{Found, authorizer, formats, net, other, quantity, semver, url};
use crate::budget::Error;
use crate::eval::Machine;
use crate::operators::text_cost;
use crate::value::semver::Semver;
use crate::value::url::Url;
use crate::value::{Other, Value};
use headwater_api::quantity::Quantity;

pub(super) fn call<'a>(machine: &mut Machine<'a, '_>, name: &str, args: &[Value<'a>]) -> Found<'a> {
    match args {
        [Value::Text(text), rest @ ..] => of_text(name, text, rest),
        [Value::Other(other), rest @ ..] => match &**other {
            Other::Quantity(nano) => quantity::of_quantity(name, *nano, rest),
            Other::Url(url) => url::of_url(name, url),
            Other::Ip(ip) => net::of_ip(name, *ip),
            Other::Cidr(ip, bits) => net::of_cidr(name, *ip, *bits, rest),
            Other::Semver(version) => semver::of_semver(name, version, rest),
            Other::Authorizer(who) => authorizer::of_authorizer(name, who, rest),
            Other::Question(who, question) => {
                authorizer::of_question(machine, name, who, question, rest)
            }
            Other::Decision(decision) => authorizer::of_decision(name, decision),
            Other::Format(format) => {
                let [Value::Text(text)] = rest else { return Err(Error::NoSuchOverload) };
                machine.budget.spend(text_cost(text.len()) * 4)?;
                Ok(formats::validate(format, text))
            }
        },
        [] => match name.strip_prefix("format.").and_then(formats::named) {
            Some(format) => Ok(other(Other::Format(format))),
            None => Err(Error::NoSuchOverload),
        },
        _ => Err(Error::NoSuchOverload),
    }
}

fn of_text<'a>(name: &str, text: &str, rest: &[Value<'_>]) -> Found<'a> {
    if name == "semver" || name == "isSemver" {
        let normalize = matches!(rest, [Value::Bool(true)]);
        let version = Semver::parse(text, normalize);
        return match (name, version) {
            ("isSemver", version) => Ok(version.is_some().into()),
            (_, Some(version)) => Ok(other(Other::Semver(version))),
            (_, None) => Err(Error::other("Invalid semantic version")),
        };
    }
    if !rest.is_empty() {
        return Err(Error::NoSuchOverload);
    }
    Ok(match name {
        "isQuantity" => Quantity::parse(text).is_ok().into(),
        "quantity" => match Quantity::parse(text) {
            Ok(quantity) => other(Other::Quantity(quantity.nano())),
            Err(error) => return Err(Error::other(error.to_string())),
        },
        "isURL" => Url::parse(text).is_some().into(),
        "url" => match Url::parse(text) {
            Some(url) => other(Other::Url(url)),
            None => {
                let why = format!("URL parse error during conversion from string: {text:?}");
                return Err(Error::other(why));
            }
        },
        "isIP" => net::parse_ip(text).is_some().into(),
        "ip" => match net::parse_ip(text) {
            Some(ip) => other(Other::Ip(ip)),
            None => {
                let why = format!("IP Address {text:?} parse error during conversion from string");
                return Err(Error::other(why));
            }
        },
        "ip.isCanonical" => match net::parse_ip(text) {
            Some(ip) => (ip.to_string() == text).into(),
            None => {
                let why = format!("IP Address {text:?} parse error during conversion from string");
                return Err(Error::other(why));
            }
        },
        "isCIDR" => net::parse_cidr(text).is_some().into(),
        "cidr" => match net::parse_cidr(text) {
            Some((ip, bits)) => other(Other::Cidr(ip, bits)),
            None => {
                let why =
                    format!("network address parse error during conversion from string: {text:?}");
                return Err(Error::other(why));
            }
        },
        "jsonpatch.escapeKey" => text.replace('~', "~0").replace('/', "~1").into(),
        "format.named" => match formats::named(text) {
            Some(format) => Value::some(other(Other::Format(format))),
            None => Value::NONE,
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The text of `string()`.
pub(super) fn show(value: &Other) -> Option<String> {
    Some(match value {
        Other::Ip(ip) => ip.to_string(),
        Other::Cidr(ip, bits) => format!("{ip}/{bits}"),
        Other::Url(url) => url.text.clone(),
        Other::Semver(version) => version.text.clone(),
        _ => return None,
    })
}
