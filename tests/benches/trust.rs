//! Trust: new connections to an agent's API with certificates on both sides, next to an nginx with the same certificate;
//! and the time in which a node joins.

use std::fs;
use std::time::{Duration, Instant};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, node_is_ready, request_token, secs,
    tls_get,
};
use nix::sys::signal::Signal;
use schema::trust::TrustDir;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::gateway::{children, cpu_time, has_tools, nginx};

/// Turns of connections to each server.
const TURNS: usize = 5;
/// Clients that connect at the same time.
const CLIENTS: usize = 2;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| handshakes(cluster, scale, table))?;
    joins(scale, table)
}

/// Opens so many connections as a reconciler, each with one request. Returns the time that it takes.
fn connect(address: &str, pki: &TrustDir, count: usize) -> Result<Duration> {
    let began = Instant::now();
    std::thread::scope(|threads| -> Result<()> {
        let one_client = || -> Result<()> {
            for _ in 0..count / CLIENTS {
                let (code, said) = tls_get(address, "/v1/healthz", pki)?;
                ensure!(code == 200, "{code} {said}");
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| threads.spawn(one_client)).collect();
        clients.into_iter().try_for_each(|client| client.join().ok().context("a client panicked")?)
    })?;
    Ok(began.elapsed())
}

/// Measures the CPU time of the server for a connection: the clients need as much, and share the cores.
fn handshakes(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    if !has_tools(&["nginx"]) {
        println!("handshakes: not measured, there is no nginx (apt-get install nginx-light)");
        return Ok(());
    }
    let own = TrustDir::new(cluster.node().state_dir().join("agent/pki"));
    let at = format!("127.0.0.1:{}", cluster.slot().port(9));
    let (certificate, key) = (own.certificate_file(), own.key_file());
    let server = format!(
        "server {{ listen {at} ssl; ssl_protocols TLSv1.3; ssl_session_tickets off; ssl_certificate {}; \
         ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client on; \
         location / {{ return 200 \"ok\\n\"; }} }}",
        certificate.display(),
        key.display(),
        own.authorities_file().display()
    );
    let other = nginx(cluster, "handshakes", &server)?;
    let client = cluster.trust.reconciler("r0")?;
    eventually("nginx answers", secs(10), || connect(&at, &client, CLIENTS))?;
    let agent = cluster.node().listen().to_owned();
    let targets = [(agent, vec![cluster.node().agent.pid()?]), (at, children(other.0.pid()?)?)];
    ensure!(!targets[1].1.is_empty(), "another nginx answers in place of this bench's: end it");
    let mut spent = [Duration::ZERO; 2];
    let mut took = [Duration::ZERO; 2];
    for _ in 0..TURNS {
        for (index, (address, pids)) in targets.iter().enumerate() {
            let before = cpu_time(pids)?;
            took[index] += connect(address, &client, scale.handshakes)?;
            spent[index] += cpu_time(pids)?.saturating_sub(before);
        }
    }
    let count = (TURNS * scale.handshakes) as f64;
    let of_core = spent.map(|spent| count / spent.as_secs_f64().max(f64::MIN_POSITIVE));
    let all = took.map(|took| count / took.as_secs_f64().max(f64::MIN_POSITIVE));
    table.add(Row {
        what: "agent's API: handshakes with both certificates and a request, a second of one core",
        ours: format!("{:.0}", of_core[0]),
        bare: format!("nginx {:.0}", of_core[1]),
        ratio: format!("{:.2} × of nginx", of_core[0] / of_core[1]),
        ..Row::default()
    });
    table.add(Row {
        what: &format!("the same beside {CLIENTS} clients on this machine, a second"),
        ours: format!("{:.0}", all[0]),
        bare: format!("nginx {:.0}", all[1]),
        ratio: format!("{:.2} × of nginx", all[0] / all[1]),
        ..Row::default()
    });
    Ok(())
}

/// Measures from the start of the command that joins.
fn joins(scale: Scale, table: &mut Table) -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        // It is another machine each time.
        cluster.expect_denials();
        cluster.etcd.start()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let name = cluster.node().name.clone();
        cluster.push(&[Change::write("first.yaml", web("first").on(&name).to_string())], "A pod")?;
        let (mut ready, mut running) = (Series::default(), Series::default());
        for _ in 0..scale.joins {
            if cluster.node().state_dir().exists() {
                fs::remove_dir_all(cluster.node().state_dir())?;
            }
            let token = request_token(cluster, &format!("node-{name}"), 3600)?;
            let mut command = cluster.node().agent_command("join", "");
            let url = format!("https://{}", cluster.listen(0));
            command.extend([url, "--token".to_owned(), token.to_string()]);
            cluster.node_mut().agent.set_command(command);
            let began = Instant::now();
            cluster.node_mut().agent.start()?;
            eventually("the node is ready", secs(60), || node_is_ready(cluster, &name))?;
            ready.add(began.elapsed());
            cluster.running("first", &["web"])?;
            running.add(began.elapsed());
            cluster.node_mut().agent.end(Signal::SIGTERM, secs(20))?;
            cluster.node().reset()?.ok()?;
            eventually("its heartbeat is over", secs(60), || {
                ensure!(node_is_ready(cluster, &name).is_err(), "it is ready");
                Ok(())
            })?;
        }
        for (what, series) in [("Ready", &ready), ("its first pod running", &running)] {
            let what = format!("join: command → {what}, n={}, p50 (p95)", series.count());
            let ours = format!("{} ({})", ms(series.percentile(50)), ms(series.percentile(95)));
            table.add(Row { what: &what, ours, budget: "≤ 5 s", ..Row::default() });
        }
        Ok(())
    })
}
