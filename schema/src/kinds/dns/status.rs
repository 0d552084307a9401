//! What has become of a host and its paths.

use serde::{Deserialize, Serialize};

use super::DnsSpec;
use crate::kinds::Health;

/// What has become of a host and its paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsStatus {
    /// What the host resolves to: the gateway's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Paths that lead nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unrouted: Vec<UnroutedPath>,
}

/// A path that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnroutedPath {
    /// The path.
    pub path: String,
    /// Why, for a person: `service web does not exist`.
    pub why: String,
}

impl DnsSpec {
    /// How well a host is: known, and every path leads to a service.
    pub fn health(&self, status: &DnsStatus) -> Health {
        match (&status.address, status.unrouted.first()) {
            (None, _) => Health::Progressing { why: format!("{} has no address yet", self.host) },
            (_, Some(UnroutedPath { path, why })) => Health::Degraded { why: format!("{path}: {why}") },
            _ => Health::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_healthy_when_it_is_known_and_all_its_paths_lead_somewhere() {
        let spec = DnsSpec { host: "shop.example".to_owned(), paths: Vec::new() };
        let mut status = DnsStatus::default();
        assert_eq!(spec.health(&status).to_string(), "Progressing");
        status.address = Some("10.96.0.11".to_owned());
        assert_eq!(spec.health(&status), Health::Healthy);
        status.unrouted = vec![UnroutedPath { path: "/a".to_owned(), why: "no service web".to_owned() }];
        assert_eq!(spec.health(&status), Health::Degraded { why: "/a: no service web".to_owned() });
    }
}
