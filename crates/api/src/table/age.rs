//! Ages as `kubectl` prints them: two or three significant figures.

use jiff::Timestamp;

/// A duration for people: `45s`, `5m30s`, `3h`, `2d4h`, `3y`. Up to a second in the future is
/// tolerated; more is `<invalid>`.
pub fn human_duration(seconds: i64) -> String {
    let pair = |big: i64, big_unit: char, small: i64, small_unit: char| match small {
        0 => format!("{big}{big_unit}"),
        small => format!("{big}{big_unit}{small}{small_unit}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// The time since a timestamp; `<unknown>` if there is none.
pub(super) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human_duration(seconds_between(time, now)),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Seconds from one time to another, truncated.
pub(super) fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_or_three_significant_figures() {
        let (m, h, d) = (60, 3_600, 86_400);
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * m, "10m"),
            (3 * h - 1, "179m"),
            (3 * h, "3h"),
            (3 * h + 5 * m, "3h5m"),
            (8 * h, "8h"),
            (47 * h, "47h"),
            (2 * d, "2d"),
            (2 * d + 3 * h, "2d3h"),
            (8 * d, "8d"),
            (729 * d, "729d"),
            (730 * d, "2y"),
            (731 * d, "2y1d"),
            (9 * 365 * d, "9y"),
        ] {
            assert_eq!(human_duration(seconds), expected);
        }
    }

    #[test]
    fn an_invalid_time_is_unknown() {
        let now: Timestamp = "2024-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(since("2024-01-02T03:04:00Z", now), "5s");
        assert_eq!(since("", now), "<unknown>");
        assert_eq!(since("soon", now), "<unknown>");
    }
}
