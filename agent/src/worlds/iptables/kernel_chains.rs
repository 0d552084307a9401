//! The kernel's own chains, one rule at a time, through the crate `iptables`: for changes that need not be in one
//! transaction with our chains.

use iptables::IPTables;

use super::IptablesError;
use super::real::{RUN_MAX, RealIptables};
use crate::worlds::netlink::in_namespace;

impl RealIptables {
    /// Policy of a chain: the fate of packets that no rule decides on.
    pub async fn policy(&self, table: &'static str, chain: &'static str) -> Result<String, IptablesError> {
        self.direct(move |iptables| iptables.get_policy(table, chain)).await
    }

    /// True if the rule is in the chain.
    pub async fn exists(&self, table: String, chain: String, rule: String) -> Result<bool, IptablesError> {
        self.direct(move |iptables| iptables.exists(&table, &chain, &rule)).await
    }

    /// Deletes the rule from the chain, once.
    pub async fn delete(&self, table: String, chain: String, rule: String) -> Result<(), IptablesError> {
        self.direct(move |iptables| iptables.delete(&table, &chain, &rule)).await
    }

    /// Runs `work` on a blocking thread: the crate waits for the program.
    async fn direct<T: Send + 'static>(
        &self,
        work: impl FnOnce(&IPTables) -> Result<T, Box<dyn std::error::Error>> + Send + 'static,
    ) -> Result<T, IptablesError> {
        let run = move || {
            let mut iptables = iptables::new(false)?;
            // Without it each address is looked up in DNS.
            iptables.set_numeric(true);
            work(&iptables)
        };
        let run = move || run().map_err(|error| std::io::Error::other(error.to_string()));
        let namespace = self.namespace.clone();
        let work = tokio::task::spawn_blocking(move || in_namespace(namespace.as_deref(), run));
        let program = || "iptables".to_owned();
        let timeout = |_| IptablesError::Timeout { program: program(), after: RUN_MAX };
        let done = tokio::time::timeout(RUN_MAX, work).await.map_err(timeout)?;
        let refused = |error: std::io::Error| IptablesError::Refused {
            program: program(),
            message: error.to_string().lines().collect::<Vec<_>>().join("; "),
            lines: Vec::new(),
        };
        done.unwrap_or_else(|panicked| Err(panicked.into())).map_err(refused)
    }
}
