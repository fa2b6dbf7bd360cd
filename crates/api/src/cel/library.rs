//! What Kubernetes adds to the language: quantities, addresses, URLs, versions, named formats.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use super::eval::{Error, Machine};
use super::functions;
use super::operators::text_cost;
use super::value::{Key, List, Other, Value};
use crate::name;
use crate::quantity::Quantity;
use crate::structural::format::Format;

type Found<'a> = Result<Value<'a>, Error>;

const NANO: i128 = 1_000_000_000;

pub(super) fn call<'a>(machine: &mut Machine<'a, '_>, name: &str, args: &[Value<'a>]) -> Found<'a> {
    match args {
        [Value::Text(text), rest @ ..] => of_text(name, text, rest),
        [Value::Other(other), rest @ ..] => match &**other {
            Other::Quantity(nano) => of_quantity(name, *nano, rest),
            Other::Url(url) => of_url(name, url),
            Other::Ip(ip) => of_ip(name, *ip),
            Other::Cidr(ip, bits) => of_cidr(name, *ip, *bits, rest),
            Other::Semver(version) => of_semver(name, version, rest),
            Other::Format(format) => {
                let [Value::Text(text)] = rest else { return Err(Error::NoSuchOverload) };
                machine.budget.spend(text_cost(text.len()) * 4)?;
                Ok(validate(format, text))
            }
        },
        [] => match name.strip_prefix("format.").and_then(named_format) {
            Some(format) => Ok(other(Other::Format(format))),
            None => Err(Error::NoSuchOverload),
        },
        _ => Err(Error::NoSuchOverload),
    }
}

fn other<'a>(value: Other) -> Value<'a> {
    Value::Other(Arc::new(value))
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
        "isIP" => parse_ip(text).is_some().into(),
        "ip" => match parse_ip(text) {
            Some(ip) => other(Other::Ip(ip)),
            None => {
                let why = format!("IP Address {text:?} parse error during conversion from string");
                return Err(Error::other(why));
            }
        },
        "ip.isCanonical" => match parse_ip(text) {
            Some(ip) => (ip.to_string() == text).into(),
            None => {
                let why = format!("IP Address {text:?} parse error during conversion from string");
                return Err(Error::other(why));
            }
        },
        "isCIDR" => parse_cidr(text).is_some().into(),
        "cidr" => match parse_cidr(text) {
            Some((ip, bits)) => other(Other::Cidr(ip, bits)),
            None => {
                let why =
                    format!("network address parse error during conversion from string: {text:?}");
                return Err(Error::other(why));
            }
        },
        "jsonpatch.escapeKey" => text.replace('~', "~0").replace('/', "~1").into(),
        "format.named" => match named_format(text) {
            Some(format) => Value::some(other(Other::Format(format))),
            None => Value::NONE,
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

fn of_quantity<'a>(name: &str, nano: i128, rest: &[Value<'_>]) -> Found<'a> {
    let argument = match rest {
        [] => None,
        [Value::Int(value)] => Some(i128::from(*value) * NANO),
        [Value::Other(value)] => match &**value {
            Other::Quantity(nano) => Some(*nano),
            _ => return Err(Error::NoSuchOverload),
        },
        _ => return Err(Error::NoSuchOverload),
    };
    let made = |nano: Option<i128>| match nano {
        Some(nano) => Ok(other(Other::Quantity(nano))),
        None => Err(Error::other("quantity overflow")),
    };
    Ok(match (name, argument) {
        ("isInteger", None) => (nano % NANO == 0 && i64::try_from(nano / NANO).is_ok()).into(),
        ("asInteger", None) => match i64::try_from(nano / NANO) {
            Ok(value) if nano % NANO == 0 => Value::Int(value),
            _ => return Err(Error::other("cannot convert value to integer")),
        },
        ("asApproximateFloat", None) => Value::Double(nano as f64 / NANO as f64),
        ("sign", None) => Value::Int(nano.signum() as i64),
        ("add", Some(by)) => return made(nano.checked_add(by)),
        ("sub", Some(by)) => return made(nano.checked_sub(by)),
        ("compareTo", Some(by)) => Value::Int(nano.cmp(&by) as i64),
        ("isLessThan", Some(by)) => (nano < by).into(),
        ("isGreaterThan", Some(by)) => (nano > by).into(),
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The parts of a URL that expressions can ask for.
#[derive(Debug)]
pub struct Url {
    pub(super) text: String,
    scheme: String,
    host: String,
    hostname: String,
    port: String,
    path: String,
    query: String,
}

impl Url {
    /// An absolute URL, or an absolute path.
    fn parse(text: &str) -> Option<Url> {
        let is_plain = |c: char| !c.is_ascii_control() && c != ' ';
        if text.is_empty() || !text.chars().all(is_plain) {
            return None;
        }
        let (rest, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let scheme_end = rest.find(':').filter(|end| {
            let scheme = &rest[..*end];
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        let (scheme, rest) = match scheme_end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None if rest.starts_with('/') => ("", rest),
            None => return None,
        };
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(end) => rest.split_at(end),
                None => (rest, ""),
            },
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let (hostname, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, after) = rest.split_once(']')?;
                (name, after.strip_prefix(':').unwrap_or(after))
            }
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        if !port.chars().all(|c| c.is_ascii_digit()) {
            return None;
        }
        Some(Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            hostname: hostname.to_owned(),
            port: port.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        })
    }

    fn query<'a>(&self) -> Value<'a> {
        let mut found: BTreeMap<Key, Vec<Value<'a>>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let values = found.entry(Key::Text(decode(key).into())).or_default();
            values.push(decode(value).into());
        }
        let found: BTreeMap<Key, Value<'a>> =
            found.into_iter().map(|(key, values)| (key, values.into())).collect();
        found.into()
    }
}

