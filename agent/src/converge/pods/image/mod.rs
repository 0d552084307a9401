//! Images of containers: one pull per image regardless of the number of waiters (`pulls.rs`), progress for each
//! waiting container (`fetch.rs`), with the logins of its pod.

pub mod fetch;
pub mod pulls;
