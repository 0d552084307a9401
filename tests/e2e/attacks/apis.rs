//! The APIs of the reconciler and the agent: pages of a browser, half requests, and a node that redirects its callers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::manifests::sleeper;
use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, IMAGE, Result, ensure, eventually, secs, tls_acceptor,
    tls_connect,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use openssl::ssl::SslStream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use schema::keys::{Key, prefix};
use schema::trust::TrustDir;
use serde_json::Value;

/// Longest time to an answer that nothing else delays: half of what a half head may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Connections with half a head at each API.
const HALF_HEADS: usize = 16;
/// Longest time for half a head: 10 s, and some for a busy machine.
const HALF_HEAD_MAX: Duration = Duration::from_secs(20);

/// A connection whose waits can be bounded.
pub(super) trait Wire: Read + Write {
    fn bound(&self, within: Duration) -> io::Result<()>;
}

impl Wire for TcpStream {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within)).and_then(|()| self.set_write_timeout(Some(within)))
    }
}

impl Wire for UnixStream {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within)).and_then(|()| self.set_write_timeout(Some(within)))
    }
}

impl Wire for SslStream<TcpStream> {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.get_ref().bound(within)
    }
}

impl Wire for Box<dyn Wire> {
    fn bound(&self, within: Duration) -> io::Result<()> {
        self.as_ref().bound(within)
    }
}

/// Connects to an API: through a reconciler's socket, `unix:path`, or over TLS as the reconciler `r0`.
fn dial(cluster: &Cluster, at: &str) -> Result<Box<dyn Wire>> {
    Ok(match at.strip_prefix("unix:") {
        Some(path) => Box::new(UnixStream::connect(path)?),
        None => Box::new(tls_connect(TcpStream::connect(at)?, &cluster.trust.reconciler("r0")?)?),
    })
}

/// Connects from one of this machine's addresses.
pub(super) fn connect_from(source: Ipv4Addr, to: &str) -> Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &to.parse::<SocketAddr>()?)?;
    Ok(socket.into())
}

/// Sends a request and reads its answer; returns the status and the whole text.
pub(super) fn exchange(mut stream: impl Wire, request: &[u8]) -> Result<(u16, String)> {
    stream.bound(ANSWER_MAX)?;
    stream.write_all(request)?;
    answer(stream, ANSWER_MAX)
}

/// Reads one answer; returns the status and the whole text.
pub(super) fn answer(mut stream: impl Wire, within: Duration) -> Result<(u16, String)> {
    stream.bound(within)?;
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            length.is_some_and(|length: usize| body.len() >= length)
        });
        let length = match whole {
            true => 0,
            false => match stream.read(&mut piece) {
                // A signal to this program does not concern the server.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                length => length.with_context(|| format!("no answer within {within:?}, only {text:?}"))?,
            },
        };
        if length == 0 {
            let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
            return Ok((status.with_context(|| format!("no status in {text:?}"))?, text));
        }
        read.extend_from_slice(&piece[..length]);
    }
}

/// Posts JSON to the API as a program on the same machine does; returns the status and the whole text.
pub(super) fn post(cluster: &Cluster, path: &str, headers: &str, body: &str) -> Result<(u16, String)> {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         {headers}Content-Length: {length}\r\n\r\n{body}"
    );
    exchange(dial(cluster, &cluster.api(0))?, request.as_bytes())
}

#[test]
fn pages_half_requests_and_redirecting_nodes_are_refused_and_nobody_else_is() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(8192)), hard)?;
    Cluster::run(ClusterOptions::default(), |cluster| {
        let function = format!(
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: nobody}}\nspec: {{image: '{IMAGE}'}}\n"
        );
        let flow = |name: &str, state: &str| {
            let text = format!(
                "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:\n  startAt: a\n  \
                 states: {{a: {state}}}\n"
            );
            Change::write(format!("{name}.yaml"), text)
        };
        let changes = [
            Change::write("quiet.yaml", sleeper("quiet")),
            Change::write("nobody.yaml", function),
            flow("noop", "{type: Pass, end: true}"),
            flow("calls", "{type: Task, function: nobody, end: true}"),
        ];
        cluster.push(&changes, "A pod and two workflows")?;
        cluster.running("quiet", &["main"])?;
        pages_read_and_change_nothing(cluster)?;
        half_requests_hold_up_nobody(cluster)?;
        nobody_follows_a_node(cluster)
    })
}

// A page in a browser on the node, under a name that was pointed at 127.0.0.1 or under its own.

