//! Label selectors with expressions, as Kubernetes' apps/v1 has them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::metadata;
use crate::kinds::names::{check_qualified_name, is_label_value};
use crate::meta::StringMap;
use crate::violation::{Findings, Path, rules};

/// Which labels an object must have: all of both lists. Empty matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Labels that fulfil these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct LabelRequirement {
    /// The label.
    pub key: String,
    /// How its value is compared.
    pub operator: SelectorOperator,
    /// With `In` and `NotIn`: the values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label's value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// It is one of the values.
    In,
    /// It is none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

impl LabelSelector {
    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// All that is asked for is among `labels`. An empty selector matches nothing.
    pub fn matches(&self, labels: &StringMap) -> bool {
        !self.is_empty()
            && self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.is_met(labels))
    }

    /// One spelling for selectors that ask for the same: the order says nothing.
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
            // A label that is not there has none of the values.
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
            let message = format!("Invalid value: `{value}`: not a label's value");
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
