//! Decides on nodes: their ranges of pod addresses, how they fare, and what goes with those that are gone.

use jiff::Timestamp;

use super::{conditions, gone, subnets};
use crate::controllers::{Observed, Writes};

/// What should be written below `subnets/` and `nodestate/`, and the keys of gone nodes to delete.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Writes {
    let mut out = Writes::default();
    subnets::plan(seen, &mut out);
    conditions::plan(seen, now, &mut out);
    gone::plan(&seen.snapshot, &mut out);
    out
}
