//! The loop and its tasks on an in-memory store, with functions behind a test gateway.

mod calls;
mod kit;
mod running;
mod takeovers;
mod triggers;
