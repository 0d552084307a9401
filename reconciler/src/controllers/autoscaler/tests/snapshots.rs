//! The autoscaler controller on snapshots: inputs, writes, and objects that it leaves alone.

use std::collections::BTreeSet;
use std::time::Duration;

use schema::codec::decode;
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::pod::PodStatus;
use schema::kinds::replica_set::{PodTemplate, ReplicaSetSpec};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{
    AutoscalerRecord, ContainerUsage, NodeUsage, OwnerRef, PodInstance, PodUsage, ScaleRecord, SettledRecord,
};
use schema::snapshot::{Change as SnapshotChange, Snapshot};
use schema::testing::{
    SnapshotBuilder, at, binding, condition, instance, node_record, object, object_of, pod_ref,
    spec as pod_spec,
};
use tokio::time::Instant;

use super::*;
use crate::controllers::autoscaler::SampleAges;
use crate::controllers::autoscaler::plan::plan;
use crate::controllers::{Change, LastKnown, Precondition, Writes};

/// A snapshot that advances as the real writers would advance it.
#[derive(Clone)]
struct Fixture {
    snapshot: Snapshot,
    seconds: i64,
    /// Seconds by which the node's clock is ahead.
    ahead: i64,
    began: Instant,
    ages: SampleAges,
}

fn reference(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef { kind, namespace: "default".to_owned(), name: name.to_owned() }
}

fn replica_set(replicas: u32) -> Object {
    let template = PodTemplate { spec: pod_spec(1000, 100), ..PodTemplate::default() };
    object_of("web", ReplicaSetSpec { replicas, template, ..ReplicaSetSpec::default() })
}

fn autoscaler(name: &str, kind: Kind, behavior: Option<Behavior>) -> Object {
    use schema::kinds::autoscaler::{ScaleTarget, ScaleTargetKind};
    let kind = if kind == Kind::Pod { ScaleTargetKind::Pod } else { ScaleTargetKind::ReplicaSet };
    let scale_target_ref = ScaleTarget { api_version: None, kind, name: "web".to_owned() };
    let spec = HorizontalPodAutoscalerSpec {
        scale_target_ref,
        behavior,
        ..spec(&[utilization(ResourceName::Cpu, 50)], (1, 8))
    };
    object_of(name, spec)
}

impl Fixture {
    fn on(snapshot: Snapshot) -> Self {
        Self { snapshot, seconds: 0, ahead: 0, began: Instant::now(), ages: SampleAges::default() }
    }

    /// A replica set of two, its autoscaler, and a settled node.
    fn new(behavior: Option<Behavior>) -> Self {
        let mut fixture = Self::on(SnapshotBuilder::new().nodes(1).snapshot);
        fixture.put(&Key::Settled("n1".into()), &SettledRecord::default());
        fixture.object(&replica_set(2));
        fixture.object(&autoscaler("web", Kind::ReplicaSet, behavior));
        fixture
    }

    fn put<T: serde::Serialize>(&mut self, key: &Key, value: &T) {
        let revision = self.snapshot.revision + 1;
        self.snapshot.put(key, value, revision);
    }

    fn delete(&mut self, key: &Key) {
        self.snapshot.revision += 1;
        self.snapshot.apply(&SnapshotChange::Delete { key: key.to_string() });
    }

    fn object(&mut self, object: &Object) {
        self.put(&Key::Object(object.reference()), object);
    }

    /// Stands in for workloads, scheduler and agent: runs the wanted number of pods, each using `used`.
    fn run_pods(&mut self, owner: &ObjectRef, used: u64) {
        let wanted = self.scale(owner).map_or(2, |scale| scale.replicas);
        let there: Vec<NamespacedName> = self.snapshot.pods.keys().cloned().collect();
        for pod in there {
            for key in [
                Key::Pod(pod.clone()),
                Key::Binding("n1".into(), pod.clone()),
                Key::PodStatus("n1".into(), pod),
            ] {
                self.delete(&key);
            }
        }
        let mut usage = NodeUsage {
            at: at(self.seconds + self.ahead),
            window_seconds: 15,
            cpu: 0,
            memory: 0,
            disk: None,
            pods: Default::default(),
            left_out: String::new(),
        };
        for number in 0..wanted {
            let pod = copy(owner, &format!("web-0a1b2c3d-{number}"));
            self.run_pod(&pod);
            let container = ContainerUsage { cpu: used, memory: 1 << 20 };
            let containers = [("main".to_owned(), container)].into();
            let pod_usage = PodUsage { uid: pod.uid.clone(), containers, ..PodUsage::default() };
            usage.pods.insert(pod.reference().to_string(), pod_usage);
        }
        self.put(&Key::Usage("n1".into()), &usage);
    }

