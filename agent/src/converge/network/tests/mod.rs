//! The network loop: golden rules, decisions, and both on the real kernel.

mod checksums;
mod golden;
mod kernel;
mod plans;
mod tunnel;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::control::Nudge;
use schema::kinds::pod::{HostPort, Protocol};
use schema::records::Subnet;
use tokio::sync::watch;

use super::super::shared::control_plane::ControlPlane;
use super::super::shared::node_network;
use super::super::shared::node_network::PodTable;
use super::plan::{Observed, assign_host_ports};
use super::render::{Model, gateway_of};
use super::{NetworkDeps, NetworkLoop, NetworkSettings};
use crate::node_address::NodeAddress;
use crate::packet_rules::chain::{ChainRef, Names};
use crate::packet_rules::saved::saved_rules;
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::{Bridge, Netlink, Tunnels};

/// A port at all addresses of the node.
fn port_of(protocol: Protocol, port: u16) -> HostPort {
    HostPort { protocol, port, address: None }
}

fn model(ports: &[(Protocol, u16, &str, u16, &str)]) -> Model {
    let wanted = ports.iter().map(|(protocol, port, address, to, pod)| {
        (port_of(*protocol, *port), address.parse().unwrap(), *to, *pod)
    });
    Model {
        names: Names::for_instance("mk8s"),
        node_cidr: "10.244.3.0/24".parse().unwrap(),
        cluster_cidr: "10.244.0.0/16".parse().unwrap(),
        random_fully: true,
        bridged_frames: false,
        host_ports: assign_host_ports(wanted),
        tunnel_port: 8472,
        tunnel_senders: None,
        dns: "10.96.0.10".parse().unwrap(),
        gateway: "10.96.0.11".parse().unwrap(),
        functions_port: 8081,
        functions: BTreeSet::new(),
        guarded: BTreeSet::new(),
        builds: None,
    }
}

fn bridge(model: &Model) -> Bridge {
    Bridge {
        name: model.names.bridge.clone(),
        address: gateway_of(model.node_cidr),
        vips: vec!["10.96.0.10".parse().unwrap(), "10.96.0.11".parse().unwrap()],
        services: "10.96.0.0/16".parse().unwrap(),
        mtu: 1450,
    }
}

/// Creates a loop on these worlds, for a node that knows no other node yet, and the receiver of its tunnel reports.
fn network_loop<N: Netlink + Tunnels>(
    settings: NetworkSettings,
    netlink: Arc<N>,
    iptables: Arc<dyn Iptables>,
    subnet: watch::Receiver<Option<Subnet>>,
    pods: watch::Receiver<PodTable>,
) -> NetworkLoop {
    let (_, catalog) = watch::channel(Arc::default());
    let vtep = watch::Sender::new(None);
    let tunnels: Arc<dyn Tunnels> = netlink.clone();
    NetworkLoop::new(
        settings,
        NetworkDeps {
            netlink,
            tunnels,
            iptables,
            subnet,
            pods,
            catalog,
            control: watch::channel(ControlPlane::default()).1,
            vtep,
            sandboxed: watch::Sender::default(),
            builds: node_network::channel().1,
            address: NodeAddress::channel(Some([192, 0, 2, 1].into())).1,
            rules_changed: Nudge::new().0,
        },
    )
}

/// A node whose rules are those of `saved`, and whose bridge is intact.
fn observed(model: Model, saved: &str) -> Observed {
    let bases: Vec<ChainRef> = model.names.jumps().into_iter().map(|jump| jump.base).collect();
    let ours: Vec<ChainRef> = model.names.chains().into_iter().cloned().collect();
    Observed {
        bridge: bridge(&model),
        tunnel: None,
        tunnel_failure: None,
        bridge_is_whole: true,
        frames_are_right: true,
        saved: saved_rules(saved, |chain| bases.contains(chain) || ours.contains(chain)).into(),
        spellings: Arc::default(),
        model,
    }
}

/// Rules that Docker 20.10 leaves on a node, as printed there by `iptables-save`.
const DOCKERS_RULES: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
";
