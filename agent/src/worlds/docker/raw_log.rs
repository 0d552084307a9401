//! The log of a container with a terminal, byte by byte. The engine does not frame such a log; the client library
//! expects frames and holds back text without a newline, however long: a progress bar is nothing else.

use std::path::Path;

use axum::body::{Body, to_bytes};
use futures::stream::StreamExt as _;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::READ;
use super::{DockerError, LogOptions, LogStream};

const ACT: &str = "to read a log";

/// Maximum bytes kept of an error in place of a log.
const REFUSAL_MAX: usize = 64 << 10;

/// Reads the log of container `id` at `socket`, in the API's `version`, such as `1.41`.
pub(super) async fn logs(
    socket: &Path,
    version: &str,
    id: &str,
    options: &LogOptions,
) -> Result<LogStream, DockerError> {
    let answer = timeout(READ, begin(socket, format!("/v{version}/containers/{id}/logs?{}", query(options))));
    let answer = answer.await.map_err(|_| DockerError::Timeout { act: ACT, after: READ })?;
    let answer = answer.map_err(|message| DockerError::Unreachable { message })?;
    let (answer, connection) = answer;
    let (status, body) = (answer.status().as_u16(), Body::new(answer.into_body()));
    if status != 200 {
        let said = timeout(READ, to_bytes(body, REFUSAL_MAX)).await;
        let said = said.ok().and_then(Result::ok).unwrap_or_default();
        let message = String::from_utf8_lossy(&said).trim().to_owned();
        return Err(DockerError::Refused { act: ACT, status, message }.for_container(id));
    }
    let pieces = body.into_data_stream().map(move |piece| {
        // Keeps the connection open as long as the stream.
        let _ = &connection;
        piece.map_err(|error| DockerError::Unreachable { message: error.to_string() })
    });
    Ok(pieces.boxed())
}

type Answer = (hyper::Response<hyper::body::Incoming>, JoinSet<hyper::Result<()>>);

async fn begin(socket: &Path, uri: String) -> Result<Answer, String> {
    let stream = UnixStream::connect(socket).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let mut task = JoinSet::new();
    task.spawn(connection);
    let request =
        Request::get(uri).header("Host", "docker").body(Body::empty()).map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    Ok((answer, task))
}

fn query(options: &LogOptions) -> String {
    let LogOptions { follow, tail, since, timestamps } = options;
    let since = since.map_or(0, |time| time.as_second().max(0));
    let tail = tail.map_or_else(|| "all".to_owned(), |lines| lines.to_string());
    format!("stdout=true&stderr=true&follow={follow}&timestamps={timestamps}&since={since}&tail={tail}")
}
