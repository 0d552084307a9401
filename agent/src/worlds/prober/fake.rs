//! A network that answers as scripted by the test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use schema::control::lock;

use super::{HttpRequest, Prober};

/// Scripted behavior of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeAnswer {
    /// Answers with this status; a connection succeeds.
    Status(u16),
    Refused,
    Silent,
    /// Panics in the caller.
    Panics,
}

/// State of the network.
#[derive(Debug, Default)]
pub struct FakeNet {
    /// Answers by URL or `host:port`; any other address answers with 200.
    pub answers: BTreeMap<String, FakeAnswer>,
    pub asked: BTreeMap<String, u32>,
}

/// A network in memory.
#[derive(Debug, Default)]
pub struct FakeProber(Mutex<FakeNet>);

impl FakeProber {
    /// The state, to inspect and change.
    pub fn net(&self) -> MutexGuard<'_, FakeNet> {
        lock(&self.0)
    }

    async fn ask(&self, whom: String, timeout: Duration) -> Result<u16, String> {
        let answer = {
            let mut net = self.net();
            *net.asked.entry(whom.clone()).or_default() += 1;
            net.answers.get(&whom).copied().unwrap_or(FakeAnswer::Status(200))
        };
        match answer {
            FakeAnswer::Status(status) => Ok(status),
            FakeAnswer::Refused => Err(format!("{whom}: connection refused")),
            FakeAnswer::Panics => panic!("{whom} was asked"),
            FakeAnswer::Silent => {
                tokio::time::sleep(timeout).await;
                Err(format!("{whom}: timeout"))
            }
        }
    }
}

#[async_trait]
impl Prober for FakeProber {
    async fn http_get(&self, request: &HttpRequest, timeout: Duration) -> Result<u16, String> {
        self.ask(request.url.clone(), timeout).await
    }

    async fn grpc_check(&self, address: SocketAddr, service: &str, timeout: Duration) -> Result<(), String> {
        self.ask(format!("grpc {address} {service}"), timeout).await.map(|_| ())
    }

    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String> {
        self.ask(format!("{host}:{port}"), timeout).await.map(|_| ())
    }
}
