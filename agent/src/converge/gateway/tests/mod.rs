//! The gateway over real loopback sockets, with small endpoints that behave as real ones may.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use schema::meta::NamespacedName;
use schema::records::{FunctionRecord, RouteRecord, ServiceRecord};
use schema::testing::versioned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::Router;
use super::proxy::Proxy;
use super::route::Table;
use super::shares::Turns;
use crate::catalog::Catalog;
use crate::converge::functions::Functions;
use crate::desired::StateOrigin;
use crate::http::server::{self, Limits, Server};
use crate::metrics::AgentMetrics;

mod bounds;
mod kept;
mod looping;
mod passing;
mod plain;
mod routing;
mod shares;
mod trouble;
mod vanishing;

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A catalog as received from etcd.
fn known() -> Catalog {
    Catalog { known_from: StateOrigin::Etcd, ..Catalog::default() }
}

fn add_service(catalog: &mut Catalog, name: &str, record: Value) {
    let record: ServiceRecord = serde_json::from_value(record).unwrap();
    catalog.services.insert(NamespacedName::new("default", name), versioned(record));
}

fn add_route(catalog: &mut Catalog, name: &str, host: &str, paths: &Value) {
    let record: RouteRecord = serde_json::from_value(json!({"host": host, "paths": paths})).unwrap();
    catalog.routes.insert(NamespacedName::new("default", name), versioned(record));
}

/// Functions with one that sleeps, as known to a process without an agent.
fn functions() -> Arc<Functions> {
    let mut catalog = known();
    catalog.functions.insert(NamespacedName::new("default", "asleep"), versioned(FunctionRecord::default()));
    let (_, catalog) = watch::channel(Arc::new(catalog));
    Arc::new(Functions::from_last_known(catalog, None))
}

/// Routes `/` of `shop.example` to these endpoints.
fn table(endpoints: &[SocketAddr]) -> Table {
    let mut catalog = known();
    let endpoints: Vec<Value> =
        endpoints.iter().map(|at| json!({"address": at.ip(), "ports": [at.port()]})).collect();
    let record = json!({"ports": [{"protocol": "TCP", "port": 80}], "endpoints": endpoints});
    add_service(&mut catalog, "web", record);
    add_route(&mut catalog, "shop", "shop.example", &json!([{"path": "/", "service": "web", "port": 80}]));
    Table::from_catalog(&catalog, "n1")
}

/// A gateway on its own port.
struct Bed {
    address: SocketAddr,
    tables: watch::Sender<Arc<Table>>,
    proxy: Proxy,
    /// Metrics of this gateway alone.
    metrics: AgentMetrics,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Bed {
    async fn start(limits: Limits, table: Table) -> Self {
        Self::at(server::listen("127.0.0.1:0".parse().unwrap()).unwrap(), limits, table).await
    }

    async fn at(listener: TcpListener, limits: Limits, table: Table) -> Self {
        let shutdown = CancellationToken::new();
        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        let (tables, newest) = watch::channel(Arc::new(table));
        let proxy = Proxy::new(limits.clone(), connections.clone(), shutdown.clone(), cut.clone());
        let (functions, metrics) = (functions(), AgentMetrics::default());
        let (turns, requests) = (Turns::default(), metrics.gateway.clone());
        let router = Router { table: newest, proxy: proxy.clone(), turns, functions, requests };
        let address = listener.local_addr().unwrap();
        let (listeners, opened) = mpsc::channel(1);
        listeners.send(listener).await.unwrap();
        let server = Server::new(router, limits, connections, cut);
        let serving = tokio::spawn(server.run(opened, shutdown.clone()));
        Self { address, tables, proxy, metrics, shutdown, serving }
    }

    /// Starts a gateway with the usual limits that routes `/` of `shop.example` to these endpoints.
    async fn with(endpoints: &[SocketAddr]) -> Self {
        Self::start(Limits::default(), table(endpoints)).await
    }

    async fn client(&self) -> Wire {
        Wire::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends one request on its own connection and returns the whole answer.
    async fn ask(&self, request: &str) -> String {
        let mut client = self.client().await;
        client.send(request).await;
        client.message().await
    }
}

/// A GET of `path` at `shop.example`.
fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n")
}

/// End of a connection that is read and written byte by byte.
struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads more bytes; false at the end.
    async fn more(&mut self) -> bool {
        let mut chunk = vec![0; 65536];
        let read = timeout(PATIENCE, self.stream.read(&mut chunk)).await.expect("nothing came");
        // A reset counts as the end too.
        let read = read.unwrap_or(0);
        self.buffer.extend_from_slice(&chunk[..read]);
        read > 0
    }

    /// Reads up to and including `mark`; returns less if the connection ends before.
    async fn until(&mut self, mark: &str) -> String {
        loop {
            let found = self.buffer.windows(mark.len()).position(|window| window == mark.as_bytes());
            if let Some(at) = found {
                return self.take(at + mark.len());
            }
            if !self.more().await {
                return self.take(self.buffer.len());
            }
        }
    }

    fn take(&mut self, count: usize) -> String {
        let taken: Vec<u8> = self.buffer.drain(..count).collect();
        String::from_utf8(taken).unwrap()
    }

    async fn exactly(&mut self, count: usize) -> String {
        while self.buffer.len() < count && self.more().await {}
        self.take(count.min(self.buffer.len()))
    }

    /// Reads the head of a message, in lower case; empty at the end of the connection.
    async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await.to_ascii_lowercase()
    }

    /// Reads a head and its body: of the declared length, or in chunks as they were sent.
    async fn message(&mut self) -> String {
        let head = self.head().await;
        let body = match field(&head, "content-length") {
            Some(length) => self.exactly(length.parse().unwrap()).await,
            None if field(&head, "transfer-encoding").is_some() => self.until("0\r\n\r\n").await,
            None => String::new(),
        };
        head + &body
    }

    /// True if the other side closes without sending anything more.
    async fn closes(&mut self) -> bool {
        self.buffer.is_empty() && !self.more().await
    }
}

/// Finds a field's value in a lower-case head.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

/// Header that servers add to an answer; an answer without it is not plain.
const DATE: &str = "Date: Thu, 26 Nov 2026 18:00:00 GMT";

/// Builds a plain answer with this body.
fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{DATE}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Starts an endpoint that passes each connection to `serve`.
async fn endpoint<F, S>(serve: S) -> SocketAddr
where
    S: Fn(Wire) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve_at(listener, serve);
    address
}

/// Passes each connection of the listener to `serve`.
fn serve_at<F, S>(listener: TcpListener, serve: S)
where
    S: Fn(Wire) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(Wire::new(stream)));
        }
    });
}

/// Starts an endpoint that answers every request of a connection with the request itself.
async fn mirror() -> SocketAddr {
    endpoint(|mut wire| async move {
        loop {
            let message = wire.message().await;
            if message.is_empty() {
                return;
            }
            wire.send(&ok(&message)).await;
        }
    })
    .await
}

/// Starts an endpoint that answers every request with its name.
async fn named(name: &'static str) -> SocketAddr {
    endpoint(move |mut wire| async move {
        while !wire.message().await.is_empty() {
            wire.send(&ok(name)).await;
        }
    })
    .await
}

/// Address on which nothing listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
