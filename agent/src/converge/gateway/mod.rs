//! The gateway loop: routes hosts and paths of Dns objects to endpoints of services and to functions, on this node.
//!
//! Reads the node's service range and the catalog; decides in `plan.rs`; opens the listener and swaps the table
//! without disturbing requests. Needs neither etcd nor Docker.

pub mod balance;
mod handler;
mod headers;
pub mod plan;
pub mod proxy;
pub mod route;
pub mod shares;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::Subnet;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::handler::Router;
use self::plan::{GatewayPlan, Observed};
use self::proxy::Proxy;
use self::route::Table;
use self::shares::Turns;
use super::shared::FunctionCalls;
use crate::catalog::Catalog;
use crate::http::server;
use crate::http::server::{Limits, Server};
use crate::metrics::METRICS;
use crate::standby::{Handover, Role, copy};

/// Port of the gateway: plain HTTP.
pub const PORT: u16 = 80;

/// Dependencies of the loop.
#[derive(Debug)]
pub struct GatewayDeps {
    pub node: String,
    pub port: u16,
    pub limits: Limits,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub functions: Arc<dyn FunctionCalls>,
    pub handover: Handover,
}

/// Loop that manages the listener and the routing table.
#[derive(Debug)]
pub struct GatewayLoop {
    node: String,
    port: u16,
    subnet: watch::Receiver<Option<Subnet>>,
    catalog: watch::Receiver<Arc<Catalog>>,
    table: watch::Sender<Arc<Table>>,
    proxy: Proxy,
    turns: Turns,
    listeners: mpsc::Sender<TcpListener>,
    listens: Option<SocketAddr>,
    routed: Option<Arc<Catalog>>,
    handover: Handover,
}

impl GatewayLoop {
    /// Creates the loop and the server that it controls. The server runs until `shutdown`, then waits, within
    /// bounds, for requests under way.
    pub fn new(
        deps: GatewayDeps,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let GatewayDeps { node, port, limits, subnet, catalog, functions, handover } = deps;
        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        let (table, newest) = watch::channel(Arc::new(Table::default()));
        let (listeners, opened) = mpsc::channel(1);
        let proxy = Proxy::new(limits.clone(), connections.clone(), shutdown.clone(), cut.clone());
        let turns = Turns::default();
        let requests = METRICS.gateway.clone();
        let router =
            Router { table: newest, proxy: proxy.clone(), turns: turns.clone(), functions, requests };
        let server = Server::new(router, limits, connections, cut);
        let (listens, routed) = (None, None);
        let the_loop =
            Self { node, port, subnet, catalog, table, proxy, turns, listeners, listens, routed, handover };
        (the_loop, server.run(opened, shutdown))
    }
}

#[async_trait]
impl Loop for GatewayLoop {
    type Observed = Observed;
    type Plan = GatewayPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "gateway"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let why = "this node has no service range yet; the nodes controller assigns one";
        Ok(self.read_inputs().map_or_else(|| Observation::NotReady(why.to_owned()), Observation::Ready))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> GatewayPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: GatewayPlan) -> Outcome {
        self.carry_out(observed, plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        outcome.failed.map_or(Ok(Next::Interval), |why| Err(LoopError::message(why)))
    }
}

// Installs a new table and opens the listener.

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Option<String>,
}

impl GatewayLoop {
    async fn carry_out(&mut self, observed: &Observed, plan: GatewayPlan) -> Outcome {
        let mut outcome = Outcome::default();
        self.proxy.sweep();
        if let Some(table) = plan.table {
            let (hosts, paths) = table.size();
            if self.table.borrow().size() != (hosts, paths) {
                tracing::info!(hosts, paths, "gateway routes changed");
            }
            let (endpoints, turns) = (table.endpoints(), table.turns());
            // Requests under way keep the table that they began with.
            self.table.send_replace(table);
            self.proxy.retain(&endpoints);
            self.turns.retain(&turns);
            self.routed = Some(Arc::clone(&observed.catalog));
        }
        if let Some(listen) = plan.listen {
            match self.listen(listen.at).await {
                Ok(()) => tracing::info!(address = %listen.at, why = listen.why, "gateway listening"),
                Err(error) => outcome.failed = Some(cannot_listen(listen.at, &error)),
            }
        }
        outcome
    }

    async fn listen(&mut self, at: SocketAddr) -> io::Result<()> {
        let listener = match self.handover.take([(Role::Gateway, at)]).await {
            Some([inherited]) => TcpListener::from_std(inherited.into())?,
            None => server::listen(at)?,
        };
        let copied = copy(&listener)?;
        // The server ends only at shutdown.
        self.listeners.send(listener).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.listens = Some(at);
        self.handover.hold(Role::Gateway, copied);
        Ok(())
    }
}

fn cannot_listen(at: SocketAddr, error: &io::Error) -> String {
    let help = match error.kind() {
        io::ErrorKind::AddrInUse => {
            let port = at.port();
            format!(
                "; another program uses port {port} of this address or of all addresses: \
                 stop it or give it an address of its own (`ss -ltnp 'sport = :{port}'` names it)"
            )
        }
        _ => String::new(),
    };
    format!(
        "cannot listen at {at}: {error}{help}; retrying every few seconds; until then, hosts of Dns objects do not answer on this node"
    )
}

// Observes the inputs of the gateway: the service range and the catalog. The loop remembers its own listener and
// table, which exist in this process only.

impl GatewayLoop {
    /// Returns `None` before the node has a range.
    fn read_inputs(&mut self) -> Option<Observed> {
        let service_cidr = self.subnet.borrow_and_update().as_ref()?.service_cidr;
        Some(Observed {
            node: self.node.clone(),
            service_cidr,
            port: self.port,
            listens: self.listens,
            catalog: Arc::clone(&self.catalog.borrow_and_update()),
            routed: self.routed.clone(),
        })
    }
}
