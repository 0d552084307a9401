//! Runs of workflows.

pub mod machine;
