//! The gateway loop: routes hosts and paths of Dns objects to endpoints of services and to functions, on this node.
//!
//! Reads the node's service range and the catalog; decides in `plan.rs`; opens the listener and swaps the table
//! without disturbing requests. Needs neither etcd nor Docker.

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

mod act;
pub mod balance;
mod handler;
mod headers;
mod observe;
pub mod plan;
pub mod proxy;
pub mod route;
pub mod shares;
#[cfg(test)]
mod tests;

pub use act::Outcome;

use self::handler::Router;
use self::plan::{GatewayPlan, Observed};
use self::proxy::Proxy;
use self::route::Table;
use self::shares::Turns;
use crate::catalog::Catalog;
use crate::converge::function_calls::FunctionCalls;
use crate::http::limits::Limits;
use crate::http::server::Server;
use crate::standby::Handover;

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
        let router = Router { table: newest, proxy: proxy.clone(), turns: turns.clone(), functions };
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
        let why = "this node has no range of services yet; the nodes controller assigns one";
        Ok(self.look().map_or_else(|| Observation::NotReady(why.to_owned()), Observation::Ready))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> GatewayPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: GatewayPlan) -> Outcome {
        self.carry_out(observed, plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        for sentence in &outcome.done {
            tracing::info!("gateway: {sentence}");
        }
        outcome.failed.map_or(Ok(Next::Interval), |why| Err(LoopError::message(why)))
    }
}
