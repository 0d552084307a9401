//! Carries out the plan of the services: the rules, with those that affect traffic in one transaction per table,
//! then removal of UDP connections that lead to no endpoint.

use std::fmt::Write as _;

use schema::kinds::Kind;
use schema::meta::NamespacedName;
use tokio::time::Instant;

use super::plan::{Observed, ServicesPlan, stale_flows};
use super::present::{ExistingRules, Fingerprint, fingerprint};
use super::refused;
use super::render::UdpServing;
use super::state::ServicesLoop;
use crate::packet_rules::jumps::RuleReason;
use crate::packet_rules::restore::{PART, RuleChange, restore_in_parts, restore_input};
use crate::packet_rules::saved::{Doubts, only_we_wrote, words};
use crate::worlds::iptables::{IptablesError, loud_steps};

/// Maximum number of changes named in one line of the log; the rest is counted.
const NAMED_MAX: usize = 6;

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Vec<String>,
    /// Services to leave out from now on; the others are programmed immediately.
    pub refused: Vec<Refusal>,
    /// Failures that do not call for an early retry.
    pub tolerated: Vec<String>,
    /// Set if nothing could be written because other programs had changed the rules since the last read.
    pub is_outdated: bool,
}

/// A service to leave out from now on.
#[derive(Debug)]
pub struct Refusal {
    pub service: NamespacedName,
    pub why: String,
    /// Set if the reason differs from the last one for the same record.
    pub is_news: bool,
}

impl ServicesLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: ServicesPlan) -> Outcome {
        let mut outcome = Outcome::default();
        if !plan.rules.is_empty() && !self.change_rules(observed, &plan, &mut outcome).await {
            return outcome;
        }
        self.repairs.note(&observed.wanted, !plan.rules.is_empty());
        let healed = self.rendered.refused.confirm_programmed();
        for id in healed {
            tracing::info!(object = %id.of_kind(Kind::Service), "service accepted by iptables again");
        }
        if let Some(serving) = &plan.udp {
            self.forget_stale(observed, serving, &mut outcome).await;
        } else {
            self.udp_settled = Some(observed.udp());
        }
        outcome
    }

    /// Writes the rules; false if they are not as planned.
    async fn change_rules(
        &mut self,
        observed: &Observed,
        plan: &ServicesPlan,
        outcome: &mut Outcome,
    ) -> bool {
        let what = summary(&plan.rules);
        let changes: Vec<RuleChange> = plan.rules.iter().map(|(change, _)| change.clone()).collect();
        let before = self.deps.iptables.generation().await;
        // The legacy programs rewrite the whole table in each transaction. Rejected input is resent as one
        // transaction: of several, only the first bad one would be named each time.
        let input = match before {
            Some(_) if !self.was_refused => restore_in_parts(&changes, &plan.unreached, PART),
            _ => restore_input(&changes),
        };
        let began = Instant::now();
        let result = self.deps.iptables.restore(&input).await;
        self.was_refused = result.is_err();
        if let Err(error) = result {
            // Of several transactions some may be written.
            self.rules.forget();
            if before.is_some() && before != self.rules.generation() {
                // Targets of the rules may be gone: no service is at fault.
                tracing::debug!(%error, "rules changed by others meanwhile; they are read again and written then");
                outcome.is_outdated = true;
                return false;
            }
            let now = Instant::now();
            for (service, why) in refused::owners(&error, &input, &observed.wanted) {
                let is_news = self.rendered.refuse(&service, &why, now);
                outcome.refused.push(Refusal { service, why, is_news });
            }
            if outcome.refused.is_empty() {
                self.rendered.put_back(now);
                outcome.failed.push(format!("rules ({what}): {error}"));
            }
            return false;
        }
        tracing::info!(changes = changes.len(), what, took = ?began.elapsed(), "service rules programmed");
        let now = self.deps.iptables.generation().await;
        let only_we = only_we_wrote(before, loud_steps(&input), now);
        // The new state follows from the former one if only this agent wrote. Otherwise it is read again.
        let generation = now.filter(|_| only_we && before == self.rules.generation());
        let mut present = ExistingRules::clone(&observed.present);
        let mut doubts = Doubts::new();
        for change in changes {
            self.note(observed, change, &mut present, &mut doubts);
        }
        self.rules.note(present, generation);
        // Rules that can't be read back are in doubt again after the next observation.
        if only_we
            && !doubts.is_empty()
            && let Some(present) = self.rules.read_back(now).await
        {
            self.spellings.learn(doubts, |chain| present.chains.get(chain));
        }
        true
    }

    /// Applies a change that was written to the known state.
    fn note(
        &mut self,
        observed: &Observed,
        change: RuleChange,
        present: &mut ExistingRules,
        doubts: &mut Doubts<Fingerprint>,
    ) {
        match change {
            RuleChange::WriteChain { chain, rules } => {
                let there = observed.present.chains.get(&chain);
                let written = fingerprint(rules.iter().map(String::as_str));
                self.spellings.wrote(&chain, written, there, doubts);
                present.chains.insert(chain, written);
            }
            RuleChange::DropChain { chain } => {
                self.spellings.dropped(&chain);
                present.chains.remove(&chain);
            }
            RuleChange::InsertJump { base, rule } => {
                present.bases.entry(base).or_default().insert(0, words(&rule));
            }
            RuleChange::DeleteJump { base, rule } => {
                let (rule, rules) = (words(&rule), present.bases.entry(base).or_default());
                if let Some(at) = rules.iter().position(|there| *there == rule) {
                    rules.remove(at);
                }
            }
        }
    }

    async fn forget_stale(&mut self, observed: &Observed, serving: &UdpServing, outcome: &mut Outcome) {
        let flows = match self.deps.iptables.udp_flows().await {
            Ok(flows) => flows,
            Err(error) => {
                outcome.tolerated.push(format!("UDP clients may keep sending to removed endpoints: {error}"));
                if matches!(error, IptablesError::NotInstalled { .. }) {
                    self.udp_settled = Some(observed.udp());
                }
                return;
            }
        };
        let (mut all, mut forgotten) = (true, 0_usize);
        for flow in stale_flows(&flows, serving, observed.node) {
            let (to, from) = (flow.to, flow.from);
            match self.deps.iptables.forget_flow(&flow).await {
                Ok(()) => forgotten += 1,
                Err(error) => {
                    all = false;
                    outcome.tolerated.push(format!("UDP clients of {to} still go to {from}: {error}"));
                }
            }
        }
        if forgotten > 0 {
            tracing::info!(connections = forgotten, "UDP connections to removed endpoints forgotten");
        }
        if all {
            self.udp_settled = Some(observed.udp());
        }
    }
}

/// Summarizes the changes: `nat/MK8S-SERVICES differed, … and 20 more`.
fn summary(planned: &[(RuleChange, RuleReason)]) -> String {
    let named: Vec<String> =
        planned.iter().take(NAMED_MAX).map(|(change, why)| format!("{change} {why}")).collect();
    let mut text = named.join(", ");
    if planned.len() > NAMED_MAX {
        let _ = write!(text, " and {} more", planned.len() - NAMED_MAX);
    }
    text
}
