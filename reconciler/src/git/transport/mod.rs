//! Access to a remote: its address through a proxy, its certificate or host key, its credentials.

pub(super) mod authorities;
pub(super) mod credentials;
mod known_hosts;
pub(super) mod proxy;
pub(super) mod remote;
pub(super) mod sealed;
