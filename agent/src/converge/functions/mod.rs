//! The functions loop: calls of functions through this node, at `:8081` of all its addresses.
//!
//! Reads the catalog; decides in `plan.rs`; opens the listener and assigns replicas to waiting calls. A call goes
//! to the replica with the fewest of this node's calls (`book.rs`), waits if there is none, and is counted: the
//! functions controller scales by `demand/<node>`. Calls to running replicas need neither etcd nor Docker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::records::{NodeDemand, Subnet};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod act;
pub mod answer;
mod beats;
mod book;
mod call;
mod handler;
mod observe;
mod phases;
pub mod plan;
mod rates;
#[cfg(test)]
mod tests;
mod token;
mod who;
mod window;

pub use act::Outcome;
pub use book::Calls;
pub use handler::Functions;
use plan::{FunctionsPlan, Observed};
use who::ClusterAddresses;

use crate::catalog::Catalog;
use crate::converge::control_plane::ControlPlane;
use crate::converge::publish;
use crate::files::PodFiles;
use crate::http::limits::Limits;
use crate::http::server::Server;
use crate::standby::{Handover, Role};

/// Dependencies of the loop.
pub struct FunctionsDeps {
    pub listen: SocketAddr,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub calls: Calls,
    /// Decrypts the tokens of callers from outside.
    pub files: Arc<PodFiles>,
    pub control: watch::Receiver<ControlPlane>,
    pub handover: Handover,
}

/// Loop that manages the functions listener and known functions.
#[derive(Debug)]
pub struct FunctionsLoop {
    listen: SocketAddr,
    subnet: watch::Receiver<Option<Subnet>>,
    catalog: watch::Receiver<Arc<Catalog>>,
    calls: Calls,
    control: watch::Receiver<ControlPlane>,
    known: watch::Sender<ClusterAddresses>,
    listeners: mpsc::Sender<TcpListener>,
    listens: Option<SocketAddr>,
    followed: Option<Arc<Catalog>>,
    functions: Functions,
    handover: Handover,
}

impl FunctionsLoop {
    /// Creates the loop and the server. The server answers callers until `shutdown`, then waits, within bounds, for
    /// calls under way.
    pub fn new(
        deps: FunctionsDeps,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let FunctionsDeps { listen, subnet, catalog, calls, files, control, handover } = deps;
        let (known, knows) = watch::channel(ClusterAddresses::default());
        let (listeners, opened) = mpsc::channel(1);
        let functions = Functions::new(catalog.clone(), knows, calls.clone(), Some(files)).listening(listen);
        let serving = serve(functions.clone(), opened, shutdown);
        let (listens, followed) = (None, None);
        let the_loop = Self {
            listen,
            subnet,
            catalog,
            calls,
            control,
            known,
            listeners,
            listens,
            followed,
            functions,
            handover,
        };
        (the_loop, serving)
    }

    /// Returns the handler, for calls that arrive through a host.
    pub fn functions(&self) -> Functions {
        self.functions.clone()
    }
}

/// Serves callers at the newest of the listeners.
async fn serve(functions: Functions, listeners: mpsc::Receiver<TcpListener>, shutdown: CancellationToken) {
    let (limits, connections) = (Limits::default(), TaskTracker::new());
    Server::new(functions, limits, connections, CancellationToken::new()).run(listeners, shutdown).await;
}

/// Serves callers without a loop, at the socket inherited from an agent that ended.
pub async fn serve_held(
    functions: Functions,
    handover: Handover,
    at: SocketAddr,
    shutdown: CancellationToken,
) -> io::Result<()> {
    // An agent of an older version holds none.
    let Some([socket]) = handover.take([(Role::Functions, at)]).await else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let (listeners, opened) = mpsc::channel(1);
    // The channel has room for one.
    let _ = listeners.try_send(TcpListener::from_std(socket.into())?);
    functions.prepare();
    serve(functions, opened, shutdown).await;
    Ok(())
}

#[async_trait]
impl Loop for FunctionsLoop {
    type Observed = Observed;
    type Plan = FunctionsPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "functions"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        Ok(Observation::Ready(self.look()))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> FunctionsPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, _observed: &Observed, plan: FunctionsPlan) -> Outcome {
        self.carry_out(plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        outcome.failed.map_or(Ok(Next::Interval), |why| Err(LoopError::message(why)))
    }
}

/// Creates a step that publishes the demand report if it changed.
pub fn publish_demand(calls: Calls, demand: watch::Sender<Option<NodeDemand>>) -> impl FnMut() + Send {
    move || {
        publish(&demand, Some(calls.demand()));
    }
}
