//! How long the command of a container sleeps, which is often all that it does.
//!
//! Promise: only a command whose time is certain has one; a script with a loop or a condition does
//! not.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Longer times are those of commands that never end by themselves.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reads `command` or `args`; keeps the time that they sleep.
pub(super) fn time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let words = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(of_words(&words))
}

fn of_words(words: &[&str]) -> Option<Duration> {
    let (program, arguments) = words.split_first()?;
    match (program.rsplit('/').next()?, arguments) {
        ("sleep", times) => of_sleep(times),
        ("sh" | "bash" | "ash", [.., option, script]) if option.ends_with('c') => of_script(script),
        _ => None,
    }
}

/// The sum of the times of a script's commands `sleep`, if it has any and executes each once.
fn of_script(script: &str) -> Option<Duration> {
    let mut total = None;
    for command in script.split([';', '\n']).flat_map(|part| part.split("&&")) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.split_first() {
            Some((&("while" | "until" | "for" | "if" | "case" | "trap"), _)) => return None,
            Some((&"sleep", times)) => {
                total = Some(total.unwrap_or(Duration::ZERO) + of_sleep(times)?);
            }
            _ => {}
        }
    }
    total.map(|total| total.min(LONGEST))
}

/// The sum of times such as `300`, `0.5`, `5m` or `infinity`.
fn of_sleep(times: &[&str]) -> Option<Duration> {
    let mut total = (!times.is_empty()).then_some(Duration::ZERO)?;
    for time in times {
        if *time == "infinity" {
            return Some(LONGEST);
        }
        let digits = time.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let unit = match &time[digits.len()..] {
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let time = Duration::try_from_secs_f64(digits.parse::<f64>().ok()? * unit).ok()?;
        total = total.saturating_add(time);
    }
    Some(total.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_sleeps_for_the_sum_of_its_times() {
        let seconds = |words: &[&str]| of_words(words).map(|time| time.as_secs_f64());
        assert_eq!(seconds(&["sleep", "300"]), Some(300.0));
        assert_eq!(seconds(&["/bin/sleep", "1m", "0.5"]), Some(60.5));
        assert_eq!(of_words(&["sleep", "infinity"]), Some(LONGEST));
        assert_eq!(seconds(&["sh", "-c", "echo a; sleep 2 && sleep 3"]), Some(5.0));
        assert_eq!(seconds(&["/bin/sh", "-ec", "echo a\nsleep 1h"]), Some(3600.0));
        for unknown in [
            &["sleep"][..],
            &["sleep", "soon"],
            &["sleep", "-1"],
            &["echo", "sleep", "3"],
            &["sh", "-c", "while true; do sleep 1; done"],
            &["sh", "-c", "echo a"],
            &["sh", "-c", "sleep $N"],
            &[],
        ] {
            assert_eq!(of_words(unknown), None, "{unknown:?}");
        }
    }
}
