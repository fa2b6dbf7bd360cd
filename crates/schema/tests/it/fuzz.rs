//! Random schemas, patches, applies and expressions: nothing panics, everything ends, and the
//! invariants hold.
//!
//! Each case is generated from its number. `HEADWATER_FUZZ_CASES` sets the number of cases per test,
//! `HEADWATER_FUZZ_CASE` runs a single one; a failure names the case and the smallest size at which it
//! fails. The default numbers take about a minute in total in a debug build.

mod apply;
mod expression;
mod patch;
mod schema;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use headwater_json::{Map, Value, json};

use crate::any::Dice;

/// The maximum depth of generated values.
const SIZE_MAX: usize = 5;

/// Runs a test for every case.
fn each(cases: u64, test: impl Fn(&mut Dice, usize)) {
    for case in asked(cases) {
        let passes = |size: usize| {
            let run = AssertUnwindSafe(|| test(&mut Dice::new(case + 1), size));
            catch_unwind(run).is_ok()
        };
        if !passes(SIZE_MAX) {
            let least = (1..SIZE_MAX).find(|size| !passes(*size)).unwrap_or(SIZE_MAX);
            panic!(
                "case {case} failed, the smallest of it at size {least}: HEADWATER_FUZZ_CASE={case}"
            );
        }
    }
}

fn asked(cases: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("HEADWATER_FUZZ_CASE") {
        Some(case) => case..case + 1,
        None => 0..number("HEADWATER_FUZZ_CASES").unwrap_or(cases),
    }
}

const NAMES: &[&str] = &["a", "b", "spec", "x-y", "metadata", "name", "kind", "é", "", "__a__"];

fn name(dice: &mut Dice) -> String {
    (*dice.pick(NAMES)).to_owned()
}

/// Any JSON.
fn anything(dice: &mut Dice, depth: usize) -> Value {
    let scalars =
        [json!(null), json!(true), json!(0), json!(-1), json!(1.5), json!(i64::MAX), json!("")];
    match dice.below(if depth > 4 { 3 } else { 6 }) {
        0 | 1 => dice.pick(&scalars).clone(),
        2 => name(dice).into(),
        3 => (0..dice.below(4)).map(|_| anything(dice, depth + 1)).collect(),
        _ => {
            let mut members = Map::new();
            for _ in 0..dice.below(4) {
                members.insert(name(dice).into(), anything(dice, depth + 1));
            }
            Value::Object(members)
        }
    }
}
