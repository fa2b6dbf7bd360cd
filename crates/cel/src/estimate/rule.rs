//! The estimated costs of functions and the sizes of their results.
//!
//! A rule receives the estimates of the arguments, the receiver first.

use super::{Estimate, LIST, Own, Place, STRUCT, Size, TRAVERSAL, UNKNOWN, scaled};
use crate::DeclType;

type Args<'c, 's> = &'c [Estimate<'s>];

/// The estimated cost of a call.
pub(crate) type CostRule = fn(Args<'_, '_>) -> Own;

/// The cost factor of a pattern: a quarter of its length, for each tenth of the text.
const PATTERN: f64 = 0.25;

/// The maximum length of the pattern of a named format.
const FORMAT_PATTERN: f64 = 128.0;

/// The cost of one traversal of a string.
fn traversal(size: Size) -> u64 {
    scaled(size.max, TRAVERSAL)
}

fn size(args: Args<'_, '_>, at: usize) -> Size {
    args.get(at).map_or(UNKNOWN, Estimate::size)
}

/// A literal number.
fn number(args: Args<'_, '_>, at: usize, default: u64) -> u64 {
    args.get(at).and_then(|arg| arg.literal).unwrap_or(default)
}

/// A fixed cost.
pub(crate) fn fixed<const COST: u64>(_: Args<'_, '_>) -> Own {
    Own::cost(COST)
}

/// A fixed cost, and reads the second argument if it may be a text.
pub(crate) fn parsed<const COST: u64>(args: Args<'_, '_>) -> Own {
    let text = args.get(1).filter(|arg| arg.ty.may_be("string"));
    Own::cost(text.map_or(0, |text| traversal(text.size())).saturating_add(COST))
}

/// Compares every element of one list with every element of the other, once or more.
pub(crate) fn sets<const TIMES: u64>(args: Args<'_, '_>) -> Own {
    let sizes = size(args, 0).times(size(args, 1));
    Own::cost(scaled(sizes.max, TIMES as f64).saturating_add(1))
}

pub(crate) const ONE: CostRule = fixed::<1>;
/// The argument itself, of unknown type.
pub(crate) const SAME: CostRule = |args| Own { cost: 1, size: args[0].size, entry: args[0].entry };
/// Reads the text once.
pub(crate) const READ: CostRule = |args| Own::cost(traversal(size(args, 0)));
/// Reads the text twice.
pub(crate) const READ_TWICE: CostRule =
    |args| Own::cost(scaled(size(args, 0).max, 2.0 * TRAVERSAL));
/// Reads the second text.
pub(crate) const READ_SECOND: CostRule = |args| Own::cost(traversal(size(args, 1)));
/// Makes a text of the same size.
pub(crate) const COPIED: CostRule = |args| Own::sized(traversal(size(args, 0)), size(args, 0));
/// Searches one text in another.
pub(crate) const CONTAINS: CostRule =
    |args| Own::cost(traversal(size(args, 0)).saturating_mul(traversal(size(args, 1))));
/// Finds matches of a pattern.
pub(crate) const FOUND: CostRule =
    |args| Own::sized(MATCHED(args).cost, Size { min: 0, max: size(args, 0).max });
/// Makes a list of so many numbers.
pub(crate) const RANGE: CostRule = |args| Own::list(Size::exactly(number(args, 0, u64::MAX)), 1.0);
pub(crate) const REVERSED: CostRule = |args| Own::list(size(args, 0), 1.0);
pub(crate) const DISTINCT: CostRule = |args| Own::list(size(args, 0).times(size(args, 0)), 2.0);
pub(crate) const VALIDATED: CostRule =
    |args| Own::cost(scaled(traversal(size(args, 1)), FORMAT_PATTERN * PATTERN));

pub(crate) const QUOTED: CostRule = |args| {
    let size = size(args, 0);
    let quoted = size.plus(size).plus(Size::exactly(2));
    Own::sized(traversal(size), Size { min: size.min.saturating_add(2), max: quoted.max })
};

