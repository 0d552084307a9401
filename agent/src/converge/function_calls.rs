//! What the gateway of hosts needs of the gateway of functions, so that neither loop knows the other.

use std::fmt::Debug;

use async_trait::async_trait;
use hyper::body::Incoming;
use hyper::{Request, Response};
use schema::meta::NamespacedName;

use crate::http::body::{Answer, Holding};
use crate::http::server::Caller;

/// Answers requests that a host leads to a function.
#[async_trait]
pub trait FunctionCalls: Debug + Send + Sync {
    /// The body is the call, by whatever method; what goes wrong is an answer, too.
    async fn call_through_host(
        &self,
        request: Request<Incoming>,
        id: &NamespacedName,
        caller: &Caller,
    ) -> Response<Holding<Answer, ()>>;
}
