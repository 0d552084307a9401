//! Keeps the newest version of the cluster's identity on this node.
//!
//! Reads the catalog's settings, which name it; fetches it and decrypts it with the node's own identity. The
//! ciphertext stays on this node's disk for an agent that starts without etcd.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation, Plan};
use tokio::sync::watch;

use super::{PodFiles, SecretError};
use crate::catalog::Catalog;
use crate::desired::StateOrigin;

pub struct IdentityLoop {
    files: Arc<PodFiles>,
    catalog: watch::Receiver<Arc<Catalog>>,
}

impl IdentityLoop {
    pub fn new(files: Arc<PodFiles>, catalog: watch::Receiver<Arc<Catalog>>) -> Self {
        Self { files, catalog }
    }
}

/// Work of a run.
#[derive(Debug)]
pub struct IdentityPlan {
    fetch: bool,
}

impl Plan for IdentityPlan {
    fn is_empty(&self) -> bool {
        !self.fetch
    }
}

#[async_trait]
impl Loop for IdentityLoop {
    type Observed = (Arc<Catalog>, bool);
    type Plan = IdentityPlan;
    type Outcome = Result<(), SecretError>;

    fn name(&self) -> &'static str {
        "identity"
    }

    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError> {
        let catalog = Arc::clone(&self.catalog.borrow());
        if catalog.known_from == StateOrigin::Unknown {
            return Ok(Observation::NotReady("nothing is known about the cluster yet".to_owned()));
        }
        let is_current = self.files.has_identity(catalog.settings.identity.as_ref());
        Ok(Observation::Ready((catalog, is_current)))
    }

    fn plan((_, is_current): &Self::Observed, _now: Timestamp) -> IdentityPlan {
        IdentityPlan { fetch: !is_current }
    }

    async fn act(&mut self, (catalog, _): &Self::Observed, plan: IdentityPlan) -> Result<(), SecretError> {
        self.files.follow(&catalog.settings);
        if plan.fetch { self.files.load_identity().await } else { Ok(()) }
    }

    async fn report(
        &mut self,
        _: Self::Observed,
        outcome: Result<(), SecretError>,
    ) -> Result<Next, LoopError> {
        match outcome {
            Ok(()) => Ok(Next::Interval),
            Err(error) => {
                Err(LoopError::new("secrets that are encrypted to the cluster can't be read", error))
            }
        }
    }
}
