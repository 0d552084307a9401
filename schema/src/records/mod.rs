//! Values of the etcd keys that are not desired objects: pods, nodes, sources, events.

mod deliveries;
mod events;
mod nodes;
mod pods;
mod sources;
mod usage;

pub use deliveries::{
    CLI_DELIVERIES_MAX, DELIVERIES_MAX, DELIVERY_ID_MAX, Delivery, DeliveryAnswer, DeliveryOutcome, Provider,
};
pub use events::{Event, EventType};
pub use nodes::{Heartbeat, NodeRecord, NodeVersions, Subnet};
pub use pods::{Binding, OwnerRef, PodInstance, Settled};
pub use sources::{
    ChangeCounts, HeldPrune, PlanRecord, Quarantine, Revision, SourceError, SourceErrorKind, SourceState,
    SourceStatus, Verdict, Waiting,
};
pub use usage::{ContainerUsage, NodeUsage, PodUsage};
