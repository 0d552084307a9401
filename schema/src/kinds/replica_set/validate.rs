//! Checks of a replica set beyond the schema, in Kubernetes' wording where people search for it.

use super::{IntOrPercent, LabelSelector, PodTemplate, ReplicaSetSpec, StrategyType};
use crate::kinds::pod::RestartPolicy;
use crate::kinds::{Kind, metadata};
use crate::violation::{Findings, Path, rules};

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &ReplicaSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let shared = WorkloadFields {
        kind: Kind::ReplicaSet,
        selector: &spec.selector,
        template: &spec.template,
        min_ready_seconds: spec.min_ready_seconds,
        progress_deadline_seconds: spec.progress_deadline_seconds,
    };
    shared.validate_template(at, findings);
    one_per_node(spec, &at.field("replicas"), findings);
    strategy(spec, &at.field("strategy"), findings);
    shared.validate_times(at, findings);
}

/// Fields that every kind of workload has.
pub(in crate::kinds) struct WorkloadFields<'a> {
    pub(in crate::kinds) kind: Kind,
    pub(in crate::kinds) selector: &'a LabelSelector,
    pub(in crate::kinds) template: &'a PodTemplate,
    pub(in crate::kinds) min_ready_seconds: u32,
    pub(in crate::kinds) progress_deadline_seconds: Option<u32>,
}

impl WorkloadFields<'_> {
    /// Checks the selector and the template.
    pub(in crate::kinds) fn validate_template(&self, at: &Path<'_>, findings: &mut Findings) {
        let Self { kind, template, .. } = self;
        let here = at.field("template");
        self.selector(at, findings);
        let metadata = here.field("metadata");
        metadata::template(&template.metadata.labels, &template.metadata.annotations, &metadata, findings);
        let pod = here.field("spec");
        template.spec.validate(&pod, findings);
        let policy = template.spec.restart_policy;
        if policy != RestartPolicy::Always {
            let message = format!("Unsupported value: `{policy:?}`: supported values: `Always`");
            findings
                .add(&rules::RESTART_POLICY, &pod.field("restartPolicy"), message)
                .help(format!("the pods of a {kind} are meant to keep running"));
        }
    }

    fn selector(&self, at: &Path<'_>, findings: &mut Findings) {
        let here = at.field("selector");
        if self.selector.is_empty() {
            let message = format!("Invalid value: empty selector is invalid for {}", self.kind);
            findings
                .add(&rules::SELECTOR, &here, message)
                .help("write matchLabels with the labels of the template");
            return;
        }
        let before = findings.count();
        self.selector.validate(&here, findings);
        let is_well_formed = findings.count() == before;
        if is_well_formed && !self.selector.matches(&self.template.metadata.labels) {
            let template = at.field("template");
            let metadata = template.field("metadata");
            let message = "Invalid value: `selector` does not match template `labels`";
            findings
                .add(&rules::SELECTOR, &metadata.field("labels"), message)
                .help("give the template the labels that the selector asks for");
        }
    }

    /// Checks that the deadline leaves a rollout time to progress.
    pub(in crate::kinds) fn validate_times(&self, at: &Path<'_>, findings: &mut Findings) {
        // The default deadline leaves the pods time to become ready.
        let (ready, Some(deadline)) = (self.min_ready_seconds, self.progress_deadline_seconds) else {
            return;
        };
        if ready > 0 && deadline <= ready {
            let message =
                format!("Invalid value: {deadline}: must be greater than minReadySeconds, which is {ready}");
            findings.add(&rules::ROLLOUT, &at.field("progressDeadlineSeconds"), message);
        } else if deadline == 0 {
            let message = "Invalid value: 0: must be greater than 0";
            findings.add(&rules::ROLLOUT, &at.field("progressDeadlineSeconds"), message);
        }
    }
}

/// Rejects several replicas with a host port on a single node, where only one of them can have it.
fn one_per_node(spec: &ReplicaSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let pod = &spec.template.spec;
    let Some(node) = pod.node_name.as_ref().filter(|_| spec.replicas > 1) else { return };
    let mut ports = pod.side_by_side().flat_map(|container| &container.ports);
    // Defaults are not filled in yet: on the host network each port is one of the node.
    let taken = ports.find_map(|port| match port.host_port {
        Some(host_port @ 1..) => Some(host_port),
        _ => pod.host_network.then_some(port.container_port),
    });
    if let Some(port) = taken {
        let message = format!(
            "Invalid value: {}: `nodeName` puts all pods on {node}, and only one can have host port {port} there",
            spec.replicas
        );
        findings
            .add(&rules::HOST_PORT, at, message)
            .help("remove nodeName or hostPort from the template, or set `replicas: 1`");
    }
}

fn strategy(spec: &ReplicaSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(update) = &spec.strategy.rolling_update else { return };
    let here = at.field("rollingUpdate");
    if spec.strategy.kind == StrategyType::Recreate {
        let message = "Forbidden: may not be specified when strategy `type` is 'Recreate'";
        findings.add(&rules::EXCLUSIVE, &here, message).on_key();
        return;
    }
    percent(update.max_surge.as_ref(), &here.field("maxSurge"), findings);
    let unavailable_here = here.field("maxUnavailable");
    let unavailable = percent(update.max_unavailable.as_ref(), &unavailable_here, findings);
    if unavailable.is_some_and(|percent| percent > 100) {
        let message = "Invalid value: must not be greater than 100%";
        findings.add(&rules::ROLLOUT, &unavailable_here, message);
    }
    let is_zero = |amount: &Option<IntOrPercent>| {
        amount.as_ref().is_some_and(|amount| amount.resolve(100, true) == Some(0))
    };
    if is_zero(&update.max_surge) && is_zero(&update.max_unavailable) {
        let message = "Invalid value: may not be 0 when `maxSurge` is 0";
        findings.add(&rules::ROLLOUT, &unavailable_here, message).help("no pod could ever be replaced");
    }
}

/// Returns the percentage, if it is one; reports a malformed one.
pub(in crate::kinds) fn percent(
    amount: Option<&IntOrPercent>,
    at: &Path<'_>,
    findings: &mut Findings,
) -> Option<u32> {
    let IntOrPercent::Percent(text) = amount? else { return None };
    let percent = amount?.percent();
    if percent.is_none() {
        let message = format!("Invalid value: `{text}`: must be an integer or percentage (e.g '5%')");
        findings.add(&rules::ROLLOUT, at, message);
    }
    percent
}
