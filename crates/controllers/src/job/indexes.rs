//! Sets of completion indexes in the format of Job statuses: `1,3-5`.

use std::collections::BTreeSet;

/// Parses a set; ignores invalid entries and indexes beyond `completions`.
pub(super) fn parse(text: &str, completions: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            found.extend(first.max(0)..=last.min(completions - 1));
        }
    }
    found
}

/// Prints a set; three or more consecutive indexes become a range.
pub(super) fn print(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let words = ranges.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_printed_as_ranges_and_parsed_again() {
        check(&[], "");
        check(&[0], "0");
        check(&[0, 1], "0,1");
        check(&[0, 1, 2], "0-2");
        check(&[1, 3, 4, 5, 7], "1,3-5,7");
    }

    #[track_caller]
    fn check(indexes: &[i32], text: &str) {
        let indexes: BTreeSet<i32> = indexes.iter().copied().collect();
        assert_eq!(print(&indexes), text);
        assert_eq!(parse(text, 8), indexes);
    }

    #[test]
    fn indexes_beyond_the_completions_are_ignored() {
        assert_eq!(parse("2-9,12,x", 4), [2, 3].into());
    }
}
