//! Data shared by the modules of the pods loop: no decisions, no actions.

mod container;
mod ids;
mod node;
mod observed;
mod placement;
mod work;

pub use container::{Container, Ends, Exited, PodFacts, State};
pub use ids::{Finished, LastReported, Slot, Uid};
pub use node::{ContainerLimits, DEFAULT_PIDS, NodeFacts};
pub use observed::Observed;
pub use placement::Placement;
pub use work::{Busy, Pulling, Trouble, Work};
