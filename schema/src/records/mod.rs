//! Values of the etcd keys that are not desired objects: pods, nodes, sources, events.

mod events;
mod nodes;
mod pods;
mod sources;

pub use events::{Event, EventType};
pub use nodes::{Heartbeat, NodeRecord, NodeVersions, Subnet};
pub use pods::{Binding, OwnerRef, PodInstance, Settled};
pub use sources::{
    ChangeCounts, HeldPrune, Quarantine, Revision, SourceError, SourceErrorKind, SourceState, SourceStatus,
    Verdict,
};
