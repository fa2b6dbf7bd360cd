//! Functions of quantities.

use crate::budget::Error;
use crate::estimate::rule;
use crate::value::Other;
use headwater_api::quantity::Quantity;

/// Nanounits per unit.
pub(super) const NANO: i128 = 1_000_000_000;

rows! {
    "quantity(string) -> Quantity", rule::READ, |_, text: text| {
        let quantity = Quantity::parse(text).map_err(|error| Error::other(error.to_string()))?;
        Other::Quantity(quantity.nano())
    };
    "isQuantity(string) -> bool", rule::READ, |_, text: text| Quantity::parse(text).is_ok();
    "sign(Quantity) -> int" "Quantity.sign() -> int", rule::ONE,
        |_, nano: quantity| nano.signum() as i64;
    "Quantity.isInteger() -> bool", rule::ONE, |_, nano: quantity| integer(nano).is_some();
    "Quantity.asInteger() -> int", rule::ONE, |_, nano: quantity|
        integer(nano).ok_or_else(|| Error::other("cannot convert value to integer"))?;
    "Quantity.asApproximateFloat() -> double", rule::ONE,
        |_, nano: quantity| nano as f64 / NANO as f64;
    "Quantity.add(Quantity) -> Quantity" "Quantity.add(int) -> Quantity", rule::ONE,
        |_, nano: quantity, by: amount| made(nano.checked_add(by))?;
    "Quantity.sub(Quantity) -> Quantity" "Quantity.sub(int) -> Quantity", rule::ONE,
        |_, nano: quantity, by: amount| made(nano.checked_sub(by))?;
    "Quantity.compareTo(Quantity) -> int" "~Quantity.compareTo(int) -> int", rule::ONE,
        |_, nano: quantity, by: amount| nano.cmp(&by) as i64;
    "Quantity.isLessThan(Quantity) -> bool" "~Quantity.isLessThan(int) -> bool", rule::ONE,
        |_, nano: quantity, by: amount| nano < by;
    "Quantity.isGreaterThan(Quantity) -> bool" "~Quantity.isGreaterThan(int) -> bool", rule::ONE,
        |_, nano: quantity, by: amount| nano > by;
}

fn integer(nano: i128) -> Option<i64> {
    i64::try_from(nano / NANO).ok().filter(|_| nano % NANO == 0)
}

fn made(nano: Option<i128>) -> Result<Other, Error> {
    nano.map(Other::Quantity).ok_or_else(|| Error::other("quantity overflow"))
}
