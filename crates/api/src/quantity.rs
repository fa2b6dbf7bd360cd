//! Resource quantities: `100m`, `1Gi`, `2e3`.
//!
//! River: decoded field → **quantity** → the canonical form that is stored; validation compares
//! them.
//! Promise: equal amounts in one notation have one canonical form, the one that Kubernetes prints.

use std::cmp::Ordering;
use std::fmt;

/// An amount and the notation in which it was written.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// Billionths, the precision of Kubernetes. Smaller parts are rounded away from zero.
    nano: i128,
    notation: Notation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    /// `100m`, `2k`.
    Decimal,
    /// `2Ki`.
    Binary,
    /// `2e3`.
    Exponent,
}

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a number followed by a suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// A number followed by text that is not a suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;

/// The largest amount; larger ones are reduced to it.
const NANO_MAX: i128 = i64::MAX as i128 * NANO;

/// The number of digits that are exact; further digits only affect rounding. With the largest
/// suffix they still fit.
const DIGITS_MAX: u32 = 20;

impl Quantity {
    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Quantity, Error> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.bytes().position(|byte| !byte.is_ascii_digit() && byte != b'.');
        let (number, suffix) = rest.split_at(end.unwrap_or(rest.len()));
        let mut digits = Digits::read(number)?;
        let (notation, twos, tens) = read_suffix(suffix)?;
        digits.tens = digits.tens.saturating_add(tens);
        let nano = digits.nano(twos);
        Ok(Quantity { nano: if negative { -nano } else { nano }, notation })
    }

    /// A number of items.
    pub fn count(number: u64) -> Quantity {
        Quantity { nano: i128::from(number) * NANO, notation: Notation::Decimal }
    }

    /// The sum, in the notation of the first.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { nano: self.nano.saturating_add(other.nano), ..self }
    }

    /// The difference, in the notation of the first.
    #[must_use]
    pub fn minus(self, other: Quantity) -> Quantity {
        Quantity { nano: self.nano.saturating_sub(other.nano), ..self }
    }

    /// Whether it is less than zero.
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Whether it has no fraction.
    pub fn is_integer(&self) -> bool {
        self.nano % NANO == 0
    }

    /// Billionths.
    pub fn nano(&self) -> i128 {
        self.nano
    }

    fn write_decimal(&self, f: &mut fmt::Formatter<'_>, exponents: bool) -> fmt::Result {
        const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let (mut number, mut step) = (self.nano, 0);
        while number % 1000 == 0 && step + 1 < SUFFIXES.len() {
            number /= 1000;
            step += 1;
        }
        match step as i32 * 3 - 9 {
            power if exponents && power != 0 => write!(f, "{number}e{power}"),
            _ => write!(f, "{number}{}", SUFFIXES[step]),
        }
    }

    fn write_binary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let (mut number, mut step) = (self.nano / NANO, 0);
        while number % 1024 == 0 && step + 1 < SUFFIXES.len() {
            number /= 1024;
            step += 1;
        }
        write!(f, "{number}{}", SUFFIXES[step])
    }
}

/// Kubernetes' canonical form.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let small = self.nano.abs() < 1024 * NANO;
        match self.notation {
            _ if self.is_zero() => f.write_str("0"),
            Notation::Binary if !small && self.is_integer() => self.write_binary(f),
            Notation::Binary | Notation::Decimal => self.write_decimal(f, false),
            Notation::Exponent => self.write_decimal(f, true),
        }
    }
}

/// Ordered by amount: `1` and `1000m` are equal.
impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

/// A decimal number: `digits` times ten to the power of `tens`.
struct Digits {
    digits: i128,
    tens: i32,
    /// Whether a digit that was not read is not zero.
    more: bool,
}

impl Digits {
    fn read(text: &str) -> Result<Digits, Error> {
        let mut number = Digits { digits: 0, tens: 0, more: false };
        let (mut seen, mut point) = (0, false);
        for byte in text.bytes() {
            if byte == b'.' {
                if point {
                    return Err(Error::Format);
                }
                point = true;
                continue;
            }
            seen += 1;
            let room = number.digits < 10_i128.pow(DIGITS_MAX - 1);
            if room {
                number.digits = number.digits * 10 + i128::from(byte - b'0');
                number.tens -= i32::from(point);
            } else {
                number.more |= byte != b'0';
                number.tens += i32::from(!point);
            }
        }
        if seen == 0 { Err(Error::Format) } else { Ok(number) }
    }