fn pages_read_and_change_nothing(cluster: &Cluster) -> Result<()> {
    // The agent answers no browser at all: none has the certificate of a reconciler or a node.
    let (api, far) = (cluster.api(0), cluster.listen(0));
    for (at, host, path, shown) in
        [(&api, "localhost", "/v1/pods", "quiet"), (&far, &far, "/v1/pods", "quiet")]
    {
        let port = host.rsplit_once(':').map_or("7070", |(_, port)| port);
        let rebound = format!("Host: evil.example:{port}\r\n");
        let same_page = format!("{rebound}Origin: http://evil.example:{port}\r\n");
        let own = format!("Host: {host}\r\n");
        let absolute = format!("http://evil.example:{port}{path}");
        for (target, headers, status) in [
            (path, own.clone(), 200),
            (path, format!("Host: localhost:{port}\r\n"), 200),
            (path, rebound.clone(), 421),
            (path, same_page, 421),
            (path, format!("{own}{rebound}"), 421),
            (path, format!("Host: localhost.evil.example:{port}\r\n"), 421),
            (absolute.as_str(), own.clone(), 421),
            (path, format!("{own}Origin: http://evil.example\r\n"), 403),
            (path, format!("{own}Origin: null\r\n"), 403),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
            let (found, text) = exchange(dial(cluster, at)?, request.as_bytes())?;
            ensure!(found == status && text.contains(shown) == (status == 200), "{request}\n{text}");
        }
    }

    let runs = "/v1/workflows/default/noop/runs";
    let body = r#"{"input": {}, "id": "rebound"}"#;
    let port = far.rsplit(':').next().unwrap_or_default();
    let json = "Content-Type: application/json\r\n";
    let page = "Origin: http://evil.example\r\n";
    let before = cluster.etcd.list(prefix::REQUESTS)?;
    for (path, headers, status) in [
        (runs, format!("Host: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n{json}"), 421),
        (runs, format!("Host: {far}\r\n{page}{json}"), 403),
        // A browser sends these two without asking whether it may.
        (runs, format!("Host: {far}\r\nContent-Type: text/plain\r\n"), 415),
        (runs, format!("Host: {far}\r\n"), 415),
        ("/v1/sync", format!("Host: {far}\r\n{page}{json}"), 403),
        ("/v1/sync", format!("Host: {far}\r\n{page}Content-Type: text/plain\r\n"), 403),
        ("/v1/sync", format!("Host: {far}\r\n"), 415),
    ] {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (found, text) = exchange(dial(cluster, &far)?, request.as_bytes())?;
        ensure!(found == status, "{request}\n{text}");
    }
    let started = [prefix::RUN_REQUESTS, prefix::RUN_HEADS].map(|below| cluster.etcd.list(below));
    for keys in started {
        let keys = keys?;
        ensure!(!keys.iter().any(|key| key.key.ends_with("/rebound")), "a page started a run: {keys:?}");
    }
    ensure!(cluster.etcd.list(prefix::REQUESTS)? == before, "a page requested a sync");
    // The same from a program.
    for path in [runs, "/v1/sync"] {
        let (found, text) = post(cluster, path, "", body)?;
        ensure!(found == 202, "{path}: {text}");
    }
    Ok(())
}

// Connections that send half of a handshake, or half of a head.

/// Opens connections that send the beginning of a handshake.
fn half_handshakes(source: Ipv4Addr, at: &str, count: usize) -> Result<Vec<TcpStream>> {
    let open = |_| -> Result<TcpStream> {
        let mut stream = connect_from(source, at)?;
        // Of a record of 512 bytes. One above its share may be closed by now.
        let _ = stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        Ok(stream)
    };
    (0..count).map(open).collect()
}

/// Opens connections of somebody known who sends half a head; returns what is below TLS.
fn half_heads(source: Ipv4Addr, at: &str, pki: &TrustDir) -> Result<Vec<TcpStream>> {
    let open = |_| -> Result<TcpStream> {
        let stream = connect_from(source, at)?;
        let below = stream.try_clone()?;
        tls_connect(stream, pki)?.write_all(b"GET /v1/healthz HTTP/1.1\r\nHo")?;
        Ok(below)
    };
    (0..HALF_HEADS).map(open).collect()
}

