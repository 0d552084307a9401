//! One folder per kind of thing converged: observe, plan, act, report.

pub mod pod_table;
pub mod pods;