    fn run_pod(&mut self, pod: &PodInstance) {
        self.put(&Key::Pod(pod.reference()), pod);
        self.put(&Key::Binding("n1".into(), pod.reference()), &binding("n1", pod));
        self.report(pod);
    }

    fn report(&mut self, pod: &PodInstance) {
        let status = PodStatus {
            uid: pod.uid.clone(),
            phase: PodPhase::Running,
            start_time: Some(at(self.ahead - 3600)),
            conditions: vec![condition("Ready", true, at(self.ahead - 3600))],
            ..PodStatus::default()
        };
        self.put(&Key::PodStatus("n1".into(), pod.reference()), &status);
    }

    fn scale(&self, of: &ObjectRef) -> Option<ScaleRecord> {
        self.snapshot.scales.get(of).map(|scale| scale.value.clone())
    }

    fn record(&self, name: &str) -> AutoscalerRecord {
        self.snapshot.autoscalers[&NamespacedName::new("default", name)].value.clone()
    }

    /// Plans and applies the writes, each under its guard.
    fn look(&mut self) -> Writes {
        let now = self.began + Duration::from_secs(self.seconds.unsigned_abs());
        let outdated = self.ages.observe(&self.snapshot, now);
        let plan = plan(&self.snapshot, &LastKnown::default(), &outdated, at(self.seconds));
        for write in &plan.writes {
            let key = write.key.to_string();
            let revision = self.snapshot.revision + 1;
            let found = match &write.key {
                Key::Scale(id) => self.snapshot.scales.get(id).map(|there| there.mod_revision),
                Key::Autoscaler(id) => self.snapshot.autoscalers.get(id).map(|there| there.mod_revision),
                other => panic!("{other} is not its own"),
            };
            let expected = match write.expect {
                Precondition::Absent => None,
                Precondition::ModRevision(revision) => Some(revision),
            };
            assert_eq!(found, expected, "{plan}");
            match &write.change {
                Change::Put(value) => self.snapshot.apply(&SnapshotChange::Put {
                    key,
                    value: value.clone(),
                    create_revision: revision,
                    mod_revision: revision,
                }),
                Change::Delete => self.snapshot.apply(&SnapshotChange::Delete { key }),
            }
            self.snapshot.revision = revision;
        }
        plan
    }

    /// Advances time, sets the usage of the pods and runs the autoscaler; returns the new number.
    fn after(&mut self, seconds: i64, used: u64) -> Option<u32> {
        self.seconds += seconds;
        let set = reference(Kind::ReplicaSet, "web");
        self.run_pods(&set, used);
        self.look();
        self.scale(&set).map(|scale| scale.replicas)
    }
}

fn copy(owner: &ObjectRef, name: &str) -> PodInstance {
    let owner = OwnerRef { kind: owner.kind, name: owner.name.clone() };
    PodInstance { owner, ..instance(name, pod_spec(1000, 100)) }
}

#[test]
fn the_first_look_writes_down_the_number_that_git_says() {
    let mut fixture = Fixture::new(None);
    let plan = fixture.look();
    assert_eq!(
        plan.to_string(),
        "put autoscalers/default/web if absent: recomputed from its object and pods\n\
         + put scale/ReplicaSet/default/web if absent: 2 pods, as its autoscaler decided\n\
         note HorizontalPodAutoscaler/default/web FailedGetResourceMetric: cpu: the target has no pods yet\n"
    );
    assert_eq!(plan.again_at, Some(at(15)));
    let scaler = "HorizontalPodAutoscaler/default/web".to_owned();
    assert_eq!(fixture.scale(&reference(Kind::ReplicaSet, "web")), Some(ScaleRecord { replicas: 2, scaler }));
}

