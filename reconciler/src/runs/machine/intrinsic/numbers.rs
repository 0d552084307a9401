//! Intrinsic functions on numbers.

use serde_json::Value as Json;

pub(super) fn add(left: i64, right: i64) -> Result<Json, String> {
    left.checked_add(right).map(Json::from).ok_or_else(|| "the sum is too large".to_owned())
}

/// Returns a number from the first up to, but excluding, the last.
pub(super) fn random(first: i64, last: i64, drawn: u64) -> Result<Json, String> {
    let span = i128::from(last) - i128::from(first);
    if span <= 0 {
        return Err("the second number is to be greater than the first".to_owned());
    }
    let number = i128::from(first) + i128::from(drawn) % span;
    i64::try_from(number).map(Json::from).map_err(|error| error.to_string())
}
