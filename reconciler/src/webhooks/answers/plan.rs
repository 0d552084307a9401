//! Matches sync requests with checks of their repositories, and selects sources to check. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{RequestAnswer, SourceStatus, SyncRequest};
use schema::snapshot::Snapshot;

use crate::webhooks::decide::REMOVED_MAX;

/// A run of a source's loop that checked the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepoCheck {
    pub(super) began: Timestamp,
    pub(super) over: Timestamp,
    /// Set if the run's plan had steps.
    pub(super) wrote: bool,
}

/// Requests that wait for an answer, kept from one run to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WaitingRequests {
    /// By id of the request: revision of its last write, and time at which this process first saw it.
    requests: BTreeMap<String, (i64, Timestamp)>,
    /// By source: start of the last check that answers nothing and is not considered again.
    answered_nothing: BTreeMap<String, Timestamp>,
}

impl WaitingRequests {
    /// True if this check may answer a request of `source`.
    pub(super) fn may_be_answered(&self, look: RepoCheck, source: &str, snapshot: &Snapshot) -> bool {
        let is_asked = || snapshot.waiting_requests().any(|(_, request)| request.value.source == source);
        self.answered_nothing.get(source) != Some(&look.began) && is_asked()
    }

    /// Updates the waiting requests from the snapshot at `now`. Returns the sources to check, except for this
    /// process's own requests, whose sources were woken already.
    fn notice(&mut self, snapshot: &Snapshot, identity: &str, now: Timestamp) -> BTreeSet<String> {
        let mut sources = BTreeSet::new();
        let mut before = std::mem::take(&mut self.requests);
        for (id, known) in snapshot.waiting_requests() {
            let (request, revision) = (&known.value, known.mod_revision);
            let same = before.remove(id).filter(|(seen_at, _)| *seen_at == revision);
            let own = request.by == identity;
            if same.is_none() && !own {
                sources.insert(request.source.clone());
            }
            let seen = same.map_or(if own { request.last_at() } else { now }, |(_, seen)| seen);
            self.requests.insert(id.clone(), (revision, seen));
        }
        sources
    }

    /// Requests of `source` that a check answers: those noticed before it began.
    fn answered<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        source: &'a str,
        look: RepoCheck,
    ) -> impl Iterator<Item = (&'a SyncRequest, i64)> {
        let seen_before = self.requests.iter().filter(move |(_, (_, seen))| *seen <= look.began);
        seen_before.filter_map(move |(id, (revision, _))| {
            let known = snapshot.requests.get(id)?;
            let same = known.mod_revision == *revision && known.value.source == source;
            same.then_some((&known.value, *revision))
        })
    }
}

/// Plan of a run.
#[derive(Debug, Default)]
pub struct AnswersPlan {
    /// Sources whose loops must run now.
    pub(super) wake: BTreeSet<String>,
    pub(super) answers: Vec<PlannedAnswer>,
    /// Answers whose requests are gone, with the revisions of their last writes; removed with the first answer.
    pub(super) orphans: Vec<(Key, i64)>,
    pub(super) waiting: WaitingRequests,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlannedAnswer {
    pub(super) id: String,
    pub(super) answer: RequestAnswer,
    /// Revision of the answer to replace.
    pub(super) replaced_revision: Option<i64>,
}

impl schema::control::Plan for AnswersPlan {
    fn is_empty(&self) -> bool {
        self.wake.is_empty() && self.answers.is_empty()
    }
}

/// Result of a check of the repository.
enum CheckResult {
    /// Everything was applied; this commit is applied now.
    All(Option<String>),
    /// Nothing was applied; the status gives the reason.
    Nothing,
    /// The run wrote, but was interrupted by a concurrent change.
    Half,
}

fn applied(look: RepoCheck, status: Option<&SourceStatus>) -> CheckResult {
    let Some(status) = status.filter(|status| status.error.is_none()) else { return CheckResult::Nothing };
    let is_noted = status.applied_at.is_some_and(|at| at >= look.began);
    if look.wrote && !is_noted { CheckResult::Half } else { CheckResult::All(status.applied_commit.clone()) }
}

/// Plans for the requests that wait at `now`; `looks` are the last checks of the sources for which
/// [`WaitingRequests::may_be_answered`] holds, each with the source's status since.
pub(super) fn plan(
    snapshot: &Snapshot,
    identity: &str,
    mut waiting: WaitingRequests,
    looks: &BTreeMap<String, (RepoCheck, Option<SourceStatus>)>,
    now: Timestamp,
) -> AnswersPlan {
    let mut wake = waiting.notice(snapshot, identity, now);
    let mut answers = Vec::new();
    for (source, (look, status)) in looks {
        let mut answered = waiting.answered(snapshot, source, *look).peekable();
        if answered.peek().is_none() {
            continue;
        }
        match applied(*look, status.as_ref()) {
            CheckResult::All(commit) => {
                answers.extend(answered.map(|(request, revision)| PlannedAnswer {
                    id: request.id.clone(),
                    answer: RequestAnswer {
                        request_revision: revision,
                        at: look.over,
                        commit: commit.clone(),
                    },
                    replaced_revision: snapshot.answers.get(&request.id).map(|former| former.mod_revision),
                }));
                continue;
            }
            CheckResult::Nothing => {}
            CheckResult::Half => drop(wake.insert(source.clone())),
        }
        drop(answered);
        waiting.answered_nothing.insert(source.clone(), look.began);
    }
    let gone = snapshot.answers.iter().filter(|(id, _)| !snapshot.requests.contains_key(*id));
    let gone = gone.map(|(id, answer)| (Key::Answer(id.clone()), answer.mod_revision));
    AnswersPlan { wake, answers, orphans: gone.take(REMOVED_MAX).collect(), waiting }
}
