//! String and number formats of schemas. Unknown formats are ignored, as in Kubernetes.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::time::parse_duration;

/// An enforced format, with its name in the schema.
pub struct Format {
    name: Box<str>,
    accepts: fn(&str) -> bool,
}

impl Format {
    /// The string format with this name, if it is enforced.
    pub fn of(name: &str) -> Option<Format> {
        Some(Format { name: name.into(), accepts: accepts(name)? })
    }

    /// A number format, which accepts any text.
    pub fn of_number(name: &str) -> Format {
        Format { name: name.into(), accepts: |_| true }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a text has the format; number formats accept any text.
    pub fn accepts(&self, text: &str) -> bool {
        (self.accepts)(text)
    }
}

fn accepts(name: &str) -> Option<fn(&str) -> bool> {
    // Names are compared without their dashes.
    Some(match name.replace('-', "").as_str() {
        "bsonobjectid" => |text| text.len() == 24 && is_hex(text),
        "uri" => is_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => is_ipv4,
        "ipv6" => |text| text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr,
        "mac" => is_mac,
        "uuid" => |text| UUID.is_match(text),
        "uuid3" => |text| UUID3.is_match(text),
        "uuid4" => |text| UUID4.is_match(text),
        "uuid5" => |text| UUID5.is_match(text),
        "isbn" => |text| is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |text| SSN.is_match(text),
        "hexcolor" => is_hex_color,
        "rgbcolor" => |text| RGB.is_match(text),
        "byte" => is_base64,
        "password" => |_| true,
        "date" => is_date,
        "datetime" => is_date_time,
        "duration" => is_duration,
        "k8sshortname" => |text| text.len() <= 63 && is_name(text),
        "k8slongname" => |text| text.len() <= 253 && text.split('.').all(is_name),
        _ => return None,
    })
}

type Lazy = LazyLock<Regex>;

fn regex(text: &str) -> Regex {
    Regex::new(text).expect("the patterns of this file are tested")
}

static UUID: Lazy =
    Lazy::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static UUID3: Lazy =
    Lazy::new(|| regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static UUID4: Lazy = Lazy::new(|| {
    regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
});
static UUID5: Lazy = Lazy::new(|| {
    regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
});
static SSN: Lazy = Lazy::new(|| regex("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static RGB: Lazy = Lazy::new(|| {
    let part = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    regex(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static HOST: Lazy = Lazy::new(|| {
    let sign = r"a-zA-Z0-9\p{S}\p{L}";
    regex(&format!(
        r"^([{sign}]((-?[{sign}]{{0,62}})?)|([{sign}](([{sign}-]{{0,61}}[{sign}])?)(\.))+([a-zA-Z\p{{L}}]){{2,63}})$"
    ))
});
static CARD: Lazy = Lazy::new(|| {
    regex(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static PERIOD: Lazy = Lazy::new(|| regex(r"([0-9]+)[\t\n\x0C\r ]*([A-Za-zµ]+)"));

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A path, or a scheme with a rest; only characters that a URI allows.
fn is_uri(text: &str) -> bool {
    let printable = !text.contains(|c: char| c.is_control() || c == ' ');
    let escapes = text.split('%').skip(1).all(|rest| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let absolute = text.starts_with('/')
        || text == "*"
        || text.split_once(':').is_some_and(|(scheme, _)| {
            let sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(sign)
        });
    printable && escapes && absolute
}

/// `a@b`, or `Name <a@b>`.
fn is_email(text: &str) -> bool {
    let address = match text.trim().strip_suffix('>').and_then(|text| text.split_once('<')) {
        Some((_, address)) => address,
        None => text.trim(),
    };
    let sign =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    let dotted = |text: &str| {
        !text.is_empty() && text.split('.').all(|part| !part.is_empty() && part.chars().all(sign))
    };
    let quoted = |text: &str| text.len() > 2 && text.starts_with('"') && text.ends_with('"');
    address
        .rsplit_once('@')
        .is_some_and(|(local, domain)| (dotted(local) || quoted(local)) && dotted(domain))
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && HOST.is_match(text) && text.split('.').all(|part| part.len() <= 63)
}

/// Accepts leading zeros, as older versions of Go did.
fn is_ipv4(text: &str) -> bool {
    let octet = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && part.parse::<u32>().is_ok_and(|octet| octet < 256)
    };
    let dotted = text.split('.').count() == 4 && text.split('.').all(octet);
    dotted || (text.contains('.') && text.parse::<IpAddr>().is_ok())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let whole = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    let Ok(bits) = bits.parse::<u32>() else { return false };
    whole
        && match address.parse::<Ipv6Addr>() {
            Ok(_) => bits <= 128,
            Err(_) => is_ipv4(address) && bits <= 32,
        }
}

/// 6, 8 or 20 bytes as groups of two or four hexadecimal digits.
fn is_mac(text: &str) -> bool {
    let (separator, width) = match text {
        text if text.contains('.') => ('.', 4),
        text if text.contains('-') => ('-', 2),
        _ => (':', 2),
    };
    let parts: Vec<&str> = text.split(separator).collect();
    let bytes = parts.len() * width / 2;
    matches!(bytes, 6 | 8 | 20) && parts.iter().all(|part| part.len() == width && is_hex(part))
}

fn is_isbn10(text: &str) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let weighted = digits.iter().enumerate().map(|(at, c)| match (c.to_digit(10), at) {
        (Some(digit), at) => Some(digit * (at as u32 + 1)),
        (None, 9) if matches!(c, 'X' | 'x') => Some(100),
        _ => None,
    });
    let sum: Option<u32> = weighted.sum();
    digits.len() == 10 && sum.is_some_and(|sum| sum % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> =
        text.chars().filter(|c| !matches!(c, '-' | ' ')).map(|c| c.to_digit(10)).collect();
    digits.is_some_and(|digits| {
        let sum: u32 = digits.iter().enumerate().map(|(at, digit)| digit * [1, 3][at % 2]).sum();
        digits.len() == 13 && sum.is_multiple_of(10)
    })
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(at, digit)| match (u32::from(digit - b'0'), at % 2) {
            (digit, 0) => digit,
            (digit, _) if digit > 4 => digit * 2 - 9,
            (digit, _) => digit * 2,
        })
        .sum();
    CARD.is_match(&digits) && sum.is_multiple_of(10)
}

fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && is_hex(digits)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let sign = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(sign)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    text.split_once(['t', 'T']).is_some_and(|(date, time)| is_date(date) && is_time(time))
}

/// `23:59:59`, an optional fraction, then `Z` or an offset.
fn is_time(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let below = |text: &str, max: &str| text.len() == 2 && digits(text) && text <= max;
    let clock = |text: &str| {
        let mut parts = text.splitn(3, ':');
        let (hour, minute, second) = (parts.next(), parts.next(), parts.next());
        hour.is_some_and(|hour| below(hour, "23"))
            && minute.is_some_and(|minute| below(minute, "59"))
            && second.is_some_and(|second| below(second, "59"))
    };
    let Some((time, rest)) = text.split_at_checked(8) else { return false };
    let end = rest.find(['z', 'Z', '+', '-']).unwrap_or(rest.len());
    let (fraction, zone) = rest.split_at(end);
    let fraction_fits = fraction.is_empty()
        || fraction.strip_prefix(['.', ',']).is_some_and(|rest| !rest.is_empty() && digits(rest));
    let offset = zone.strip_prefix(['+', '-']).and_then(|zone| zone.split_once(':'));
    let zone_fits = matches!(zone, "z" | "Z")
        || offset.is_some_and(|(hours, minutes)| below(hours, "99") && below(minutes, "99"));
    clock(time) && fraction_fits && zone_fits
}

/// A Go duration, or numbers with units in words.
fn is_duration(text: &str) -> bool {
    parse_duration(text).is_some()
        || PERIOD.captures_iter(text).any(|found| {
            let unit = found[2].to_lowercase();
            let exact = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
            let begins = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
            found[1].parse::<i64>().is_ok()
                && (exact.contains(&unit.as_str())
                    || begins.iter().any(|word| unit.starts_with(word)))
        })
}

fn is_name(text: &str) -> bool {
    let sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| sign(*byte))
        && bytes.last().is_some_and(|byte| sign(*byte))
        && bytes.iter().all(|byte| sign(*byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: &str, good: &[&str], bad: &[&str]) {
        let format = Format::of(format).unwrap();
        for text in good {
            assert!(format.accepts(text), "{} {text:?}", format.name());
        }
        for text in bad {
            assert!(!format.accepts(text), "{} {text:?}", format.name());
        }
    }

    #[test]
    fn formats_accept_valid_and_reject_invalid_values() {
        check(
            "date-time",
            &["2024-02-29T23:59:59Z", "2024-01-01t00:00:00.5+02:00"],
            &["2023-02-29T00:00:00Z", "2024-01-01", "2024-01-01T24:00:00Z", "x", ""],
        );
        check("date", &["2024-02-29"], &["2023-02-29", "2024-1-1", ""]);
        check(
            "duration",
            &["1h30m", "1.5s", "-2ms", "0", "3 days", "2 weeks"],
            &["", "x", "1x", "h"],
        );
        check("ipv4", &["10.0.0.1", "010.0.0.1"], &["10.0.0", "256.0.0.1", "::1"]);
        check("ipv6", &["::1", "2001:db8::1"], &["10.0.0.1", ":::"]);
        check("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33", "x/1"]);
        check("mac", &["01:23:45:67:89:ab", "0123.4567.89ab"], &["01:23", "zz:23:45:67:89:ab"]);
        check("uuid", &["123E4567-e89b-12d3-a456-426614174000"], &["123e4567"]);
        check(
            "uuid4",
            &["123e4567-e89b-42d3-a456-426614174000"],
            &["123e4567-e89b-12d3-a456-426614174000"],
        );
        check("uri", &["https://a.b/c?d", "/x", "mailto:a@b"], &["", "a b", "no scheme", "/%zz"]);
        check("email", &["a@b.c", "Joe <joe@x>"], &["a", "@b", "a@", "a..b@c"]);
        check("hostname", &["a", "a.example.com", "1a.com"], &["", "a..b", "-a.com", "a_b.com"]);
        check("byte", &["aGk=", "aGkh"], &["", "aGk", "a=k=", "a-k="]);
        check("hexcolor", &["#fff", "A0B1C2"], &["#ff", "#ggg"]);
        check("rgbcolor", &["rgb(0, 255, 20)"], &["rgb(256,0,0)", "rgb(0,0)"]);
        check("isbn", &["0321751043", "978-0321751041"], &["0321751044", "978-0321751042"]);
        check("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112"]);
        check("ssn", &["111-11-1111"], &["111-11-111"]);
        check("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f1f77bcf86cd79943901"]);
        check("k8s-short-name", &["a-b"], &["A", "a.b", "-a"]);
        check("k8s-long-name", &["a-b.c"], &["a..b", "A.b"]);
        check("password", &["anything", ""], &[]);
    }

    #[test]
    fn an_unknown_format_is_ignored() {
        assert!(Format::of("semver").is_none());
        assert!(Format::of("int32").is_none());
    }
}
