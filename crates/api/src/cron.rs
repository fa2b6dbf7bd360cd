//! Cron schedules: `*/5 0 * * mon`, `@daily`, `@every 90m`.
//!
//! Promise: a schedule is checked with the messages of Kubernetes' parser; the next time is found
//! in bounded work, across changes of daylight saving time.

use std::time::Duration;

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan};

/// The fields of a schedule: their range and the names of numbers.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// The search for a matching day ends after this many years: `0 0 30 2 *` has none.
const YEARS_MAX: i64 = 5;

/// When something runs.
///
/// ```
/// use headwater_api::cron::Schedule;
/// use jiff::tz::TimeZone;
///
/// let schedule: Schedule = "30 4 * * mon-fri".parse()?;
/// let saturday = "2026-01-03T00:00:00Z".parse().unwrap();
/// let monday = schedule.next_after(saturday, &TimeZone::UTC).unwrap();
/// assert_eq!(monday.to_string(), "2026-01-05T04:30:00Z");
/// # Ok::<(), headwater_api::cron::InvalidSchedule>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At the minutes that match all fields.
    Fields(CronFields),
    /// Once in every period, at least a second.
    Every(Duration),
}

/// The fields of a schedule: a bit for each number that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronFields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// With both a day of the month and a day of the week, one of them suffices.
    either_day: bool,
}

/// A schedule that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSchedule(String);

fn invalid<T>(why: String) -> Result<T, InvalidSchedule> {
    Err(InvalidSchedule(why))
}

impl std::str::FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(schedule: &str) -> Result<Schedule, InvalidSchedule> {
        let schedule = match schedule.split_once(' ') {
            Some((zone, rest)) if zone.starts_with("TZ=") || zone.starts_with("CRON_TZ=") => rest,
            _ => schedule,
        };
        let Some(word) = schedule.strip_prefix('@') else { return fields(schedule) };
        let fixed = match word {
            "yearly" | "annually" => "0 0 1 1 *",
            "monthly" => "0 0 1 * *",
            "weekly" => "0 0 * * 0",
            "daily" | "midnight" => "0 0 * * *",
            "hourly" => "0 * * * *",
            word => match word.strip_prefix("every ") {
                Some(period) => return every(period),
                None => return invalid(format!("unrecognized descriptor: @{word}")),
            },
        };
        fields(fixed)
    }
}

fn every(period: &str) -> Result<Schedule, InvalidSchedule> {
    let parsed = period.trim().parse::<SignedDuration>().ok();
    match parsed.and_then(|period| Duration::try_from(period).ok()) {
        Some(period) => {
            let whole = Duration::from_secs(period.as_secs());
            Ok(Schedule::Every(whole.max(Duration::from_secs(1))))
        }
        None => invalid(format!("failed to parse duration @every {period}")),
    }
}

fn fields(schedule: &str) -> Result<Schedule, InvalidSchedule> {
    let words: Vec<&str> = schedule.split_whitespace().collect();
    if words.len() != FIELDS.len() {
        let (count, words) = (words.len(), words.join(" "));
        return invalid(format!("expected exactly 5 fields, found {count}: [{words}]"));
    }
    let mut bits = [0; 5];
    for ((word, (min, max, names)), bits) in words.iter().zip(FIELDS).zip(&mut bits) {
        for part in word.split(',') {
            *bits |= part_bits(part, min, max, names)?;
        }
    }
    let [minutes, hours, days, months, weekdays] = bits;
    let is_any = |word: &str| word.split(',').any(|part| part.starts_with(['*', '?']));
    let either_day = !is_any(words[2]) && !is_any(words[4]);
    Ok(Schedule::Fields(CronFields { minutes, hours, days, months, weekdays, either_day }))
}

/// The numbers of one of the comma-separated parts of a field: `*`, `5`, `1-5`, `*/2`, `1-30/2`.
fn part_bits(part: &str, min: u32, max: u32, names: &[&str]) -> Result<u64, InvalidSchedule> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    let read = |text: &str| -> Result<u32, InvalidSchedule> {
        let lower = text.to_ascii_lowercase();
        if let Some(at) = names.iter().position(|name| *name == lower) {
            return Ok(min + at as u32);
        }
        text.parse()
            .or_else(|_| invalid(format!("failed to parse int from {text}: invalid syntax")))
    };
    let (low, high) = match range {
        "*" | "?" => (min, max),
        range => match range.split_once('-') {
            Some((low, high)) => (read(low)?, read(high)?),
            // `5/10` is `5-max/10`.
            None if step.is_some() => (read(range)?, max),
            None => (read(range)?, read(range)?),
        },
    };
    if low < min {
        return invalid(format!("beginning of range ({low}) below minimum ({min}): {part}"));
    }
    if high > max {
        return invalid(format!("end of range ({high}) above maximum ({max}): {part}"));
    }
    if low > high {
        return invalid(format!("beginning of range ({low}) beyond end of range ({high}): {part}"));
    }
    let step = match step.map(read).transpose()? {
        Some(0) => return invalid(format!("step of range should be a positive number: {part}")),
        step => step.unwrap_or(1),
    };
    let numbers = (low..=high).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    Ok(numbers.fold(0, |bits, number| bits | 1 << number))
}

impl Schedule {
    /// The first time after `after`, in a time zone; `None` if there is none within five years.
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(period) => {
                let seconds = after.as_second();
                let start = Timestamp::from_second(seconds).ok()?;
                start.checked_add(*period).ok()
            }
            Schedule::Fields(fields) => fields.next_after(after, zone),
        }
    }
}

fn has(bits: u64, number: i8) -> bool {
    u32::try_from(number).is_ok_and(|number| bits >> number & 1 == 1)
}