/// Seen red without `is_recent`: every change of the snapshot would scale one step further.
#[test]
fn it_looks_every_15_s_and_grows_and_shrinks_by_what_pods_use() {
    let mut fixture = Fixture::new(None);
    assert_eq!(fixture.after(0, 1000), Some(4));
    assert_eq!(fixture.after(5, 1000), Some(4), "too soon");
    assert_eq!(fixture.look().again_at, Some(at(15)));
    assert_eq!(fixture.after(10, 1000), Some(8));
    let record = fixture.record("web");
    assert_eq!(record.status.last_scale_time, Some(at(15)));
    assert_eq!(record.status.current_metrics[0].average_utilization, Some(100));
    let why = "4 to 8: cpu resource utilization (percentage of request) above target";
    assert_eq!(record.status.last_scale_reason, why);
    // At its maximum, then idle: it waits five minutes from the last recommendation of more.
    assert_eq!(fixture.after(15, 1000), Some(8));
    for _ in 0..19 {
        assert_eq!(fixture.after(15, 10), Some(8), "{} s", fixture.seconds);
    }
    assert_eq!((fixture.after(15, 10), fixture.seconds), (Some(1), 330));
}

#[test]
fn the_decision_is_one_transaction_and_an_event_of_the_autoscaler() {
    let mut fixture = Fixture::new(None);
    fixture.run_pods(&reference(Kind::ReplicaSet, "web"), 1000);
    let plan = fixture.look();
    let why = "from 2 to 4: cpu resource utilization (percentage of request) above target";
    assert_eq!(
        plan.to_string(),
        format!(
            "put autoscalers/default/web if absent: {why}\n\
             + put scale/ReplicaSet/default/web if absent: 4 pods, as its autoscaler decided\n"
        )
    );
    assert_eq!(plan.writes[0].reason.event_reason(), Some("SuccessfulRescale"));
}

/// Seen red with the time of the last recommendation treated as a change.
#[test]
fn a_look_that_finds_the_same_writes_nothing() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 500);
    fixture.after(15, 500);
    for _ in 0..100 {
        fixture.seconds += 15;
        fixture.run_pods(&reference(Kind::ReplicaSet, "web"), 500);
        let plan = fixture.look();
        assert!(plan.writes.is_empty(), "{} s: {plan}", fixture.seconds);
    }
    // The previous decision still asked for two, so the five minutes start there and not at the record's time.
    assert_eq!(fixture.after(15, 10), Some(2));
    assert_eq!(fixture.after(270, 10), Some(2));
    assert_eq!(fixture.after(15, 10), Some(1));
}

/// Only the snapshot carries state from one decision to the next, so each decision is that of a new leader.
#[test]
fn a_new_leader_goes_on_with_windows_and_policies() {
    let down = rules(120, SelectPolicy::Max, &[policy(PolicyType::Pods, 1, 60)]);
    let behavior = Behavior { scale_down: Some(down), ..any_step() };
    let mut fixture = Fixture::new(Some(behavior));
    assert_eq!(fixture.after(0, 1000), Some(4));
    assert_eq!(fixture.after(15, 1000), Some(8));
    let mut numbers = Vec::new();
    for _ in 0..20 {
        numbers.extend(fixture.after(15, 10));
    }
    // Two minutes of window, then one pod a minute.
    assert_eq!(numbers, [8, 8, 8, 8, 8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4]);
}

#[test]
fn two_autoscalers_of_one_workload_scale_neither_and_say_so() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 1000);
    fixture.object(&autoscaler("other", Kind::ReplicaSet, None));
    for _ in 0..4 {
        assert_eq!(fixture.after(15, 2000), Some(4));
    }
    for (name, also) in [("web", "other"), ("other", "web")] {
        let condition =
            fixture.record(name).status.conditions.into_iter().find(|c| c.kind == "ScalingActive").unwrap();
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (ConditionStatus::False, "AmbiguousSelector")
        );
        let why = format!("ReplicaSet/default/web is also scaled by {also}: keep one of them");
        assert_eq!(condition.message, why);
    }
    fixture.delete(&Key::Object(reference(Kind::HorizontalPodAutoscaler, "other")));
    assert_eq!(fixture.after(15, 2000), Some(8));
    assert!(!fixture.snapshot.autoscalers.contains_key(&NamespacedName::new("default", "other")));
}

/// Seen red without `remove`.
#[test]
fn without_an_autoscaler_gits_number_counts_again() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 1000);
    fixture.delete(&Key::Object(reference(Kind::HorizontalPodAutoscaler, "web")));
    let plan = fixture.look();
    assert!(plan.to_string().contains("delete scale/ReplicaSet/default/web"), "{plan}");
    assert!(fixture.snapshot.scales.is_empty() && fixture.snapshot.autoscalers.is_empty());
}

