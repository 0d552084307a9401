//! Commands that work on files and revisions, without a reconciler or only reading its state.

pub(super) mod preview;
pub(super) mod simulate;
pub(super) mod validate;
