//! Tells the rule changes of this process from those of others. Pure.
//!
//! Two loops write rules, each its own chains, and the kernel counts every transaction. Without this ledger each
//! loop would read all rules again, half a second for 1,000 services, whenever the other has written.

/// Number of the kernel's steps to ignore.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    quiet: u32,
}

impl Ledger {
    /// Records that `input` was applied while the kernel's count went from `before` to `after`. If others wrote
    /// meanwhile, all steps count: callers then find that something changed.
    pub(super) fn applied(&mut self, input: &str, before: u32, after: u32) {
        let steps = Steps::of(input);
        if before.wrapping_add(steps.quiet).wrapping_add(steps.loud) == after {
            self.quiet = self.quiet.wrapping_add(steps.quiet);
        }
    }

    /// The kernel's count without our own quiet steps.
    pub(super) fn counted(&self, kernel: u32) -> u32 {
        kernel.wrapping_sub(self.quiet)
    }
}

/// Counts the transactions of an input that insert or delete single rules, as is done in the kernel's chains: both
/// loops check these again.
pub fn loud_steps(input: &str) -> u32 {
    Steps::of(input).loud
}

/// Transactions of an input of `iptables-restore`, each counted by the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    quiet: u32,
    loud: u32,
}

impl Steps {
    fn of(input: &str) -> Self {
        let (mut steps, mut is_loud) = (Self::default(), false);
        for line in input.lines() {
            if line.starts_with("-I ") || line.starts_with("-D ") {
                is_loud = true;
            } else if line == "COMMIT" {
                if is_loud {
                    steps.loud += 1;
                } else {
                    steps.quiet += 1;
                }
                is_loud = false;
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: &str = "*nat\n:A - [0:0]\n-A A -j ACCEPT\nCOMMIT\n";
    const LOUD: &str = "*filter\n-I INPUT 1 -j A\nCOMMIT\n*nat\n-D OUTPUT -j A\nCOMMIT\n";

    #[test]
    fn own_chains_are_quiet_and_single_rules_are_loud() {
        assert_eq!(Steps::of(QUIET), Steps { quiet: 1, loud: 0 });
        assert_eq!(Steps::of(&format!("{QUIET}{LOUD}{QUIET}")), Steps { quiet: 2, loud: 2 });
    }

    // Seen red with `applied` that takes every input for its own.
    #[test]
    fn own_quiet_steps_do_not_count_unless_others_wrote_between() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.counted(7), 7);
        ledger.applied(QUIET, 7, 8);
        assert_eq!(ledger.counted(8), 7);
        ledger.applied(LOUD, 8, 10);
        assert_eq!(ledger.counted(10), 9, "what both loops look at was changed");
        ledger.applied(QUIET, 10, 12);
        assert_eq!(ledger.counted(12), 11, "somebody else wrote, too");
        let mut wrapped = Ledger::default();
        wrapped.applied(QUIET, u32::MAX, 0);
        assert_eq!(wrapped.counted(0), u32::MAX);
    }
}
