//! Intrinsic functions on lists.

use std::collections::BTreeSet;

use serde_json::Value as Json;

/// Maximum number of items in a range: the language's own limit.
const RANGE_MAX: usize = 1000;

pub(super) fn item(items: &[Json], index: i64) -> Result<Json, String> {
    let found = usize::try_from(index).ok().and_then(|index| items.get(index));
    found.cloned().ok_or_else(|| format!("the list has no item {index}, but {} items", items.len()))
}

pub(super) fn partition(items: &[Json], size: i64) -> Result<Json, String> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0);
    let size = size.ok_or("the size of a part is to be more than 0")?;
    Ok(Json::Array(items.chunks(size).map(|chunk| Json::Array(chunk.to_vec())).collect()))
}

/// Returns the numbers from the first to the last, which is included if the steps meet it.
pub(super) fn range(first: i64, last: i64, step: i64) -> Result<Json, String> {
    if step == 0 {
        return Err("the step of a range is not to be 0".to_owned());
    }
    let mut items = Vec::new();
    let mut next = Some(first);
    while let Some(number) = next.filter(|number| if step > 0 { *number <= last } else { *number >= last }) {
        if items.len() == RANGE_MAX {
            return Err(format!("a range has at most {RANGE_MAX} items"));
        }
        items.push(Json::from(number));
        next = number.checked_add(step);
    }
    Ok(Json::Array(items))
}

/// Returns each value once, at its first position.
pub(super) fn unique(items: &[Json]) -> Json {
    // Keys are equal where `is_same` holds: comparing every pair takes minutes for the largest list.
    let key = |item: &Json| match item.as_f64() {
        // Zero has two signs.
        Some(number) => format!("{:x}", (number + 0.0).to_bits()),
        None => item.to_string(),
    };
    let mut seen = BTreeSet::new();
    Json::Array(items.iter().filter(|item| seen.insert(key(item))).cloned().collect())
}

/// True if the values are equal, where a number may be written `1` or `1.0`.
pub(super) fn is_same(left: &Json, right: &Json) -> bool {
    left == right || (left.is_number() && left.as_f64() == right.as_f64())
}
