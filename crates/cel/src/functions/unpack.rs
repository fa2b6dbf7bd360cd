//! The arguments of functions as Rust values.
//!
//! The signature of an overload has decided that they have these types.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};

use super::net::width;
use super::quantity::NANO;
use crate::budget::Error;
use crate::value::authorizer::{Authorizer, Decision, Question};
use crate::value::semver::Semver;
use crate::value::url::Url;
use crate::value::{ListValue, MapValue, Other, Value};

type Arg<'v, 'a> = Option<&'v Value<'a>>;

/// A function for each type of argument: the patterns of a value and of a value of the libraries.
macro_rules! unpack {
    ($($name:ident -> $ty:ty { $($pattern:pat => $found:expr),+ })*) => {
        $(pub(super) fn $name<'v, 'a>(arg: Arg<'v, 'a>) -> Result<$ty, Error> {
            let other = arg.and_then(Value::as_other);
            match (arg, other) {
                $($pattern => Ok($found),)+
                _ => Err(Error::NoSuchOverload),
            }
        })*
    };
}

unpack! {
    any -> &'v Value<'a> { (Some(value), _) => value }
    int -> i64 { (Some(Value::Int(value)), _) => *value }
    opt_int -> Option<i64> { (None, _) => None, (Some(Value::Int(value)), _) => Some(*value) }
    uint -> u64 { (Some(Value::Uint(value)), _) => *value }
    double -> f64 { (Some(Value::Double(value)), _) => *value }
    text -> &'v str { (Some(Value::Text(text)), _) => text }
    opt_text -> Option<&'v str> { (None, _) => None, (Some(Value::Text(text)), _) => Some(text) }
    bytes -> &'v [u8] { (Some(Value::Bytes(bytes)), _) => bytes }
    list -> &'v ListValue<'a> { (Some(Value::List(list)), _) => list }
    map -> &'v MapValue<'a> { (Some(Value::Map(map)), _) => map }
    duration -> SignedDuration { (Some(Value::Duration(span)), _) => *span }
    timestamp -> Timestamp { (Some(Value::Timestamp(time)), _) => *time }
    optional -> Option<&'v Value<'a>> { (Some(Value::Optional(inner)), _) => inner.as_deref() }
    quantity -> i128 { (_, Some(Other::Quantity(nano))) => *nano }
    amount -> i128 {
        (_, Some(Other::Quantity(nano))) => *nano,
        (Some(Value::Int(value)), _) => i128::from(*value) * NANO
    }
    url -> &'v Url { (_, Some(Other::Url(url))) => url }
    ip -> IpAddr { (_, Some(Other::Ip(ip))) => *ip }
    network -> (IpAddr, u8) {
        (_, Some(Other::Ip(ip))) => (*ip, width(*ip)),
        (_, Some(Other::Cidr(ip, bits))) => (*ip, *bits)
    }
    semver -> &'v Semver { (_, Some(Other::Semver(version))) => version }
    format -> &'static str { (_, Some(Other::Format(format))) => *format }
    authorizer -> &'v Authorizer { (_, Some(Other::Authorizer(who))) => who }
    question -> (&'v Authorizer, &'v Question) {
        (_, Some(Other::Question(who, question))) => (who, question)
    }
    decision -> &'v Decision { (_, Some(Other::Decision(decision))) => decision }
}

/// A flag that may be absent.
pub(super) fn is_true(arg: Arg<'_, '_>) -> Result<bool, Error> {
    Ok(matches!(arg, Some(Value::Bool(true))))
}
