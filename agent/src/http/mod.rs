//! An HTTP/1.1 server that no client can hold up: of hosts (`converge/gateway`) and of functions
//! (`converge/functions`).

pub mod body;
pub mod client;
pub mod cores;
pub mod limits;
mod patience;
pub mod room;
pub mod server;
pub mod upload;
