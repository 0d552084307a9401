//! Rules in memory, for tests of the loop: the input of `restore` is recorded, and interpreted by `apply` alone.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use schema::control::lock;

use super::{Iptables, IptablesError, StaleUdp, UdpFlow, loud_steps};

/// State of the fake.
#[derive(Debug, Default)]
pub struct FakeRules {
    pub saved: String,
    pub restored: Vec<String>,
    pub forgotten: Vec<StaleUdp>,
    pub saves: usize,
    pub save_takes: Duration,
    /// Result of [`Iptables::generation`]; a restore adds its loud steps. `None` if the kernel does not count.
    pub generation: Option<u32>,
    pub bridged_frames: bool,
    pub flows: BTreeSet<UdpFlow>,
    pub forgotten_flows: Vec<UdpFlow>,
    /// The one table for frames, as written.
    pub frames: Option<String>,
    /// Set if `nft` is not installed.
    pub has_no_nft: bool,
    /// Texts of bad lines: an input that contains one is refused, for all such lines.
    pub refuse_lines: Vec<String>,
    /// Computes the text of [`Iptables::save`] after a restore from the text before and the input; without it the
    /// text stays the same.
    pub apply: Option<fn(&str, &str) -> String>,
    /// Error text of all calls, if set.
    pub refuse: Option<String>,
}

/// Rules in memory.
#[derive(Debug, Default)]
pub struct FakeIptables(Mutex<FakeRules>);

impl FakeIptables {
    /// The state, to inspect and change.
    pub fn rules(&self) -> MutexGuard<'_, FakeRules> {
        lock(&self.0)
    }

    fn frames(&self) -> Result<MutexGuard<'_, FakeRules>, IptablesError> {
        let rules = self.allowed("nft")?;
        match rules.has_no_nft {
            true => Err(IptablesError::NotInstalled { program: "nft".to_owned(), package: "nftables" }),
            false => Ok(rules),
        }
    }

    fn allowed(&self, program: &str) -> Result<MutexGuard<'_, FakeRules>, IptablesError> {
        let rules = self.rules();
        match &rules.refuse {
            Some(message) => {
                let (program, message) = (program.to_owned(), message.clone());
                Err(IptablesError::Refused { program, message, lines: Vec::new() })
            }
            None => Ok(rules),
        }
    }
}

#[async_trait]
impl Iptables for FakeIptables {
    async fn save(&self) -> Result<String, IptablesError> {
        let takes = self.allowed("iptables-save")?.save_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let mut rules = self.allowed("iptables-save")?;
        rules.saves += 1;
        Ok(rules.saved.clone())
    }

    async fn restore(&self, input: &str) -> Result<(), IptablesError> {
        let mut rules = self.allowed("iptables-restore")?;
        let is_bad = |line: &str| rules.refuse_lines.iter().any(|bad| line.contains(bad));
        let (mut above, mut lines, mut good) = (0, Vec::new(), String::new());
        // Without `apply` the whole input is one transaction: the state after half of it would be unknown.
        let end = if rules.apply.is_some() { "COMMIT\n" } else { "\0" };
        for transaction in input.split_inclusive(end) {
            let bad = transaction.lines().enumerate().filter(|(_, line)| is_bad(line));
            lines = bad.map(|(at, _)| above + at + 1).collect();
            if !lines.is_empty() {
                break;
            }
            above += transaction.lines().count();
            good.push_str(transaction);
        }
        if !good.is_empty() {
            if let Some(apply) = rules.apply {
                rules.saved = apply(&rules.saved, &good);
            }
            // A partly refused input counts as one step, since its steps are not known.
            let steps = if lines.is_empty() { loud_steps(&good) } else { 1 };
            rules.generation = rules.generation.map(|count| count + steps);
            rules.restored.push(good);
        }
        if lines.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = lines.iter().map(|line| format!("line {line}: bad rule")).collect();
        let (program, message) = ("iptables-restore".to_owned(), named.join("; "));
        Err(IptablesError::Refused { program, message, lines })
    }

    async fn has_random_fully(&self) -> Result<bool, IptablesError> {
        Ok(true)
    }

    async fn forget_udp(&self, stale: &StaleUdp) -> Result<(), IptablesError> {
        self.allowed("conntrack")?.forgotten.push(stale.clone());
        Ok(())
    }

    async fn generation(&self) -> Option<u32> {
        self.rules().generation
    }

    async fn sees_bridged_frames(&self) -> bool {
        self.rules().bridged_frames
    }

    async fn udp_flows(&self) -> Result<BTreeSet<UdpFlow>, IptablesError> {
        Ok(self.allowed("conntrack")?.flows.clone())
    }

    async fn forget_flow(&self, flow: &UdpFlow) -> Result<(), IptablesError> {
        let mut rules = self.allowed("conntrack")?;
        rules.flows.remove(flow);
        rules.forgotten_flows.push(*flow);
        Ok(())
    }

    async fn frame_table(&self, _name: &str) -> Result<Option<String>, IptablesError> {
        Ok(self.frames()?.frames.clone())
    }

    async fn change_frame_tables(&self, input: &str) -> Result<(), IptablesError> {
        let mut rules = self.frames()?;
        rules.frames = Some(input.to_owned());
        rules.generation = rules.generation.map(|count| count + 1);
        Ok(())
    }
}
