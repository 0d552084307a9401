//! Start of a time range, as `--since` takes it: a time, or an age as Go and kubectl write it.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

/// Start of a time range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// This time.
    At(Timestamp),
    /// This long ago, by the clock of the daemon that holds the data.
    Ago(SignedDuration),
}

impl Since {
    /// Returns the time, relative to `now`; `None` before the beginning of time.
    pub fn time(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Since::At(time) => Some(time),
            Since::Ago(age) => now.checked_sub(age).ok(),
        }
    }
}

impl fmt::Display for Since {
    /// Formats a text that parses to the same value and needs no escaping in a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Since::At(time) => time.fmt(f),
            Since::Ago(age) => write!(f, "{}s", age.as_secs()),
        }
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse() {
            return Ok(Since::At(time));
        }
        let shown: String = text.chars().take(60).collect();
        let wrong = || {
            format!(
                "`{}` is not a time: write an age (90s, 10m, 1h30m, 2d) or a time (2030-01-31T12:00:00Z)",
                shown.escape_debug()
            )
        };
        age(text).map(Since::Ago).ok_or_else(wrong)
    }
}

/// Parses whole numbers with units, in any order: `1h30m`. A number alone is seconds.
fn age(text: &str) -> Option<SignedDuration> {
    let mut rest = text;
    let mut seconds: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: i64 = rest[..digits].parse().ok()?;
        let (unit, length) = match rest[digits..].chars().next() {
            None if digits == text.len() => (1, 0),
            Some('s') => (1, 1),
            Some('m') => (60, 1),
            Some('h') => (3600, 1),
            Some('d') => (86_400, 1),
            _ => return None,
        };
        seconds = number.checked_mul(unit)?.checked_add(seconds)?;
        rest = &rest[digits + length..];
    }
    (!text.is_empty()).then(|| SignedDuration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ages_are_read_and_written() {
        let now: Timestamp = "2030-01-01T02:00:00Z".parse().unwrap();
        for (text, time, written) in [
            ("10m", "2030-01-01T01:50:00Z", "600s"),
            ("1h30m", "2030-01-01T00:30:00Z", "5400s"),
            ("60", "2030-01-01T01:59:00Z", "60s"),
            ("1d", "2029-12-31T02:00:00Z", "86400s"),
            ("2029-12-31T01:00:00+01:00", "2029-12-31T00:00:00Z", "2029-12-31T00:00:00Z"),
        ] {
            let since: Since = text.parse().unwrap();
            assert_eq!(since.time(now), Some(time.parse().unwrap()), "{text}");
            assert_eq!(since.to_string(), written);
            assert_eq!(written.parse(), Ok(since));
        }
        for text in ["", "10x", "-5s", "m", "1h30", "1.5h", "yesterday", "99999999999999999999s", "9e3s"] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
    }
}
