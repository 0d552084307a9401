//! Rules in memory, for tests of the loop: what `restore` is given is kept, not understood.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Iptables, IptablesError, StaleUdp};

/// What the fake holds.
#[derive(Debug, Default)]
pub struct FakeRules {
    /// What [`Iptables::save`] answers.
    pub saved: String,
    /// All inputs of [`Iptables::restore`], in order.
    pub restored: Vec<String>,
    /// All that was to be forgotten, in order.
    pub forgotten: Vec<StaleUdp>,
    /// The next calls fail with this text.
    pub refuse: Option<String>,
}

/// Rules in memory.
#[derive(Debug, Default)]
pub struct FakeIptables(Mutex<FakeRules>);

impl FakeIptables {
    /// The state, to look at and to change.
    pub fn rules(&self) -> MutexGuard<'_, FakeRules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allowed(&self, program: &str) -> Result<MutexGuard<'_, FakeRules>, IptablesError> {
        let rules = self.rules();
        match &rules.refuse {
            Some(message) => {
                Err(IptablesError::Refused { program: program.to_owned(), message: message.clone() })
            }
            None => Ok(rules),
        }
    }
}

#[async_trait]
impl Iptables for FakeIptables {
    async fn save(&self) -> Result<String, IptablesError> {
        Ok(self.allowed("iptables-save")?.saved.clone())
    }

    async fn restore(&self, input: &str) -> Result<(), IptablesError> {
        self.allowed("iptables-restore")?.restored.push(input.to_owned());
        Ok(())
    }

    async fn has_random_fully(&self) -> Result<bool, IptablesError> {
        Ok(true)
    }

    async fn forget_udp(&self, stale: &StaleUdp) -> Result<(), IptablesError> {
        self.allowed("conntrack")?.forgotten.push(stale.clone());
        Ok(())
    }
}
