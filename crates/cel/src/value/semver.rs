//! Semantic versions.

use std::cmp::Ordering;

/// A semantic version.
#[derive(Debug)]
pub struct Semver {
    pub(crate) numbers: [u64; 3],
    before: Vec<String>,
    pub(crate) text: String,
}

impl Semver {
    pub(crate) fn parse(text: &str, normalize: bool) -> Option<Semver> {
        let plain = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (rest, build) = plain.split_once('+').unwrap_or((plain, "0"));
        let (core, before) = match rest.split_once('-') {
            Some((core, before)) => (core, Some(before)),
            None => (rest, None),
        };
        let number = |part: &str| -> Option<u64> {
            let part = if normalize { part.trim_start_matches('0') } else { part };
            let part = if normalize && part.is_empty() { "0" } else { part };
            let plain =
                part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if plain { part.parse().ok() } else { None }
        };
        let mut parts: Vec<&str> = core.split('.').collect();
        while normalize && parts.len() < 3 {
            parts.push("0");
        }
        let [major, minor, patch] = parts[..] else { return None };
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let before: Vec<String> =
            before.map(|text| text.split('.').map(str::to_owned).collect()).unwrap_or_default();
        if !before.iter().all(|word| is_word(word)) || !build.split('.').all(is_word) {
            return None;
        }
        let numbers = [number(major)?, number(minor)?, number(patch)?];
        Some(Semver { numbers, before, text: plain.to_owned() })
    }

    pub(crate) fn compare(&self, other: &Semver) -> Ordering {
        let release = |version: &Semver| version.before.is_empty();
        self.numbers.cmp(&other.numbers).then_with(|| match (release(self), release(other)) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.before.iter().zip(&other.before);
                let words = pairs.map(|(a, b)| compare_words(a, b)).find(|order| order.is_ne());
                words.unwrap_or_else(|| self.before.len().cmp(&other.before.len()))
            }
        })
    }
}

fn compare_words(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}
