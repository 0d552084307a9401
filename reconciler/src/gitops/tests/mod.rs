//! The whole path from real repositories to a store in memory, and to a real etcd.

mod any_kind;
mod contents;
mod crash;
mod dangerous;
mod held;
mod interleavings;
pub(super) mod kit;
mod lost;
mod numbers;
mod proofs;
mod reviewed;
mod story;
mod triggered;
mod waiting;
mod walk;

pub(super) use proofs::generator;

/// A number that the caller of the tests gave.
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `MINIK8S_ROUNDS`, but no fewer than a plain `cargo test` makes.
fn rounds(least: u64) -> u64 {
    from_environment("MINIK8S_ROUNDS").map_or(least, |asked| asked.max(least))
}
