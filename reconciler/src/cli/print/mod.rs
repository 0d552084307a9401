//! Output to a terminal, to a pipe, or as data.

pub(super) mod output;
pub(crate) mod tables;
