//! The whole path from real repositories to an in-memory store, and to a real etcd.

mod any_kind;
mod contents;
mod crash;
mod dangerous;
mod held;
mod interleavings;
pub(super) mod kit;
mod lost;
mod numbers;
mod policy;
mod proofs;
mod reviewed;
mod story;
mod triggered;
mod waiting;
mod walk;

pub(super) use proofs::generator;

/// Number from an environment variable of the test run.
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `MINIK8S_ROUNDS`, but at least the number of a plain `cargo test`.
fn rounds(least: u64) -> u64 {
    from_environment("MINIK8S_ROUNDS").map_or(least, |asked| asked.max(least))
}
