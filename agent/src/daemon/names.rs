//! Rows of the DNS and gateway loops, used by the agent and by the standby.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{Row, Runtime};
use schema::records::{NodeDemand, Subnet};
use tokio::sync::watch;

use super::base::every;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::converge::control_plane::ControlPlane;
use crate::converge::dns::{self, DnsDeps, DnsLoop};
use crate::converge::function_calls::FunctionCalls;
use crate::converge::functions::{self, FunctionsDeps, FunctionsLoop};
use crate::converge::gateway::{self, GatewayDeps, GatewayLoop};
use crate::converge::node_dns::NodeDns;
use crate::files::PodFiles;
use crate::standby::Handover;
use crate::worlds::netlink::Netlink;

/// Interval at which the gateway checks its listeners and routes; changes wake it.
const GATEWAY_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which calls are counted while there are any.
const DEMAND_INTERVAL: Duration = Duration::from_secs(1);

/// Inputs of DNS and gateway.
#[derive(Clone)]
pub(crate) struct NamesDeps {
    pub(crate) subnet: watch::Receiver<Option<Subnet>>,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) handover: Handover,
}

/// Wires the name server; returns the DNS settings of pods.
pub(crate) fn wire_dns(
    runtime: &mut Runtime,
    config: &Config,
    netlink: Arc<dyn Netlink>,
    names: &NamesDeps,
) -> watch::Receiver<NodeDns> {
    let NamesDeps { subnet, catalog, handover } = names.clone();
    let (settings, agent_dir) = (config.dns.clone(), config.machine.agent_dir());
    let range = subnet.borrow().clone();
    let at_first = Arc::clone(&catalog.borrow());
    let cluster = &at_first.settings.spec.dns;
    let first = dns::first_zone(&settings.domain(cluster), range.as_ref(), &at_first);
    let (zones, zone) = watch::channel(Arc::new(first));
    let row = Row::when_woken().wake_on(subnet.clone()).wake_on(catalog.clone()).rest(dns::SPACING);
    let publish = dns::publish_zone(settings.clone(), subnet.clone(), catalog.clone(), zones);
    runtime.follow_blocking("zone", row, publish);

    let (pods, for_pods) = watch::channel(settings.first_for_pods(range.as_ref(), &agent_dir, cluster));
    let (reads, of_catalog) = watch::channel(Default::default());
    let follows = Row::when_woken().wake_on(catalog.clone()).rest(dns::SPACING);
    runtime.follow("dns settings and hosts", follows, dns::publish_read(catalog.clone(), reads));
    let row = every(dns::INTERVAL).wake_on(subnet.clone()).wake_on(of_catalog);
    let instance = config.machine.instance.clone();
    let deps = DnsDeps { settings, instance, agent_dir, netlink, subnet, catalog, zone, pods, handover };
    runtime.drive(row, DnsLoop::new(deps));
    for_pods
}

/// Wires the functions gateway: its loop, its server and its reports of calls.
pub(crate) fn wire_functions(
    runtime: &mut Runtime,
    listen: SocketAddr,
    names: NamesDeps,
    demand: watch::Sender<Option<NodeDemand>>,
    (files, control): (Arc<PodFiles>, watch::Receiver<ControlPlane>),
) -> Arc<dyn FunctionCalls> {
    let NamesDeps { subnet, catalog, handover } = names;
    let calls = functions::Calls::new(Timestamp::now());
    let row = Row::every(DEMAND_INTERVAL).wake_on(calls.changed());
    runtime.follow("calls of functions", row, functions::publish_demand(calls.clone(), demand));
    let row = every(GATEWAY_INTERVAL).wake_on(subnet.clone()).wake_on(catalog.clone());
    let row = row.wake_on(control.clone());
    let deps = FunctionsDeps { listen, subnet, catalog, calls, files, control, handover };
    let (the_loop, serving) = FunctionsLoop::new(deps, runtime.token());
    runtime.task("functions server", serving);
    let functions = Arc::new(the_loop.functions());
    runtime.drive(row, the_loop);
    functions
}

/// Wires the gateway: the loop that sets its address and routing table, and the server.
pub(crate) fn wire_gateway(
    runtime: &mut Runtime,
    node: &str,
    names: NamesDeps,
    functions: Arc<dyn FunctionCalls>,
) {
    let NamesDeps { subnet, catalog, handover } = names;
    let row = every(GATEWAY_INTERVAL).wake_on(subnet.clone()).wake_on(catalog.clone());
    let (node, port, limits) = (node.to_owned(), gateway::PORT, crate::http::limits::Limits::default());
    let deps = GatewayDeps { node, port, limits, subnet, catalog, functions, handover };
    let (the_loop, serving) = GatewayLoop::new(deps, runtime.token());
    runtime.task("gateway server", serving);
    runtime.drive(row, the_loop);
}
