//! Allocation of pod addresses and host ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use schema::kinds::pod::{ContainerPort, HostPort, HostPortStatus, PodSpec};
use schema::meta::NamespacedName;

use crate::converge::pods::facts::{Observed, PodFacts, Uid};
use crate::converge::pods::steps::{DYNAMIC_PORTS, Holder, PortTaken};
use crate::desired::DesiredState;
use crate::worlds::netlink::{Listener, Port};

/// Addresses and host ports in use.
#[derive(Debug, Clone, Default)]
pub struct AllocationPool {
    addresses: BTreeSet<Ipv4Addr>,
    /// Host ports in use, each with the pod that holds it.
    ports: BTreeMap<HostPort, String>,
    listening: BTreeMap<Port, Listener>,
    /// Ports that a pod of this node requests, whether it holds them or not.
    named: BTreeSet<Port>,
    last: Option<Ipv4Addr>,
}

impl AllocationPool {
    /// Collects everything that containers (in any state) and tasks in progress hold, and the ports that wanted
    /// pods request.
    pub fn from_observed(observed: &Observed) -> Self {
        let listening = observed.listeners.clone();
        let bindings = observed.desired.pods.values();
        let named = bindings.flat_map(|binding| wanted(&binding.pod.spec)).filter(|(_, number)| *number != 0);
        let named = named.map(|(port, number)| (port.protocol, number)).collect();
        let mut pool = Self { last: observed.work.last_address, listening, named, ..Self::default() };
        for (uid, facts) in &observed.pods {
            let holder = facts.pod.as_ref().map_or_else(|| uid.clone(), ToString::to_string);
            for pause in &facts.pauses {
                pool.addresses.extend(pause.address.map(|net| net.addr()));
                pool.hold(&pause.ports, &holder);
            }
        }
        for busy in observed.work.busy.values() {
            pool.addresses.extend(busy.address);
            pool.hold(&busy.ports, &busy.pod.to_string());
        }
        pool.last = pool.last.or_else(|| pool.addresses.last().copied());
        pool
    }

    fn hold(&mut self, ports: &[HostPortStatus], holder: &str) {
        self.ports.extend(ports.iter().map(|p| (p.port(), holder.to_owned())));
    }

    /// Returns the address allocated last.
    pub fn last_address(&self) -> Option<Ipv4Addr> {
        self.last
    }

    /// Frees the former address and ports of a pod, so that it can get them again.
    pub fn release(&mut self, address: Option<Ipv4Addr>, ports: &[HostPortStatus]) {
        if let Some(address) = address {
            self.addresses.remove(&address);
        }
        for port in ports {
            self.ports.remove(&port.port());
        }
    }

    /// Allocates an address of `subnet`: `preferred` if it is free, else the next after the one allocated last.
    /// Never the network address, the bridge's (the first) or the broadcast address.
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

    /// Allocates the host ports of a pod; those of `former` are kept for `hostPort: 0` if still free. Dynamic ports
    /// avoid those that a pod of this node requests, which could otherwise wait forever. With `listens` the pod
    /// itself is the listener, on the host's network.
    pub fn ports(
        &mut self,
        pod: (&NamespacedName, &PodSpec),
        former: &[HostPortStatus],
        listens: bool,
    ) -> Result<Vec<HostPortStatus>, PortTaken> {
        let (pod, spec) = pod;
        let mut given: Vec<HostPortStatus> = Vec::new();
        // Fixed ports first, so that no dynamic port takes one of them.
        let mut wanted: Vec<_> = wanted(spec).collect();
        wanted.sort_by_key(|(_, number)| *number == 0);
        for (port, number) in wanted {
            let (protocol, address) = (port.protocol, port.host_address());
            let at = |port| HostPort { protocol, port, address };
            let own = |p: u16| given.iter().any(|g| g.port().clashes(&at(p)));
            let holder = |p: u16| {
                let own = own(p).then(|| Holder::Pod(pod.to_string()));
                own.or_else(|| self.holder(at(p), listens, spec.host_network))
            };
            let host_port = match number {
                0 => former
                    .iter()
                    .filter(|f| f.container_port == port.container_port && f.protocol == protocol)
                    .map(|f| f.host_port)
                    .chain(DYNAMIC_PORTS)
                    .find(|p| !self.named.contains(&(protocol, *p)) && holder(*p).is_none())
                    .ok_or(PortTaken { port: at(0), holder: Holder::AllInUse })?,
                fixed => match holder(fixed) {
                    Some(by) => return Err(PortTaken { port: at(fixed), holder: by }),
                    None => fixed,
                },
            };
            let container_port = port.container_port;
            given.push(HostPortStatus { host_port, host_ip: address, container_port, protocol });
        }
        // All or nothing: a pod that waits for one port holds no other.
        self.hold(&given, &pod.to_string());
        Ok(given)
    }

    fn holder(&self, port: HostPort, listens: bool, host_network: bool) -> Option<Holder> {
        let mut pods = self.ports.range(port.at_any_address());
        let pod = pods.find(|(other, _)| other.clashes(&port)).map(|(_, pod)| Holder::Pod(pod.clone()));
        // A forwarded port can coexist with a loopback listener unless it is the loopback's; a bound one cannot.
        let on_loopback = host_network || port.address.is_some_and(|address| address.is_loopback());
        let counts = |listener: &&Listener| !listens && (on_loopback || !listener.loopback);
        let listener = self.listening.get(&(port.protocol, port.port)).filter(counts);
        pod.or_else(|| listener.map(|listener| Holder::Process(listener.process.clone())))
    }
}

/// Returns the ports of a pod that are ports of its node, with the number; 0 is any free one.
fn wanted(spec: &PodSpec) -> impl Iterator<Item = (&ContainerPort, u16)> {
    let ports = spec.side_by_side().flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        let wanted = port.host_port?;
        // On the host's network the only port is the container's own.
        Some((port, if spec.host_network { port.container_port } else { wanted }))
    })
}

/// Returns the host ports of pods that have yet to get theirs; `None` if no pod is about to get any, so that the
/// node's listeners need not be read.
pub fn ports_to_allocate(desired: &DesiredState, pods: &BTreeMap<Uid, PodFacts>) -> Option<BTreeSet<Port>> {
    let wanting = desired.pods.values().map(|binding| &binding.pod);
    let wanting = wanting.filter(|pod| pods.get(&pod.uid).is_none_or(|facts| facts.live_pause().is_none()));
    let mut ports = wanting.flat_map(|pod| wanted(&pod.spec)).peekable();
    ports.peek()?;
    Some(ports.map(|(port, number)| (port.protocol, number)).collect())
}
