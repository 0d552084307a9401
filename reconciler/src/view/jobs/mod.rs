//! Views of Slurm jobs: phase, reason for waiting, and report.

use jiff::Timestamp;
use schema::kinds::job::{JobPhase, JobSpec, Submission, script};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, StringMap};
use schema::object::Object;
use schema::records::{JobDependencyState, JobReport};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::view::age::human_duration;
use crate::view::events::EventView;
use crate::view::objects::Selection;
use crate::view::rows::{Common, Rows, find};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    pub namespace: String,
    pub name: String,
    /// Pending, Uploading, Submitting, Queued, Running, … Succeeded, Failed, Cancelled, Unknown.
    pub phase: String,
    /// Reason for waiting or failing.
    pub reason: String,
    /// Running time, so far or in total.
    pub elapsed: String,
    /// Slurm's job id.
    pub slurm_id: Option<u64>,
    /// Slurm nodes that run the job.
    pub nodes: String,
    /// Node that handles the job.
    pub node: Option<String>,
    /// `user@host`.
    pub login: String,
    /// Healthy, Progressing, Degraded or Unknown.
    pub health: String,
    pub note: String,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    pub labels: StringMap,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobDetail {
    #[serde(flatten)]
    pub row: JobView,
    /// Report of the job's node.
    pub report: Option<JobReport>,
    /// Batch script that is submitted.
    pub script: String,
    /// Manifest that defines it: `jobs/matrix.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    pub spec: JobSpec,
    pub events: Vec<EventView>,
}

pub fn jobs(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<JobView> {
    let rows = Rows::new(snapshot, now);
    rows.chosen(Kind::Job, which).map(|object| row(&rows, object)).collect()
}

/// Returns a job in full, with the given `events`.
pub fn job(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<JobDetail> {
    let object = find(snapshot, Kind::Job, id)?;
    let Resource::Job(spec) = &object.resource else { return None };
    let from = &object.provenance;
    let order = snapshot.job_of(id).map(|(_, order)| order);
    let report = current(snapshot, object, id).map(|(_, report)| report.clone());
    let attempt = report.as_ref().map_or(1, |report| report.status.attempt);
    // The name is unknown before a node has the job.
    let name =
        order.map_or_else(|| format!("{}.{}", id.namespace, id.name), |order| order.slurm_name(id, attempt));
    let after = order.and_then(|order| match order.dependency {
        JobDependencyState::Submitted(number) => Some(number),
        _ => None,
    });
    Some(JobDetail {
        row: row(&Rows::new(snapshot, now), object),
        script: script(spec, Submission { name: &name, job: &id.to_string(), after }),
        report,
        set_by: from.set_by(),
        commit: from.commit_by(),
        annotations: object.metadata.annotations.clone(),
        spec: (**spec).clone(),
        events,
    })
}

/// Report on the current version of the object, with its node.
fn current<'a>(
    snapshot: &'a Snapshot,
    object: &Object,
    id: &'a NamespacedName,
) -> Option<(&'a str, &'a JobReport)> {
    let (node, order) = snapshot.job_of(id).filter(|(_, order)| order.hash == object.hash)?;
    let report = &snapshot.job_reports.get(&(node.to_owned(), id.clone()))?.value;
    (report.uid == order.uid).then_some((node, report))
}

fn row(rows: &Rows<'_>, object: &Object) -> JobView {
    let (snapshot, now) = (rows.snapshot, rows.now);
    let Common { id, health, note, age, labels } = rows.common(object);
    let report = current(snapshot, object, &id);
    let node = snapshot.job_of(&id).map(|(node, _)| node.to_owned());
    let report = report.map(|(_, report)| report);
    let status = report.map(|report| report.status.clone()).unwrap_or_default();
    let elapsed = report.and_then(|report| {
        let began = report.started_at?;
        let ended = report.ended_at.unwrap_or(now);
        Some(human_duration(ended.as_second().saturating_sub(began.as_second())))
    });
    let former = snapshot.job_of(&id).and_then(|(node, order)| {
        let report = &snapshot.job_reports.get(&(node.to_owned(), id.clone()))?.value;
        (report.uid != order.uid).then_some(report)
    });
    let class = status.class.map(|class| format!("{class:?}")).unwrap_or_default();
    let reason = match (class.as_str(), status.reason.as_str()) {
        ("", "") => former.map(removal_reason).unwrap_or_default(),
        ("", reason) => reason.to_owned(),
        (class, "") => class.to_owned(),
        (class, reason) => format!("{class}: {reason}"),
    };
    JobView {
        phase: phase(status.phase),
        reason,
        elapsed: elapsed.unwrap_or_default(),
        slurm_id: status.slurm_id,
        nodes: status.nodes,
        node,
        login: report.map(|report| report.login.clone()).unwrap_or_default(),
        note,
        health,
        age,
        labels,
        namespace: id.namespace,
        name: id.name,
    }
}

/// Reason that a changed job has not begun.
fn removal_reason(former: &JobReport) -> String {
    let JobReport { login, status, .. } = former;
    match status.reason.as_str() {
        "" => format!("removing the former job at {login} first"),
        why => format!("cannot remove the former job at {login}: {why}"),
    }
}

fn phase(phase: JobPhase) -> String {
    format!("{phase:?}")
}
