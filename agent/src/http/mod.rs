//! An HTTP/1.1 server that no client can hold up: of hosts (`converge/gateway`) and of functions
//! (`converge/functions`).

pub mod body;
pub mod client;
pub mod connect;
pub mod cores;
pub mod limits;
mod patience;
pub mod plain;
pub mod replayed;
pub mod room;
pub mod server;
mod spares;
pub mod upload;