/// Undoes the escapes of a query.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, tail.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn of_url<'a>(name: &str, url: &Url) -> Found<'a> {
    Ok(match name {
        "getScheme" => url.scheme.as_str().into(),
        "getHost" => url.host.as_str().into(),
        "getHostname" => url.hostname.as_str().into(),
        "getPort" => url.port.as_str().into(),
        "getEscapedPath" => url.path.as_str().into(),
        "getQuery" => url.query(),
        _ => return Err(Error::NoSuchOverload),
    })
}

fn parse_ip(text: &str) -> Option<IpAddr> {
    // IPv4 inside IPv6 has two spellings, and Kubernetes takes neither.
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, bits) = text.split_once('/')?;
    let ip = parse_ip(ip)?;
    let plain = !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = if plain { bits.parse().ok()? } else { return None };
    (bits <= width(ip)).then_some((ip, bits))
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn of_ip<'a>(name: &str, ip: IpAddr) -> Found<'a> {
    let link_local_unicast = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    Ok(match name {
        "family" => Value::Int(if ip.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => ip.is_unspecified().into(),
        "isLoopback" => ip.is_loopback().into(),
        "isLinkLocalMulticast" => match ip {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
        }
        .into(),
        "isLinkLocalUnicast" => link_local_unicast.into(),
        "isGlobalUnicast" => {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            (!broadcast && !special && !link_local_unicast).into()
        }
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The first `bits` of an address.
fn network(ip: IpAddr, bits: u8) -> u128 {
    let number = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    if bits == 0 { 0 } else { number & (u128::MAX << (128 - u32::from(bits))) }
}

fn of_cidr<'a>(name: &str, ip: IpAddr, bits: u8, rest: &[Value<'_>]) -> Found<'a> {
    let holds = |other: IpAddr, other_bits: u8| {
        ip.is_ipv4() == other.is_ipv4()
            && bits <= other_bits
            && network(ip, bits) == network(other, bits)
    };
    let argument = match (name, rest) {
        ("containsIP", [Value::Text(text)]) => parse_ip(text).map(|ip| (ip, width(ip))),
        ("containsCIDR", [Value::Text(text)]) => parse_cidr(text),
        (_, [Value::Other(value)]) => match &**value {
            Other::Ip(ip) => Some((*ip, width(*ip))),
            Other::Cidr(ip, bits) => Some((*ip, *bits)),
            _ => return Err(Error::NoSuchOverload),
        },
        (_, []) => None,
        _ => return Err(Error::NoSuchOverload),
    };
    Ok(match (name, argument) {
        ("containsIP" | "containsCIDR", Some((ip, bits))) => holds(ip, bits).into(),
        ("containsIP" | "containsCIDR", None) => {
            return Err(Error::other("parse error during conversion from string"));
        }
        ("ip", None) => other(Other::Ip(ip)),
        ("prefixLength", None) => Value::Int(i64::from(bits)),
        ("masked", None) => {
            let number = network(ip, bits);
            let masked: IpAddr = match ip {
                IpAddr::V4(_) => std::net::Ipv4Addr::from((number >> 96) as u32).into(),
                IpAddr::V6(_) => std::net::Ipv6Addr::from(number).into(),
            };
            other(Other::Cidr(masked, bits))
        }
        _ => return Err(Error::NoSuchOverload),
    })
}

/// A semantic version.
#[derive(Debug)]
pub struct Semver {
    numbers: [u64; 3],
    before: Vec<String>,
    text: String,
}

impl Semver {
    fn parse(text: &str, normalize: bool) -> Option<Semver> {
        let plain = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (rest, build) = plain.split_once('+').unwrap_or((plain, "0"));
        let (core, before) = match rest.split_once('-') {
            Some((core, before)) => (core, Some(before)),
            None => (rest, None),
        };
        let number = |part: &str| -> Option<u64> {
            let part = if normalize { part.trim_start_matches('0') } else { part };
            let part = if normalize && part.is_empty() { "0" } else { part };
            let plain =
                part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if plain { part.parse().ok() } else { None }
        };
        let mut parts: Vec<&str> = core.split('.').collect();
        while normalize && parts.len() < 3 {
            parts.push("0");
        }
        let [major, minor, patch] = parts[..] else { return None };
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let before: Vec<String> =
            before.map(|text| text.split('.').map(str::to_owned).collect()).unwrap_or_default();
        if !before.iter().all(|word| is_word(word)) || !build.split('.').all(is_word) {
            return None;
        }
        let numbers = [number(major)?, number(minor)?, number(patch)?];
        Some(Semver { numbers, before, text: plain.to_owned() })
    }

    pub(super) fn compare(&self, other: &Semver) -> Ordering {
        let release = |version: &Semver| version.before.is_empty();
        self.numbers.cmp(&other.numbers).then_with(|| match (release(self), release(other)) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.before.iter().zip(&other.before);
                let words = pairs.map(|(a, b)| compare_words(a, b)).find(|order| order.is_ne());
                words.unwrap_or_else(|| self.before.len().cmp(&other.before.len()))
            }
        })
    }
}

