//! The agent: converges a node's containers, network and rules to the state that etcd, or its own disk, holds.

pub mod api;
pub mod args;
pub mod catalog;
pub mod clients;
pub mod cluster;
pub mod config;
pub mod converge;
pub mod daemon;
pub mod desired;
pub mod doctor;
pub mod files;
pub mod http;
pub mod join;
pub mod locks;
pub mod metrics;
pub(crate) mod mounts;
pub mod names;
pub mod node_address;
pub mod packet_rules;
pub mod reset;
pub mod standby;
#[cfg(test)]
mod testing;
pub(crate) mod trees;
pub mod worlds;
