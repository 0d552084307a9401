//! Decides which steps begin now, which login hosts are asked, and what is reported. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::content_hash;
use schema::control::Plan;
use schema::kinds::job::SlurmLogin;
use schema::meta::NamespacedName;
use schema::records::{JobOrder, JobReport};

use super::machine::{JobRecord, State, Step};

/// Between two polls of a login host: at least, for what has just changed, and at most.
const POLL: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(30));
/// Steps under way at once: of one login, so that a host that does not answer holds up no other, and of all.
const LOGIN_STEPS_MAX: usize = 6;
const STEPS_MAX: usize = 60;
/// How long a job without an order is still reported: a reconciler that begins anew learns from this who has it.
const UNORDERED_MAX: SignedDuration = SignedDuration::from_secs(30);

/// Jobs as they are reported.
pub type Reported = BTreeMap<NamespacedName, Arc<JobReport>>;

/// Something that is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    Job(NamespacedName),
    /// A poll of a login host, by the hash of its login.
    Poll(String),
}

/// What the loop saw.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub orders: BTreeMap<NamespacedName, JobOrder>,
    /// Records as they follow from the orders and from what steps found.
    pub records: BTreeMap<NamespacedName, JobRecord>,
    /// Since when a job has had no order although etcd is whole.
    pub unordered_since: BTreeMap<NamespacedName, Timestamp>,
    /// Etcd holds all that this node is to see to: a job without an order is another node's, or over.
    pub is_whole: bool,
    pub busy: BTreeSet<Slot>,
    /// When each login host was last asked.
    pub polled_at: BTreeMap<String, Timestamp>,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlurmPlan {
    pub steps: Vec<(NamespacedName, Step)>,
    /// By login, the jobs that are asked for.
    pub polls: BTreeMap<String, Vec<NamespacedName>>,
    /// Records that are no longer this node's.
    pub forget: Vec<NamespacedName>,
    pub reported: Reported,
    pub again_at: Option<Timestamp>,
}

impl Plan for SlurmPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.polls.is_empty() && self.forget.is_empty()
    }

    fn again_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// What names a login.
pub fn login_hash(login: &SlurmLogin) -> String {
    content_hash(login)
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> SlurmPlan {
    let mut plan = SlurmPlan::default();
    let mut polled: BTreeMap<String, Vec<&JobRecord>> = BTreeMap::new();
    let mut under_way = under_way(observed);
    for (id, record) in &observed.records {
        let is_busy = observed.busy.contains(&Slot::Job(id.clone()));
        if !observed.orders.contains_key(id) && observed.is_whole {
            let since = observed.unordered_since.get(id).copied().unwrap_or(now);
            let until = since.checked_add(UNORDERED_MAX).unwrap_or(now);
            if record.state == State::Gone || until <= now {
                if !is_busy {
                    plan.forget.push(id.clone());
                }
            } else {
                plan.reported.insert(id.clone(), Arc::new(record.report()));
                plan.again_at = plan.again_at.into_iter().chain([until]).min();
            }
            continue;
        }
        plan.reported.insert(id.clone(), Arc::new(record.report()));
        if record.is_polled() {
            polled.entry(login_hash(&record.order.spec.login)).or_default().push(record);
        }
        match record.step(now) {
            Some(step) if !is_busy => {
                let all: usize = under_way.values().sum();
                let of_login = under_way.entry(login_hash(&record.order.spec.login)).or_default();
                if *of_login < LOGIN_STEPS_MAX && all < STEPS_MAX {
                    *of_login += 1;
                    plan.steps.push((id.clone(), step));
                }
            }
            Some(_) => {}
            None => {
                let waits = record.trouble.as_ref().filter(|_| !matches!(record.state, State::Submitted));
                let waits = waits.map(|trouble| trouble.retry_at).or_else(|| record.clean_at());
                plan.again_at = plan.again_at.into_iter().chain(waits).min();
            }
        }
    }
    for (login, records) in polled {
        let last = observed.polled_at.get(&login).copied().unwrap_or(Timestamp::MIN);
        let due = records.iter().map(|record| next_poll(record, last)).min().unwrap_or(now);
        if due > now || observed.busy.contains(&Slot::Poll(login.clone())) {
            plan.again_at = plan.again_at.into_iter().chain([due]).filter(|at| *at > now).min();
        } else {
            // One question for all, also for those that would have had time.
            plan.polls.insert(login, records.iter().map(|record| record.id.clone()).collect());
        }
    }
    plan
}

/// Steps that are under way, by login.
fn under_way(observed: &Observed) -> BTreeMap<String, usize> {
    let mut steps = BTreeMap::new();
    for slot in &observed.busy {
        let Slot::Job(id) = slot else { continue };
        let login = observed.records.get(id).map(|record| login_hash(&record.order.spec.login));
        *steps.entry(login.unwrap_or_default()).or_default() += 1;
    }
    steps
}

/// What changed a moment ago soon changes again; a job that has waited for hours may wait half a minute more.
fn next_poll(record: &JobRecord, last: Timestamp) -> Timestamp {
    let quiet = last.duration_since(record.changed_at).max(SignedDuration::ZERO);
    let wait = (quiet / 8).clamp(POLL.0, POLL.1);
    let of_trouble = record.trouble.as_ref().map_or(Timestamp::MIN, |trouble| trouble.retry_at);
    last.checked_add(wait).unwrap_or(Timestamp::MIN).max(of_trouble)
}
