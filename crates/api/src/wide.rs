//! Searches that look at eight bytes at a time.
//!
//! Texts of an API are short: most end before a search that first sets itself up for long ones has
//! begun. Promise: each answers the offset of the first byte it looks for, or the length if there is
//! none.

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The first quote or backslash: where a JSON string ends, or is not plain.
pub(crate) fn quote(bytes: &[u8]) -> usize {
    first(bytes, |word| equal(word, b'"') | equal(word, b'\\'), |byte| matches!(byte, b'"' | b'\\'))
}

/// The same in eight bytes; eight if there is none.
#[inline(always)]
pub(crate) fn quote_in(word: [u8; 8]) -> usize {
    let word = u64::from_le_bytes(word);
    let found = (equal(word, b'"') | equal(word, b'\\')) & HIGH;
    (found.trailing_zeros() / 8) as usize
}

/// The same as [`quote`], or a control character, which a JSON string must not have.
pub(crate) fn quote_or_control(bytes: &[u8]) -> usize {
    first(
        bytes,
        |word| equal(word, b'"') | equal(word, b'\\') | below_space(word),
        |byte| matches!(byte, b'"' | b'\\' | ..b' '),
    )
}

/// The first byte that is printed in another way than as it is, or that may begin such a letter.
pub(crate) fn special(bytes: &[u8]) -> usize {
    first(
        bytes,
        |word| {
            // `"` and `&` differ in one bit, `<` and `>` in another.
            let quotes = equal(word & !(ONES * 0x04), b'"');
            let angles = equal(word | (ONES * 0x02), b'>');
            quotes | angles | equal(word, b'\\') | equal(word, 0xE2) | below_space(word)
        },
        is_special,
    )
}

/// Whether a byte is printed in another way than as it is, or may begin such a letter.
fn is_special(byte: u8) -> bool {
    matches!(byte, ..b' ' | b'"' | b'&' | b'<' | b'>' | b'\\' | 0xE2)
}

/// The high bit of each byte that is this one. Bytes after the first of them may be wrong: what is
/// borrowed from them only reaches later ones.
fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ (ONES * u64::from(byte));
    differs.wrapping_sub(ONES) & !differs
}

/// The high bit of each byte that is a control character, as in [`equal`].
fn below_space(word: u64) -> u64 {
    word.wrapping_sub(ONES * u64::from(b' ')) & !word
}

/// The first byte that is looked for: `mask` finds it among eight, `is` knows it by itself.
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
        // The last eight, some of which were looked at before.
        Some(word) => match mask(u64::from_le_bytes(*word)) & HIGH {
            0 => bytes.len(),
            found => bytes.len() - 8 + (found.trailing_zeros() / 8) as usize,
        },
        None if short(bytes).is_some_and(|word| mask(word) & HIGH == 0) => bytes.len(),
        None => bytes.iter().position(|byte| is(*byte)).unwrap_or(bytes.len()),
    }
}

/// Four to seven bytes as a word that has nothing but them, some twice.
fn short(bytes: &[u8]) -> Option<u64> {
    let (first, last) = (bytes.first_chunk::<4>()?, bytes.last_chunk::<4>()?);
    Some(u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slowly(bytes: &[u8], is: impl Fn(u8) -> bool) -> usize {
        bytes.iter().position(|byte| is(*byte)).unwrap_or(bytes.len())
    }

    /// Bytes that are nearly those looked for, and others.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let near = prop::sample::select(b"\"\\&<>\x00\x1f !#$%;=?[]^\x7f\xe1\xe2\xe3\xff".to_vec());
        prop::collection::vec(prop_oneof![8 => b'a'..=b'z', 1 => near, 1 => any::<u8>()], 0..40)
    }

    proptest! {
        #[test]
        fn eight_at_a_time_find_what_one_at_a_time_does(bytes in bytes()) {
            let is_quote = |byte| matches!(byte, b'"' | b'\\');
            prop_assert_eq!(quote(&bytes), slowly(&bytes, is_quote));
            let is_control = |byte| byte < b' ' || is_quote(byte);
            prop_assert_eq!(quote_or_control(&bytes), slowly(&bytes, is_control));
            prop_assert_eq!(special(&bytes), slowly(&bytes, is_special));
        }
    }
}
