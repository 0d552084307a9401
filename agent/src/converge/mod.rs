//! The loops of a node, one folder per kind of thing converged: observe, plan, act, report.

pub mod address;
pub mod builds;
pub mod dns;
pub mod functions;
pub mod gateway;
pub mod images;
pub mod network;
pub mod node;
pub mod pods;
pub mod services;
pub mod shared;
pub mod slurm;
pub mod trust;
pub mod usage;
