//! Carries the plan of the node's network out: bridge, rules, connections. A step that fails hinders
//! no other.

use super::NetworkLoop;
use super::plan::NetworkPlan;
use super::render::{RuleChange, restore_input};
use super::tunnel::TunnelStep;

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
        self.carry_out_tunnel(plan, &mut outcome).await;
        if !plan.rules.is_empty() {
            self.change_rules(plan, &mut outcome).await;
        }
        outcome
    }

    /// A tunnel that can't be made leaves the pods of this node as they are, and is told of once.
    async fn carry_out_tunnel(&mut self, plan: &NetworkPlan, outcome: &mut Outcome) {
        let mut failure = plan.tunnel_failure.clone();
        for step in &plan.tunnel {
            let result = match step {
                TunnelStep::Link(tunnel) => self.tunnels.ensure_tunnel(tunnel).await.map(|_| ()),
                TunnelStep::Set(entry, _) => {
                    self.tunnels.set_tunnel_entry(&self.settings.names.tunnel, *entry).await
                }
                TunnelStep::Drop(entry) => {
                    self.tunnels.drop_tunnel_entry(&self.settings.names.tunnel, *entry).await
                }
            };
            match result {
                Ok(()) => outcome.done.push(step.to_string()),
                Err(error) => {
                    failure.get_or_insert(format!("{step}: {error}"));
                    if matches!(step, TunnelStep::Link(_)) {
                        break;
                    }
                }
            }
        }
        if failure != self.tunnel_failure {
            if let Some(failure) = &failure {
                outcome.tolerated.push(format!("pods of other nodes can't be reached: {failure}"));
            }
            self.tunnel_failure.clone_from(&failure);
        }
        let vtep = plan.vtep.clone().filter(|_| failure.is_none());
        self.vtep.send_if_modified(|there| {
            let differs = *there != vtep;
            *there = vtep;
            differs
        });
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
        self.rules_changed.nudge();
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