fn compare_words(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

fn of_semver<'a>(name: &str, version: &Semver, rest: &[Value<'_>]) -> Found<'a> {
    let order = match rest {
        [Value::Other(value)] => match &**value {
            Other::Semver(other) => Some(version.compare(other)),
            _ => return Err(Error::NoSuchOverload),
        },
        [] => None,
        _ => return Err(Error::NoSuchOverload),
    };
    let [major, minor, patch] = version.numbers.map(|number| number as i64);
    Ok(match (name, order) {
        ("major", None) => Value::Int(major),
        ("minor", None) => Value::Int(minor),
        ("patch", None) => Value::Int(patch),
        ("compareTo", Some(order)) => Value::Int(order as i64),
        ("isLessThan", Some(order)) => order.is_lt().into(),
        ("isGreaterThan", Some(order)) => order.is_gt().into(),
        _ => return Err(Error::NoSuchOverload),
    })
}

#[rustfmt::skip]
fn named_format(name: &str) -> Option<&'static str> {
    const FORMATS: [&str; 13] = [
        "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix",
        "dns1123SubdomainPrefix", "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date",
        "datetime",
    ];
    FORMATS.into_iter().find(|known| *known == name)
}

/// Nothing if the text has the format, else what is wrong with it.
fn validate<'a>(format: &str, text: &str) -> Value<'a> {
    // A prefix of a name may end where a name may not.
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
        other => match Format::of(other, crate::structural::Types::default()) {
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

/// As `string()` shows it.
pub(super) fn show(value: &Other) -> Option<String> {
    Some(match value {
        Other::Ip(ip) => ip.to_string(),
        Other::Cidr(ip, bits) => format!("{ip}/{bits}"),
        Other::Url(url) => url.text.clone(),
        Other::Semver(version) => version.text.clone(),
        Other::Quantity(_) | Other::Format(_) => return None,
    })
}

/// The shortest text that reads back as the number.
pub(super) fn show_double(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    if value == 0.0 || (1e-4..1e21).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = match power.strip_prefix('-') {
                Some(power) => ('-', power),
                None => ('+', power),
            };
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

/// A text in quotes.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// `'%s has %d'.format([a, b])`.
pub(super) fn format<'a>(
    machine: &mut Machine<'a, '_>,
    text: &str,
    values: &List<'a>,
) -> Found<'a> {
    let mut made = String::new();
    let mut chars = text.chars().peekable();
    let mut next = 0;
    while let Some(c) = chars.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        let mut precision = None;
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = Some(digits.parse::<usize>().unwrap_or(0).min(100));
        }
        let Some(verb) = chars.next() else {
            return Err(Error::other("unexpected end of string"));
        };
        if verb == '%' {
            made.push('%');
            continue;
        }
        let Some(value) = values.get(next) else {
            return Err(Error::other(format!("index {next} out of range")));
        };
        next += 1;
        let before = made.len();
        write_verb(&mut made, verb, precision, &value)?;
        machine.budget.spend(text_cost(made.len() - before))?;
    }
    Ok(made.into())
}

