//! Parsers for durations, sizes and pairs.

use std::time::Duration;

use headwater_api::kind::builtin;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

/// `10s`, `1h30m`, `500ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 10s, 5m or 1h30m");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, unit_on) = split_number(rest).ok_or_else(wrong)?;
        let end = unit_on.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_on.len());
        let (unit, next) = unit_on.split_at(end);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86_400),
            _ => return Err(wrong()),
        };
        let number = u32::try_from(number).map_err(|_| wrong())?;
        total =
            unit.checked_mul(number).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = next;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// `1GiB`, `512MiB`, `10MB`, `4096`.
pub(crate) fn parse_bytes(text: &str) -> Result<ByteSize, String> {
    let wrong = || format!("{text:?} is not a size such as 512MiB or 1GiB");
    let (number, unit) = split_number(text).ok_or_else(wrong)?;
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        "TiB" | "Ti" => 1 << 40,
        "kB" | "KB" | "k" => 1000,
        "MB" | "M" => 1_000_000,
        "GB" | "G" => 1_000_000_000,
        "TB" | "T" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).map(ByteSize).ok_or_else(wrong)
}

/// `pods=1000`, or `pods#1000` as in kube-apiserver.
pub(super) fn parse_size(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("{text:?} is not RESOURCE=N, such as pods=1000");
    let (resource, number) = text.split_once(['=', '#']).ok_or_else(wrong)?;
    let number = number.parse().map_err(|_| wrong())?;
    if resource.is_empty() {
        return Err(wrong());
    }
    // Resources with a dot may be custom ones, which are not known at the start.
    if !resource.contains('.') {
        check_core_resource(resource)?;
    }
    Ok((resource.to_owned(), number))
}

fn check_core_resource(plural: &str) -> Result<(), String> {
    let kinds = builtin();
    let mut groups = kinds.iter().filter(|kind| kind.plural == plural).map(|kind| &kind.group);
    match groups.next() {
        None => Err(format!("there is no built-in resource {plural:?}")),
        Some(group) if !group.is_empty() && groups.all(|group| !group.is_empty()) => {
            Err(format!("{plural:?} needs its group: {plural}.{group}"))
        }
        Some(_) => Ok(()),
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, seconds) in [("10s", 10), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("1s500ms"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "10", "s", "10 s", "-1s", "1.5h", "99999999999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_numbers_with_units() {
        for (text, bytes) in [("4096", 4096), ("1KiB", 1024), ("1Gi", 1 << 30), ("2MB", 2_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(ByteSize(bytes)), "{text}");
        }
        for wrong in ["", "GiB", "1 GiB", "1.5GiB", "-1", "99999999999TiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
