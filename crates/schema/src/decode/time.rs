//! The canonical text of times: UTC, with seconds or exactly six decimals (S1.34).

use jiff::civil::DateTime;

/// The precision of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Seconds,
    Micros,
}

/// The canonical text of an RFC 3339 time; `None` if it is canonical already.
pub(super) fn canonical(text: &str, precision: Precision) -> Result<Option<String>, String> {
    let mut reader = Reader { text, rest: text, precision };
    let civil = reader.civil()?;
    let decimals = reader.decimals()?;
    let offset_minutes = reader.offset()?;
    if !reader.rest.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {:?}", reader.rest));
    }
    let plain = match precision {
        Precision::Seconds => decimals.is_empty(),
        Precision::Micros => true,
    };
    if offset_minutes == 0 && plain && text.ends_with('Z') {
        return Ok(None);
    }
    let utc = civil
        .checked_sub(jiff::Span::new().minutes(offset_minutes))
        .map_err(|_| format!("parsing time {text:?}: year out of range"))?;
    let seconds = utc.strftime("%Y-%m-%dT%H:%M:%S");
    Ok(Some(match precision {
        Precision::Seconds => format!("{seconds}Z"),
        Precision::Micros => format!("{seconds}.{decimals}Z"),
    }))
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    precision: Precision,
}

impl<'a> Reader<'a> {
    fn civil(&mut self) -> Result<DateTime, String> {
        let year = self.number(4, "2006")?;
        self.expect("-")?;
        let month = self.number(2, "01")?;
        self.expect("-")?;
        let day = self.number(2, "02")?;
        self.expect("T")?;
        let hour = self.number(2, "15")?;
        self.expect(":")?;
        let minute = self.number(2, "04")?;
        self.expect(":")?;
        let second = self.number(2, "05")?;
        for (name, number, range) in [
            ("month", month, 1..=12),
            ("hour", hour, 0..=23),
            ("minute", minute, 0..=59),
            ("second", second, 0..=59),
        ] {
            if !range.contains(&number) {
                return Err(format!("parsing time {:?}: {name} out of range", self.text));
            }
        }
        let (month, day, hour) = (month as i8, day as i8, hour as i8);
        DateTime::new(year, month, day, hour, minute as i8, second as i8, 0)
            .map_err(|_| format!("parsing time {:?}: day out of range", self.text))
    }

    /// Decimals of the second; exactly six for micro times.
    fn decimals(&mut self) -> Result<&'a str, String> {
        let fraction = self.rest.strip_prefix('.').unwrap_or_default();
        let end = fraction.bytes().position(|byte| !byte.is_ascii_digit());
        let decimals = &fraction[..end.unwrap_or(fraction.len())];
        match self.precision {
            Precision::Micros if decimals.len() != 6 => return Err(self.cannot(".000000")),
            Precision::Seconds if self.rest.starts_with('.') && decimals.is_empty() => {
                return Err(self.cannot("Z07:00"));
            }
            _ => {}
        }
        if !decimals.is_empty() {
            self.rest = &self.rest[1 + decimals.len()..];
        }
        Ok(decimals)
    }

    fn offset(&mut self) -> Result<i64, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let sign = match self.rest.as_bytes().first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(self.cannot("Z07:00")),
        };
        let before = self.rest;
        self.rest = &self.rest[1..];
        let hours = self.number(2, "Z07:00")?;
        self.expect(":")?;
        let minutes = self.number(2, "Z07:00")?;
        if hours > 23 || minutes > 59 {
            self.rest = before;
            return Err(self.cannot("Z07:00"));
        }
        Ok(sign * (i64::from(hours) * 60 + i64::from(minutes)))
    }

    fn number(&mut self, digits: usize, element: &str) -> Result<i16, String> {
        let number =
            self.rest.get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|text| text.parse().ok()) {
            Some(number) => {
                self.rest = &self.rest[digits..];
                Ok(number)
            }
            None => Err(self.cannot(element)),
        }
    }

    fn expect(&mut self, mark: &str) -> Result<(), String> {
        match self.rest.strip_prefix(mark) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.cannot(mark)),
        }
    }

    fn cannot(&self, element: &str) -> String {
        let layout = match self.precision {
            Precision::Seconds => "2006-01-02T15:04:05Z07:00",
            Precision::Micros => "2006-01-02T15:04:05.000000Z07:00",
        };
        format!(
            "parsing time {:?} as {layout:?}: cannot parse {:?} as {element:?}",
            self.text, self.rest
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn seconds(text: &str, expected: Result<Option<&str>, &str>) {
        let found = canonical(text, Precision::Seconds);
        assert_eq!(found, expected.map(|text| text.map(str::to_owned)).map_err(str::to_owned));
    }

    #[test]
    fn times_are_stored_in_utc_and_seconds() {
        seconds("2024-01-02T03:04:05Z", Ok(None));
        seconds("2024-01-02T03:04:05.999Z", Ok(Some("2024-01-02T03:04:05Z")));
        seconds("2024-01-01T00:30:00+01:00", Ok(Some("2023-12-31T23:30:00Z")));
        seconds("2024-02-29T23:59:59-00:30", Ok(Some("2024-03-01T00:29:59Z")));
        seconds("2024-01-01T00:00:00+00:00", Ok(Some("2024-01-01T00:00:00Z")));
    }

    #[test]
    fn other_texts_are_rejected() {
        seconds(
            "",
            Err(
                "parsing time \"\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"2006\"",
            ),
        );
        seconds(
            "today",
            Err(
                "parsing time \"today\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"today\" as \"2006\"",
            ),
        );
        seconds(
            "2024-13-01T00:00:00Z",
            Err("parsing time \"2024-13-01T00:00:00Z\": month out of range"),
        );
        for bad in [
            "10000-01-01T00:00:00Z",
            "2024-02-30T00:00:00Z",
            "2024-01-01T00:00:00+99:99",
            "2024-01-01T00:00:00",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00Zx",
            "2024-01-01T24:00:00Z",
            "20é4-01-01T00:00:00Z",
            "0000-01-01T00:00:00+23:59",
        ] {
            let found = canonical(bad, Precision::Seconds);
            assert!(found.is_err() || bad.starts_with("0000"), "{bad}: {found:?}");
        }
    }

    #[test]
    fn micro_times_have_exactly_six_decimals() {
        let micros = |text| canonical(text, Precision::Micros);
        assert_eq!(micros("2024-01-02T03:04:05.000000Z"), Ok(None));
        assert_eq!(
            micros("2024-01-02T03:04:05.123456+01:00"),
            Ok(Some("2024-01-02T02:04:05.123456Z".into()))
        );
        for bad in
            ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.12345Z", "2024-01-02T03:04:05.1234567Z"]
        {
            assert!(micros(bad).is_err(), "{bad}");
        }
    }
}