#[test]
fn an_autoscaler_that_cannot_be_read_is_not_gone() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 1000);
    let key = Key::Object(reference(Kind::HorizontalPodAutoscaler, "web")).to_string();
    let value = bytes::Bytes::from_static(b"{");
    fixture.snapshot.apply(&SnapshotChange::Put { key, value, create_revision: 9, mod_revision: 9 });
    assert_eq!(fixture.look().to_string(), "");
}

/// Seen red with recommendations kept while it is off.
#[test]
fn replicas_0_in_git_turns_it_off_and_on_again() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 1000);
    fixture.object(&replica_set(0));
    assert_eq!(fixture.after(15, 1000), None);
    let status = fixture.record("web").status;
    assert!(status.conditions.iter().any(|condition| condition.reason == "ScalingDisabled"), "{status:?}");
    fixture.object(&replica_set(3));
    // Recommendations from before it was off have left the window.
    assert_eq!(fixture.after(300, 500), Some(3));
}

#[test]
fn a_target_that_is_not_there_is_said_and_waited_for() {
    let mut fixture = Fixture::new(None);
    fixture.delete(&Key::Object(reference(Kind::ReplicaSet, "web")));
    assert_eq!(fixture.after(0, 1000), None);
    let condition = fixture.record("web").status.conditions.remove(0);
    assert_eq!((condition.kind.as_str(), condition.reason.as_str()), ("AbleToScale", "FailedGetScale"));
    assert_eq!(condition.message, "there is no ReplicaSet/default/web");
    fixture.object(&replica_set(2));
    assert_eq!(fixture.after(15, 1000), Some(4));
}

#[test]
fn an_autoscaler_of_a_pod_counts_the_pod_itself() {
    let mut fixture = Fixture::on(SnapshotBuilder::new().nodes(1).snapshot);
    fixture.put(&Key::Settled("n1".into()), &SettledRecord::default());
    fixture.object(&object("web", pod_spec(1000, 100)));
    fixture.object(&autoscaler("web", Kind::Pod, None));
    let pod = reference(Kind::Pod, "web");
    assert_eq!((fixture.look().writes.len(), fixture.scale(&pod).unwrap().replicas), (2, 1));
    fixture.seconds += 60;
    fixture.run_pods(&pod, 1000);
    fixture.look();
    assert_eq!(fixture.scale(&pod).unwrap().replicas, 2);
}

/// Seen red without `survivors`, without `found_more`, and with the decided number in place of the greater one.
#[test]
fn after_etcd_was_lost_a_workload_keeps_the_pods_that_run() {
    let mut fixture = Fixture::on(SnapshotBuilder::new().snapshot);
    fixture.object(&replica_set(2));
    fixture.object(&autoscaler("web", Kind::ReplicaSet, None));
    let set = reference(Kind::ReplicaSet, "web");
    assert_eq!((fixture.look().writes.len(), fixture.scale(&set).unwrap().replicas), (2, 2));
    // Its node appears, with five pods of the set that no other key knows, and other pods.
    let SnapshotBuilder { snapshot } =
        SnapshotBuilder { snapshot: fixture.snapshot }.node(&node_record("n1"), "10.244.0.0/24");
    fixture.snapshot = snapshot;
    for number in 0..5 {
        fixture.report(&copy(&set, &format!("web-0a1b2c3d-{number}")));
    }
    fixture.report(&copy(&reference(Kind::ReplicaSet, "web-2"), "web-2-0a1b2c3d-0"));
    let ended = PodStatus { phase: PodPhase::Failed, ..PodStatus::default() };
    fixture.put(&Key::PodStatus("n1".into(), pod_ref("web-0a1b2c3d-9")), &ended);
    // Before the node settles, nothing may be removed.
    fixture.seconds = 5;
    fixture.look();
    assert_eq!(fixture.scale(&set).unwrap().replicas, 5);
    // Once the node is settled, unbound pods go; the number stays.
    fixture.put(&Key::Settled("n1".into()), &SettledRecord::default());
    fixture.seconds = 30;
    fixture.look();
    assert_eq!(fixture.scale(&set).unwrap().replicas, 5);
}

