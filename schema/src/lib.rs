//! The words both daemons share: kinds, manifests, etcd keys and values, the store and the loop.
//!
//! Without the features `store` and `control` this crate is pure: no clock, no I/O, no runtime.
#![warn(missing_docs)]

pub mod backoff;
pub mod codec;
pub mod condition;
#[cfg(feature = "control")]
pub mod control;
pub mod keys;
pub mod kinds;
pub mod manifest;
pub mod meta;
pub mod object;
pub mod quantity;
pub mod records;
pub mod selector;
#[cfg(feature = "store")]
pub mod store;
pub mod violation;
#[cfg(feature = "store")]
pub mod world;
