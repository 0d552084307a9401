//! Cost of the gateway: latency of a small answer directly from an nginx, through the gateway and
//! through another forwarding nginx, in turns, over kept connections.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, Result, ensure, eventually, outcome, secs, vip,
};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{RouteRecord, Subnet};

use crate::Scale;
use crate::figures::{Row, Series, Table, ratio};

const HOST: &str = "bench.example";
/// Concurrent clients: one for latency, the second number for a busy node.
const CONNECTIONS: [u32; 2] = [1, 32];

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    on_a_host(|_, targets, pids| {
        CONNECTIONS.iter().try_for_each(|connections| compare(*connections, targets, pids, scale, table))
    })
}

/// Runs `act` on a node that serves a host, with the URLs of the endpoint, of the gateway and of another nginx that
/// forwards to it, and the processes of these two. Does nothing if the programs for it are not installed.
pub(crate) fn on_a_host(
    act: impl FnOnce(&Cluster, &[String; 3], &[Vec<u32>; 2]) -> Result<()>,
) -> Result<()> {
    if !has_tools(&["wrk", "nginx"]) {
        println!("gateway: not measured, there is no wrk or nginx (apt-get install wrk nginx-light)");
        return Ok(());
    }
    Cluster::run(ClusterOptions::default(), |cluster| {
        let node = cluster.node().name.clone();
        let subnet: Subnet =
            eventually("the node has a range", secs(30), || cluster.etcd.value(Key::Subnet(node.clone())))?;
        let bridge = Ipv4Addr::from_bits(subnet.cidr.network().to_bits() + 1);
        eventually("the bridge is there", secs(30), || {
            let addresses = cluster.node().net.addresses()?;
            ensure!(addresses.iter().any(|line| line.contains(&format!(" {bridge}/"))), "{addresses:?}");
            Ok(())
        })?;
        let (port, forwarding) = (cluster.slot().port(8), cluster.slot().port(9));
        let answers =
            format!("server {{ listen {bridge}:{port}; location / {{ return 200 \"hello\\n\"; }} }}");
        // The same headers as our gateway sets.
        let forwards = format!(
            "upstream there {{ server {bridge}:{port}; keepalive 64; }}\n\
             server {{ listen {bridge}:{forwarding}; location / {{ proxy_pass http://there; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host; \
             proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-Host $host; \
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; \
             proxy_set_header X-Forwarded-Proto $scheme; }} }}"
        );
        let _endpoint = nginx(cluster, "endpoint", &answers)?;
        let forwarder = nginx(cluster, "forwarder", &forwards)?;
        cluster.push(&[Change::write("bench.yaml", manifests(bridge, port))], "A host")?;
        let address = vip(cluster, 11)?;
        let record = Key::Route(NamespacedName::new("default", "bench"));
        eventually("the route is there", secs(30), || cluster.etcd.value::<RouteRecord>(record.clone()))?;
        let targets = [
            format!("http://{bridge}:{port}/"),
            format!("http://{address}/"),
            format!("http://{bridge}:{forwarding}/"),
        ];
        for target in &targets {
            let said =
                || Command::new("curl").args(["-sf", "-m", "5", "-H", &host_header(), target]).output();
            eventually("it answers", secs(30), || {
                ensure!(said()?.stdout == b"hello\n", "{target} does not");
                Ok(())
            })?;
        }
        let workers = children(forwarder.0.pid()?)?;
        ensure!(!workers.is_empty(), "another nginx answers in place of this bench's: end it");
        let pids = [vec![cluster.node().agent.pid()?], workers];
        act(cluster, &targets, &pids)
    })
}

/// True if all of these programs are installed.
pub(crate) fn has_tools(tools: &[&str]) -> bool {
    let is_there =
        |tool: &&str| Command::new("which").arg(tool).output().is_ok_and(|said| said.status.success());
    tools.iter().all(is_there)
}

pub(crate) fn host_header() -> String {
    format!("Host: {HOST}")
}

fn manifests(address: Ipv4Addr, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: bench}}\nspec:\n  addresses: [{address}]\n  \
         ports: [{{port: 80, targetPort: {port}}}]\n---\n\
         apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: bench}}\nspec:\n  host: {HOST}\n  \
         paths: [{{path: /, service: {{name: bench, port: 80}}}}]\n"
    )
}

/// An nginx with one server and one worker per core.
pub(crate) fn nginx(cluster: &Cluster, name: &str, server: &str) -> Result<Nginx> {
    let dir = cluster.dir(&format!("nginx-{name}"));
    std::fs::create_dir_all(&dir)?;
    let path = dir.to_string_lossy().into_owned();
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {path}/{kind};"))
        .join(" ");
    let config = format!(
        "daemon off; worker_processes auto; pid {path}/pid; error_log {path}/error.log; user root;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 100000000; {temp}\n{server}\n}}\n"
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, config)?;
    let command = ["nginx", "-p", &path, "-c", &file.to_string_lossy()].map(str::to_owned);
    let mut daemon = Daemon::new(format!("nginx-{name}"), &cluster.dir(""), command.to_vec());
    daemon.start()?;
    Ok(Nginx(daemon))
}

