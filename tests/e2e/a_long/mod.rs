//! The slowest stories. libtest starts tests in the order of their full names, so this folder's name puts them
//! first: a slow story started last would leave the other threads idle.

mod dangerous_commits;
mod dns;
pub(crate) mod master_killed;
mod node_leaves;
mod older_autoscalers;
mod partitions;
mod runs_killed;
mod runs_long;
mod trust;
