//! Several bytes at a time: the structure of 64 bytes of JSON, and the order of a text's first bytes.
//!
//! `Block` serves to skip long values; the scanner searches strings with `memchr`.

use ::wide::{CmpEq, i8x16};

/// The first eight bytes of a text as a number with the same order. It is a constant if the
/// compiler knows the text.
#[inline(always)]
pub fn begin(text: &str) -> u64 {
    let bytes = text.as_bytes();
    match (bytes.first_chunk(), bytes.first_chunk(), bytes.last_chunk()) {
        (Some(eight), ..) => u64::from_be_bytes(*eight),
        // Four to seven bytes: the first four and the last four overlap.
        (None, Some(first), Some(last)) => {
            let last = u64::from(u32::from_be_bytes(*last)) << (8 * (8 - bytes.len()));
            u64::from(u32::from_be_bytes(*first)) << 32 | last
        }
        _ => (0..8).fold(0, |word, at| word << 8 | u64::from(*bytes.get(at).unwrap_or(&0))),
    }
}

/// The length of the text before the first byte of a class, which `table` describes as well.
/// Sixteen bytes are tested without a branch, which the compiler turns into vector comparisons.
#[inline(always)]
pub(crate) fn length_before(
    bytes: &[u8],
    is_in_class: impl Fn(u8) -> bool,
    table: &[bool; 256],
) -> usize {
    let mut at = 0;
    for chunk in bytes.as_chunks::<16>().0 {
        if chunk.iter().fold(false, |found, byte| found | is_in_class(*byte)) {
            break;
        }
        at += chunk.len();
    }
    let rest = &bytes[at..];
    at + rest.iter().position(|byte| table[usize::from(*byte)]).unwrap_or(rest.len())
}

/// Prefix XOR: sets every bit from an opening quote up to its closing quote.
pub(crate) fn between(bits: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].into_iter().fold(bits, |bits, shift| bits ^ bits << shift)
}

/// The bytes that a backslash escapes, and whether the first byte of the next block is escaped.
/// `first` is that flag for this block.
pub(crate) fn escaped(backslashes: u64, first: bool) -> (u64, bool) {
    const ODD: u64 = 0xAAAA_AAAA_AAAA_AAAA;
    let first = u64::from(first);
    // An escaped backslash escapes nothing.
    let escaping = backslashes & !first;
    let after = escaping << 1 | first;
    // Adding the first bit of a run of backslashes carries to the bit after the run. Every second
    // backslash of a run escapes, counted from its first, which may be at an odd or an even
    // position.
    let odd_starts = escaping & ODD & !after;
    let (from_even, carried) = odd_starts.overflowing_add(escaping);
    ((!ODD ^ from_even << 1) & after, carried)
}

/// The positions of the bits that are set, lowest first.
#[inline]
pub fn bits(mut left: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some(bit)
    })
}

/// The number of bytes that a [`Block`] covers.
pub(crate) const BLOCK: usize = 64;

/// The structure of 64 bytes of JSON: one bit per byte, the lowest for the first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) quotes: u64,
    pub(crate) backslashes: u64,
    /// `{` and `[`.
    pub(crate) opening: u64,
    /// `}` and `]`.
    pub(crate) closing: u64,
}

impl Block {
    /// Classifies the first bytes; missing bytes count as none of the classes.
    #[inline(always)]
    pub(crate) fn of(bytes: &[u8]) -> Block {
        match bytes.first_chunk() {
            Some(block) => Block::whole(block),
            None => Block::partial(bytes),
        }
    }

    #[cold]
    fn partial(bytes: &[u8]) -> Block {
        let mut block = [0; BLOCK];
        block[..bytes.len()].copy_from_slice(bytes);
        Block::whole(&block)
    }

    #[inline(always)]
    fn whole(block: &[u8; BLOCK]) -> Block {
        let mut found = Block::default();
        for (part, bytes) in block.as_chunks::<16>().0.iter().enumerate() {
            let bytes = i8x16::from(bytes.map(u8::cast_signed));
            let mask = |bytes: i8x16, byte: u8| {
                let equal = bytes.cmp_eq(i8x16::splat(byte.cast_signed()));
                u64::from(equal.move_mask().cast_unsigned()) << (16 * part)
            };
            // Brackets and braces differ in one bit.
            let braces = bytes | i8x16::splat(0x20);
            found.quotes |= mask(bytes, b'"');
            found.backslashes |= mask(bytes, b'\\');
            found.opening |= mask(braces, b'{');
            found.closing |= mask(braces, b'}');
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_of_begin_is_the_order_of_the_bytes() {
        for name in
            ["", "a", "ip", "env", "name", "ports", "volume", "command", "nodeName", "hostNetwork"]
        {
            let mut bytes = [0; 8];
            let length = name.len().min(8);
            bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
            assert_eq!(begin(name), u64::from_be_bytes(bytes), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_block_classifies_each_byte(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
            let mask = |is: &dyn Fn(u8) -> bool| {
                bytes.iter().rev().fold(0, |mask, byte| mask << 1 | u64::from(is(*byte)))
            };
            let expected = Block {
                quotes: mask(&|byte| byte == b'"'),
                backslashes: mask(&|byte| byte == b'\\'),
                opening: mask(&|byte| matches!(byte, b'{' | b'[')),
                closing: mask(&|byte| matches!(byte, b'}' | b']')),
            };
            prop_assert_eq!(Block::of(&bytes), expected);
        }

        #[test]
        fn escapes_are_tracked_across_blocks(
            text in prop::collection::vec(prop::sample::select(b"\\\\\\a".to_vec()), 4 * BLOCK),
        ) {
            let (mut carried, mut is_escaped) = (false, false);
            for block in text.as_chunks::<BLOCK>().0 {
                let escaped;
                (escaped, carried) = super::escaped(Block::of(block).backslashes, carried);
                for (at, byte) in block.iter().enumerate() {
                    prop_assert_eq!(escaped >> at & 1 == 1, is_escaped);
                    is_escaped = *byte == b'\\' && !is_escaped;
                }
            }
        }

        #[test]
        fn missing_bytes_of_a_block_have_no_class(
            bytes in prop::collection::vec(any::<u8>(), 0..BLOCK),
        ) {
            let mut block = [b' '; BLOCK];
            block[..bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(Block::of(&bytes), Block::of(&block));
        }
    }
}
