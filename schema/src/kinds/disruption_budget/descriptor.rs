//! The `PodDisruptionBudget` kind: names, checks, defaults, older manifests.

use super::super::{Descriptor, KindSpec, Links, NameForm, OlderSpellings};
use super::PodDisruptionBudgetSpec;
use crate::document::edit::{below, take};
use crate::kinds::replica_set::descriptor::plain;
use crate::kinds::replica_set::validate::percent;
use crate::manifest::dialects::{Node, Notes};
use crate::violation::{Findings, Path, rules};

/// Older version, in which an empty selector covers no pods.
const BETA: &str = "policy/v1beta1";

impl KindSpec for PodDisruptionBudgetSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "poddisruptionbudgets",
        short_names: &["pdb"],
        api_version: "policy/v1",
        names: NameForm::Long,
        older: OlderSpellings { api_versions: &[BETA], rewrite, ..OlderSpellings::NONE },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links::NONE;

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        match &self.selector {
            Some(selector) => selector.validate(&at.field("selector"), findings),
            None => {
                let message = "a disruption budget without `selector` covers no pods";
                findings.add(&rules::NO_EFFECT, at, message).on_key();
            }
        }
        let (min, max) = (at.field("minAvailable"), at.field("maxUnavailable"));
        match (&self.min_available, &self.max_unavailable) {
            (Some(_), Some(_)) => {
                let message = "Invalid value: minAvailable and maxUnavailable cannot be both set";
                findings.add(&rules::EXCLUSIVE, &max, message).on_key();
            }
            (None, None) => {
                let message = "Required value: must set either minAvailable or maxUnavailable";
                let help = "`maxUnavailable: 1` lets a drain take one pod after the other";
                findings.add(&rules::EXCLUSIVE, at, message).on_key().help(help);
            }
            _ => {}
        }
        for (amount, here) in [(&self.min_available, min), (&self.max_unavailable, max)] {
            if percent(amount.as_ref(), &here, findings).is_some_and(|percent| percent > 100) {
                findings.add(&rules::ROLLOUT, &here, "Invalid value: must not be greater than 100%");
            }
        }
    }

    /// Normalizes equal meanings.
    fn fill_defaults(&mut self) {
        if let Some(selector) = &mut self.selector {
            selector.normalize();
        }
        self.min_available = self.min_available.take().map(plain);
        self.max_unavailable = self.max_unavailable.take().map(plain);
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

/// Removes an empty selector of the older version, which means the opposite today.
fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    let is_beta = document.entry("apiVersion").and_then(|version| version.value.text()) == Some(BETA);
    let Some(spec) = below(document, &["spec"]).filter(|_| is_beta) else { return };
    let is_empty = |selector: &Node| selector.entries().is_some_and(|entries| entries.is_empty());
    if spec.entry("selector").is_some_and(|selector| is_empty(&selector.value))
        && let Some(selector) = take(spec, "selector")
    {
        notes.dropped(selector.mark, "selector", "an empty one covers no pods in policy/v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use crate::kinds::Resource;
    use crate::manifest::load_file;

    /// Rules and messages of a budget with these fields, and the labels `app: web` covered or not.
    fn load(version: &str, spec: &str) -> (Vec<String>, Option<bool>) {
        let text = format!(
            "apiVersion: policy/{version}\nkind: PodDisruptionBudget\nmetadata: {{name: web}}\nspec: {{{spec}}}\n"
        );
        let loaded = load_file("a.yaml", text.as_bytes());
        let says = loaded.violations.iter().map(|one| format!("{}: {}", one.rule, one.message));
        let labels = [("app".to_owned(), "web".to_owned())].into();
        let covers = loaded.documents.first().map(|document| match &document.object.resource {
            Resource::PodDisruptionBudget(spec) => spec.covers(&labels),
            other => panic!("{other:?}"),
        });
        (says.collect(), covers)
    }

    // Seen red with an empty selector that covers nothing, and with one of v1beta1 that covers all.
    #[test]
    fn a_budget_covers_what_it_selects_as_in_its_version_of_kubernetes() {
        let one = "maxUnavailable: 1";
        for (version, selector, covers, notes) in [
            ("v1", "selector: {matchLabels: {app: web}}, ", true, 0),
            ("v1", "selector: {matchExpressions: [{key: app, operator: Exists}]}, ", true, 0),
            ("v1", "selector: {matchLabels: {app: api}}, ", false, 0),
            ("v1", "selector: {}, ", true, 0),
            ("v1", "", false, 1),
            ("v1beta1", "selector: {matchLabels: {app: web}}, ", true, 1),
            ("v1beta1", "selector: {}, ", false, 3),
        ] {
            let (says, found) = load(version, &format!("{selector}{one}"));
            assert_eq!((found, says.len()), (Some(covers), notes), "{version} {selector} {says:?}");
        }
    }

    /// Kubernetes' `TestValidatePodDisruptionBudgetSpec`, `TestValidateMinAvailablePodDisruptionBudgetSpec` and
    /// `TestValidateMinAvailablePodAndMaxUnavailableDisruptionBudgetSpec` (pkg/apis/policy/validation).
    #[test]
    fn amounts_are_checked_as_in_kubernetes() {
        let says = |fields: &str| load("v1", &format!("selector: {{}}, {fields}")).0;
        for valid in ["0", "1", "5", "0%", "1%", "100%", "\"50%\""] {
            assert_eq!(says(&format!("minAvailable: {valid}")), [""; 0], "{valid}");
            assert_eq!(says(&format!("maxUnavailable: {valid}")), [""; 0], "{valid}");
        }
        for (fields, rule) in [
            ("minAvailable: 1.1%", "rollout: "),
            ("minAvailable: nope", "rollout: "),
            ("minAvailable: -1%", "rollout: "),
            ("minAvailable: 101%", "rollout: "),
            ("maxUnavailable: 101%", "rollout: "),
            ("minAvailable: 1, maxUnavailable: 1", "exclusive: "),
            ("unhealthyPodEvictionPolicy: AlwaysAllow", "exclusive: "),
            ("minAvailable: 1, unhealthyPodEvictionPolicy: Never", "unknown-value: "),
        ] {
            let found = says(fields);
            assert!(found.len() == 1 && found[0].starts_with(rule), "{fields}: {found:?}");
        }
    }
}
