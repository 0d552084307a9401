//! View of a rollout: the step that it is at, its pods by template, and what it waits for.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::replica_set::{ReplicaSetStatus, StrategyType};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{PodInstance, Rollout, RolloutStep};
use schema::snapshot::Snapshot;
use schema::snapshot::health::deadline_seconds;

use crate::view::short;

/// Rollout of the newest template of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutView {
    pub state: RolloutState,
    /// Reason of the state; empty if there is nothing to say.
    pub why: String,
    /// Event that brings the rollout further; empty if it waits for nothing.
    pub waits_for: String,
    /// Counts of pods.
    pub status: ReplicaSetStatus,
    /// Stages, in order; empty while it is paused or scaled to 0.
    pub stages: Vec<RolloutStage>,
    /// Templates that have pods, the wanted one and the last good one.
    pub templates: Vec<TemplatePods>,
    pub started_at: Timestamp,
    /// Time of the last progress.
    pub progressed_at: Timestamp,
    /// Time at which it fails without further progress; `None` unless it is under way.
    pub fails_at: Option<Timestamp>,
    /// Events so far, the newest last.
    pub steps: Vec<RolloutStep>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutState {
    Complete,
    UnderWay,
    /// Held back by `paused`.
    Paused,
    /// Given up, without a template to return to.
    Failed,
    /// Given up; the last good template serves again.
    RolledBack,
    /// Without pods on purpose.
    ScaledToZero,
}

/// Stage of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutStage {
    pub state: StageState,
    /// Action, with the template that it is about.
    pub name: String,
    /// Progress in numbers.
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageState {
    Done,
    Current,
    Ahead,
}

/// Pods of one template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatePods {
    pub role: TemplateRole,
    /// First digits of its hash, as in the names of its pods.
    pub template: String,
    /// First digits of the commit that introduced it; empty if it is not known.
    pub commit: String,
    pub pods: u32,
    pub ready: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateRole {
    /// Template that the object asks for.
    Wanted,
    /// Last template with which all pods were available, unless it is the wanted one.
    LastGood,
    Former,
}

/// Returns the rollout of a workload; `None` for an object that has none.
pub fn rollout(snapshot: &Snapshot, id: &ObjectRef) -> Option<RolloutView> {
    let record = &snapshot.rollouts.get(id)?.value;
    let object = &snapshot.objects.get(id)?.value;
    let templates = templates(snapshot, id, record);
    let state = state(record, object);
    let deadline = SignedDuration::from_secs(deadline_seconds(snapshot, object).into());
    let fails_at = record.progressed_at.checked_add(deadline).ok();
    Some(RolloutView {
        state,
        why: why(record),
        waits_for: waits_for(record, object, state),
        stages: stages(record, object, state, &templates),
        templates,
        status: record.status.clone(),
        started_at: record.started_at,
        progressed_at: record.progressed_at,
        fails_at: fails_at.filter(|_| state == RolloutState::UnderWay && !record.complete),
        steps: record.steps.clone(),
    })
}

fn state(record: &Rollout, object: &Object) -> RolloutState {
    let is_paused = matches!(&object.resource, Resource::ReplicaSet(spec) if spec.paused);
    match &record.failure {
        Some(_) if way_back(record).is_some() => RolloutState::RolledBack,
        Some(_) => RolloutState::Failed,
        None if record.complete && is_observed(record, object) => RolloutState::Complete,
        None if is_paused => RolloutState::Paused,
        None if record.status.desired_replicas == 0 => RolloutState::ScaledToZero,
        None => RolloutState::UnderWay,
    }
}

/// Hash of the template to which a failed rollout returns.
fn way_back(record: &Rollout) -> Option<&String> {
    record.good.as_ref().filter(|good| **good != record.wanted)
}

/// True if the record describes the present object.
fn is_observed(record: &Rollout, object: &Object) -> bool {
    record.status.observed_generation >= object.generation
}

