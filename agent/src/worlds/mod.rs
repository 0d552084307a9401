//! The outside worlds of the agent: one small trait each, with the real thing and a scripted fake.

pub mod blobs;
pub mod cgroups;
pub mod disk;
pub mod docker;
pub mod host;
pub mod iptables;
pub mod netlink;
pub mod pause;
pub mod peers;
pub mod prober;
pub mod registry;
pub mod ssh;
