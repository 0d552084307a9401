//! Which requests a look at a repository answers, and for which one a source must be looked at. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{RequestAnswer, SourceStatus, SyncRequest};
use schema::snapshot::Snapshot;

use crate::webhooks::decide::REMOVED_MAX;

/// A run of a source's loop that looked at the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) began: Timestamp,
    pub(super) over: Timestamp,
    /// Its plan had steps.
    pub(super) wrote: bool,
}

/// What waits, from one run to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Requests by id: the revision of their last write, and when this process saw them.
    requests: BTreeMap<String, (i64, Timestamp)>,
    /// By source: when a look began that answers nothing, and that is not asked again.
    answered_nothing: BTreeMap<String, Timestamp>,
}

impl Waiting {
    /// A request of `source` may be answered by this look.
    pub(super) fn may_be_answered(&self, look: Look, source: &str, snapshot: &Snapshot) -> bool {
        let is_asked = || snapshot.waiting_requests().any(|(_, request)| request.value.source == source);
        self.answered_nothing.get(source) != Some(&look.began) && is_asked()
    }

    /// Notes what waits in the snapshot at `now`. Gives the sources to look at, without those of this process's own
    /// requests: it has looked at these already.
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

    /// The requests of `source` that a look answers: those seen before it began.
    fn answered<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        source: &'a str,
        look: Look,
    ) -> impl Iterator<Item = (&'a SyncRequest, i64)> {
        let seen_before = self.requests.iter().filter(move |(_, (_, seen))| *seen <= look.began);
        seen_before.filter_map(move |(id, (revision, _))| {
            let known = snapshot.requests.get(id)?;
            let same = known.mod_revision == *revision && known.value.source == source;
            same.then_some((&known.value, *revision))
        })
    }
}

/// What a run does.
#[derive(Debug, Default)]
pub struct AnswersPlan {
    /// Sources whose loops look now.
    pub(super) wake: BTreeSet<String>,
    pub(super) answers: Vec<PlannedAnswer>,
    /// Answers to requests that are gone, with the revisions of their last writes; removed with the first answer.
    pub(super) orphans: Vec<(Key, i64)>,
    pub(super) waiting: Waiting,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlannedAnswer {
    pub(super) id: String,
    pub(super) answer: RequestAnswer,
    /// The revision of the answer that it replaces.
    pub(super) over: Option<i64>,
}

impl schema::control::Plan for AnswersPlan {
    fn is_empty(&self) -> bool {
        self.wake.is_empty() && self.answers.is_empty()
    }
}

/// What came of a look.
enum Applied {
    /// All of it; this commit is applied since.
    All(Option<String>),
    /// Nothing, the status says why.
    Nothing,
    /// It wrote, but not to the end: something changed under it.
    Half,
}

fn applied(look: Look, status: Option<&SourceStatus>) -> Applied {
    let Some(status) = status.filter(|status| status.error.is_none()) else { return Applied::Nothing };
    let is_noted = status.applied_at.is_some_and(|at| at >= look.began);
    if look.wrote && !is_noted { Applied::Half } else { Applied::All(status.applied_commit.clone()) }
}

/// Plans on what waits `now`; `looks` are the last looks at sources for which [`Waiting::may_be_answered`] holds, each with
/// the status that the source has since.
pub(super) fn plan(
    snapshot: &Snapshot,
    identity: &str,
    mut waiting: Waiting,
    looks: &BTreeMap<String, (Look, Option<SourceStatus>)>,
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
            Applied::All(commit) => {
                answers.extend(answered.map(|(request, revision)| PlannedAnswer {
                    id: request.id.clone(),
                    answer: RequestAnswer {
                        request_revision: revision,
                        at: look.over,
                        commit: commit.clone(),
                    },
                    over: snapshot.answers.get(&request.id).map(|former| former.mod_revision),
                }));
                continue;
            }
            Applied::Nothing => {}
            Applied::Half => drop(wake.insert(source.clone())),
        }
        drop(answered);
        waiting.answered_nothing.insert(source.clone(), look.began);
    }
    let gone = snapshot.answers.iter().filter(|(id, _)| !snapshot.requests.contains_key(*id));
    let gone = gone.map(|(id, answer)| (Key::Answer(id.clone()), answer.mod_revision));
    AnswersPlan { wake, answers, orphans: gone.take(REMOVED_MAX).collect(), waiting }
}
