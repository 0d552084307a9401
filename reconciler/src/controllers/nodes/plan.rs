//! Plans for nodes: pod address ranges, conditions, and cleanup of nodes that are gone.

use jiff::Timestamp;

use super::{conditions, subnets};
use crate::controllers::{Observed, Writes};

/// Returns the writes below `subnets/` and `nodestate/`, and the deletions of the keys of gone nodes.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Writes {
    let mut out = Writes::default();
    subnets::plan(seen, &mut out);
    conditions::plan(seen, now, &mut out);
    conditions::remove_gone(&seen.snapshot, &mut out);
    out
}