fn write_verb(
    made: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<(), Error> {
    let digits = precision.unwrap_or(6);
    let written = match (verb, value) {
        ('s', value) => {
            write_plain(made, value, 0)?;
            Ok(())
        }
        ('d', Value::Int(value)) => write!(made, "{value}"),
        ('d', Value::Uint(value)) => write!(made, "{value}"),
        ('d', Value::Double(value)) => write!(made, "{value:.0}"),
        ('f', Value::Double(value)) => write!(made, "{value:.digits$}"),
        ('f', Value::Int(value)) => write!(made, "{:.digits$}", *value as f64),
        ('e', Value::Double(value)) => write!(made, "{value:.digits$e}"),
        ('x', Value::Int(value)) => write!(made, "{value:x}"),
        ('X', Value::Int(value)) => write!(made, "{value:X}"),
        ('x', Value::Uint(value)) => write!(made, "{value:x}"),
        ('X', Value::Uint(value)) => write!(made, "{value:X}"),
        ('x' | 'X', Value::Text(text)) => text.bytes().try_for_each(|byte| match verb {
            'x' => write!(made, "{byte:02x}"),
            _ => write!(made, "{byte:02X}"),
        }),
        ('o', Value::Int(value)) => write!(made, "{value:o}"),
        ('b', Value::Int(value)) => write!(made, "{value:b}"),
        ('b', Value::Bool(value)) => write!(made, "{}", u8::from(*value)),
        ('d' | 'f' | 'e' | 'x' | 'X' | 'o' | 'b', value) => {
            let why = format!("no formatting function for type {}", value.type_name());
            return Err(Error::other(why));
        }
        _ => return Err(Error::other(format!("unrecognized formatting clause {verb:?}"))),
    };
    written.map_err(|_| Error::other("the text cannot be formatted"))
}

/// How deep nested lists are printed.
const NESTED_MAX: usize = 20;

fn write_plain(made: &mut String, value: &Value<'_>, depth: usize) -> Result<(), Error> {
    if depth > NESTED_MAX {
        return Err(Error::other("the value is nested too deeply to be printed"));
    }
    match value {
        Value::Null => made.push_str("null"),
        Value::Type(name) => made.push_str(name),
        Value::List(list) => {
            made.push('[');
            for (at, element) in list.iter().enumerate() {
                if at > 0 {
                    made.push_str(", ");
                }
                write_plain(made, &element, depth + 1)?;
            }
            made.push(']');
        }
        Value::Map(map) => {
            made.push('{');
            for (at, (key, value)) in functions::pairs(map).iter().enumerate() {
                if at > 0 {
                    made.push_str(", ");
                }
                write_plain(made, key, depth + 1)?;
                made.push_str(": ");
                write_plain(made, value, depth + 1)?;
            }
            made.push('}');
        }
        value => match functions::string(value)? {
            Value::Text(text) => made.push_str(&text),
            _ => return Err(Error::NoSuchOverload),
        },
    }
    Ok(())
}