/// The file on the reconciler's disk records two, and is older than the five running pods.
#[test]
fn after_etcd_was_lost_an_old_file_counts_no_pod_less_than_what_runs() {
    let mut old = Fixture::new(None);
    old.after(0, 500);
    old.after(60, 500);
    let set = reference(Kind::ReplicaSet, "web");
    let few = old.scale(&set).unwrap().replicas;
    let file = LastKnown::from_snapshot(&old.snapshot, at(0)).unwrap();
    assert!(few < 5 && file.replicas(&set) == Some(few));
    let mut fixture = Fixture::on(SnapshotBuilder::new().nodes(1).snapshot);
    fixture.object(&replica_set(2));
    fixture.object(&autoscaler("web", Kind::ReplicaSet, None));
    for number in 0..5 {
        fixture.report(&copy(&set, &format!("web-0a1b2c3d-{number}")));
    }
    let written = plan(&fixture.snapshot, &file, &BTreeSet::new(), at(3600));
    written.writes.iter().for_each(|write| write.apply_to(&mut fixture.snapshot));
    assert_eq!(fixture.scale(&set).unwrap().replicas, 5);
}

#[test]
fn pods_of_another_workload_with_the_same_labels_do_not_count() {
    let mut fixture = Fixture::new(None);
    let set = reference(Kind::ReplicaSet, "web");
    fixture.run_pods(&set, 500);
    let other = copy(&reference(Kind::ReplicaSet, "api"), "api-0a1b2c3d-0");
    fixture.run_pod(&other);
    let mut usage = fixture.snapshot.usage["n1"].value.clone();
    let containers = [("main".to_owned(), ContainerUsage { cpu: 4000, memory: 1 << 20 })].into();
    let of_other = PodUsage { uid: other.uid.clone(), containers, ..PodUsage::default() };
    usage.pods.insert(other.reference().to_string(), of_other);
    fixture.put(&Key::Usage("n1".into()), &usage);
    fixture.look();
    assert_eq!(fixture.scale(&set).map(|scale| scale.replicas), Some(2));
    assert_eq!(fixture.record("web").status.current_metrics[0].average_value, "500m");
}

#[test]
fn an_old_sample_is_none() {
    let mut fixture = Fixture::new(None);
    fixture.after(0, 500);
    // Its node is silent; what it last reported is a minute old.
    fixture.seconds += 60;
    fixture.look();
    let active =
        fixture.record("web").status.conditions.into_iter().find(|c| c.kind == "ScalingActive").unwrap();
    assert_eq!(active.reason, "FailedGetResourceMetric");
}

/// Seen red with an age from the clocks of node and reconciler.
#[test]
fn a_node_whose_clock_is_wrong_has_its_samples_counted() {
    for ahead in [-7200, -3600, 3600, 7200] {
        let mut fixture = Fixture { ahead, ..Fixture::new(None) };
        assert_eq!([fixture.after(0, 1000), fixture.after(15, 1000)], [Some(4), Some(8)], "{ahead}");
    }
}

/// 1,000 oscillations with commits in between: Git never resets the number, and the record stays small.
#[test]
fn a_thousand_oscillations_with_commits_in_between() {
    let mut fixture = Fixture::new(Some(any_step()));
    let set = reference(Kind::ReplicaSet, "web");
    fixture.after(0, 500);
    for round in 0..1000u32 {
        // Others push a new replica count, label and generation.
        let mut pushed = replica_set(2 + round % 3);
        pushed.generation = u64::from(round) + 2;
        pushed.metadata.labels.insert("round".into(), round.to_string());
        fixture.object(&pushed);
        assert_eq!(fixture.after(15, 5000), Some(8), "round {round}: up");
        fixture.object(&replica_set(2 + (round + 1) % 3));
        assert_eq!(fixture.look().writes, Vec::new(), "round {round}: a commit alone changes nothing");
        assert_eq!(fixture.scale(&set).unwrap().replicas, 8);
        assert_eq!(fixture.after(15, 10), Some(1), "round {round}: down");
        let record = fixture.record("web");
        assert!(
            record.recommendations.len() + record.scale_ups.len() + record.scale_downs.len() <= 6,
            "{record:?}"
        );
    }
    let writes = plan(&fixture.snapshot, &LastKnown::default(), &BTreeSet::new(), at(fixture.seconds));
    assert!(writes.writes.is_empty(), "{writes}");
    let value: Vec<u8> = schema::codec::encode(&fixture.record("web")).unwrap();
    assert_eq!(decode::<AutoscalerRecord>(&value).unwrap(), fixture.record("web"));
}
