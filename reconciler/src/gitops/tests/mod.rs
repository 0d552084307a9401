//! The whole path from real repositories to a store in memory.

mod crash;
mod dangerous;
mod kit;
mod numbers;
mod proofs;
mod story;
