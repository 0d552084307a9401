//! An HTTP/1.1 server that no client can block: for hosts (`converge/gateway`) and for functions
//! (`converge/functions`).

pub mod acceptor;
pub mod body;
pub mod client;
pub mod outgoing;
pub(crate) mod path;
mod patience;
pub mod plain;
pub(crate) mod routes;
pub mod server;
pub mod upload;
