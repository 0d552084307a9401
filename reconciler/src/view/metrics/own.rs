//! Metrics of this reconciler: who leads, etcd as it sees it, its webhooks.

use schema::metrics::{FamilyInfo, StateFamily};

use super::fill::fill;
use crate::upkeep::UpkeepState;
use crate::view::status::HookCounts;

/// State of this reconciler.
#[derive(Debug, Clone, Copy)]
pub struct OwnState<'a> {
    pub leads: bool,
    pub etcd: &'a UpkeepState,
    /// Webhook counters; `None` if webhooks are off.
    pub hooks: Option<HookCounts>,
}

static LEADER: [FamilyInfo; 1] =
    [FamilyInfo::gauge("minik8s_leader", "1 if this reconciler leads, else 0", &[])];
static ETCD: [FamilyInfo; 4] = [
    FamilyInfo::gauge("minik8s_etcd_up", "1 if a member of etcd answers this reconciler, else 0", &[]),
    FamilyInfo::gauge(
        "minik8s_etcd_database_bytes",
        "Size of the largest database file among the members of etcd",
        &[],
    ),
    FamilyInfo::gauge(
        "minik8s_etcd_quota_bytes",
        "Smallest quota among the members of etcd, which refuse writes when they reach theirs; missing if it is unknown",
        &[],
    ),
    FamilyInfo::gauge("minik8s_etcd_alarms", "Alarms of the members of etcd", &[]),
];
static MEMBERS: [FamilyInfo; 1] =
    [FamilyInfo::gauge("minik8s_etcd_members", "Members of etcd: answering, silent", &["state"])];
static HOOKS: [FamilyInfo; 1] = [FamilyInfo::counter(
    "minik8s_webhook_requests",
    "Received webhooks: accepted, duplicate, ignored, refused, too_large, busy, slow; missing if webhooks are off",
    &["outcome"],
)];

/// Returns the families of this reconciler, also those without samples.
pub fn own_families(state: &OwnState<'_>) -> Vec<StateFamily> {
    let members = &state.etcd.members;
    let answering = members.iter().filter(|member| member.error.is_none()).count();
    // Before etcd was observed, nothing is known.
    let is_known = !members.is_empty();
    let etcd = is_known.then(|| {
        let known = members.iter().filter(|member| !member.id.is_empty());
        let largest = known.map(|member| member.size_bytes).max();
        let quota = state.etcd.quota_bytes();
        let alarms: usize = members.iter().map(|member| member.alarms.len()).sum();
        let bytes = |bytes: u64| bytes as f64;
        ([], [Some(f64::from(answering > 0)), largest.map(bytes), quota.map(bytes), Some(alarms as f64)])
    });
    let states = [("answering", answering), ("silent", members.len() - answering)];
    let states = states.map(|(state, count)| ([state], [Some(count as f64)]));
    let hooks = state.hooks.map(outcomes).into_iter().flatten();
    [
        fill(&LEADER, [([], [Some(f64::from(state.leads))])]),
        fill(&ETCD, etcd),
        fill(&MEMBERS, states.into_iter().filter(|_| is_known)),
        fill(&HOOKS, hooks.map(|(outcome, count)| ([outcome], [Some(count as f64)]))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn outcomes(counts: HookCounts) -> [(&'static str, u64); 7] {
    let HookCounts { accepted, duplicate, ignored, refused, too_large, busy, slow } = counts;
    [
        ("accepted", accepted),
        ("duplicate", duplicate),
        ("ignored", ignored),
        ("refused", refused),
        ("too_large", too_large),
        ("busy", busy),
        ("slow", slow),
    ]
}
