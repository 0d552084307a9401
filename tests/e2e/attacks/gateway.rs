//! The gateway: paths that mean another one, and headers in which a client names another client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use harness::manifests::sleeper;
use harness::{
    Change, Cluster, ClusterOptions, Error, NetWorld, PodView, Result, ensure, eventually, secs, vip,
};

use super::apis::exchange;
use crate::gateway::{ready, service};

/// Value of every forged header.
const FORGED: &str = "203.0.113.66";

/// A server in a pod's network that records the heads of its requests.
struct Endpoint {
    net: NetWorld,
    at: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stops: Arc<AtomicBool>,
}

impl Endpoint {
    fn serve(pod: &PodView) -> Result<Self> {
        let (net, at) = (Cluster::net_of(pod), SocketAddr::new(pod.address()?.parse()?, 8080));
        let listener = net.within(|| Ok(TcpListener::bind(at)?))?;
        let endpoint = Self { net, at, heads: Arc::default(), stops: Arc::default() };
        let (heads, stops) = (Arc::clone(&endpoint.heads), Arc::clone(&endpoint.stops));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stops.load(Ordering::SeqCst) {
                    return;
                }
                let heads = Arc::clone(&heads);
                thread::spawn(move || answer_all(stream, &heads));
            }
        });
        Ok(endpoint)
    }

    /// Heads since the last call, in lower case.
    fn heads(&self) -> Result<Vec<String>> {
        let mut heads = self.heads.lock().map_err(|_| Error::msg("the endpoint panicked"))?;
        Ok(std::mem::take(&mut heads))
    }
}

/// Answers the requests of one connection, until its client closes it.
fn answer_all(stream: TcpStream, heads: &Mutex<Vec<String>>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            ensure!(stream.read_line(&mut line)? > 0, "its end");
            head.push_str(&line.to_ascii_lowercase());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        stream.read_exact(&mut vec![0; length.unwrap_or(0)])?;
        heads.lock().map_err(|_| Error::msg("another connection panicked"))?.push(head);
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npublic")?;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        let _ = self.net.within(|| Ok(TcpStream::connect(self.at)?));
    }
}

/// Requests of one host and path: one on the short way for plain requests, and two that it leaves to hyper.
fn forms(host: &str, path: &str, headers: &str) -> [String; 3] {
    [
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: 2\r\n\r\n{{}}"),
    ]
}

/// Sends these requests from a pod or the node.
fn send(from: &NetWorld, to: Ipv4Addr, requests: &[String]) -> Result<Vec<(u16, String)>> {
    from.within(|| {
        let send = |request: &String| exchange(TcpStream::connect((to, 80))?, request.as_bytes());
        requests.iter().map(send).collect()
    })
}

fn pod(name: &str) -> Change {
    let text = sleeper(name).replace("\nspec:", &format!("\n  labels: {{app: {name}}}\nspec:"));
    Change::write(format!("{name}.yaml"), text)
}

#[test]
fn no_path_leads_past_its_route_and_no_client_names_another() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let host = |name: &str, paths: &str| {
            let text = format!(
                "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: {name}}}\nspec:\n  host: {name}.example\n  \
                 paths:\n{paths}"
            );
            Change::write(format!("dns-{name}.yaml"), text)
        };
        let changes = [
            pod("web"),
            pod("client"),
            service("web"),
            // Without endpoints: whoever gets there is told so.
            service("admin"),
            host("pub", "  - {path: /public, service: {name: web, port: http}}\n"),
            host(
                "adm",
                "  - {path: /, service: {name: web, port: http}}\n  - {path: /admin, service: {name: admin, port: http}}\n",
            ),
            host("moved", "  - {path: /shop, service: {name: web, port: http}, rewrite: /}\n"),
        ];
        cluster.push(&changes, "Three hosts")?;
        let (web, client) = (cluster.running("web", &["main"])?, cluster.running("client", &["main"])?);
        let endpoint = Endpoint::serve(&web)?;
        ready(cluster, "web", 1)?;
        let (gateway, from) = (vip(cluster, 11)?, Cluster::net_of(&client));
        eventually("the hosts are routed", secs(30), || {
            for (host, path) in [("pub.example", "/public"), ("adm.example", "/"), ("moved.example", "/shop")]
            {
                let said = send(&from, gateway, &forms(host, path, ""))?;
                ensure!(said.iter().all(|(status, _)| *status == 200), "{host}: {said:?}");
            }
            Ok(())
        })?;
        endpoint.heads()?;
        paths_mean_what_the_endpoint_reads(&endpoint, &from, gateway)?;
        nobody_believes_what_a_client_says_of_itself(&endpoint, &from, gateway, client.address()?)
    })
}

