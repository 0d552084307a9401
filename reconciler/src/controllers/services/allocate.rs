//! Allocation of cluster IPs and node ports to services.
//!
//! A service keeps what it has. New addresses and ports follow from the service's name, so that a lost etcd that is
//! refilled from Git gives the same ones, in whatever order the services come back.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use schema::codec::content_hash;
use schema::kinds::pod::Protocol;
use schema::kinds::service::NODE_PORTS;
use schema::meta::NamespacedName;
use schema::records::{DNS_ADDRESS_OFFSET, GATEWAY_ADDRESS_OFFSET};

/// Offsets that no service gets: the range itself, Kubernetes' own `kubernetes` service, DNS and the gateway.
pub const RESERVED_ADDRESSES: [u32; 4] = [0, 1, DNS_ADDRESS_OFFSET, GATEWAY_ADDRESS_OFFSET];

/// Size of the static band: node ports above it are allocated first; those in it are for manifests that name one,
/// as in Kubernetes (86 of 2768).
const NODE_PORT_BAND: u16 = 86;

/// Allocated addresses with their holders.
pub(super) struct Addresses {
    range: Ipv4Net,
    taken: BTreeMap<Ipv4Addr, NamespacedName>,
}

impl Addresses {
    pub(super) fn new(range: Ipv4Net) -> Self {
        Self { range: range.trunc(), taken: BTreeMap::new() }
    }

    /// True if a service may have this address.
    pub(super) fn is_usable(&self, address: Ipv4Addr) -> bool {
        let offset = u32::from(address).wrapping_sub(u32::from(self.range.network()));
        self.range.contains(&address)
            && !RESERVED_ADDRESSES.contains(&offset)
            && address != self.range.broadcast()
    }

    /// Takes this address; the error is its present holder.
    pub(super) fn take(&mut self, address: Ipv4Addr, service: &NamespacedName) -> Result<(), NamespacedName> {
        match self.taken.get(&address) {
            Some(holder) if holder != service => Err(holder.clone()),
            _ => {
                self.taken.insert(address, service.clone());
                Ok(())
            }
        }
    }

    /// Takes a free address: the one that follows from the name, or the next free one. Stays above the band that
    /// Kubernetes reserves for manifests that name an address, as long as there is a free one.
    pub(super) fn take_any(&mut self, service: &NamespacedName) -> Option<Ipv4Addr> {
        let size = u32::try_from(self.range.hosts().count()).unwrap_or(u32::MAX).saturating_add(1);
        // As in Kubernetes: min(max(16, size / 16), 256).
        let band = (size / 16).clamp(16, 256).min(size / 2);
        let (dynamic, start) = (size - band, scatter(service));
        let upper = (0..dynamic).map(|step| band + (start.wrapping_add(step)) % dynamic);
        let found = upper.chain(0..band).find_map(|offset| {
            let address = Ipv4Addr::from(u32::from(self.range.network()).checked_add(offset)?);
            (self.is_usable(address) && !self.taken.contains_key(&address)).then_some(address)
        })?;
        self.taken.insert(found, service.clone());
        Some(found)
    }
}

/// Allocated node ports with their holders.
#[derive(Default)]
pub(super) struct NodePorts {
    taken: BTreeMap<(Protocol, u16), NamespacedName>,
}

impl NodePorts {
    /// Takes this port; the error is its present holder.
    pub(super) fn take(
        &mut self,
        protocol: Protocol,
        port: u16,
        service: &NamespacedName,
    ) -> Result<(), NamespacedName> {
        match self.taken.get(&(protocol, port)) {
            Some(holder) if holder != service => Err(holder.clone()),
            _ => {
                self.taken.insert((protocol, port), service.clone());
                Ok(())
            }
        }
    }

    /// Takes a free port for port number `index` of a service.
    pub(super) fn take_any(
        &mut self,
        protocol: Protocol,
        service: &NamespacedName,
        index: usize,
    ) -> Option<u16> {
        let (first, last) = (*NODE_PORTS.start(), *NODE_PORTS.end());
        let dynamic = u32::from(last - first - NODE_PORT_BAND) + 1;
        let start = scatter(service).wrapping_add(u32::try_from(index).unwrap_or_default());
        let upper = (0..dynamic)
            .filter_map(|step| u16::try_from(start.wrapping_add(step) % dynamic).ok())
            .map(|offset| first + NODE_PORT_BAND + offset);
        let mut ports = upper.chain(first..first + NODE_PORT_BAND);
        let port = ports.find(|port| !self.taken.contains_key(&(protocol, *port)))?;
        self.taken.insert((protocol, port), service.clone());
        Some(port)
    }
}

/// Returns a number that depends on the name alone.
fn scatter(service: &NamespacedName) -> u32 {
    let digest = content_hash(&service.to_string());
    u32::from_str_radix(digest.get(..8).unwrap_or("0"), 16).unwrap_or_default()
}
