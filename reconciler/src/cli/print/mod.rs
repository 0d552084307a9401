//! How things are written to a terminal, a pipe or as data.

pub(super) mod output;
pub(crate) mod tables;
