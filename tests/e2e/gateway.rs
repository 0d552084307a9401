//! A Dns object through the gateways of three nodes: from each node and from a pod on each, by name, as clients
//! do; while routes and pods change, and with everything else down. The targets of its paths are on three nodes.
//!
//! Seen red with routes to endpoints of the own node only, without the host's name in the zone, with a
//! `rewritten` that returns nothing, with a route that matches whole paths alone, with a catalog not read from the
//! disk, and (with replaced pods, too) with the routes of the first catalog kept for ever.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, NetWorld, Node, PodView, Result, Where, ensure, eventually,
    holds, secs, vip,
};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

pub(crate) const HOST: &str = "shop.example";
/// Ready when it serves; it keeps running for a second after it is removed from the endpoints.
const GRACEFUL: &str = "    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}\n    \
    lifecycle: {preStop: {exec: {command: [sleep, \"1\"]}}}\n";

/// Minimum number of requests for a meaningful result.
const REQUESTS_MIN: usize = 30;

/// The gateways as their clients reach them: each node's own, at one address.
pub(crate) struct Gateway {
    address: Ipv4Addr,
    pub(crate) nodes: Vec<NetWorld>,
}

impl Gateway {
    pub(crate) fn of(cluster: &Cluster) -> Result<Self> {
        let nodes = cluster.nodes.iter().map(|node| node.net.clone()).collect();
        Ok(Self { address: vip(cluster, 11)?, nodes })
    }

    pub(crate) fn socket(&self) -> SocketAddr {
        (self.address, 80).into()
    }

    /// Status and body that `curl` gets from that network.
    fn curl(&self, from: &NetWorld, path: &str) -> Result<(u16, String)> {
        let resolve = format!("{HOST}:80:{}", self.address);
        let url = format!("http://{HOST}{path}");
        let text =
            from.run("curl", &["-s", "-m", "10", "-w", "\n%{http_code}", "--resolve", &resolve, &url])?;
        let (body, code) = text.rsplit_once('\n').context("curl said nothing")?;
        Ok((code.parse()?, body.trim().to_owned()))
    }

    /// Checks that each node returns this.
    pub(crate) fn says(&self, path: &str, code: u16, body: &str) -> Result<()> {
        eventually(&format!("{path} says {code} {body:?}"), secs(45), || self.says_now(path, code, body))
    }

    fn says_now(&self, path: &str, code: u16, body: &str) -> Result<()> {
        for node in &self.nodes {
            let said = self.curl(node, path)?;
            ensure!(said.0 == code && said.1.contains(body), "it says {said:?} in {node:?}");
        }
        Ok(())
    }
}

/// Makes one request and returns the body of a 200. `stream` is kept as long as the gateway keeps it.
fn request(at: SocketAddr, path: &str, stream: &mut Option<TcpStream>) -> Result<String> {
    exchange(at, &format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"), stream)
}

/// Like `request`, for a complete request text.
pub(crate) fn exchange(at: SocketAddr, request: &str, stream: &mut Option<TcpStream>) -> Result<String> {
    let mut connection = match stream.take() {
        Some(connection) => connection,
        None => TcpStream::connect_timeout(&at, secs(5))?,
    };
    connection.set_read_timeout(Some(secs(10)))?;
    connection.write_all(request.as_bytes())?;
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&said).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.with_context(|| format!("no length in {head}"))?.parse()?;
            if body.len() >= length {
                ensure!(head.starts_with("http/1.1 200 "), "{text}");
                *stream = (!head.contains("connection: close")).then_some(connection);
                return Ok(body.trim().to_owned());
            }
        }
        let read = match connection.read(&mut chunk) {
            // A signal to this program does not concern the gateway.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        ensure!(read > 0, "the connection ended after {text:?}");
        said.extend_from_slice(&chunk[..read]);
    }
}

/// Steady requests, one after another, from each of some networks, alternating between a kept connection and new
/// ones, until `end` is called.
pub(crate) struct Steady {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<usize>>>,
}

impl Steady {
    pub(crate) fn start(from: &[NetWorld], at: SocketAddr, path: &'static str, wanted: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |(number, net): (usize, &NetWorld)| {
            let (stop, net, keep) = (Arc::clone(&stop), net.clone(), number % 2 == 0);
            std::thread::spawn(move || {
                net.within(|| {
                    let (mut stream, mut count) = (None, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let body =
                            request(at, path, &mut stream).with_context(|| format!("request {count}"))?;
                        ensure!(body.contains(wanted), "request {count} says {body:?}");
                        stream = stream.filter(|_| keep);
                        count += 1;
                    }
                    Ok(count)
                })
            })
        };
        Self { clients: from.iter().enumerate().map(client).collect(), stop }
    }

    /// Stops, and returns the number of requests; the first failed request is an error.
    pub(crate) fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut count = 0;
        for client in self.clients {
            count += client.join().map_err(|_| harness::Error::msg("a client panicked"))??;
        }
        Ok(count)
    }
}

