//! Images of containers: one pull each however many wait (`pulls.rs`), for each container that waits
//! (`fetch.rs`), with the logins that its pod brings.

pub mod credentials;
pub mod fetch;
pub mod pulls;
pub mod registry_login;
