//! Functions of semantic versions.

use crate::budget::Error;
use crate::estimate::rule;
use crate::value::Other;
use crate::value::semver::Semver;

rows! {
    "semver(string,bool?) -> Semver" "~semver(string,T) -> Semver", rule::READ,
        |_, text: text, normalize: is_true| {
            let version = Semver::parse(text, normalize).map(Other::Semver);
            version.ok_or_else(|| Error::other("Invalid semantic version"))?
        };
    "isSemver(string,bool?) -> bool" "~isSemver(string,T) -> bool", rule::READ,
        |_, text: text, normalize: is_true| Semver::parse(text, normalize).is_some();
    "Semver.isLessThan(Semver) -> bool", rule::ONE,
        |_, version: semver, other: semver| version.compare(other).is_lt();
    "Semver.isGreaterThan(Semver) -> bool", rule::ONE,
        |_, version: semver, other: semver| version.compare(other).is_gt();
    "Semver.compareTo(Semver) -> int", rule::ONE,
        |_, version: semver, other: semver| version.compare(other) as i64;
    "Semver.major() -> int", rule::ONE, |_, version: semver| version.numbers[0] as i64;
    "Semver.minor() -> int", rule::ONE, |_, version: semver| version.numbers[1] as i64;
    "Semver.patch() -> int", rule::ONE, |_, version: semver| version.numbers[2] as i64;
}
