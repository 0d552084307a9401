//! The `DaemonSet` kind: names, links, defaults.

use super::super::{Descriptor, KindSpec, Links, NameForm, ObjectPod, OlderSpellings, Pods};
use super::{DaemonSetSpec, RollingUpdateDaemonSet};
use crate::kinds::Kind;
use crate::kinds::replica_set::validate::{WorkloadFields, percent};
use crate::kinds::replica_set::{IntOrPercent, descriptor, dialect};
use crate::manifest::dialects::{Node, Notes};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, rules};

impl KindSpec for DaemonSetSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "daemonsets",
        short_names: &["ds"],
        api_version: "apps/v1",
        failure_is_final: true,
        pods: Pods::PerNode,
        shows_rollout: true,
        names: NameForm::Workload,
        older: OlderSpellings {
            words: &["Daemonset"],
            api_versions: &["apps/v1beta2", "extensions/v1beta1"],
            rewrite,
            ..OlderSpellings::NONE
        },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links { pod: Self::pod, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        fill(self);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.template != after.template
    }

    fn deadline_seconds(&self, default: u32) -> u32 {
        self.progress_deadline_seconds
            .unwrap_or_else(|| descriptor::default_deadline(self.min_ready_seconds, default))
    }
}

impl DaemonSetSpec {
    fn pod<'a>(&'a self, _: &'a ObjectMeta) -> Option<ObjectPod<'a>> {
        let (spec, labels) = (&self.template.spec, &self.template.metadata.labels);
        Some(ObjectPod { spec, at: &["spec", "template", "spec"], labels, count: 1, is_per_node: true })
    }
}

// Effective spec: Kubernetes' defaults, and one spelling for equal meanings.

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut DaemonSetSpec) {
    descriptor::fill_workload(&mut spec.selector, &mut spec.template);
    let written = spec.update_strategy.rolling_update.take().unwrap_or_default().max_unavailable;
    let max_unavailable = Some(written.map_or(IntOrPercent::Number(1), descriptor::plain));
    // `maxSurge` can only be 0.
    spec.update_strategy.rolling_update = Some(RollingUpdateDaemonSet { max_unavailable, max_surge: None });
}

// Older DaemonSet manifests: the spellings that all workloads share.

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    dialect::rewrite_workload(document, notes);
}

// Checks of a daemon set beyond the schema, in Kubernetes' wording where people search for it.

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &DaemonSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let shared = WorkloadFields {
        kind: Kind::DaemonSet,
        selector: &spec.selector,
        template: &spec.template,
        min_ready_seconds: spec.min_ready_seconds,
        progress_deadline_seconds: spec.progress_deadline_seconds,
    };
    shared.validate_template(at, findings);
    update_strategy(spec, &at.field("updateStrategy"), findings);
    shared.validate_times(at, findings);
}

fn update_strategy(spec: &DaemonSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(update) = &spec.update_strategy.rolling_update else { return };
    let here = at.field("rollingUpdate");
    let (unavailable, surge) = (here.field("maxUnavailable"), here.field("maxSurge"));
    let share = percent(update.max_unavailable.as_ref(), &unavailable, findings);
    if share.is_some_and(|percent| percent > 100) {
        findings.add(&rules::ROLLOUT, &unavailable, "Invalid value: must not be greater than 100%");
    }
    let is = |amount: &Option<IntOrPercent>, number: fn(u32) -> bool| {
        amount.as_ref().and_then(|amount| amount.resolve(100, true)).is_some_and(number)
    };
    if is(&update.max_unavailable, |pods| pods == 0) {
        findings
            .add(&rules::ROLLOUT, &unavailable, "Invalid value: cannot be 0 when `maxSurge` is 0")
            .help("no pod could ever be replaced");
    }
    percent(update.max_surge.as_ref(), &surge, findings);
    if is(&update.max_surge, |pods| pods > 0) {
        findings
            .add(
                &rules::ROLLOUT,
                &surge,
                "Invalid value: must be 0: a node never has two pods of a DaemonSet",
            )
            .help("remove it, and set maxUnavailable to the number of nodes to update at once");
    }
}
