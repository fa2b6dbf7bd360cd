//! Comparison and printing of numbers as in Kubernetes.

use headwater_json::{Number, Value};

/// A number of a document: integers that fit stay integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Numeric {
    Int(i64),
    Float(f64),
}

impl Numeric {
    pub(super) fn of(number: &Number) -> Numeric {
        match number.as_i64() {
            Some(whole) => Numeric::Int(whole),
            None => Numeric::Float(number.as_f64().unwrap_or(f64::INFINITY)),
        }
    }

    /// Compares with a limit, without rounding integers.
    pub(super) fn compare(self, limit: f64) -> std::cmp::Ordering {
        use std::cmp::Ordering;
        const WHOLE_MAX: f64 = 9.2e18;
        match self {
            Numeric::Int(whole) if limit.fract() == 0.0 && limit.abs() < WHOLE_MAX => {
                whole.cmp(&(limit as i64))
            }
            Numeric::Int(whole) => (whole as f64).partial_cmp(&limit).unwrap_or(Ordering::Equal),
            Numeric::Float(float) => float.partial_cmp(&limit).unwrap_or(Ordering::Equal),
        }
    }

    pub(super) fn is_multiple_of(self, factor: f64) -> bool {
        if factor <= 0.0 {
            return false;
        }
        match self {
            Numeric::Int(whole) if factor.fract() == 0.0 && factor < 9.2e18 => {
                whole % (factor as i64) == 0
            }
            Numeric::Int(whole) => is_whole(quotient(whole as f64, factor)),
            Numeric::Float(float) => is_whole(quotient(float, factor)),
        }
    }
}

fn quotient(value: f64, factor: f64) -> f64 {
    if factor < 1.0 { 1.0 / factor * value } else { value / factor }
}

/// Whether a float is an integer that JSON can represent, up to rounding errors.
pub(super) fn is_whole(float: f64) -> bool {
    const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;
    const EPSILON: f64 = 1e-9;
    if !float.is_finite() || float.abs() > WHOLE_MAX {
        return false;
    }
    let whole = float.trunc();
    float == whole || (float - whole).abs() / (float.abs() + whole.abs()) < EPSILON
}

/// Whether two values are equal; 1 equals 1.0.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (Numeric::of(a), Numeric::of(b)) {
            (Numeric::Int(a), Numeric::Int(b)) => a == b,
            (Numeric::Float(a), Numeric::Float(b)) => a == b,
            (Numeric::Int(a), Numeric::Float(b)) | (Numeric::Float(b), Numeric::Int(a)) => {
                a as f64 == b
            }
        },
        _ => a == b,
    }
}

/// A float in Go's format: no empty fraction, an exponent for very large and very small numbers.
pub(super) fn show(float: f64) -> String {
    let size = float.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{float:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => {
                let exponent: i32 = exponent.parse().unwrap_or_default();
                let sign = if exponent < 0 { '-' } else { '+' };
                format!("{digits}e{sign}{:02}", exponent.abs())
            }
            None => text,
        };
    }
    format!("{float}")
}

/// A value in error messages.
pub(super) fn show_value(value: &Value) -> String {
    match value {
        Value::Number(number) => match Numeric::of(number) {
            Numeric::Int(whole) => whole.to_string(),
            Numeric::Float(float) => show(float),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_go() {
        for (float, text) in [
            (100.0, "100"),
            (0.5, "0.5"),
            (-1.25, "-1.25"),
            (1e21, "1e+21"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.0, "123456789"),
        ] {
            assert_eq!(show(float), text);
        }
    }

    #[test]
    fn multiples_tolerate_only_rounding() {
        assert!(Numeric::Float(0.3).is_multiple_of(0.1));
        assert!(!Numeric::Float(0.35).is_multiple_of(0.1));
        assert!(Numeric::Int(i64::MAX).is_multiple_of(1.0));
        assert!(!Numeric::Int(7).is_multiple_of(2.0));
        assert!(!Numeric::Int(7).is_multiple_of(0.0));
    }
}