/// Stopped by a signal that it handles: killed, it would leave its workers behind.
pub(crate) struct Nginx(pub(crate) Daemon);

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Err(error) = self.0.end(Signal::SIGTERM, secs(10)) {
            eprintln!("nginx: {error:#}");
        }
    }
}

/// Measurements of wrk for one target.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Medians of the turns.
    pub(crate) half: Series,
    /// 99th percentiles of the turns.
    pub(crate) most: Series,
    rate: f64,
}

impl Measured {
    /// Requests per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.rate / self.half.count().max(1) as f64
    }
}

fn compare(
    connections: u32,
    targets: &[String; 3],
    pids: &[Vec<u32>; 2],
    scale: Scale,
    table: &mut Table,
) -> Result<()> {
    let mut measured = [Measured::default(), Measured::default(), Measured::default()];
    let mut cpu = [Duration::ZERO; 2];
    for round in 0..scale.gateway_rounds {
        let mut turns: Vec<usize> = (0..targets.len()).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for index in turns {
            let (target, measured) = (&targets[index], &mut measured[index]);
            let of = index.checked_sub(1);
            let before = of.map(|of| cpu_time(&pids[of])).transpose()?;
            load(connections, target, &["-H", &host_header()], measured)?;
            if let (Some(of), Some(before)) = (of, before) {
                cpu[of] += cpu_time(&pids[of])?.saturating_sub(before);
            }
        }
    }
    let per_request = |of: usize| {
        let requests = measured[of + 1].rate * LOAD.as_secs_f64();
        Duration::from_secs_f64(cpu[of].as_secs_f64() / requests.max(1.0))
    };
    let (our_cpu, nginx_cpu) = (per_request(0), per_request(1));
    let [direct, ours, nginx] = &measured;
    let what = format!("gateway, {connections} kept connections");
    let rows = [
        ("p50", [&direct.half, &ours.half, &nginx.half].map(|series| series.percentile(50)), "+ ≤ 1 ms"),
        ("p99", [&direct.most, &ours.most, &nginx.most].map(|series| series.percentile(50)), "+ ≤ 5 ms"),
    ];
    for (name, [direct, ours, nginx], budget) in rows {
        table.add(Row {
            what: &format!("{what}, {name}"),
            ours: format!("{} µs", ours.as_micros()),
            bare: format!("direct {} µs, nginx {} µs", direct.as_micros(), nginx.as_micros()),
            ratio: format!("{} of nginx", ratio(ours, nginx)),
            budget,
        });
    }
    table.add(Row {
        what: &format!("{what}, CPU time per request"),
        ours: format!("{:.1} µs", our_cpu.as_secs_f64() * 1e6),
        bare: format!("nginx {:.1} µs", nginx_cpu.as_secs_f64() * 1e6),
        ratio: format!("{} of nginx", ratio(our_cpu, nginx_cpu)),
        ..Row::default()
    });
    let [direct, ours, nginx] = measured.map(|measured| measured.per_second());
    table.add(Row {
        what: &format!("{what}, requests/s"),
        ours: format!("{ours:.0}"),
        bare: format!("direct {direct:.0}, nginx {nginx:.0}"),
        ratio: format!("{:.2} × of nginx", ours / nginx.max(1.0)),
        ..Row::default()
    });
    Ok(())
}

/// Child processes of a process.
pub(crate) fn children(pid: u32) -> Result<Vec<u32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    children.split_whitespace().map(|pid| Ok(pid.parse()?)).collect()
}

/// Total CPU time of all threads of these processes.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread that has ended meanwhile no longer has a file.
            let Ok(spent) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
            let nanoseconds = spent.split_whitespace().next().context("an empty schedstat")?;
            total += Duration::from_nanos(nanoseconds.parse()?);
        }
    }
    Ok(total)
}

/// Duration of each load. With one connection, much depends on the cores that the kernel chose for client, gateway
/// and endpoint, and the choice lasts for a turn: many short turns cover every case.
const LOAD: Duration = Duration::from_secs(1);

/// Puts load on the target for [`LOAD`].
pub(crate) fn load(connections: u32, target: &str, more: &[&str], measured: &mut Measured) -> Result<()> {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t", "1", "-c", &connections.to_string(), "-d", &format!("{}s", LOAD.as_secs()), "--latency"])
        .args(more)
        .arg(target);
    let said = outcome(&mut wrk, secs(30))?.ok()?;
    ensure!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "{target}: {said}");
    let value = |name: &str| -> Result<&str> {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map(str::trim).with_context(|| format!("no {name} in {said}"))
    };
    measured.half.add(time(value("50%")?)?);
    measured.most.add(time(value("99%")?)?);
    measured.rate += value("Requests/sec:")?.parse::<f64>()?;
    Ok(())
}

/// Parses a time as wrk writes it: `12.34us`, `1.50ms`, `2.00s`.
fn time(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        other => harness::bail!("{other} is not a unit of wrk"),
    };
    Ok(Duration::from_secs_f64(digits.parse::<f64>()? * unit))
}
