//! Installs a new table and opens the listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::GatewayLoop;
use super::plan::{GatewayPlan, Observed};
use crate::http::server;
use crate::standby::{Role, copy};

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub done: Vec<String>,
    pub failed: Option<String>,
}

impl GatewayLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: GatewayPlan) -> Outcome {
        let mut outcome = Outcome::default();
        self.proxy.sweep();
        if let Some(table) = plan.table {
            let (hosts, paths) = table.size();
            if self.table.borrow().size() != (hosts, paths) {
                outcome.done.push(format!("routes {hosts} hosts with {paths} paths"));
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
                Ok(()) => outcome.done.push(format!("listens at {}: {}", listen.at, listen.why)),
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
                "; another program has port {port} of this address or of all addresses: \
                 stop it or give it an address of its own (`ss -ltnp 'sport = :{port}'` names it)"
            )
        }
        _ => String::new(),
    };
    format!(
        "cannot listen at {at}: {error}{help}; it is tried again every few seconds, and hosts of Dns objects do not answer on this node until then"
    )
}