fn why(record: &Rollout) -> String {
    // The message says what takes the template's place.
    record
        .failure
        .as_ref()
        .map(|failure| format!("{}: {}", failure.reason, failure.message))
        .unwrap_or_default()
}

fn waits_for(record: &Rollout, object: &Object, state: RolloutState) -> String {
    match state {
        RolloutState::Paused => "the removal of `paused`".to_owned(),
        RolloutState::ScaledToZero => "a number of pods above 0".to_owned(),
        RolloutState::Failed | RolloutState::RolledBack => "a commit that changes the object".to_owned(),
        RolloutState::Complete | RolloutState::UnderWay => {
            if object.kind() == Kind::Function && !is_observed(record, object) {
                return "the image of the newest version".to_owned();
            }
            // Names the first pod that keeps it waiting, too.
            record.status.health(object.generation, false).why().unwrap_or_default().to_owned()
        }
    }
}

/// Returns the templates of a rollout, the wanted one first.
fn templates(snapshot: &Snapshot, id: &ObjectRef, record: &Rollout) -> Vec<TemplatePods> {
    let mut counts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    counts.extend(
        [Some(&record.wanted), record.good.as_ref()].into_iter().flatten().map(|of| (of.as_str(), (0, 0))),
    );
    let is_owned = |pod: &&PodInstance| {
        pod.owner.kind == id.kind
            && pod.owner.name == id.name
            // A bare pod is not one of its copies.
            && !pod.is_bare()
    };
    // Pods are sorted by namespace.
    let below = snapshot.pods.range(NamespacedName::new(&id.namespace, "")..);
    let below = below.take_while(|(name, _)| name.namespace == id.namespace);
    for pod in below.map(|(_, pod)| &pod.value).filter(is_owned) {
        let (pods, ready) = counts.entry(&pod.hash).or_default();
        *pods += 1;
        *ready += u32::from(is_ready(snapshot, pod));
    }
    let rows = counts.into_iter().map(|(hash, (pods, ready))| {
        let known = snapshot.templates.get(&(id.clone(), hash.to_owned()));
        let commit = known.map(|known| known.value.commit.as_str()).unwrap_or_default();
        let role = match hash {
            hash if hash == record.wanted => TemplateRole::Wanted,
            hash if record.good.as_deref() == Some(hash) => TemplateRole::LastGood,
            _ => TemplateRole::Former,
        };
        let (template, commit) = (Rollout::short(hash).to_owned(), short(commit).to_owned());
        TemplatePods { role, template, commit, pods, ready }
    });
    let mut rows: Vec<TemplatePods> = rows.collect();
    rows.sort_by_key(|row| row.role);
    rows
}

/// True if the live node of a pod reports it as ready.
fn is_ready(snapshot: &Snapshot, pod: &PodInstance) -> bool {
    let name = pod.reference();
    let binding = snapshot.binding_of(&name).map(|binding| &binding.value);
    let Some(binding) = binding.filter(|binding| binding.pod.uid == pod.uid) else { return false };
    let status = snapshot.pod_status.get(&(binding.node.clone(), name));
    snapshot.node_is_ready(&binding.node)
        && status
            .map(|status| &status.value)
            .is_some_and(|status| status.uid == pod.uid && status.is_ready() && !status.is_terminating())
}

