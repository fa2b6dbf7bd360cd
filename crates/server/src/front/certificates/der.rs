//! Writes the parts of a certificate as DER.

use jiff::Timestamp;

/// The tag of a constructed, context-specific element.
const CONTEXT: u8 = 0xa0;

/// An element: a tag, a length, a content.
pub(super) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut all = vec![tag];
    match content.len() {
        short @ 0..0x80 => all.push(short as u8),
        long => {
            let bytes = long.to_be_bytes();
            let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            all.push(0x80 | bytes.len() as u8);
            all.extend(bytes);
        }
    }
    all.extend_from_slice(content);
    all
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

pub(super) fn set(parts: &[&[u8]]) -> Vec<u8> {
    element(0x31, &parts.concat())
}

/// An explicitly tagged element.
pub(super) fn tagged(number: u8, content: &[u8]) -> Vec<u8> {
    element(CONTEXT | number, content)
}

/// An implicitly tagged octet string.
pub(super) fn tagged_octets(number: u8, content: &[u8]) -> Vec<u8> {
    element(0x80 | number, content)
}

/// An object identifier, from its encoded content.
pub(super) fn oid(content: &[u8]) -> Vec<u8> {
    element(0x06, content)
}

pub(super) fn octets(content: &[u8]) -> Vec<u8> {
    element(0x04, content)
}

pub(super) fn text(text: &str) -> Vec<u8> {
    element(0x0c, text.as_bytes())
}

/// A positive integer, from its bytes.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    element(0x02, bytes)
}

pub(super) fn truth() -> Vec<u8> {
    element(0x01, &[0xff])
}

/// Bits without trailing zero bits, as a named bit list has to be.
pub(super) fn bits(flags: u8) -> Vec<u8> {
    match flags {
        0 => element(0x03, &[0]),
        flags => element(0x03, &[flags.trailing_zeros() as u8, flags]),
    }
}

/// Whole bytes as a bit string.
pub(super) fn bit_string(content: &[u8]) -> Vec<u8> {
    element(0x03, &[&[0], content].concat())
}

/// A time in the format that certificates use for its year.
pub(super) fn time(at: Timestamp) -> Vec<u8> {
    let at = at.to_zoned(jiff::tz::TimeZone::UTC);
    match at.year() {
        1950..2050 => element(0x17, at.strftime("%y%m%d%H%M%SZ").to_string().as_bytes()),
        _ => element(0x18, at.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_one_or_several_bytes() {
        for (length, head) in [
            (0, vec![4, 0]),
            (127, vec![4, 127]),
            (128, vec![4, 0x81, 128]),
            (256, vec![4, 0x82, 1, 0]),
            (65_536, vec![4, 0x83, 1, 0, 0]),
        ] {
            let element = octets(&vec![7; length]);
            assert_eq!((&element[..head.len()], element.len()), (&head[..], head.len() + length));
        }
    }

    #[test]
    fn times_have_two_formats() {
        let at = |text: &str| time(text.parse().unwrap());
        assert_eq!(at("2026-01-02T03:04:05Z")[2..], *b"260102030405Z");
        assert_eq!(at("2050-01-02T03:04:05Z")[2..], *b"20500102030405Z");
    }

    #[test]
    fn named_bits_have_no_trailing_zeros() {
        assert_eq!(bits(0b1010_0000), [3, 2, 5, 0b1010_0000]);
        assert_eq!(bits(0b1000_0000), [3, 2, 7, 0b1000_0000]);
    }
}