impl CronFields {
    fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = zone.to_datetime(after);
        let mut day = local.date();
        let last = day.checked_add(YEARS_MAX.years()).ok()?;
        let mut earliest = Some(local.time());
        while day <= last {
            if !has(self.months, day.month()) {
                day = day.first_of_month().checked_add(1.month()).ok()?;
                earliest = None;
                continue;
            }
            if self.is_day(day)
                && let Some(found) = self.first_on(day, earliest, after, zone)
            {
                return Some(found);
            }
            day = day.tomorrow().ok()?;
            earliest = None;
        }
        None
    }

    fn is_day(&self, day: Date) -> bool {
        let of_month = has(self.days, day.day());
        let of_week = has(self.weekdays, day.weekday().to_sunday_zero_offset());
        if self.either_day { of_month || of_week } else { of_month && of_week }
    }

    /// The first matching time of a day that is after `after`. A time that a change of the clock
    /// skips does not exist, one that it repeats matches twice.
    fn first_on(
        &self,
        day: Date,
        earliest: Option<Time>,
        after: Timestamp,
        zone: &TimeZone,
    ) -> Option<Timestamp> {
        // In a repeated hour, a later time may have an earlier clock.
        let from = earliest.map_or(0, |time| time.hour().saturating_sub(1));
        let mut first: Option<Timestamp> = None;
        for hour in (from..24).filter(|hour| has(self.hours, *hour)) {
            for minute in (0..60).filter(|minute| has(self.minutes, *minute)) {
                let local = zone.to_ambiguous_timestamp(day.at(hour, minute, 0, 0));
                let times = match local.offset() {
                    AmbiguousOffset::Gap { .. } => [None, None],
                    AmbiguousOffset::Unambiguous { .. } => [local.compatible().ok(), None],
                    AmbiguousOffset::Fold { .. } => [local.earlier().ok(), local.later().ok()],
                };
                let is_last = times[1].is_none();
                let later = times.into_iter().flatten().filter(|time| *time > after).min();
                first = later.into_iter().chain(first).min();
                if first.is_some() && is_last && later.is_some() {
                    return first;
                }
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_in(zone: &str, schedule: &str, after: &str, expected: &[&str]) {
        let zone = TimeZone::get(zone).unwrap();
        let schedule: Schedule = schedule.parse().unwrap();
        let mut time: Timestamp = after.parse().unwrap();
        for expected in expected {
            time = schedule.next_after(time, &zone).unwrap();
            assert_eq!(time.to_string(), *expected);
        }
    }

    #[track_caller]
    fn check(schedule: &str, expected: &[&str]) {
        // A Thursday.
        check_in("UTC", schedule, "2026-01-01T00:00:30Z", expected);
    }

    #[test]
    fn the_next_times_match_all_fields() {
        check("* * * * *", &["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"]);
        check(
            "*/20 * * * *",
            &["2026-01-01T00:20:00Z", "2026-01-01T00:40:00Z", "2026-01-01T01:00:00Z"],
        );
        check(
            "5/25 3 * * *",
            &["2026-01-01T03:05:00Z", "2026-01-01T03:30:00Z", "2026-01-01T03:55:00Z"],
        );
        check("0 0 * * *", &["2026-01-02T00:00:00Z"]);
        check("0 12 * * mon,Wed", &["2026-01-05T12:00:00Z", "2026-01-07T12:00:00Z"]);
        check("0 0 29 feb *", &["2028-02-29T00:00:00Z"]);
        check("0 0 31 * ?", &["2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"]);
        // A day of the month or a day of the week.
        check(
            "0 0 13 * fri",
            &["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"],
        );
        check("@hourly", &["2026-01-01T01:00:00Z"]);
        check("@weekly", &["2026-01-04T00:00:00Z"]);
        check("@yearly", &["2027-01-01T00:00:00Z"]);
        check("@every 90m", &["2026-01-01T01:30:30Z", "2026-01-01T03:00:30Z"]);
        let never: Schedule = "0 0 30 2 *".parse().unwrap();
        assert_eq!(never.next_after(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
        assert_eq!(never.next_after(Timestamp::MAX, &TimeZone::UTC), None);
    }

    #[test]
    fn time_zones_and_changes_of_the_clock_are_followed() {
        let berlin = "Europe/Berlin";
        check_in(berlin, "0 9 * * *", "2026-01-01T00:00:00Z", &["2026-01-01T08:00:00Z"]);
        check_in(berlin, "0 9 * * *", "2026-07-01T00:00:00Z", &["2026-07-01T07:00:00Z"]);
        // 02:30 does not exist on 29 March, and exists twice on 25 October.
        let spring = &["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"];
        check_in(berlin, "30 2 * * *", "2026-03-28T00:00:00Z", spring);
        let autumn = &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"];
        check_in(berlin, "30 2 * * *", "2026-10-25T00:00:00Z", autumn);
        let half_hours = &[
            "2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
            "2026-10-25T02:00:00Z",
        ];
        check_in(berlin, "*/30 * * * *", "2026-10-24T23:45:00Z", half_hours);
    }

    #[test]
    fn an_invalid_schedule_is_refused_with_its_part() {
        for (schedule, why) in [
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("x * * * *", "failed to parse int from x: invalid syntax"),
            ("@reboot", "unrecognized descriptor: @reboot"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("@every soon", "failed to parse duration @every soon"),
        ] {
            assert_eq!(schedule.parse::<Schedule>().unwrap_err().to_string(), why);
        }
        assert_eq!("@every 1ms".parse(), Ok(Schedule::Every(Duration::from_secs(1))));
        let huge = format!("*/{} * * * *", u32::MAX);
        assert!(huge.parse::<Schedule>().is_ok());
    }
}