pub(crate) fn pod(name: &str, app: &str, greeting: &str, node: &Node) -> Change {
    let pod = web(name).label("app", app).greeting(greeting).container_fields(GRACEFUL).on(&node.name);
    Change::write(format!("{name}.yaml"), pod.to_string())
}

pub(crate) fn service(name: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{app: {name}}}\n  \
         ports: [{{name: http, port: 80, targetPort: 8080}}]\n"
    );
    Change::write(format!("service-{name}.yaml"), text)
}

/// The Dns object, with `path service rewrite` each.
fn dns(paths: &[(&str, &str, &str)]) -> Change {
    let mut text = format!(
        "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: shop}}\nspec:\n  host: {HOST}\n  paths:\n"
    );
    for (path, service, rewrite) in paths {
        text +=
            &format!("  - {{path: {path}, service: {{name: {service}, port: http}}, rewrite: {rewrite}}}\n");
    }
    Change::write("dns.yaml", text)
}

/// Requests the three paths by name from this network, with the node's name server as the only one: in a mount
/// namespace with that `resolv.conf`.
fn by_name(cluster: &Cluster, from: &NetWorld) -> Result<()> {
    let path = cluster.dir("resolv.conf");
    fs::write(&path, format!("nameserver {}\n", vip(cluster, 10)?))?;
    let urls = ["/", "/shop", "/shop/cart?x=1"].map(|at| format!("http://{HOST}{at}"));
    let said = curl_by(from, &path, &urls)?;
    ensure!(said.lines().eq(["this is home", "this is shop", "this is cart"]), "in {from:?}: {said}");
    Ok(())
}

/// Output of `curl` with this file as `resolv.conf`.
pub(crate) fn curl_by(from: &NetWorld, resolv_conf: &Path, urls: &[String]) -> Result<String> {
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec curl -sS -f -m 10 \"$@\"";
    let path = resolv_conf.to_string_lossy();
    let mut words = vec!["--mount", "sh", "-c", script, &path];
    words.extend(urls.iter().map(String::as_str));
    from.run("unshare", &words)
}

/// Finds the host with nothing but the pod's own resolver.
fn by_its_own_resolver(cluster: &Cluster, pod: &PodView) -> Result<()> {
    // The static busybox can't look up service names, which its wget does. Closing the client's
    // side of the connection ends it, so the pipe stays open for a moment.
    let ask = format!(
        "(printf 'GET /shop HTTP/1.1\\r\\nHost: {HOST}\\r\\nConnection: close\\r\\n\\r\\n'; sleep 3) | nc {HOST} 80"
    );
    let said = cluster.exec(pod, "web", &["sh", "-c", &ask])?;
    ensure!(said.starts_with("HTTP/1.1 200") && said.contains("this is shop"), "from a pod: {said}");
    Ok(())
}

pub(crate) fn ready(cluster: &Cluster, service: &str, count: usize) -> Result<ServiceRecord> {
    eventually(&format!("{service} has {count} endpoints"), secs(60), || {
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", service)))?;
        ensure!(record.endpoints.len() == count, "{record:?}");
        Ok(record)
    })
}

#[test]
fn three_paths_of_a_host_lead_to_three_services_whatever_else_is_down() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let names = ["home", "shop", "cart"];
        let mut changes: Vec<Change> = names.iter().map(|name| service(name)).collect();
        let on_nodes = names.iter().zip(&cluster.nodes);
        changes.extend(on_nodes.map(|(name, node)| pod(name, name, &format!("this is {name}"), node)));
        changes.push(service("empty"));
        changes.push(dns(&[
            ("/", "home", "/"),
            ("/shop", "shop", "/"),
            ("/shop/cart", "cart", "/"),
            ("/empty", "empty", "/"),
        ]));
        cluster.push(&changes, "A shop")?;
        for name in names {
            ready(cluster, name, 1)?;
        }
        let gateway = Gateway::of(cluster)?;
        gateway.says("/", 200, "this is home")?;
        gateway.says("/shop", 200, "this is shop")?;
        gateway.says("/shop/cart?x=1", 200, "this is cart")?;
        gateway.says("/empty", 503, "service default/empty has no endpoint")?;
        let other = format!("http://{}/", gateway.address);
        for node in &gateway.nodes {
            let other = node.run("curl", &["-s", "-m", "10", "-H", "Host: other.example", &other])?;
            ensure!(
                other.starts_with("404") && other.contains("no Dns object has the host other.example"),
                "{other}"
            );
        }

        let pods = names.iter().map(|name| cluster.pod(name)).collect::<Result<Vec<_>>>()?;
        for from in gateway.nodes.iter().cloned().chain(pods.iter().map(Cluster::net_of)) {
            eventually("all three paths are found by name", secs(30), || by_name(cluster, &from))?;
        }
        for pod in &pods {
            by_its_own_resolver(cluster, pod)?;
        }
        shown_by_the_cli(cluster, &gateway)?;
        moved_and_left_alone(cluster, &gateway)
    })
}