/// Checks that a request from this address is answered at once.
fn answered(source: Ipv4Addr, at: &str, pki: &TrustDir) -> Result<()> {
    let request = format!("GET /v1/healthz HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    let stream = connect_from(source, at)?;
    stream.bound(ANSWER_MAX)?;
    let (status, text) = tls_connect(stream, pki)
        .and_then(|stream| exchange(stream, request.as_bytes()))
        .with_context(|| format!("{source} is not answered at {at}"))?;
    ensure!(status == 200, "{source} at {at}: {text}");
    Ok(())
}

/// Number of connections that the server has not ended.
fn open(streams: &[TcpStream]) -> Result<usize> {
    let mut count = 0;
    for stream in streams {
        stream.set_nonblocking(true)?;
        let ended = stream.peek(&mut [0; 1]);
        count += usize::from(ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    }
    Ok(count)
}

fn half_requests_hold_up_nobody(cluster: &Cluster) -> Result<()> {
    let (api, agent) = (cluster.listen(0), cluster.node().listen().to_owned());
    let pki = cluster.trust.reconciler("r0")?;
    // An address of this machine that is neither on loopback nor a pod's.
    let elsewhere: Ipv4Addr = Clients::beyond(cluster.slot())?.machine_address().parse()?;
    let own = Ipv4Addr::LOCALHOST;
    // From one address elsewhere: more than its share, which leaves room to all others.
    for (at, count) in [(&api, 200), (&agent, 400)] {
        let held = half_handshakes(elsewhere, at, count)?;
        answered(own, at, &pki)?;
        let held = open(&held)?;
        ensure!((64..=count * 2 / 3).contains(&held), "{held} of {count} are held at {at}");
    }
    // From loopback, where a proxy may stand for everybody: it leaves a quarter to others.
    let began = Instant::now();
    let attacked = [(&api, 512), (&agent, 1024)];
    let mut held = half_heads(own, &api, &pki)?;
    held.extend(half_heads(own, &agent, &pki)?);
    for (at, connections) in attacked {
        // More than all connections of the API.
        let streams = half_handshakes(own, at, connections + 100)?;
        answered(elsewhere, at, &pki)?;
        let count = open(&streams)?;
        ensure!((64..=connections * 3 / 4).contains(&count), "{count} are held at {at}");
        held.extend(streams);
    }
    for mut stream in held {
        let left = HALF_HEAD_MAX.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(left))?;
        let read = stream.read_to_end(&mut Vec::new());
        // An answer and the end, or a reset; a read that ends by its time is neither.
        let is_open = read.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        ensure!(!is_open, "half a request is open after {:?} at {:?}", began.elapsed(), stream.peer_addr());
    }
    for at in [&api, &agent] {
        answered(own, at, &pki)?;
    }
    Ok(())
}

// A node whose agent was replaced by a program that redirects everybody.

/// Answers every request as a node with a redirect to `target`, until the test ends; returns its URL and the number of
/// requests.
fn redirects_to(target: SocketAddr, pki: &TrustDir) -> Result<(String, Arc<AtomicUsize>)> {
    let (listener, acceptor) = (TcpListener::bind("127.0.0.1:0")?, tls_acceptor(pki)?);
    let (url, count) = (format!("https://{}", listener.local_addr()?), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.bound(secs(1));
            let Ok(mut stream) = acceptor.accept(stream) else { continue };
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]);
            let response = format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{target}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(response.as_bytes());
            let _ = stream.shutdown();
        }
    });
    Ok((url, count))
}

fn nobody_follows_a_node(cluster: &mut Cluster) -> Result<()> {
    let target = TcpListener::bind("127.0.0.1:0")?;
    target.set_nonblocking(true)?;
    let pki = cluster.trust.node(&cluster.node().name)?;
    let (api, logs) = redirects_to(target.local_addr()?, &pki)?;
    let (calls, called) = redirects_to(target.local_addr()?, &pki)?;
    cluster.node_mut().agent.kill()?;
    let key = Key::Node(cluster.node().name.clone());
    let mut record: Value = cluster.etcd.value(&key)?;
    record["api"] = api.into();
    record["calls"] = calls.into();
    cluster.etcd.etcdctl(&["put", &key.to_string(), &record.to_string()])?;
    eventually("the log of the node is asked for", secs(10), || {
        let said = cluster.cli(&["logs", "quiet"])?;
        ensure!(said.code != 0 && logs.load(Ordering::SeqCst) > 0, "{said:?}");
        Ok(())
    })?;
    cluster.cli(&["run", "calls", "-d", "{}", "--id", "elsewhere"])?.ok()?;
    let run = eventually("the call is refused", secs(30), || {
        let run = cluster.cli(&["get", "run", "calls/elsewhere", "-o", "json"])?.ok()?;
        let run: Value = serde_json::from_str(&run)?;
        ensure!(run["phase"] == "Failed", "{run}");
        Ok(run)
    })?;
    ensure!(run.to_string().contains("302") && called.load(Ordering::SeqCst) > 0, "{run}");
    ensure!(target.accept().is_err(), "a reconciler went where the node sent it");
    Ok(())
}
