//! Carries the plan of the node's network out: bridge, rules, connections. A step that fails hinders
//! no other.

use super::NetworkLoop;
use super::plan::NetworkPlan;
use super::render::{RuleChange, restore_input};

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done, a sentence each.
    pub done: Vec<String>,
    /// What could not be done, with the reason.
    pub failed: Vec<String>,
    /// What could not be done and is no reason to hurry.
    pub tolerated: Vec<String>,
}

impl Outcome {
    fn note<E: std::error::Error>(&mut self, what: String, result: Result<bool, E>) {
        match result {
            Ok(true) => self.done.push(what),
            Ok(false) => {}
            Err(error) => self.failed.push(format!("{what}: {error}")),
        }
    }
}

impl NetworkLoop {
    pub(super) async fn carry_out(&mut self, plan: &NetworkPlan) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(bridge) = &plan.bridge {
            let result = self.netlink.ensure_bridge(bridge).await;
            outcome.note(format!("bridge {} with {}", bridge.name, bridge.address), result);
        }
        if !plan.rules.is_empty() {
            self.change_rules(plan, &mut outcome).await;
        }
        outcome
    }

    async fn change_rules(&mut self, plan: &NetworkPlan, outcome: &mut Outcome) {
        let changes: Vec<RuleChange> = plan.rules.iter().map(|(change, _)| change.clone()).collect();
        let what: Vec<String> = plan.rules.iter().map(|(change, why)| format!("{change} {why}")).collect();
        let result = self.iptables.restore(&restore_input(&changes)).await;
        let failed = result.is_err();
        outcome.note(format!("rules ({})", what.join(", ")), result.map(|()| true));
        if failed {
            return;
        }
        for change in changes {
            if let RuleChange::WriteChain { chain, rules } = change {
                self.written.insert(chain, rules);
            }
        }
        for stale in &plan.stale_udp {
            if let Err(error) = self.iptables.forget_udp(stale).await {
                outcome.tolerated.push(format!("old UDP connections to port {}: {error}", stale.port));
            }
        }
    }
}
