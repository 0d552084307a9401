//! Names of the chains of services. Each is derived from the chain's purpose, so that a restarted agent finds its
//! own chains; all of an instance's names begin with its prefix.

use std::net::SocketAddrV4;

use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use sha2::{Digest as _, Sha256};

use crate::packet_rules::chain::{ChainRef, Jump, Names, Table, protocol_name};

/// Characters after `-SVC-`: 80 bits, which never collide between two services.
const SUFFIX: usize = 16;
/// Digits of base 32 (RFC 4648).
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Chain names of an instance's services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceNames {
    prefix: String,
    /// `MK8S-SERVICES` of nat: one rule for each address and port of a service.
    pub services: ChainRef,
    /// `MK8S-NODEPORTS`: ports of the node itself.
    pub node_ports: ChainRef,
    /// `MK8S-MARK`: marks packets to be masqueraded.
    pub mark: ChainRef,
    /// `MK8S-MASQ`: masquerades marked packets.
    pub masquerade: ChainRef,
    /// `MK8S-SERVICES` of filter: addresses and ports that currently lead nowhere.
    pub refusals: ChainRef,
    /// `MK8S-SVCFORWARD` of filter: packets forwarded for services.
    pub forward: ChainRef,
    /// Chains of the network loop before which ours must be placed, as they accept pods' packets.
    before: [ChainRef; 2],
}

/// Purpose of a service's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainRole {
    /// Chain for every endpoint.
    All,
    /// Endpoints of this node.
    Local,
    /// Clients from outside.
    External,
}

impl ServiceNames {
    /// Returns the names of `instance`.
    pub fn for_instance(instance: &str) -> Self {
        let prefix = instance.to_ascii_uppercase();
        let chain = |table, name: &str| ChainRef::new(table, format!("{prefix}-{name}"));
        let network = Names::for_instance(instance);
        Self {
            services: chain(Table::Nat, "SERVICES"),
            node_ports: chain(Table::Nat, "NODEPORTS"),
            mark: chain(Table::Nat, "MARK"),
            masquerade: chain(Table::Nat, "MASQ"),
            refusals: chain(Table::Filter, "SERVICES"),
            forward: chain(Table::Filter, "SVCFORWARD"),
            before: [network.forward, network.postrouting],
            prefix,
        }
    }

    /// Returns the chain of one port of a service.
    pub fn port_chain(
        &self,
        role: ChainRole,
        service: &NamespacedName,
        port: u16,
        protocol: Protocol,
    ) -> String {
        let word = match role {
            ChainRole::All => "SVC",
            ChainRole::Local => "SVL",
            ChainRole::External => "EXT",
        };
        let hash = suffix(&format!("{service}:{port}/{}", protocol_name(protocol)));
        format!("{}-{word}-{hash}", self.prefix)
    }

    /// Returns the chain of one endpoint of one port of a service.
    pub fn endpoint_chain(
        &self,
        service: &NamespacedName,
        port: u16,
        protocol: Protocol,
        endpoint: SocketAddrV4,
    ) -> String {
        let hash = suffix(&format!("{service}:{port}/{}/{endpoint}", protocol_name(protocol)));
        format!("{}-SEP-{hash}", self.prefix)
    }

    /// Returns the chains that exist even without any service.
    pub fn fixed(&self) -> [&ChainRef; 6] {
        [&self.services, &self.node_ports, &self.mark, &self.masquerade, &self.refusals, &self.forward]
    }

    /// True if the chain belongs to this instance's services, current or former.
    pub fn is_ours(&self, chain: &ChainRef) -> bool {
        self.fixed().contains(&chain) || (chain.table == Table::Nat && self.is_of_a_service(&chain.chain))
    }

    fn is_of_a_service(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.prefix).and_then(|rest| rest.strip_prefix('-'));
        let hash = rest.and_then(|rest| {
            ["SVC-", "SVL-", "EXT-", "SEP-"].iter().find_map(|word| rest.strip_prefix(word))
        });
        hash.is_some_and(|hash| hash.len() == SUFFIX && hash.bytes().all(|byte| BASE32.contains(&byte)))
    }

    /// Returns the jumps that lead into the chains.
    pub fn jumps(&self) -> Vec<Jump> {
        // Refusals do not apply to established connections.
        let new = "-m conntrack --ctstate NEW ";
        vec![
            Jump::new("INPUT", new, &self.refusals),
            Jump::new("OUTPUT", new, &self.refusals),
            Jump::new("FORWARD", "", &self.forward),
            Jump::new("PREROUTING", "", &self.services),
            Jump::new("OUTPUT", "", &self.services),
            Jump::new("POSTROUTING", "", &self.masquerade),
        ]
    }

    /// True if the chain `name` of `table` would keep packets from ours: the chains of the network loop accept
    /// everything from a pod, and masquerade without clearing the mark.
    pub fn must_stand_before(&self, table: Table, name: &str) -> bool {
        self.before.iter().any(|chain| chain.table == table && chain.chain == name)
    }
}

/// Returns the first [`SUFFIX`] base 32 digits of the text's SHA-256.
fn suffix(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digit = |at: usize| {
        let bit = |n: usize| (digest[n / 8] >> (7 - n % 8)) & 1;
        let value = (at * 5..at * 5 + 5).fold(0, |value, n| value << 1 | bit(n));
        char::from(BASE32[usize::from(value)])
    };
    (0..SUFFIX).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_the_base32_of_the_sha256() {
        // printf 'default/web:80/tcp' | sha256sum | xxd -r -p | base32 | cut -c1-16
        assert_eq!(suffix("default/web:80/tcp"), "DXNON4QYZIBCCX22");
    }

    #[test]
    fn the_longest_instance_has_names_that_the_kernel_takes() {
        let names = ServiceNames::for_instance("abcdef");
        let service = NamespacedName::new("default", "web");
        let endpoint = "10.0.0.1:80".parse().unwrap();
        let mut all: Vec<String> = names.fixed().iter().map(|chain| chain.chain.clone()).collect();
        all.push(names.port_chain(ChainRole::Local, &service, 80, Protocol::Tcp));
        all.push(names.endpoint_chain(&service, 80, Protocol::Udp, endpoint));
        for name in all {
            assert!(name.len() <= 28 && name.starts_with("ABCDEF-"), "{name}");
        }
    }

    #[test]
    fn only_chains_of_this_instance_are_ours() {
        let names = ServiceNames::for_instance("mk8s");
        let ours = |table, name: &str| names.is_ours(&ChainRef::new(table, name));
        assert!(ours(Table::Nat, "MK8S-SVC-ABCDEFGHIJKLMN27") && ours(Table::Filter, "MK8S-SERVICES"));
        for (table, name) in [
            (Table::Filter, "MK8S-SVC-ABCDEFGHIJKLMN27"),
            (Table::Nat, "MK8SB-SVC-ABCDEFGHIJKLMN27"),
            (Table::Nat, "MK8S-SVC-ABCDEFGHIJKLMN2"),
            (Table::Nat, "MK8S-SVC-abcdefghijklmn27"),
            (Table::Nat, "MK8S-SVC-ABCDEFGHIJKLMN21"),
            (Table::Nat, "MK8S-POSTROUTING"),
            (Table::Filter, "MK8S-FORWARD"),
            (Table::Nat, "KUBE-SVC-ABCDEFGHIJKLMN27"),
        ] {
            assert!(!ours(table, name), "{name}");
        }
    }
}