    fn nano(&self, twos: u32) -> i128 {
        let number = self.digits << twos;
        let power = self.tens.saturating_add(9);
        let scale = 10_i128.checked_pow(power.unsigned_abs());
        let nano = match (power >= 0, scale) {
            _ if number == 0 => i128::from(self.more),
            (true, Some(scale)) => number.checked_mul(scale).unwrap_or(NANO_MAX),
            (true, None) => NANO_MAX,
            (false, Some(scale)) => number / scale + i128::from(number % scale != 0 || self.more),
            (false, None) => 1,
        };
        nano.min(NANO_MAX)
    }
}

/// The notation, the power of two and the power of ten.
fn read_suffix(text: &str) -> Result<(Notation, u32, i32), Error> {
    const DECIMAL: [(&str, i32); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    const BINARY: [(&str, u32); 6] =
        [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    if let Some((_, tens)) = DECIMAL.iter().find(|(suffix, _)| *suffix == text) {
        return Ok((Notation::Decimal, 0, *tens));
    }
    if let Some((_, twos)) = BINARY.iter().find(|(suffix, _)| *suffix == text) {
        return Ok((Notation::Binary, *twos, 0));
    }
    if let Some(tens) = text.strip_prefix(['e', 'E']) {
        return Ok((Notation::Exponent, 0, tens.parse().map_err(|_| Error::Suffix)?));
    }
    let letters = text.trim_start_matches(|letter: char| "eEinumkKMGTP".contains(letter));
    let tail = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    let shaped = tail.bytes().all(|byte| byte.is_ascii_digit());
    Err(if shaped { Error::Suffix } else { Error::Format })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(Quantity::parse(text).map(|quantity| quantity.to_string()), Ok(expected.into()));
    }

    #[test]
    fn amounts_are_printed_as_kubernetes_prints_them() {
        check("0", "0");
        check("0Gi", "0");
        check("0.5", "500m");
        check("1000m", "1");
        check("1500m", "1500m");
        check("1024Mi", "1Gi");
        check("1.5Gi", "1536Mi");
        check("0.1Gi", "107374182400m");
        check("512Ki", "512Ki");
        check("1023", "1023");
        check("1Ki", "1Ki");
        check("0.5Ki", "512");
        check("1000k", "1M");
        check("1e3", "1e3");
        check("12e6", "12e6");
        check("1E", "1E");
        check("-2.5", "-2500m");
        check("+3", "3");
        check("0.0000000001", "1n");
        check("9223372036854775807", "9223372036854775807");
        check("100E", "9223372036854775807");
        check("0.000001", "1u");
        check("123456789.123456789123", "123456789123456790n");
        check("1.", "1");
        check(".5", "500m");
    }

    #[test]
    fn other_texts_are_rejected() {
        let check = |text, expected| assert_eq!(Quantity::parse(text), Err(expected), "{text}");
        check("", Error::Format);
        check("one", Error::Format);
        check("1 Gi", Error::Format);
        check(".", Error::Format);
        check("1.2.3", Error::Format);
        check("1K", Error::Suffix);
        check("1GiB", Error::Format);
        check("1e", Error::Suffix);
        check("1e99999999999", Error::Suffix);
        check("é", Error::Format);
    }

    #[test]
    fn notations_of_one_amount_are_equal() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert_eq!(parse("1"), parse("1000m"));
        assert!(parse("1Gi") > parse("1G"));
        assert!(parse("-1").is_negative() && parse("0").is_zero());
        assert!(!parse("100m").is_integer());
    }

    proptest! {
        #[test]
        fn printing_is_stable(number in 0_u64..1_000_000_000_000, suffix in "(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|e3|e-3)?") {
            let first = Quantity::parse(&format!("{number}{suffix}")).unwrap();
            let again = Quantity::parse(&first.to_string()).unwrap();
            prop_assert_eq!(first, again);
            prop_assert_eq!(first.to_string(), again.to_string());
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Quantity::parse(&text).map(|quantity| quantity.to_string());
        }
    }
}