/// Checks that the program shows the real state of the host, and of a service behind it.
fn shown_by_the_cli(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    let service = ready(cluster, "shop", 1)?;
    let endpoint = format!("{}:8080", service.endpoints[0].address);
    let address = service.cluster_ip.context("shop has no address")?.to_string();
    for (words, wanted) in [
        (&["get", "services"][..], vec!["shop", &address]),
        (&["get", "endpoints"], vec!["shop", &endpoint]),
        (&["get", "dns"], vec![HOST, "/shop/cart", "cart"]),
        (&["describe", "service", "shop"], vec![&address, &endpoint]),
    ] {
        let said = cluster.cli(words)?.stdout;
        ensure!(wanted.iter().all(|word| said.contains(word)), "{words:?} says {said}");
    }
    let nodes: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    eventually("each node is said to have programmed it", secs(30), || {
        let said = cluster.cli(&["describe", "service", "shop"])?.stdout;
        let done = |node: &str| {
            let mut lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.any(|words| words.first() == Some(&node) && words.last() == Some(&"programmed"))
        };
        ensure!(nodes.iter().all(|node| done(node)), "{said}");
        Ok(())
    })?;
    // The gateways agree.
    for node in &gateway.nodes {
        let rules = node.run("iptables-save", &["-t", "nat"])?;
        ensure!(rules.contains(&format!("--to-destination {endpoint}")), "{rules}");
    }
    Ok(())
}

/// Moves a route under requests; then everything that announced it is killed, then the agents, which restart.
fn moved_and_left_alone(cluster: &mut Cluster, gateway: &Gateway) -> Result<()> {
    let steady = Steady::start(&gateway.nodes, gateway.socket(), "/shop", "this is ");
    let moved = [("/", "home", "/"), ("/shop", "cart", "/")];
    for paths in [&moved[..], &[("/shop", "shop", "/")], &moved] {
        cluster.push(&[dns(paths)], "Move")?;
        let wanted = if paths.len() == 1 { "this is shop" } else { "this is cart" };
        gateway.says("/shop", 200, wanted)?;
        if paths.len() == 1 {
            // Only whole path segments match.
            for path in ["/", "/shopping"] {
                gateway.says(path, 404, &format!("no path of {HOST} matches {path}"))?;
            }
        }
    }
    let requests = steady.end()?;
    println!("{requests} requests while the route moved");
    ensure!(requests >= REQUESTS_MIN, "{requests} requests while the route moved");

    let steady = Steady::start(&gateway.nodes, gateway.socket(), "/shop", "this is cart");
    cluster.reconcilers[0].kill()?;
    cluster.etcd.daemon.kill()?;
    let serves = || gateway.says_now("/shop", 200, "this is cart");
    holds("the gateways serve", secs(3), serves)?;
    let requests = steady.end()?;
    println!("{requests} requests without etcd and reconciler");
    ensure!(requests >= REQUESTS_MIN, "{requests} requests without etcd and reconciler");
    for node in &mut cluster.nodes {
        node.agent.kill()?;
    }
    // The next agents take over without a failed request.
    holds("somebody serves in the agents' places", secs(3), serves)?;
    let etcd = cluster.etcd_for_nodes();
    for node in &mut cluster.nodes {
        node.start_agent(&etcd)?;
    }
    holds("the gateways serve", secs(3), serves)?;
    gateway.says("/", 200, "this is home")
}

#[test]
fn pods_are_replaced_under_requests_and_none_fails() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let changes = [
            service("shop"),
            pod("one", "shop", "shop 0", cluster.node()),
            pod("two", "shop", "shop 0", cluster.node()),
            dns(&[("/shop", "shop", "/")]),
        ];
        cluster.push(&changes, "A shop of two")?;
        ready(cluster, "shop", 2)?;
        let gateway = Gateway::of(cluster)?;
        gateway.says("/shop", 200, "shop 0")?;
        let twice = [NetWorld::of_machine(), NetWorld::of_machine()];
        let steady = Steady::start(&twice, gateway.socket(), "/shop", "shop ");
        for round in 1..=2 {
            for name in ["one", "two"] {
                let before = cluster.pod(name)?;
                cluster.push(&[pod(name, "shop", &format!("shop {round}"), cluster.node())], "Replace")?;
                let after = eventually("another pod", secs(60), || {
                    let pod = cluster.pod(name)?;
                    ensure!(pod.pause != before.pause);
                    Ok(pod)
                })?;
                let address = after.address()?.to_owned();
                eventually("it is an endpoint", secs(60), || {
                    let record = ready(cluster, "shop", 2)?;
                    ensure!(record.endpoints.iter().any(|e| e.address.to_string() == address), "{record:?}");
                    Ok(())
                })?;
            }
        }
        let count = steady.end()?;
        println!("{count} requests while 4 pods were replaced");
        ensure!(count > 100, "only {count} requests");
        Ok(())
    })
}
