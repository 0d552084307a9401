//! Commands that work on files and revisions: they need no reconciler, or no more than its state.

pub(super) mod explain;
pub(super) mod preview;
pub(super) mod simulate;
pub(super) mod validate;
