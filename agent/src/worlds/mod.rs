//! The outside worlds of the agent: one small trait each, with the real thing and a scripted fake.

pub mod docker;
pub mod iptables;
pub mod machine;
pub mod netlink;
pub mod pause;