/// Returns the stages towards the template that should serve: the wanted one, or after a failure the last good one.
fn stages(
    record: &Rollout,
    object: &Object,
    state: RolloutState,
    templates: &[TemplatePods],
) -> Vec<RolloutStage> {
    if matches!(state, RolloutState::Paused | RolloutState::ScaledToZero) {
        return Vec::new();
    }
    let role = if state == RolloutState::RolledBack { TemplateRole::LastGood } else { TemplateRole::Wanted };
    let Some(target) = templates.iter().find(|one| one.role == role) else { return Vec::new() };
    let (wanted, available) = (record.status.desired_replicas, record.status.available_replicas);
    let others: u32 = templates.iter().filter(|one| one.role != role).map(|one| one.pods).sum();
    let start = (
        target.pods >= wanted,
        format!("start pods of template {}", target.template),
        format!("{} of {wanted}", target.pods),
    );
    let wait = (
        target.ready >= wanted && available >= wanted,
        "wait until they are available".to_owned(),
        format!("{} of {wanted} ready", target.ready),
    );
    let end = (others == 0, "end pods of other templates".to_owned(), format!("{others} left"));
    let strategy = match &object.resource {
        Resource::ReplicaSet(spec) => spec.strategy.kind,
        _ => StrategyType::RollingUpdate,
    };
    let order = match strategy {
        StrategyType::Recreate => [end, start, wait],
        StrategyType::RollingUpdate => [start, wait, end],
    };
    let current = order.iter().position(|(is_done, ..)| !is_done);
    let stages = order.into_iter().enumerate().map(|(at, (is_done, name, note))| {
        let state = match is_done {
            true => StageState::Done,
            false if Some(at) == current => StageState::Current,
            false => StageState::Ahead,
        };
        RolloutStage { state, name, note }
    });
    stages.collect()
}

#[cfg(test)]
mod tests {
    use schema::records::{OwnerRef, RolloutFailure, Template};
    use serde_json::json;

    use super::*;
    use crate::view::testing::*;

    const OLD: &str = "aaaaaaaaaaaa";
    const NEW: &str = "bbbbbbbbbbbb";

    /// A replica set of three pods, of which two have the new template, and one of these is ready.
    fn half_way(spec: serde_json::Value) -> (Snapshot, ObjectRef, Rollout) {
        let mut snapshot = snapshot();
        let object = object_of("web", Resource::ReplicaSet(serde_json::from_value(spec).unwrap()));
        let id = object.reference();
        snapshot.objects.insert(id.clone(), versioned(object));
        for (name, hash, is_up) in
            [("web-aaaaaaaa-0", OLD, true), ("web-bbbbbbbb-0", NEW, true), ("web-bbbbbbbb-1", NEW, false)]
        {
            let pod = PodInstance { hash: hash.to_owned(), ..replica("web", name, pod_spec(&["app"])) };
            snapshot.pods.insert(pod.reference(), versioned(pod.clone()));
            bind(&mut snapshot, &pod, "n1");
            let status = if is_up { running() } else { pod_waiting("ErrImagePull", "no such image") };
            report(&mut snapshot, &pod, "n1", status);
        }
        let template = Template {
            commit: C2.to_owned(),
            labels: Default::default(),
            annotations: Default::default(),
            spec: Default::default(),
            files: Default::default(),
        };
        snapshot.templates.insert((id.clone(), NEW.to_owned()), versioned(template));
        let record = json!({"objectHash": "", "commit": C2, "wanted": NEW, "good": OLD, "startedAt": at(60),
            "progressedAt": at(70), "best": {"updated": 2, "available": 1, "old": 1}, "status": {
                "observedGeneration": 1, "desiredReplicas": 3, "replicas": 3, "updatedReplicas": 2,
                "readyReplicas": 2, "availableReplicas": 2, "conditions": [{"type": "Progressing",
                "status": "True", "message": "pod web-bbbbbbbb-1: no such image", "lastTransitionTime": at(60)}]}});
        (snapshot, id, serde_json::from_value(record).unwrap())
    }

    fn three() -> serde_json::Value {
        json!({"replicas": 3, "selector": {}, "template": {"spec": {"containers": []}}})
    }

    fn view((snapshot, id, record): &(Snapshot, ObjectRef, Rollout)) -> RolloutView {
        let mut snapshot = snapshot.clone();
        snapshot.rollouts.insert(id.clone(), versioned(record.clone()));
        rollout(&snapshot, id).unwrap()
    }

    fn drawn(view: &RolloutView) -> Vec<String> {
        view.stages.iter().map(|stage| format!("{:?}: {}, {}", stage.state, stage.name, stage.note)).collect()
    }

