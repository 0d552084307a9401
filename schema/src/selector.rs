//! Label selectors.

use std::collections::BTreeMap;

use crate::meta::StringMap;

/// Every pair of `selector` is among `labels`. An empty selector matches nothing, as for a Service.
pub fn matches(selector: &BTreeMap<String, String>, labels: &StringMap) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Every pair of `selector` is among `labels`. An empty selector matches everything, as for a nodeSelector.
pub fn matches_or_empty(selector: &BTreeMap<String, String>, labels: &StringMap) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
