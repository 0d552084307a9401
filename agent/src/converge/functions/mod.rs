//! The functions loop: calls of functions through this node, at `:8081` of all its addresses, or of one and the pods'
//! bridge, over TLS or in plain HTTP.
//!
//! Reads the catalog; decides in `plan.rs`; opens the listener and assigns replicas to waiting calls. A call goes
//! to the replica with the fewest of this node's calls (`call_queue.rs`), waits if there is none, and is counted: the
//! functions controller scales by `demand/<node>`. Calls to running replicas need neither etcd nor Docker.

pub mod answer;
mod beats;
mod call;
mod call_queue;
mod caller_policy;
mod handler;
mod phases;
pub mod plan;
#[cfg(test)]
mod tests;
mod window;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::names::HostNames;
use schema::records::{NodeDemand, Subnet};
use schema::trust::TrustReader;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Catalog;
use crate::files::PodFiles;
use crate::http::server;
use crate::http::server::{Limits, Server};
use crate::standby::{Handover, Role, copy};
use caller_policy::PodAddresses;
use plan::{FunctionsPlan, Observed};
use schema::control::publish;

pub use call_queue::Calls;
pub use handler::Functions;

/// Dependencies of the loop.
pub struct FunctionsDeps {
    pub listen: SocketAddr,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub calls: Calls,
    /// Decrypts the tokens of callers from outside.
    pub files: Arc<PodFiles>,
    pub handover: Handover,
    /// Own certificate, and what callers over TLS must show.
    pub trust: TrustReader,
    /// Names by which pages of this node's own may address the gateway.
    pub hosts: HostNames,
}

/// Loop that manages the functions listener and known functions.
#[derive(Debug)]
pub struct FunctionsLoop {
    listen: SocketAddr,
    subnet: watch::Receiver<Option<Subnet>>,
    catalog: watch::Receiver<Arc<Catalog>>,
    calls: Calls,
    known: watch::Sender<PodAddresses>,
    listeners: BTreeMap<Role, mpsc::Sender<TcpListener>>,
    listens: BTreeMap<Role, SocketAddr>,
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
        let FunctionsDeps { listen, subnet, catalog, calls, files, handover, trust, hosts } = deps;
        let (known, knows) = watch::channel(PodAddresses::default());
        let functions = Functions::new(catalog.clone(), knows, calls.clone(), Some(files));
        let functions = functions.listening(listen).addressed_as(hosts);
        let [(everyone, at_own), (pods, at_bridge)] = [(); 2].map(|()| mpsc::channel(1));
        let listeners = BTreeMap::from([(Role::Functions, everyone), (Role::PodFunctions, pods)]);
        let serving = serve_all(functions.clone(), [at_own, at_bridge], Some(trust), shutdown);
        let (listens, followed) = (BTreeMap::new(), None);
        let the_loop =
            Self { listen, subnet, catalog, calls, known, listeners, listens, followed, functions, handover };
        (the_loop, serving)
    }

    /// Returns the handler, for calls that arrive through a host.
    pub fn functions(&self) -> Functions {
        self.functions.clone()
    }
}

/// Serves callers at the newest of the listeners.
async fn serve(
    functions: Functions,
    listeners: mpsc::Receiver<TcpListener>,
    trust: Option<TrustReader>,
    shutdown: CancellationToken,
) {
    let server = Server::new(functions, Limits::default(), TaskTracker::new(), CancellationToken::new());
    server.with_tls(trust).run(listeners, shutdown).await;
}

/// Serves callers at both addresses, those of the bridge apart from all others.
async fn serve_all(
    functions: Functions,
    listeners: [mpsc::Receiver<TcpListener>; 2],
    trust: Option<TrustReader>,
    shutdown: CancellationToken,
) {
    let [own, bridge] =
        listeners.map(|opened| serve(functions.clone(), opened, trust.clone(), shutdown.clone()));
    tokio::join!(own, bridge);
}

/// Serves callers without a loop, at the sockets inherited from an agent that ended. Without `trust` it knows no TLS.
pub async fn serve_inherited(
    functions: Functions,
    handover: Handover,
    (at, subnet): (SocketAddr, Option<&Subnet>),
    trust: Option<TrustReader>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let [(everyone, at_own), (pods, at_bridge)] = [(); 2].map(|()| mpsc::channel(1));
    for (role, at) in plan::addresses(at, subnet) {
        // An agent of an older version holds none.
        let Some([socket]) = handover.take([(role, at)]).await else { continue };
        let listeners = if role == Role::PodFunctions { &pods } else { &everyone };
        // The channel has room for one.
        let _ = listeners.try_send(TcpListener::from_std(socket.into())?);
    }
    functions.prepare();
    serve_all(functions, [at_own, at_bridge], trust, shutdown).await;
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
        Ok(Observation::Ready(self.read_inputs()))
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

/// Creates a step that publishes the demand report if more than its time changed.
pub fn publish_demand(calls: Calls, demand: watch::Sender<Option<NodeDemand>>) -> impl FnMut() + Send {
    move || {
        let mut next = calls.demand();
        let before = demand.borrow().as_ref().and_then(|before| before.at);
        let at = std::mem::replace(&mut next.at, before);
        let is_same = demand.borrow().as_ref() == Some(&next);
        if !is_same {
            publish(&demand, Some(NodeDemand { at, ..next }));
        }
    }
}

// Opens the listener, and passes new function state to waiting calls.

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Option<String>,
}

impl FunctionsLoop {
    async fn carry_out(&mut self, plan: FunctionsPlan) -> Outcome {
        self.functions.prepare();
        if let Some(known) = plan.known {
            self.known.send_replace(known);
        }
        if plan.follow {
            // Not the observed catalog: a caller may since have found a function that was missing then, and waits
            // for it. Nor does the catalog change meanwhile.
            let newest = self.catalog.borrow();
            self.calls.follow(newest.functions.iter().map(|(id, found)| (id, &found.value)));
            self.followed = Some(Arc::clone(&newest));
        }
        let mut outcome = Outcome::default();
        for (role, at) in plan.listen {
            match self.open(role, at).await {
                Ok(()) => tracing::info!(address = %at, "functions listening"),
                Err(error) => {
                    outcome.failed = Some(format!(
                        "cannot listen at {at}: {error}; until it can, functions can't be called through this node \
                         (--functions-listen sets another port)"
                    ));
                }
            }
        }
        outcome
    }

    async fn open(&mut self, role: Role, at: SocketAddr) -> io::Result<()> {
        let listener = match self.handover.take([(role, at)]).await {
            Some([inherited]) => TcpListener::from_std(inherited.into())?,
            None => {
                if at.ip().is_unspecified() {
                    // It includes the bridge, where a former agent may have listened for pods: its socket, which nobody
                    // asks for now, would keep the port.
                    drop(self.handover.take([(Role::PodFunctions, at)]).await);
                }
                server::listen(at)?
            }
        };
        let copied = copy(&listener)?;
        // The server ends only at shutdown.
        let server = self.listeners.get(&role).ok_or(io::ErrorKind::NotFound)?;
        server.send(listener).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.listens.insert(role, at);
        self.handover.hold(role, copied);
        Ok(())
    }
}

// Observes the catalog, the node's range and the current listeners.

impl FunctionsLoop {
    fn read_inputs(&mut self) -> Observed {
        Observed {
            wanted: self.listen,
            listens: self.listens.clone(),
            catalog: Arc::clone(&self.catalog.borrow_and_update()),
            subnet: self.subnet.borrow_and_update().clone(),
            followed: self.followed.clone(),
            known: self.known.borrow().clone(),
        }
    }
}
