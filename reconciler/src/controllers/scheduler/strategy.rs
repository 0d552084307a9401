//! Strategies of the Cluster object: choose among the nodes that fit.
//!
//! A new strategy is one function and one line in [`Strategy::of`].

use schema::kinds::cluster::SchedulerStrategy;

use super::node::NodeLoad;

/// Rank of a node among those that fit: the lowest is the best. Nodes of equal rank are sorted by name.
pub(super) type Rank = [u64; 3];

/// Method of ordering the nodes for a pod.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ranking {
    /// By the load of the node, and the number of its pods with the same owner.
    By(fn(&NodeLoad<'_>, u32) -> Rank),
    /// By lot, from the uid of the pod: the same pod draws the same node.
    ByLot,
}

/// A scheduling strategy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strategy {
    pub(super) ranking: Ranking,
    /// Reason why the first node comes first, as the rest of the sentence "it …".
    pub(super) rank_reason: &'static str,
}

impl Strategy {
    /// Returns the strategy that a cluster asks for.
    pub(super) fn of(wanted: SchedulerStrategy) -> Self {
        use SchedulerStrategy as S;
        let (ranking, rank_reason) = match wanted {
            S::Spread => (Ranking::By(spread), "has the fewest pods of this owner, then the least requested"),
            S::Random => (Ranking::ByLot, "was drawn"),
            S::RoundRobin => (Ranking::By(round_robin), "has waited longest for a pod"),
            S::MinPods => (Ranking::By(min_pods), "has the fewest pods"),
            S::MaxPods => (Ranking::By(max_pods), "has the most pods"),
            S::MinCpu => (Ranking::By(min_cpu), "has the least CPU requested"),
            S::MinMemory => (Ranking::By(min_memory), "has the least memory requested"),
        };
        Self { ranking, rank_reason }
    }
}

fn spread(node: &NodeLoad<'_>, of_owner: u32) -> Rank {
    [of_owner.into(), requested_share(node), node.pods.into()]
}

/// Ranks first the node whose newest binding appeared first. Uses the bindings alone, so that a new leader
/// continues the round. Bindings of one transaction appear at one revision; of these nodes the one with the fewest
/// of them comes first.
fn round_robin(node: &NodeLoad<'_>, _: u32) -> Rank {
    let (revision, bindings) = node.newest;
    [u64::try_from(revision).unwrap_or_default(), bindings.into(), 0]
}

fn min_pods(node: &NodeLoad<'_>, _: u32) -> Rank {
    [node.pods.into(), 0, 0]
}

fn max_pods(node: &NodeLoad<'_>, _: u32) -> Rank {
    [u64::from(u32::MAX - node.pods), 0, 0]
}

fn min_cpu(node: &NodeLoad<'_>, _: u32) -> Rank {
    [node.cpu_millis, node.pods.into(), 0]
}

fn min_memory(node: &NodeLoad<'_>, _: u32) -> Rank {
    [node.memory_bytes, node.pods.into(), 0]
}

/// Returns the mean of the requested shares of CPU and memory, in millionths.
fn requested_share(node: &NodeLoad<'_>) -> u64 {
    const WHOLE: u128 = 1_000_000;
    let share = |taken: u64, all: u64| match all {
        0 => WHOLE,
        all => u128::from(taken) * WHOLE / u128::from(all),
    };
    let cpu = share(node.cpu_millis, node.record.cpu.millis);
    let memory = share(node.memory_bytes, node.record.memory.bytes);
    u64::try_from(u128::midpoint(cpu, memory)).unwrap_or(u64::MAX)
}

/// Returns the seed of a pod's lot: the first 16 digits of its uid.
pub(super) fn seed(uid: &str) -> u64 {
    uid.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// Returns the lot that a node draws with this seed. Each node that fits has an equal chance of the lowest lot, and
/// other nodes do not change the winner.
pub(super) fn lot(seed: u64, name_hash: u64) -> u64 {
    // The finalizer of SplitMix64 spreads every bit over all others.
    let hash = seed ^ name_hash;
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