/// Text to bytes.
pub(crate) const ENCODED: CostRule = |args| {
    let size = size(args, 0);
    Own::sized(traversal(size), Size { min: size.min, max: size.max.saturating_mul(4) })
};

/// Bytes to text.
pub(crate) const DECODED: CostRule = |args| {
    let size = size(args, 0);
    Own::sized(traversal(size), Size { min: size.min / 4, max: size.max })
};

/// Matches a pattern; an empty text costs as much as one character.
pub(crate) const MATCHED: CostRule = |args| {
    let text = traversal(size(args, 0).plus(Size::exactly(1)));
    Own::cost(text.saturating_mul(scaled(size(args, 1).max, PATTERN)))
};

/// The minimum and maximum size after a replacement.
pub(crate) const REPLACED: CostRule = |args| {
    let (text, from, to) = (size(args, 0), size(args, 1), size(args, 2));
    let max = if from.min == 0 {
        // Before and after every character.
        text.max.saturating_add(1).saturating_mul(to.max).saturating_add(text.max)
    } else if to.max <= from.min {
        text.max
    } else {
        text.max.div_ceil(from.min).saturating_mul(to.max)
    };
    let min = if from.max == 0 {
        text.min.saturating_add(1).saturating_mul(to.min).saturating_add(text.min)
    } else if from.max <= to.min {
        text.min
    } else {
        text.min.div_ceil(from.max).saturating_mul(to.min)
    };
    Own::sized(READ_TWICE(args).cost, Size { min, max })
};

pub(crate) const SPLIT: CostRule = |args| {
    let max = number(args, 2, size(args, 0).max);
    Own::sized(READ_TWICE(args).cost, Size { min: 0, max })
};

pub(crate) const JOINED: CostRule = |args| {
    let count = size(args, 0);
    let texts = match args[0].ty.name() {
        "list" => count.times(elements(&args[0])),
        _ => Size::NOTHING,
    };
    let gaps = Size { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
    let made = match args.get(1) {
        Some(between) => texts.plus(between.size().times(gaps)),
        None => texts,
    };
    Own::sized(traversal(made), made)
};

/// Looks at every element of a list, or at a text; strings are compared.
pub(crate) const SEARCHED: CostRule = |args| {
    let of = &args[0];
    if of.ty.name() != "list" {
        return READ(args);
    }
    let one = match of.ty.values().name() {
        "string" | "bytes" => traversal(elements(of)).saturating_add(1),
        _ => 1,
    };
    Own::cost(of.size().max.saturating_mul(one))
};

/// The size of the elements of a list, from its path in the schema.
fn elements(of: &Estimate<'_>) -> Size {
    match of.place {
        Place::At(DeclType::List(list)) => Size { min: 0, max: list.items.elements_max() },
        _ => UNKNOWN,
    }
}

pub(crate) const SLICE: CostRule = |args| {
    let (start, end) = (number(args, 1, 0), number(args, 2, size(args, 0).max));
    Own::list(Size::exactly(end.wrapping_sub(start)), 1.0)
};

pub(crate) const FLATTENED: CostRule = |args| {
    let depth = if args.len() == 1 { 1 } else { number(args, 1, u64::MAX) };
    Own::list(size(args, 0), depth as f64)
};

pub(crate) const SORTED: CostRule = |args| {
    let of = args[0].ty.values();
    let is_text = of.may_be("string") || of.may_be("bytes");
    let factor = if is_text { 2.0 + TRAVERSAL } else { 2.0 };
    Own::list(size(args, 0).times(size(args, 0)), factor)
};

/// A selector requirement: at least two characters, an object and a list.
pub(crate) const SELECTOR: CostRule = |args| {
    let size = size(args, 1);
    let requirements = scaled(size.max, 0.5).saturating_mul(LIST + STRUCT);
    Own::cost(LIST.saturating_add(traversal(size)).saturating_add(requirements))
};
