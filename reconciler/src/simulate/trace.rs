//! What traces have in common: how they are read, their times, and what is said of one that can't be followed.

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// Furthest time in a trace, in seconds: thirty years.
pub(super) const SECONDS_MAX: f64 = 1e9;

/// A trace that can't be followed: where, and what to do.
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

/// Reads a trace; `command` has a help that names its fields.
pub(super) fn read<T: DeserializeOwned>(text: &str, command: &str) -> Result<T, TraceError> {
    read_json(text).map_err(|(place, why)| {
        TraceError::at(place, why, format!("see 'minik8s {command} --help' for the fields of a trace"))
    })
}

/// The value that a text is. An error is its place and what is wrong.
pub(super) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, (String, String)> {
    serde_json::from_str(text).map_err(|error| {
        let whole = error.to_string();
        // Its place goes to the front, as that of every other error.
        let why = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(why, _)| why).to_owned();
        (format!("line {}, column {}", error.line(), error.column()), why)
    })
}

/// Steps are in order, at times that a trace may have.
pub(super) fn check_order(times: impl Iterator<Item = f64>) -> Result<(), TraceError> {
    let mut before = f64::NEG_INFINITY;
    for (index, at) in times.enumerate() {
        let place = format!("steps[{index}].at");
        seconds(at, &place, -SECONDS_MAX)?;
        if at < before {
            let why = format!("{at} is before the step before it");
            return Err(TraceError::at(place, why, "put the steps in order"));
        }
        before = at;
    }
    Ok(())
}

/// The time this number of seconds after the beginning.
pub(super) fn time(seconds: f64) -> Timestamp {
    // Within the bounds that `read` checks.
    Timestamp::from_millisecond((seconds * 1000.0).round() as i64).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A span of time, at least `least` seconds.
pub(super) fn seconds(written: f64, place: &str, least: f64) -> Result<SignedDuration, TraceError> {
    if !(least..=SECONDS_MAX).contains(&written) {
        let help = format!("write seconds from {least} to {SECONDS_MAX}");
        return Err(TraceError::at(place, format!("{written} is too far away"), help));
    }
    Ok(SignedDuration::from_millis((written * 1000.0).round() as i64))
}

/// A whole number as that.
pub(super) fn number(at: f64) -> Number {
    match at.fract() == 0.0 {
        true => Number::from(at as i64),
        false => Number::from_f64(at).unwrap_or_else(|| Number::from(at as i64)),
    }
}

/// A field that is there, even if it is `null`.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}
