//! Addresses and host ports: which are in use, and which is next.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use schema::kinds::pod::{HostPortStatus, PodSpec, Protocol};

use super::facts::Observed;

/// First and last port given for `hostPort: 0`; below Linux' own ephemeral range (from 32768).
pub const PORTS: std::ops::RangeInclusive<u16> = 20_000..=32_000;

/// What is given out.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    addresses: BTreeSet<Ipv4Addr>,
    ports: BTreeSet<(Protocol, u16)>,
    last: Option<Ipv4Addr>,
}

impl Pool {
    /// All that containers (in whatever state), and tasks under way, hold.
    pub fn of(observed: &Observed) -> Self {
        let mut pool = Self { last: observed.memory.last_address, ..Self::default() };
        for pause in observed.pods.values().flat_map(|pod| &pod.pauses) {
            pool.addresses.extend(pause.address.map(|net| net.addr()));
            pool.ports.extend(pause.ports.iter().map(|p| (p.protocol, p.host_port)));
        }
        for busy in observed.memory.busy.values() {
            pool.addresses.extend(busy.address);
            pool.ports.extend(busy.ports.iter().map(|p| (p.protocol, p.host_port)));
        }
        pool.last = pool.last.or_else(|| pool.addresses.last().copied());
        pool
    }

    /// The address given out last.
    pub fn last_address(&self) -> Option<Ipv4Addr> {
        self.last
    }

    /// Gives a pod's own former address and ports back to it.
    pub fn release(&mut self, address: Option<Ipv4Addr>, ports: &[HostPortStatus]) {
        if let Some(address) = address {
            self.addresses.remove(&address);
        }
        for port in ports {
            self.ports.remove(&(port.protocol, port.host_port));
        }
    }

    /// An address of `subnet`: `preferred` if it is free, else the next after the one given out last.
    /// Never the network's, the bridge's (the first) or the broadcast address.
    pub fn address(&mut self, subnet: Ipv4Net, preferred: Option<Ipv4Addr>) -> Option<Ipv4Net> {
        let (first, last) = (u32::from(subnet.network()) + 2, u32::from(subnet.broadcast()).checked_sub(1)?);
        if first > last {
            return None;
        }
        let usable = |a: Ipv4Addr| (first..=last).contains(&u32::from(a));
        let preferred = preferred.filter(|a| usable(*a) && !self.addresses.contains(a));
        let found = preferred.or_else(|| {
            let start = self.last.filter(|a| usable(*a)).map_or(first, |a| u32::from(a) + 1);
            (start..=last)
                .chain(first..start.min(last + 1))
                .map(Ipv4Addr::from)
                .find(|a| !self.addresses.contains(a))
                .inspect(|a| self.last = Some(*a))
        })?;
        self.addresses.insert(found);
        Ipv4Net::new(found, subnet.prefix_len()).ok()
    }

    /// The host ports of a pod; those of `former` are kept for `hostPort: 0` if still free.
    /// The error names a port that another pod has.
    pub fn ports(&mut self, spec: &PodSpec, former: &[HostPortStatus]) -> Result<Vec<HostPortStatus>, u16> {
        let mut given = Vec::new();
        let mut wanted: Vec<_> = spec.containers.iter().flat_map(|c| &c.ports).collect();
        // Fixed ones first, so that a free one is none of them.
        wanted.sort_by_key(|port| port.host_port == Some(0));
        for port in wanted {
            let Some(wanted) = port.host_port else { continue };
            let protocol = port.protocol;
            // On the host's network there is no port but the container's own.
            let wanted = if spec.host_network { port.container_port } else { wanted };
            let host_port = match wanted {
                0 => former
                    .iter()
                    .filter(|f| f.container_port == port.container_port && f.protocol == protocol)
                    .map(|f| f.host_port)
                    .chain(PORTS)
                    .find(|p| !self.ports.contains(&(protocol, *p)))
                    .ok_or(0u16)?,
                fixed if self.ports.contains(&(protocol, fixed)) => return Err(fixed),
                fixed => fixed,
            };
            self.ports.insert((protocol, host_port));
            given.push(HostPortStatus { host_port, container_port: port.container_port, protocol });
        }
        Ok(given)
    }
}