    #[test]
    fn a_rollout_is_at_the_first_stage_that_is_not_done() {
        let found = view(&half_way(three()));
        assert_eq!(found.state, RolloutState::UnderWay);
        let waits = "2 of 3 pods are updated; pod web-bbbbbbbb-1: no such image";
        assert_eq!((found.waits_for.as_str(), found.fails_at), (waits, Some(at(190))));
        let stages = [
            "Current: start pods of template bbbbbbbb, 2 of 3",
            "Ahead: wait until they are available, 1 of 3 ready",
            "Ahead: end pods of other templates, 1 left",
        ];
        assert_eq!(drawn(&found), stages);
        let row = |role, template: &str, commit: &str, (pods, ready)| TemplatePods {
            role,
            template: template.to_owned(),
            commit: commit.to_owned(),
            pods,
            ready,
        };
        let rows = [
            row(TemplateRole::Wanted, "bbbbbbbb", "2222222", (2, 1)),
            row(TemplateRole::LastGood, "aaaaaaaa", "", (1, 1)),
        ];
        assert_eq!(found.templates, rows);
        let recreate = json!({"replicas": 3, "selector": {}, "strategy": {"type": "Recreate"},
            "template": {"spec": {"containers": []}}});
        assert_eq!(drawn(&view(&half_way(recreate)))[0], "Current: end pods of other templates, 1 left");
    }

    #[test]
    fn a_rollout_that_stopped_says_why_and_what_it_waits_for() {
        let mut given = half_way(three());
        let failure = RolloutFailure {
            at: at(200),
            reason: "ErrImagePull".to_owned(),
            message: "no such image; template aaaaaaaa serves again".to_owned(),
        };
        given.2.failure = Some(failure);
        let back = view(&given);
        let why = "ErrImagePull: no such image; template aaaaaaaa serves again";
        assert_eq!((back.state, back.why.as_str(), back.fails_at), (RolloutState::RolledBack, why, None));
        assert_eq!(drawn(&back)[0], "Current: start pods of template aaaaaaaa, 1 of 3");
        given.2.good = None;
        assert_eq!(view(&given).state, RolloutState::Failed);
        given.2.failure = None;
        given.2.status.desired_replicas = 0;
        assert_eq!(view(&given).state, RolloutState::ScaledToZero);
        let mut paused = three();
        paused["paused"] = true.into();
        let held = view(&half_way(paused));
        assert_eq!((held.state, held.waits_for.as_str()), (RolloutState::Paused, "the removal of `paused`"));
        assert!(held.stages.is_empty() && held.fails_at.is_none(), "{held:?}");
        given = half_way(three());
        (given.2.complete, given.2.good) = (true, Some(NEW.to_owned()));
        assert_eq!(view(&given).state, RolloutState::Complete);
        // A newer version of the object is not in the record yet.
        given.2.status.observed_generation = 0;
        let late = view(&given);
        assert_eq!(late.waits_for, "the latest change has not been observed yet");
        assert_eq!((late.state, late.fails_at), (RolloutState::UnderWay, None));
    }

    #[test]
    fn a_bare_pod_does_not_count_as_its_own_copy() {
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", running());
        let object = put_object(&mut snapshot, "web", C2);
        let copy = PodInstance {
            name: "web-0a1b2c3d-0".to_owned(),
            owner: OwnerRef { kind: Kind::Pod, name: "web".to_owned() },
            ..instance_of(&object)
        };
        snapshot.pods.insert(copy.reference(), versioned(copy.clone()));
        let (_, _, record) = half_way(three());
        let record = Rollout { wanted: copy.hash, good: None, ..record };
        snapshot.rollouts.insert(object.reference(), versioned(record));
        let found = rollout(&snapshot, &object.reference()).unwrap();
        assert_eq!(found.templates.iter().map(|one| one.pods).collect::<Vec<_>>(), [1]);
    }
}
