//! Searches over several bytes at a time.
//!
//! The texts of an API are short: most end before a search that is set up for long texts has
//! started, so they are searched eight bytes at a time. `Block` serves to skip long values: it
//! classifies 64 bytes at once.
//! Promise: each search returns the offset of the first match, or the length if there is none.

use ::wide::{CmpEq, i8x16};

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The first quote or backslash: the end of a JSON string, or its first escape.
#[inline]
pub fn quote(bytes: &[u8]) -> usize {
    first(bytes, |word| equal(word, b'"') | equal(word, b'\\'), |byte| matches!(byte, b'"' | b'\\'))
}

/// [`quote`] within eight bytes; eight if there is none.
#[inline(always)]
pub(crate) fn quote_in(word: [u8; 8]) -> usize {
    let word = u64::from_le_bytes(word);
    let found = (equal(word, b'"') | equal(word, b'\\')) & HIGH;
    (found.trailing_zeros() / 8) as usize
}

/// [`quote`] that also stops at a control character, which a JSON string must not contain. Callers
/// mostly pass the remainder of a document, so sixteen bytes are available even if the text is
/// short.
#[inline]
pub fn quote_or_control(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(sixteen) = bytes.get(at..).and_then(<[u8]>::first_chunk::<16>) {
        let sixteen = i8x16::from(sixteen.map(u8::cast_signed));
        let equal = |byte: u8| sixteen.cmp_eq(i8x16::splat(byte.cast_signed()));
        // The upper three bits of a control character are clear.
        let control = (sixteen & i8x16::splat(0xE0_u8.cast_signed())).cmp_eq(i8x16::ZERO);
        let found = (equal(b'"') | equal(b'\\') | control).move_mask();
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 16;
    }
    let rest = first(
        &bytes[at..],
        |word| equal(word, b'"') | equal(word, b'\\') | below_space(word),
        |byte| matches!(byte, b'"' | b'\\' | ..b' '),
    );
    at + rest
}

/// The high bit of each byte that equals `byte`. Bytes after the first match may be wrong, because
/// borrows only reach later bytes.
fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ (ONES * u64::from(byte));
    differs.wrapping_sub(ONES) & !differs
}

/// The high bit of each byte that is a control character, as in [`equal`].
fn below_space(word: u64) -> u64 {
    word.wrapping_sub(ONES * u64::from(b' ')) & !word
}

/// The first match: `mask` finds it among eight bytes, `is` tests a single byte.
#[inline(always)]
fn first(bytes: &[u8], mask: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let found = mask(u64::from_le_bytes(*word)) & HIGH;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    match bytes.last_chunk::<8>() {
        // The last eight bytes overlap bytes that were searched already.
        Some(word) => match mask(u64::from_le_bytes(*word)) & HIGH {
            0 => bytes.len(),
            found => bytes.len() - 8 + (found.trailing_zeros() / 8) as usize,
        },
        None if short(bytes).is_some_and(|word| mask(word) & HIGH == 0) => bytes.len(),
        None => bytes.iter().position(|byte| is(*byte)).unwrap_or(bytes.len()),
    }
}

/// Four to seven bytes as a word that contains only them, some of them twice.
fn short(bytes: &[u8]) -> Option<u64> {
    let (first, last) = (bytes.first_chunk::<4>()?, bytes.last_chunk::<4>()?);
    Some(u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32)
}

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

    fn slowly(bytes: &[u8], is: impl Fn(u8) -> bool) -> usize {
        bytes.iter().position(|byte| is(*byte)).unwrap_or(bytes.len())
    }

    /// Bytes that match, bytes that nearly match, and others.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let near = prop::sample::select(b"\"\\&<>\x00\x1f !#$%;=?[]^\x7f\xe1\xe2\xe3\xff".to_vec());
        prop::collection::vec(prop_oneof![8 => b'a'..=b'z', 1 => near, 1 => any::<u8>()], 0..40)
    }

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
        fn a_search_by_eights_agrees_with_a_search_by_ones(bytes in bytes()) {
            let is_quote = |byte| matches!(byte, b'"' | b'\\');
            prop_assert_eq!(quote(&bytes), slowly(&bytes, is_quote));
            let is_control = |byte| byte < b' ' || is_quote(byte);
            prop_assert_eq!(quote_or_control(&bytes), slowly(&bytes, is_control));
        }

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
        fn missing_bytes_of_a_block_have_no_class(bytes in bytes()) {
            let mut block = [b' '; BLOCK];
            block[..bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(Block::of(&bytes), Block::of(&block));
        }
    }
}
