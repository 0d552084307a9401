//! Snapshots and settings for controllers to plan on, and snapshots after a plan.

use std::sync::Arc;

use jiff::Timestamp;
use schema::kinds::pod::{ContainerPort, PodSpec};
use schema::snapshot::Snapshot;
use schema::testing::{CLUSTER_CIDR, SnapshotBuilder};

use super::{Change, Observed, Settings, Writes};

pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";

pub(crate) fn settings() -> Settings {
    Settings {
        cluster_cidr: CLUSTER_CIDR.parse().unwrap(),
        service_cidr: SERVICE_CIDR.parse().unwrap(),
        sources: ["main".to_owned()].into(),
        first_source: "main".to_owned(),
    }
}

pub(crate) fn seen(snapshot: &Snapshot) -> Observed {
    Observed {
        snapshot: Arc::new(snapshot.clone()),
        last_known: Arc::default(),
        term_began: Timestamp::UNIX_EPOCH,
        outdated_usage: Default::default(),
        demand_read_at: Default::default(),
        settings: settings(),
    }
}

pub(crate) fn with_host_port(mut spec: PodSpec, port: u16) -> PodSpec {
    let port = ContainerPort { container_port: 80, host_port: Some(port), ..ContainerPort::default() };
    spec.containers[0].ports.push(port);
    spec
}

/// Extends [`SnapshotBuilder`] by plans of controllers.
pub(crate) trait ApplyPlan {
    /// The snapshot after a plan was applied in one transaction.
    fn after(self, plan: &Writes) -> Self;
}

impl ApplyPlan for SnapshotBuilder {
    fn after(self, plan: &Writes) -> Self {
        self.commit(plan.writes.iter().map(|write| match &write.change {
            Change::Put(value) => (write.key.to_string(), Some(value.clone())),
            Change::Delete => (write.key.to_string(), None),
        }))
    }
}
