//! The loop and its tasks on a store in memory, with functions behind a gateway of the test's own.

mod calls;
mod kit;
mod running;
mod takeovers;
mod triggers;
