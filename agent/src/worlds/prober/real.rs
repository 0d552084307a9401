//! Probes over the real network.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, redirect};
use schema::control::root_cause;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::{HttpRequest, Prober};
use crate::http::outgoing;

/// Maximum bytes read of a body, as the kubelet does: enough to end the request cleanly.
const BODY_MAX: usize = 10 * 1024;
/// Redirects followed within one host; the limit of Go and of the kubelet.
const REDIRECTS_MAX: usize = 10;
/// User agent; servers that log or answer the kubelet's probes specially recognize the first word.
const USER_AGENT: &str = concat!("kube-probe/1 minik8s/", env!("CARGO_PKG_VERSION"));

/// Sends probes over the real network.
#[derive(Debug, Default)]
pub struct RealProber {
    /// Created at the first request: a node without HTTP probes needs no TLS.
    client: OnceLock<Result<Client, String>>,
}

impl RealProber {
    fn client(&self) -> Result<&Client, String> {
        let client = self.client.get_or_init(|| {
            outgoing::to_probed(USER_AGENT, redirect::Policy::custom(follow)).map_err(|e| e.to_string())
        });
        client.as_ref().map_err(Clone::clone)
    }
}

fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let first = attempt.previous().first().and_then(|url| url.host_str()).map(str::to_owned);
    if attempt.url().host_str() != first.as_deref() {
        attempt.stop()
    } else if attempt.previous().len() >= REDIRECTS_MAX {
        attempt.error("stopped after 10 redirects")
    } else {
        attempt.follow()
    }
}

#[async_trait]
impl Prober for RealProber {
    async fn http_get(&self, request: &HttpRequest, timeout: Duration) -> Result<u16, String> {
        let failed = |why: String| format!("Get \"{}\": {why}", request.url);
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| failed(e.to_string()))?;
            let value = HeaderValue::from_str(value).map_err(|e| failed(e.to_string()))?;
            headers.append(name, value);
        }
        headers.entry(reqwest::header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        let asking = self.client()?.get(&request.url).headers(headers).timeout(timeout).send();
        let mut answer = asking.await.map_err(|e| failed(reason(&e)))?;
        let status = answer.status().as_u16();
        let mut read = 0;
        while let Some(piece) = answer.chunk().await.map_err(|e| failed(reason(&e)))? {
            read += piece.len();
            if read >= BODY_MAX {
                break;
            }
        }
        Ok(status)
    }

    /// The messages are the kubelet's (pkg/probe/grpc/grpc.go).
    async fn grpc_check(&self, address: SocketAddr, service: &str, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        let mut client = match timeout_at(deadline, outgoing::to_probed_grpc(address, USER_AGENT)).await {
            Err(_) => {
                return Err(format!("timeout: failed to connect service \"{address}\" within {timeout:?}"));
            }
            Ok(Err(error)) => {
                let why = cause(&error);
                return Err(format!("error: failed to connect service at \"{address}\": {why}"));
            }
            Ok(Ok(client)) => client,
        };
        let request = HealthCheckRequest { service: service.to_owned() };
        match timeout_at(deadline, client.check(request)).await {
            Err(_) => Err(format!("timeout: health rpc did not complete within {timeout:?}")),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            )),
            Ok(Err(status)) => Err(format!(
                "error: health rpc probe failed: code = {:?} desc = {}",
                status.code(),
                status.message()
            )),
            Ok(Ok(response)) => match response.into_inner().status() {
                ServingStatus::Serving => Ok(()),
                other => Err(format!("service unhealthy (responded with \"{}\")", other.as_str_name())),
            },
        }
    }

    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String> {
        let failed = |why: &str| format!("dial tcp {host}:{port}: {why}");
        match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
            Err(_) => Err(failed("i/o timeout")),
            Ok(Err(error)) => Err(failed(&in_words(&error))),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

/// Root cause of an error; the layers above only repeat the URL.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "context deadline exceeded (the timeout passed while waiting for the answer)".to_owned();
    }
    cause(error)
}

