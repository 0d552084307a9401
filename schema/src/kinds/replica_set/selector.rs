//! Label selectors with expressions, as in Kubernetes' apps/v1.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::metadata;
use crate::meta::StringMap;
use crate::names::{check_qualified_name, is_label_value};
use crate::violation::{Findings, Path, rules};

/// Labels that an object must have; both lists must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels with their exact values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that the labels must meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// A requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LabelRequirement {
    /// Key of the label.
    pub key: String,
    /// Comparison with the label's value.
    pub operator: SelectorOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Comparison with a label's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// The value is among the values of the requirement.
    In,
    /// The value is not among the values of the requirement, or the label is missing.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

impl LabelSelector {
    /// True if there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// True if `labels` meet every requirement. An empty selector matches nothing.
    pub fn matches(&self, labels: &StringMap) -> bool {
        !self.is_empty()
            && self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.is_met(labels))
    }

    /// Normalizes equivalent selectors, because the order of requirements and values has no meaning.
    pub(in crate::kinds) fn normalize(&mut self) {
        for requirement in &mut self.match_expressions {
            requirement.values.sort_unstable();
            requirement.values.dedup();
        }
        let order = |one: &LabelRequirement| (one.key.clone(), one.operator as u8, one.values.clone());
        self.match_expressions.sort_by_key(order);
        self.match_expressions.dedup();
    }

    /// Checks keys, operators and values at `at`.
    pub(in crate::kinds) fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        metadata::labels(&self.match_labels, &at.field("matchLabels"), findings);
        let list = at.field("matchExpressions");
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            requirement.validate(&list.index(index), findings);
        }
    }
}

impl LabelRequirement {
    fn is_met(&self, labels: &StringMap) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            SelectorOperator::In => value.is_some_and(|value| self.values.contains(value)),
            // A missing label has none of the values.
            SelectorOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            SelectorOperator::Exists => value.is_some(),
            SelectorOperator::DoesNotExist => value.is_none(),
        }
    }

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        if let Err(why) = check_qualified_name(&self.key) {
            findings.add(
                &rules::INVALID_LABEL,
                &at.field("key"),
                format!("Invalid value: `{}`: {why}", self.key),
            );
        }
        let values = at.field("values");
        match self.operator {
            SelectorOperator::In | SelectorOperator::NotIn if self.values.is_empty() => {
                let message = "Required value: must be specified when `operator` is 'In' or 'NotIn'";
                findings.add(&rules::SELECTOR, &values, message);
            }
            SelectorOperator::Exists | SelectorOperator::DoesNotExist if !self.values.is_empty() => {
                let message = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                findings.add(&rules::SELECTOR, &values, message).on_key();
            }
            _ => {}
        }
        for (index, value) in self.values.iter().enumerate().filter(|(_, value)| !is_label_value(value)) {
            let message = format!("Invalid value: `{value}`: not a valid label value");
            findings.add(&rules::INVALID_LABEL, &values.index(index), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn asks(key: &str, operator: SelectorOperator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = LabelRequirement { key: key.to_owned(), operator, values };
        LabelSelector { match_expressions: vec![requirement], ..LabelSelector::default() }
    }

    #[test]
    fn expressions_match_as_in_kubernetes() {
        let web = labels(&[("app", "web")]);
        for (selector, matches) in [
            (LabelSelector::default(), false),
            (asks("app", SelectorOperator::In, &["api", "web"]), true),
            (asks("app", SelectorOperator::In, &["api"]), false),
            (asks("tier", SelectorOperator::In, &["web"]), false),
            (asks("app", SelectorOperator::NotIn, &["web"]), false),
            (asks("tier", SelectorOperator::NotIn, &["web"]), true),
            (asks("app", SelectorOperator::Exists, &[]), true),
            (asks("tier", SelectorOperator::Exists, &[]), false),
            (asks("app", SelectorOperator::DoesNotExist, &[]), false),
            (LabelSelector { match_labels: labels(&[("app", "web")]), ..LabelSelector::default() }, true),
            (LabelSelector { match_labels: labels(&[("app", "api")]), ..LabelSelector::default() }, false),
        ] {
            assert_eq!(selector.matches(&web), matches, "{selector:?}");
        }
    }
}
