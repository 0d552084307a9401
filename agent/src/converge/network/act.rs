//! Carries out the plan of the node's network: bridge, tunnel, rules, connections. A failed step does not stop the
//! others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;

use super::plan::{NetworkPlan, Observed};
use super::render::Model;
use super::state::{NetworkLoop, TRIALS_MAX, TrialResult, WrittenFrames, try_checksums};
use super::tunnel::TunnelStep;
use crate::packet_rules::restore::{RuleChange, restore_input};
use crate::packet_rules::saved::{Doubts, only_we_wrote, words};
use crate::worlds::iptables::{IptablesError, loud_steps};
use schema::control::publish;

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Vec<String>,
    /// Failures that do not call for an early retry.
    pub tolerated: Vec<String>,
}

impl NetworkLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: &NetworkPlan) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(frames) = &plan.frames {
            self.write_frames(observed, frames, &mut outcome).await;
        }
        if let Some(bridge) = &plan.bridge {
            let (name, address) = (&bridge.name, bridge.address);
            match self.deps.netlink.ensure_bridge(bridge).await {
                Ok(true) => tracing::info!(bridge = name, %address, "bridge set up"),
                Ok(false) => {}
                Err(error) => outcome.failed.push(format!("bridge {name} with {address}: {error}")),
            }
        }
        self.carry_out_tunnel(plan, &mut outcome).await;
        self.carry_out_rules(observed, plan, &mut outcome).await;
        outcome
    }

    /// Writes the table for frames. A node that cannot, for lack of `nft`, runs pods all the same; the failure is
    /// logged once.
    async fn write_frames(&mut self, observed: &Observed, input: &str, outcome: &mut Outcome) {
        let Model { names, node_cidr, .. } = &observed.model;
        let iptables = &self.deps.iptables;
        let write = async {
            let before = iptables.generation().await;
            iptables.change_frame_tables(input).await?;
            let printed = iptables.frame_table(&names.senders).await?;
            let generation = iptables.generation().await;
            // If somebody else wrote too, what was printed may be theirs.
            let only_we_wrote = before.map(|count| count.wrapping_add(1)) == generation;
            let printed = printed.filter(|_| only_we_wrote);
            Ok(printed.map(|printed| WrittenFrames { node_cidr: *node_cidr, printed, generation }))
        };
        let written: Result<_, IptablesError> = write.await;
        let failure = written.as_ref().err().map(ToString::to_string);
        if let Some(failure) = failure.as_ref().filter(|_| failure != self.frames_failure) {
            outcome.tolerated.push(format!("pods can send under the addresses of others: {failure}"));
        }
        if failure.is_none() {
            tracing::info!(table = names.senders, range = %node_cidr, "rules for the frames of pods programmed");
        }
        self.frames = written.ok().flatten();
        self.frames_failure = failure;
    }

    /// Carries out the tunnel's steps. A failure leaves the pods of this node as they are, and is logged once.
    async fn carry_out_tunnel(&mut self, plan: &NetworkPlan, outcome: &mut Outcome) {
        let mut failure = plan.tunnel_failure.clone();
        for step in &plan.tunnel {
            let result = match step {
                TunnelStep::Link(tunnel) => {
                    self.checksum_trials = TRIALS_MAX;
                    self.deps.tunnels.ensure_tunnel(tunnel).await.map(|_| ())
                }
                TunnelStep::Set(entry, _) => {
                    self.deps.tunnels.set_tunnel_entry(&self.settings.names.tunnel, *entry).await
                }
                TunnelStep::Drop(entry) => {
                    self.deps.tunnels.drop_tunnel_entry(&self.settings.names.tunnel, *entry).await
                }
                TunnelStep::Unlink(name) => self.deps.tunnels.remove_tunnel(name).await.map(|_| ()),
                TunnelStep::TryChecksums(asked) => {
                    self.carry_out_trial(asked, outcome).await;
                    Ok(())
                }
            };
            match result {
                Ok(()) => tracing::info!(change = %step, "tunnel changed"),
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
        publish(&self.deps.vtep, vtep);
    }

    async fn carry_out_trial(&mut self, asked: &BTreeMap<SocketAddr, String>, outcome: &mut Outcome) {
        let tunnel = &self.settings.names.tunnel;
        let found = try_checksums(&*self.deps.tunnels, tunnel, asked).await;
        self.checksum_trials = match &found {
            Ok(TrialResult::Silence) => self.checksum_trials - 1,
            _ => 0,
        };
        match found {
            Ok(TrialResult::Sound | TrialResult::Silence) => {}
            Ok(TrialResult::Computed(node)) => outcome.tolerated.push(format!(
                "TCP through {tunnel} reaches node {node} only with checksums that the kernel computes; it \
                 computes them from now on, which costs throughput (tx-checksum-ip-generic is off)"
            )),
            Err(error) => outcome.tolerated.push(format!("cannot test the checksums of {tunnel}: {error}")),
        }
    }

    /// Changes the rules and publishes the functions' pods for which they are in place, regardless of bridge and
    /// tunnel.
    async fn carry_out_rules(&mut self, observed: &Observed, plan: &NetworkPlan, outcome: &mut Outcome) {
        let functions = &observed.model.functions;
        // Before rules of former pods are removed: another pod may get the address meanwhile.
        let still = self.deps.sandboxed.borrow().intersection(functions).copied().collect();
        publish(&self.deps.sandboxed, Arc::new(still));
        let index = observed.model.builds.as_ref().map(|builds| builds.index.clone());
        self.deps
            .builds
            .in_place
            .send_if_modified(|stands| stands.take_if(|of| Some(&**of) != index.as_ref()).is_some());
        if plan.rules.is_empty() || self.change_rules(observed, plan, outcome).await {
            self.repairs.note(&observed.model, !plan.rules.is_empty());
            publish(&self.deps.sandboxed, Arc::new(functions.clone()));
            publish(&self.deps.builds.in_place, index.map(Arc::new));
        }
    }

    /// Writes the rules; true if all are as planned.
    async fn change_rules(&mut self, observed: &Observed, plan: &NetworkPlan, outcome: &mut Outcome) -> bool {
        let changes: Vec<RuleChange> = plan.rules.iter().map(|(change, _)| change.clone()).collect();
        let what: Vec<String> = plan.rules.iter().map(|(change, why)| format!("{change} {why}")).collect();
        let input = restore_input(&changes);
        let before = self.deps.iptables.generation().await;
        let began = Instant::now();
        let result = self.deps.iptables.restore(&input).await;
        // The next observation reads the rules again; with two tables, one may have been written.
        self.rules.forget();
        if let Err(error) = result {
            outcome.failed.push(format!("rules ({}): {error}", what.join(", ")));
            return false;
        }
        tracing::info!(changes = what.len(), ?what, took = ?began.elapsed(), "network rules programmed");
        self.deps.rules_changed.nudge();
        let now = self.deps.iptables.generation().await;
        let mut doubts = Doubts::new();
        for change in changes {
            if let RuleChange::WriteChain { chain, rules } = change {
                let written = rules.iter().map(|rule| words(rule)).collect();
                self.spellings.wrote(&chain, written, observed.saved.get(&chain), &mut doubts);
            }
        }
        // Rules that can't be read back are in doubt again after the next observation.
        if !doubts.is_empty()
            && only_we_wrote(before, loud_steps(&input), now)
            && let Some(saved) = self.rules.read_back(now).await
        {
            self.spellings.learn(doubts, |chain| saved.get(chain));
        }
        for stale in &plan.stale_udp {
            if let Err(error) = self.deps.iptables.forget_udp(stale).await {
                outcome.tolerated.push(format!("old UDP connections to port {}: {error}", stale.port));
            }
        }
        true
    }
}
