//! Opens the listener, and passes new function state to waiting calls.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::FunctionsLoop;
use super::plan::FunctionsPlan;
use crate::http::server;
use crate::standby::{Role, copy};

/// Result of carrying out a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub failed: Option<String>,
}

impl FunctionsLoop {
    pub(super) async fn carry_out(&mut self, plan: FunctionsPlan) -> Outcome {
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
        if let Some(at) = plan.listen {
            match self.open(at).await {
                Ok(()) => tracing::info!("functions are called at {at}"),
                Err(error) => {
                    outcome.failed = Some(format!(
                        "cannot listen at {at}: {error}; functions can't be called through this node until then \
                         (--functions-listen names another port)"
                    ));
                }
            }
        }
        outcome
    }

    async fn open(&mut self, at: SocketAddr) -> io::Result<()> {
        let listener = match self.handover.take([(Role::Functions, at)]).await {
            Some([inherited]) => TcpListener::from_std(inherited.into())?,
            None => server::listen(at)?,
        };
        let copied = copy(&listener)?;
        // The server ends only at shutdown.
        self.listeners.send(listener).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.listens = Some(at);
        self.handover.hold(Role::Functions, copied);
        Ok(())
    }
}