fn paths_mean_what_the_endpoint_reads(endpoint: &Endpoint, from: &NetWorld, gateway: Ipv4Addr) -> Result<()> {
    for (host, path, status) in [
        ("pub", "/public/../admin/secret", 400),
        ("pub", "/public/%2e%2e/admin/secret", 400),
        ("pub", "/public/.%2E/admin/secret", 400),
        ("pub", "/public%2f..%2fadmin/secret", 400),
        ("pub", "/public/..;x=y/admin/secret", 400),
        ("pub", "/public/./../admin/secret?a=b", 400),
        ("pub", "/public/%zz/admin", 400),
        ("pub", "/admin/secret", 404),
        ("pub", "/publicadmin", 404),
        ("adm", "/admin/secret", 503),
        ("adm", "/%61dmin/secret", 503),
        ("adm", "/adm%69n", 503),
        ("adm", "//admin/secret", 503),
        ("adm", "/admin%2fsecret", 503),
        ("adm", "/x/../admin/secret", 400),
        ("adm", "/./admin/secret", 400),
        ("moved", "/shop/../admin/secret", 400),
        ("moved", "/shop/%2e%2e/admin/secret", 400),
    ] {
        let requests = forms(&format!("{host}.example"), path, "");
        for (request, (found, text)) in requests.iter().zip(send(from, gateway, &requests)?) {
            ensure!(found == status, "{request}\n{text}");
        }
    }
    // What the endpoint may show is passed on, with the path as it was sent or rewritten.
    for (host, path, passed) in [
        ("pub", "/%70ublic/a..b", "/%70ublic/a..b"),
        ("adm", "/administration", "/administration"),
        ("moved", "/shop/x", "/x"),
    ] {
        for (status, text) in send(from, gateway, &forms(&format!("{host}.example"), path, ""))? {
            ensure!(status == 200 && text.ends_with("public"), "{host}{path}: {text}");
        }
        let heads = endpoint.heads()?;
        let is_passed = |head: &String| head.lines().next().is_some_and(|line| line.contains(passed));
        ensure!(heads.len() == 3 && heads.iter().all(is_passed), "{heads:#?}");
        ensure!(!heads.iter().any(|head| head.contains("secret")), "{heads:#?}");
    }
    Ok(())
}

fn nobody_believes_what_a_client_says_of_itself(
    endpoint: &Endpoint,
    from: &NetWorld,
    gateway: Ipv4Addr,
    client: &str,
) -> Result<()> {
    let names = [
        "Forwarded",
        "FORWARDED",
        "X-Forwarded-For",
        "X_Forwarded_For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-User",
        "X-Real-IP",
        "X_Real-Ip",
    ];
    for name in names {
        let value = if name.eq_ignore_ascii_case("forwarded") { "for=" } else { "" };
        let requests = forms("pub.example", "/public", &format!("{name}: {value}{FORGED}\r\n"));
        for (status, text) in send(from, gateway, &requests)? {
            ensure!(status == 200, "{name}: {text}");
        }
        let heads = endpoint.heads()?;
        let tells = format!("\r\nx-forwarded-for: {client}\r\n");
        let is_true = |head: &String| !head.contains(FORGED) && head.contains(&tells);
        ensure!(heads.len() == 3 && heads.iter().all(is_true), "{name}: {heads:#?}");
    }
    // A proxy on the node itself is believed.
    let requests = forms("pub.example", "/public", &format!("X-Forwarded-For: {FORGED}\r\n"));
    for (status, text) in send(&NetWorld::of_machine(), gateway, &requests)? {
        ensure!(status == 200, "{text}");
    }
    let heads = endpoint.heads()?;
    let chain = format!("\r\nx-forwarded-for: {FORGED}, ");
    ensure!(heads.len() == 3 && heads.iter().all(|head| head.contains(&chain)), "{heads:#?}");
    Ok(())
}
