//! Node: labels, taints, cordon and drain for a node that an agent registered.
//!
//! Labels and annotations are those of the metadata; they are added to those that the agent reports. The object's
//! name is that of the node. Field names and semantics are those of Kubernetes (core/v1).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;

use super::pod::{PodSpec, TaintEffect, Toleration, TolerationOperator};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Desired state of a node.
pub struct NodeSpec {
    /// Taints that keep pods away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Cordons the node: it accepts no new pods; running pods stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// Drains the node: it accepts no new pods, and running pods move to other nodes, as far as disruption budgets
    /// allow. Pods that set `nodeName` stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
    /// Fingerprint of the only key that the node may have: `sha256:` and 64 hex digits, as the event of its join shows it.
    /// Without it, any machine with a token for this name may join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Repels pods that do not tolerate it.
pub struct Taint {
    /// Taint key, in the format of a label key.
    pub key: String,
    /// Taint value, in the format of a label value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect on pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

impl Taint {
    /// True if the first toleration that matches this taint still applies `elapsed_seconds` after the taint
    /// appeared, by the rules of Kubernetes.
    pub fn is_tolerated_by(&self, tolerations: &[Toleration], elapsed_seconds: i64) -> bool {
        let Some(toleration) = self.matching_toleration(tolerations) else { return false };
        // Tolerations of other effects do not expire.
        self.effect != TaintEffect::NoExecute
            || toleration.toleration_seconds.is_none_or(|seconds| seconds > elapsed_seconds)
    }

    /// Returns the first toleration that matches this taint; fields that a toleration leaves out match anything.
    pub fn matching_toleration<'a>(&self, tolerations: &'a [Toleration]) -> Option<&'a Toleration> {
        tolerations.iter().find(|toleration| {
            let value = toleration.value.as_deref().unwrap_or_default();
            toleration.effect.is_none_or(|effect| effect == self.effect)
                && toleration.key.as_ref().is_none_or(|key| key.is_empty() || *key == self.key)
                && match toleration.operator {
                    TolerationOperator::Exists => true,
                    TolerationOperator::Equal => value == self.value.as_deref().unwrap_or_default(),
                }
        })
    }
}

impl fmt::Display for Taint {
    /// Formats the taint like kubectl: `dedicated=gpu:NoSchedule`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.as_deref().map(|value| format!("={value}")).unwrap_or_default();
        write!(f, "{}{value}:{:?}", self.key, self.effect)
    }
}

impl NodeSpec {
    /// True if a running pod must leave the node: because of a `NoExecute` taint that it does not or no longer
    /// tolerates, or because of a drain, unless the pod names the node. `elapsed_seconds`: see
    /// [`Taint::is_tolerated_by`].
    pub fn evicts(&self, pod: &PodSpec, elapsed_seconds: impl Fn(&Taint) -> i64) -> bool {
        self.drain && pod.node_name.is_none() || self.repels(pod, elapsed_seconds)
    }

    /// True if a running pod must leave the node because of the drain alone: no taint drives it out.
    pub fn only_drains(&self, pod: &PodSpec, elapsed_seconds: impl Fn(&Taint) -> i64) -> bool {
        self.drain && pod.node_name.is_none() && !self.repels(pod, elapsed_seconds)
    }

    fn repels(&self, pod: &PodSpec, elapsed_seconds: impl Fn(&Taint) -> i64) -> bool {
        let mut taints = self.taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute);
        taints.any(|taint| !taint.is_tolerated_by(&pod.tolerations, elapsed_seconds(taint)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_matches_as_in_kubernetes() {
        use TaintEffect::{NoExecute, NoSchedule};
        let taint = Taint { key: "gpu".into(), value: Some("a100".into()), effect: NoSchedule };
        let toleration = |key: Option<&str>, operator, value: Option<&str>, effect| Toleration {
            key: key.map(Into::into),
            operator,
            value: value.map(Into::into),
            effect,
            toleration_seconds: None,
        };
        let (equal, exists) = (TolerationOperator::Equal, TolerationOperator::Exists);
        let table = [
            (toleration(Some("gpu"), equal, Some("a100"), None), true),
            (toleration(Some("gpu"), equal, Some("a100"), Some(NoSchedule)), true),
            (toleration(Some("gpu"), equal, Some("a100"), Some(NoExecute)), false),
            (toleration(Some("gpu"), equal, Some("h100"), None), false),
            (toleration(Some("gpu"), equal, None, None), false),
            (toleration(Some("gpu"), exists, None, None), true),
            (toleration(Some("disk"), exists, None, None), false),
            (toleration(None, exists, None, None), true),
            (toleration(None, exists, None, Some(NoSchedule)), true),
            (toleration(None, exists, None, Some(NoExecute)), false),
        ];
        for (toleration, is_tolerated) in table {
            assert_eq!(
                taint.is_tolerated_by(std::slice::from_ref(&toleration), 0),
                is_tolerated,
                "{toleration:?}"
            );
        }
        assert!(!taint.is_tolerated_by(&[], 0));
        let evicting = Taint { effect: NoExecute, ..taint.clone() };
        let any = || toleration(None, exists, None, None);
        let after = |seconds| Toleration { toleration_seconds: Some(seconds), ..any() };
        for (tolerations, elapsed, is_tolerated) in [
            (vec![after(60)], 59, true),
            (vec![after(60)], 60, false),
            (vec![after(60), any()], 60, false),
            (vec![any(), after(60)], 60, true),
            (vec![after(0)], 0, false),
            (vec![after(-1)], 0, false),
        ] {
            assert_eq!(evicting.is_tolerated_by(&tolerations, elapsed), is_tolerated, "{tolerations:?}");
        }
        let bare = Taint { value: None, ..taint.clone() };
        assert!(bare.is_tolerated_by(&[toleration(Some("gpu"), equal, None, None)], 0));
        assert_eq!([taint.to_string(), bare.to_string()], ["gpu=a100:NoSchedule", "gpu:NoSchedule"]);
    }
}
