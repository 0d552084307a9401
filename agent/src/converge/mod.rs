//! The loops of a node: each observes a part of it, plans, acts and reports.

pub mod network;
pub mod node;
pub mod pod_table;
pub mod pods;
