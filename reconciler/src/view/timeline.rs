//! Timeline of a commit: its steps one after another. Pure.

use jiff::Timestamp;
use schema::records::{PodTimeline, Revision, Timeline};
use serde::{Deserialize, Serialize};

use super::sources::RevisionView;

/// Timeline of a commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineView {
    pub source: String,
    pub sequence: u64,
    pub commit: String,
    /// Applied, Degraded, Good, Bad or Superseded.
    pub status: String,
    pub seen_at: Timestamp,
    /// Provider of the webhook, `cli` or `poll`.
    pub seen_by: String,
    /// Milliseconds from `seen_at` to the last step so far.
    pub total: u64,
    pub steps: Vec<StepView>,
    /// Number of pods that were bound for the commit.
    pub pods: u64,
    /// The slowest of them.
    pub slowest: Vec<PodTimeline>,
}

/// A step of a timeline, in milliseconds after the commit was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    pub name: String,
    /// End of the step before, or of this one if that was earlier.
    pub from: u64,
    pub to: u64,
}

/// Returns the timeline of a revision; `None` if another process began to apply the commit, or an older version did.
pub fn timeline(view: &RevisionView) -> Option<TimelineView> {
    let Revision { source, sequence, commit, timeline, .. } = &view.revision;
    let Timeline { seen_at, seen_by, pods, slowest, .. } = timeline.as_ref()?;
    let steps = steps(timeline.as_ref()?);
    Some(TimelineView {
        source: source.clone(),
        sequence: *sequence,
        commit: commit.clone(),
        status: view.status.clone(),
        seen_at: *seen_at,
        seen_by: seen_by.map_or("poll", |provider| provider.as_str()).to_owned(),
        total: steps.iter().map(|step| step.to).max().unwrap_or(0),
        steps,
        pods: *pods,
        slowest: slowest.clone(),
    })
}

/// Formats milliseconds as seconds.
pub fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03} s", milliseconds / 1_000, milliseconds % 1_000)
}

fn steps(timeline: &Timeline) -> Vec<StepView> {
    spans(timeline).map(|(name, from, to)| StepView { name: name.to_owned(), from, to }).collect()
}

/// Iterates over the steps that were reached, each with its beginning and end as in [`StepView`].
pub(super) fn spans(timeline: &Timeline) -> impl Iterator<Item = (&'static str, u64, u64)> {
    let all = [
        ("read", timeline.read),
        ("checked", timeline.checked),
        ("planned", timeline.planned),
        ("applied", timeline.applied),
        ("bound", timeline.bound),
        ("ready", timeline.ready),
        ("programmed", timeline.programmed),
        ("decided", timeline.decided),
    ];
    let mut before = 0;
    let reached = all.into_iter().filter_map(|(name, at)| Some((name, at?)));
    reached.map(move |(name, to)| {
        // The first pods are bound before the last object is written.
        let span = (name, before.min(to), to);
        before = before.max(to);
        span
    })
}

#[cfg(test)]
mod tests {
    use schema::records::Provider;

    use super::*;
    use crate::view::history;
    use crate::view::testing::*;

    #[test]
    fn steps_follow_each_other_and_missing_ones_are_left_out() {
        let mut snapshot = snapshot();
        let mut revision = revision(1, C1);
        assert_eq!(history(&snapshot, None, at(9)).iter().find_map(timeline), None, "none was recorded");
        revision.timeline = Some(Timeline {
            seen_at: at(0),
            seen_by: Some(Provider::GitHub),
            read: Some(120),
            checked: Some(130),
            planned: Some(131),
            applied: Some(150),
            bound: Some(145),
            ready: None,
            programmed: None,
            decided: Some(1_400),
            pods: 1,
            slowest: Vec::new(),
        });
        snapshot.revisions.insert(("main".to_owned(), 1), versioned(revision));
        let shown = history(&snapshot, None, at(9)).iter().find_map(timeline).unwrap();
        let steps: Vec<_> = shown.steps.iter().map(|step| (step.name.as_str(), step.from, step.to)).collect();
        let wanted = [
            ("read", 0, 120),
            ("checked", 120, 130),
            ("planned", 130, 131),
            ("applied", 131, 150),
            ("bound", 145, 145),
            ("decided", 150, 1_400),
        ];
        assert_eq!((steps.as_slice(), shown.total, shown.seen_by.as_str()), (&wanted[..], 1_400, "github"));
    }
}
