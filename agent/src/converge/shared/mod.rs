//! Values and services that several loops share: none of these is a loop.

pub mod control_plane;
pub mod image_store;
pub mod node_network;
pub mod pulls;

use std::fmt::Debug;

use async_trait::async_trait;
use hyper::body::Incoming;
use hyper::{Request, Response};
use schema::meta::NamespacedName;

use crate::http::body::{Answer, GuardedBody};
use crate::http::server::Caller;

// Interface of the gateway of functions for the gateway of hosts, so that neither loop depends on the other.

/// Answers requests that a host routes to a function.
#[async_trait]
pub trait FunctionCalls: Debug + Send + Sync {
    /// Calls the function with the body, regardless of the method; a failure is a response, too.
    async fn call_through_host(
        &self,
        request: Request<Incoming>,
        id: &NamespacedName,
        caller: &Caller,
    ) -> Response<GuardedBody<Answer, ()>>;
}
