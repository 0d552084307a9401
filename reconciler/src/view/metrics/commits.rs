//! Metrics of sources and their newest commits.

use std::collections::BTreeMap;

use schema::metrics::{FamilyInfo, StateFamily, unix_seconds};
use schema::records::{Revision, SourceState, SourceStatus};
use schema::snapshot::Snapshot;

use super::fill::{MetricRow, fill};
use crate::view::sources::word_and_why;
use crate::view::timeline::spans;

static SOURCES: [FamilyInfo; 7] = [
    FamilyInfo::gauge(
        "minik8s_source_applied_timestamp_seconds",
        "Time at which the newest commit was applied, as Unix time",
        &["source"],
    ),
    FamilyInfo::gauge(
        "minik8s_source_in_sync",
        "1 if the newest commit of the repository is the applied one, else 0",
        &["source"],
    ),
    FamilyInfo::gauge(
        "minik8s_source_quarantined_files",
        "Files that could not be applied; their objects stay as they were",
        &["source"],
    ),
    FamilyInfo::gauge("minik8s_source_held_deletes", "Removals that wait for approval", &["source"]),
    FamilyInfo::gauge(
        "minik8s_source_waiting_objects",
        "Objects that wait for others before they are applied",
        &["source"],
    ),
    FamilyInfo::gauge("minik8s_source_objects", "Objects that the source owns", &["source"]),
    FamilyInfo::gauge("minik8s_source_revision", "Number of the newest applied commit", &["source"]),
];
static STATE: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_source_state",
    "Always 1; the label has the present state: Pending, Synced, Waiting, Degraded, Failed",
    &["source", "state"],
)];
static VERDICT: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_commit_verdict",
    "Always 1; the label has the verdict on the newest applied commit: Applied, Good, Bad, Degraded, Superseded",
    &["source", "verdict"],
)];
static PHASES: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_commit_phase_seconds",
    "Duration of a step in the timeline of the newest commit that has it: read, check, plan, apply, bind, ready, \
     program, verdict",
    &["source", "phase"],
)];

pub(super) fn families(snapshot: &Snapshot) -> Vec<StateFamily> {
    let sources = || snapshot.sources.iter().map(|(name, source)| (name.as_str(), &source.value));
    let verdicts = sources().filter_map(|(name, _)| {
        let (word, _) = word_and_why(&revisions(snapshot, name).next()?.verdict);
        Some(([name, word], [Some(1.0)]))
    });
    let phases = sources().flat_map(|(name, _)| {
        let phases = phases(revisions(snapshot, name)).into_iter();
        phases.map(move |(phase, seconds)| ([name, phase], [Some(seconds)]))
    });
    [
        fill(&SOURCES, sources().map(|(name, status)| row(name, status))),
        fill(&STATE, sources().map(|(name, status)| ([name, state_word(status.state)], [Some(1.0)]))),
        fill(&VERDICT, verdicts),
        fill(&PHASES, phases),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn row<'a>(name: &'a str, status: &SourceStatus) -> MetricRow<'a, 1, 7> {
    let is_in_sync = status.observed_commit.is_some() && status.observed_commit == status.applied_commit;
    let values = [
        status.applied_at.map(unix_seconds),
        Some(f64::from(is_in_sync)),
        Some(status.quarantined.len() as f64),
        Some(status.held_prune.as_ref().map_or(0, |held| held.deletes) as f64),
        Some(status.waiting_total as f64),
        Some(status.objects as f64),
        Some(status.revision as f64),
    ];
    ([name], values)
}

fn state_word(state: SourceState) -> &'static str {
    match state {
        SourceState::Pending => "Pending",
        SourceState::Synced => "Synced",
        SourceState::Waiting => "Waiting",
        SourceState::Degraded => "Degraded",
        SourceState::Failed => "Failed",
    }
}

/// Iterates over the revisions of a source, the newest first.
fn revisions<'a>(snapshot: &'a Snapshot, source: &str) -> impl Iterator<Item = &'a Revision> + use<'a> {
    let all = (source.to_owned(), 0)..=(source.to_owned(), u64::MAX);
    snapshot.revisions.range(all).rev().map(|(_, revision)| &revision.value)
}

/// Returns the seconds of each step, from the newest revision that has it.
fn phases<'a>(newest_first: impl Iterator<Item = &'a Revision>) -> BTreeMap<&'static str, f64> {
    let mut found = BTreeMap::new();
    for timeline in newest_first.filter_map(|revision| revision.timeline.as_ref()) {
        for (step, from, to) in spans(timeline) {
            found.entry(phase_word(step)).or_insert((to - from) as f64 / 1000.0);
        }
    }
    found
}

fn phase_word(step: &'static str) -> &'static str {
    match step {
        "checked" => "check",
        "planned" => "plan",
        "applied" => "apply",
        "bound" => "bind",
        "programmed" => "program",
        "decided" => "verdict",
        same => same,
    }
}
