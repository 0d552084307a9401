//! The name server: answers per second on one core, memory, and speed compared with other forwarders.
//!
//! `dnsperf` runs on the other cores; the agent is pinned to one.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;

use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, NetWorld, Result, Upstream, dig, ensure, eventually,
    run, secs, service_address,
};

use crate::Scale;
use crate::figures::{Row, Table};
use crate::idle::resident_mib;

/// Endpoints of each service.
const ENDPOINTS: usize = 10;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let upstream = Upstream::serve(SocketAddr::from(([127, 0, 0, 1], cluster.slot().port(9))))?;
        let (dir, address) = (cluster.dir(""), service_address(cluster, 10)?.to_string());
        cluster.node_mut().agent.kill()?;
        let fresh = Daemon::new("agent-n0", &dir, Vec::new());
        cluster.node_mut().agent = fresh.env("MINIK8S_DNS_UPSTREAM", &upstream.address().to_string());
        cluster.start_agent()?;
        let pid = cluster.node().agent.pid()?;
        let bare = resident_mib(pid)?;
        cluster.push(&services(scale.services), "Services")?;
        let last = format!("s{}.default.svc.cluster.local", scale.services - 1);
        let asked = eventually("all services are known", secs(120), || {
            let said = dig(&NetWorld::of_machine(), &address, &last, "A", &[])?;
            ensure!(said.answers.len() == ENDPOINTS, "{said:?}");
            Ok(())
        });
        asked.and_then(|()| show(scale, table, &address, pid, bare))
    })
}

fn show(scale: Scale, table: &mut Table, address: &str, pid: u32, bare: f64) -> Result<()> {
    let of = format!("{} services of {ENDPOINTS} endpoints", scale.services);
    let grown = resident_mib(pid)? - bare;
    let what = &format!("memory of the agent for {of}");
    table.add(Row { what, ours: format!("{grown:.0} MiB"), ..Row::default() });
    run("taskset", &["-acp", "0", &pid.to_string()])?;
    let mut names = String::new();
    for number in 0..scale.services {
        writeln!(names, "s{number}.default.svc.cluster.local A")?;
    }
    let said = dnsperf(address, &names, scale.idle_seconds, &[])?;
    let what = &format!("names of the cluster a second on one core ({of})");
    table.add(Row { what, ours: said, budget: "≥ 20,000/s", ..Row::default() });
    let mut names = String::new();
    for number in 0..20_000 {
        writeln!(names, "n{number}.example.com A")?;
    }
    let said = dnsperf(address, &names, scale.idle_seconds, &["-Q", "1000"])?;
    let what = "other names, 1,000 a second, few in the cache: answered, lost";
    table.add(Row { what, ours: said, budget: "≤ 0.01 % lost", ..Row::default() });
    let what = "memory of the agent after it";
    table.add(Row { what, ours: format!("{:.0} MiB", resident_mib(pid)?), ..Row::default() });
    Ok(())
}

/// Rate and loss as counted by dnsperf.
fn dnsperf(server: &str, names: &str, seconds: u64, more: &[&str]) -> Result<String> {
    let file = std::env::temp_dir().join(format!("minik8s-names-{}", std::process::id()));
    fs::write(&file, names)?;
    let (path, seconds) = (file.to_string_lossy().into_owned(), seconds.to_string());
    let mut args =
        vec!["-c", "1", "dnsperf", "-s", server, "-d", &path, "-l", &seconds, "-c", "8", "-q", "100"];
    args.extend(more);
    let text = run("taskset", &args);
    fs::remove_file(&file)?;
    let text = text?;
    let line = |key: &str| {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .context(text.clone())
    };
    let codes = line("Response codes")?;
    Ok(format!("{}/s, {} lost, {codes}", line("Queries per second")?, line("Queries lost")?))
}

fn services(count: usize) -> Vec<Change> {
    let service = |number: usize| {
        let addresses: Vec<String> = (0..ENDPOINTS)
            .map(|n| {
                format!("198.{}.{}.{}", 18 + number / 250 % 2, number % 250, n + 10 * (number / 500 % 20))
            })
            .collect();
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}}}\nspec:\n  clusterIP: None\n  \
             addresses: [{}]\n  ports: [{{name: http, port: 80}}]\n",
            addresses.join(", ")
        );
        Change::write(format!("services/s{number}.yaml"), text)
    };
    (0..count).map(service).collect()
}
