//! Computes how many pods a rollout creates and ends now. Pure arithmetic, as in Kubernetes' Deployment controller.

use super::workload::Strategy;

/// Number of pods in a group, and how many of them are available.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) count: u32,
    pub(super) available: u32,
}

/// Numbers of pods to create and to end now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// New pods to create.
    pub(super) create: u32,
    /// New pods to end, because there are more than desired.
    pub(super) end_new: u32,
    /// Unavailable old pods to end.
    pub(super) end_unhealthy: u32,
    /// Available old pods to end.
    pub(super) end_old: u32,
}

/// Plans the moves towards `desired` new pods and no old ones. `leftover` is set while ended pods still run.
pub(super) fn moves(desired: u32, strategy: Strategy, new: Group, old: Group, leftover: bool) -> Moves {
    let end_new = new.count.saturating_sub(desired);
    let missing = desired.saturating_sub(new.count);
    let (surge, unavailable) = match strategy {
        Strategy::Rolling { surge, unavailable } => (surge, unavailable),
        Strategy::Recreate => {
            let create = if old.count == 0 && !leftover { missing } else { 0 };
            let end_unhealthy = old.count - old.available;
            return Moves { create, end_new, end_unhealthy, end_old: old.available };
        }
    };
    let total = new.count + old.count;
    let room = desired.saturating_add(surge).saturating_sub(total);
    let create = if old.count == 0 { missing } else { missing.min(room) };
    let least = desired.saturating_sub(unavailable);
    // New pods that are not available yet are expected to become so: the old ones that stand in for them stay.
    let spare = total.saturating_sub(end_new).saturating_sub(least + (new.count - new.available));
    let end_unhealthy = (old.count - old.available).min(spare);
    let new_available = new.available.min(new.count - end_new);
    let end_old = (new_available + old.available).saturating_sub(least).min(old.available);
    Moves { create, end_new, end_unhealthy, end_old }
}

/// Limits the pods created at once to 1, 2, 4, 8 and so on, so that a pod that can't be written fails once and not
/// a thousand times.
pub(super) fn slow_start(existing: u32) -> u32 {
    existing.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(count: u32, available: u32) -> Group {
        Group { count, available }
    }

    const QUARTER: Strategy = Strategy::Rolling { surge: 3, unavailable: 2 };

    #[test]
    fn a_rollout_goes_step_by_step_as_in_kubernetes() {
        let steps: [(u32, Strategy, Group, Group, [u32; 4]); 12] = [
            // 10 pods, 25 %: three more come, two go.
            (10, QUARTER, group(0, 0), group(10, 10), [3, 0, 0, 2]),
            (10, QUARTER, group(3, 0), group(8, 8), [2, 0, 0, 0]),
            (10, QUARTER, group(5, 3), group(8, 8), [0, 0, 0, 3]),
            (10, QUARTER, group(10, 10), group(0, 0), [0, 0, 0, 0]),
            // Old pods that do not work go first, except those that stand in for new ones.
            (10, QUARTER, group(0, 0), group(10, 4), [3, 0, 2, 0]),
            (10, QUARTER, group(3, 0), group(10, 8), [0, 0, 2, 0]),
            // One pod: the new one first.
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(0, 0), group(1, 1), [1, 0, 0, 0]),
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(1, 0), group(1, 1), [0, 0, 0, 0]),
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(1, 1), group(1, 1), [0, 0, 0, 1]),
            // Scaled down, and down to nothing.
            (3, QUARTER, group(5, 5), group(0, 0), [0, 2, 0, 0]),
            (0, QUARTER, group(2, 1), group(3, 3), [0, 2, 0, 3]),
            // No room at all: one old pod goes first.
            (2, Strategy::Rolling { surge: 0, unavailable: 1 }, group(0, 0), group(2, 2), [0, 0, 0, 1]),
        ];
        for (desired, strategy, new, old, [create, end_new, end_unhealthy, end_old]) in steps {
            let expected = Moves { create, end_new, end_unhealthy, end_old };
            let moves = moves(desired, strategy, new, old, false);
            assert_eq!(moves, expected, "{desired} {strategy:?} {new:?} {old:?}");
        }
    }

    #[test]
    fn recreate_waits_until_the_old_pods_are_gone() {
        let moves = |new, old, leftover| moves(2, Strategy::Recreate, new, old, leftover);
        let none = Group::default();
        assert_eq!(
            moves(none, group(2, 1), false),
            Moves { end_unhealthy: 1, end_old: 1, ..Moves::default() }
        );
        assert_eq!(moves(none, none, true), Moves::default());
        assert_eq!(moves(none, none, false), Moves { create: 2, ..Moves::default() });
    }
}
