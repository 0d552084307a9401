//! Common parts of traces: parsing, times, and errors.

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// Furthest time in a trace, in seconds: thirty years.
pub(super) const SECONDS_MAX: f64 = 1e9;

/// An invalid trace: the place of the error, and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}; {help}")]
pub struct TraceError {
    /// The field, or line and column.
    pub place: String,
    pub why: String,
    pub help: String,
}

impl TraceError {
    pub(super) fn at(place: impl Into<String>, why: impl Into<String>, help: impl Into<String>) -> Self {
        Self { place: place.into(), why: why.into(), help: help.into() }
    }
}

/// Parses a trace; the help of `command` documents its fields.
pub(super) fn read<T: DeserializeOwned>(text: &str, command: &str) -> Result<T, TraceError> {
    read_json(text).map_err(|(place, why)| {
        TraceError::at(place, why, format!("see 'minik8s {command} --help' for the fields of a trace"))
    })
}

/// Parses JSON. An error is its place and its reason.
pub(super) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, (String, String)> {
    serde_json::from_str(text).map_err(|error| {
        let whole = error.to_string();
        // The place goes to the front, as in every other error.
        let why = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(why, _)| why).to_owned();
        (format!("line {}, column {}", error.line(), error.column()), why)
    })
}

/// Checks that steps are in order, at valid times.
pub(super) fn check_order(times: impl Iterator<Item = f64>) -> Result<(), TraceError> {
    let mut before = f64::NEG_INFINITY;
    for (index, at) in times.enumerate() {
        let place = format!("steps[{index}].at");
        seconds(at, &place, -SECONDS_MAX)?;
        if at < before {
            let why = format!("{at} is earlier than the previous step");
            return Err(TraceError::at(place, why, "put the steps in order"));
        }
        before = at;
    }
    Ok(())
}

/// The timestamp `seconds` after the beginning.
pub(super) fn time(seconds: f64) -> Timestamp {
    // Within the bounds that `seconds` checks.
    Timestamp::from_millisecond((seconds * 1000.0).round() as i64).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Converts a number of seconds, at least `least`, to a duration.
pub(super) fn seconds(written: f64, place: &str, least: f64) -> Result<SignedDuration, TraceError> {
    if !(least..=SECONDS_MAX).contains(&written) {
        let help = format!("write seconds from {least} to {SECONDS_MAX}");
        return Err(TraceError::at(place, format!("{written} is out of range"), help));
    }
    Ok(SignedDuration::from_millis((written * 1000.0).round() as i64))
}

/// A JSON number, as an integer if it is whole.
pub(super) fn number(at: f64) -> Number {
    match at.fract() == 0.0 {
        true => Number::from(at as i64),
        false => Number::from_f64(at).unwrap_or_else(|| Number::from(at as i64)),
    }
}

/// Deserializes a field that is present, even if it is `null`.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}
