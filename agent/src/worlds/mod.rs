//! The outside worlds of the agent: a small trait each, with a real implementation and a scripted fake.

pub mod admission;
pub mod blobs;
pub mod cgroups;
pub mod docker;
pub mod host;
pub mod iptables;
pub mod netlink;
pub mod pause;
pub mod peers;
pub mod prober;
pub mod registry;
pub mod ssh;