fn cause(error: &(dyn Error + 'static)) -> String {
    let cause = root_cause(error);
    match cause.downcast_ref::<io::Error>() {
        Some(io) => format!("dial tcp: {}", in_words(io)),
        None => cause.to_string(),
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::body::Incoming;
    use hyper::server::conn::http2;
    use hyper::service::{HttpService, service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tonic::body::Body;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Answers each connection with the next of these texts (`{port}` is its own port), and returns the requests.
    async fn server(answers: Vec<&'static str>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                asked.push(String::from_utf8_lossy(&request[..read]).into_owned());
                let answer = answer.replace("{port}", &port.to_string());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            asked
        });
        (port, task)
    }

    fn get(port: u16, headers: &[(&str, &str)]) -> HttpRequest {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        HttpRequest { url: format!("http://127.0.0.1:{port}/healthz?deep=1"), headers }
    }

    // Seen red with `attempt.follow()` for `attempt.stop()`: the other host is asked.
    #[tokio::test]
    async fn headers_are_sent_and_redirects_stay_on_the_host() {
        let (port, task) = server(vec![
            "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 307 Elsewhere\r\nLocation: http://localhost:{port}/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ])
        .await;
        let request = get(port, &[("Host", "shop.example"), ("X-Probe", "yes")]);
        let answer = RealProber::default().http_get(&request, SECOND * 5).await.unwrap();
        assert_eq!(answer, 307);
        let asked = task.await.unwrap();
        let first = asked[0].to_ascii_lowercase();
        assert!(first.starts_with("get /healthz?deep=1 "), "{first}");
        for header in ["host: shop.example", "x-probe: yes", "user-agent: kube-probe/", "accept: */*"] {
            assert!(first.contains(header), "{header}: {first}");
        }
        assert!(asked[1].starts_with("GET /other "), "{}", asked[1]);
    }

    #[tokio::test]
    async fn a_body_without_end_is_not_read_to_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endless = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        let answer = RealProber::default().http_get(&get(port, &[]), SECOND * 5).await.unwrap();
        assert_eq!(answer, 200);
        endless.await.unwrap();
    }

    #[tokio::test]
    async fn what_does_not_answer_is_reported_in_known_words() {
        let prober = RealProber::default();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let said = prober.http_get(&get(port, &[]), Duration::from_millis(50)).await.unwrap_err();
        assert!(said.contains("context deadline exceeded"), "{said}");
        assert!(prober.tcp_connect("127.0.0.1", port, SECOND).await.is_ok());
        drop(silent);
        let said = prober.http_get(&get(port, &[]), SECOND).await.unwrap_err();
        assert!(
            said.starts_with("Get \"http://127.0.0.1:") && said.ends_with("connection refused"),
            "{said}"
        );
        let said = prober.tcp_connect("127.0.0.1", port, SECOND).await.unwrap_err();
        assert_eq!(said, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    }

    /// Serves one gRPC connection without TLS, and returns its address.
    async fn grpc_server<S>(service: S) -> SocketAddr
    where
        S: HttpService<Incoming, ResBody = Body, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
        S::Future: Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
        address
    }

    // Would fail with any answer taken for a healthy one.
    #[tokio::test]
    async fn a_grpc_server_is_healthy_if_it_says_that_it_serves() {
        use tonic_health::ServingStatus::{NotServing, Serving};
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status("web", Serving).await;
        reporter.set_service_status("db", NotServing).await;
        for (service, expected) in [
            ("", Ok(())),
            ("web", Ok(())),
            ("db", Err("service unhealthy (responded with \"NOT_SERVING\")")),
            ("mail", Err("error: health rpc probe failed: code = NotFound desc = service not registered")),
        ] {
            let address = grpc_server(TowerToHyperService::new(health.clone())).await;
            let found = RealProber::default().grpc_check(address, service, SECOND * 5).await;
            assert_eq!(found, expected.map_err(str::to_owned), "{service}");
        }
    }

    #[tokio::test]
    async fn a_grpc_server_without_health_fails_and_one_that_is_silent_times_out() {
        let (prober, quick) = (RealProber::default(), Duration::from_millis(50));
        let unknown = grpc_server(service_fn(|_| async {
            let response = hyper::Response::builder().header("content-type", "application/grpc");
            let response = response.header("grpc-status", "12").header("grpc-message", "unknown service");
            Ok::<_, Infallible>(response.body(Body::empty()).unwrap())
        }));
        let found = prober.grpc_check(unknown.await, "", SECOND * 5).await.unwrap_err();
        let wanted = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service";
        assert_eq!(found, wanted);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let found = prober.grpc_check(address, "", quick).await.unwrap_err();
        assert!(found.starts_with("timeout: ") && found.ends_with("within 50ms"), "{found}");
        drop(listener);
        let found = prober.grpc_check(address, "", SECOND * 5).await.unwrap_err();
        assert!(found.ends_with("dial tcp: connect: connection refused"), "{found}");
    }
}
