//! Debian's Prometheus scrapes three nodes by the shipped configuration: all targets are up and small, no sample is
//! rejected, every query of the dashboards returns data, and some figures are those of the world.
//!
//! `just soak metrics` also lets four alerts fire by a real fault and clear by its repair.

mod dashboards;
mod faults;

use std::fs;
use std::path::{Path, PathBuf};

use harness::hooks::{accept_hooks, hook};
use harness::manifests::{COUNTS, web};
use harness::{
    Change, Cluster, ClusterOptions, ContainerView, Context, IMAGE, Node, Prometheus, Result, Where, dig,
    ensure, eventually, http_get, secs, service_address,
};
use serde_json::Value;

use self::dashboards::panels;
use crate::functions::{code, manifest};
use crate::gateway::HOST;
use crate::workloads::Workload;

/// Port of the slot for Prometheus.
const PORT: u16 = 16;
/// Reconciler and agents.
const TARGETS: usize = 4;
/// Most series of a target.
const SERIES_MAX: f64 = 2_000.0;
/// Requests at a time through the gateway of each node.
const REQUESTS: usize = 20;
/// Bytes that a pod keeps in a volume in memory.
const KEPT_BYTES: f64 = (40 << 20) as f64;
/// Counters of Prometheus for samples and scrapes that it rejected.
const REJECTED: [&str; 5] = [
    "prometheus_target_scrapes_sample_duplicate_timestamp_total",
    "prometheus_target_scrapes_sample_out_of_order_total",
    "prometheus_target_scrapes_sample_out_of_bounds_total",
    "prometheus_target_scrapes_exceeded_body_size_limit_total",
    "prometheus_target_scrapes_exceeded_sample_limit_total",
];
/// Figures of the faults, which are at least 1 each.
const FAULTS: [&str; 7] = [
    "sum(minik8s_source_quarantined_files)",
    "sum(minik8s_pods_pending{reason=\"Cpu\"})",
    "max(minik8s_pod_restarts_max{kind=\"Pod\"})",
    "sum(minik8s_container_oom_kills_total{workload=\"grows\"})",
    "sum(minik8s_image_pulls_total{outcome=\"failed\"})",
    "sum(minik8s_probes_total{kind=\"readiness\",outcome=\"failure\"})",
    "sum(minik8s_webhook_requests_total{outcome=\"accepted\"})",
];
const PROBES: &str = "    startupProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}\n    \
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}\n    \
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}\n";
const HELLO: &str = "def main(params):\n    return {'greeting': 'hello'}\n";

/// Folder of the shipped files.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Returns false, and says so, if there is no Prometheus.
fn is_installed() -> bool {
    let is_installed = Prometheus::is_installed();
    if !is_installed {
        println!("metrics are not scraped: prometheus is not installed");
    }
    is_installed
}

/// Starts Prometheus with the shipped configuration, these rules, and the certificate of a user.
fn start(cluster: &Cluster, rules: &str) -> Result<Prometheus> {
    let files = certificate(cluster)?;
    let config = fs::read_to_string(shipped().join("prometheus/prometheus.yml"))?;
    let config = config.replace("/etc/prometheus/minik8s", &files.to_string_lossy());
    let api = cluster.listen(0);
    let config: String = config.lines().map(|line| adapted(line, &api) + "\n").collect();
    Prometheus::start(&cluster.dir(""), cluster.slot().port(PORT), &config, rules)
}

/// Folder with the certificate of a new user, as files.
fn certificate(cluster: &Cluster) -> Result<PathBuf> {
    let (user, files) = (cluster.dir("prometheus.json"), cluster.dir("prometheus-user"));
    cluster.cli(&["user", "add", "prometheus", "-o", &user.to_string_lossy()])?.ok()?;
    let user: Value = serde_json::from_str(&fs::read_to_string(user)?)?;
    fs::create_dir_all(&files)?;
    for name in ["authorities", "certificate", "key"] {
        let pem = user[name].as_str().with_context(|| format!("the file has no {name}"))?;
        fs::write(files.join(format!("{name}.pem")), pem)?;
    }
    Ok(files)
}

/// Waits until Prometheus scrapes all daemons.
fn scrapes_all(prometheus: &Prometheus) -> Result<()> {
    eventually("every target is up", secs(60), || {
        let up = prometheus.query("up")?;
        ensure!(up.len() == TARGETS && up.iter().all(|target| target.value == 1.0), "{up:?}");
        Ok(())
    })
}

/// Adapts a line of the configuration: the reconciler's address, and a second for each interval.
fn adapted(line: &str, api: &str) -> String {
    if let (Some(from), Some(to)) = (line.find("https://"), line.find("/v1/metrics/targets")) {
        return format!("{}https://{api}{}", &line[..from], &line[to..]);
    }
    match line.split_once(": ") {
        Some((key, _)) if key.ends_with("_interval") || key.ends_with("_timeout") => format!("{key}: 1s"),
        _ => line.to_owned(),
    }
}

/// A pod with one container `main`, with further lines of its fields.
fn pod(name: &str, image: &str, command: &str, more: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers:\n  - name: main\n    image: {image}\n    command: [sh, -c, {command:?}]\n{more}"
    );
    Change::write(format!("{name}.yaml"), text)
}

/// Objects of which all become healthy.
fn healthy(shop: &Workload) -> Vec<Change> {
    let load = include_str!("../../../sample-repo/apps/load.yaml").replace("minik8s-sample/busybox:1", IMAGE);
    let host = format!(
        "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: shop}}\nspec:\n  host: {HOST}\n  \
         paths: [{{path: /, service: {{name: shop, port: 80}}}}]\n"
    );
    let workflow = format!(
        "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: count}}\nspec:\n  \
         params: {{n: 0, until: 2}}{COUNTS}"
    );
    vec![
        shop.service(),
        shop.file(),
        Change::write("dns.yaml", host),
        Change::write("load.yaml", load),
        Change::write("probed.yaml", web("probed").container_fields(PROBES).to_string()),
        Change::write("count.yaml", workflow),
        manifest("hello", ""),
        code("hello", "main.py", HELLO),
    ]
}

/// Another function, and objects that never become healthy.
fn unhealthy() -> Vec<Change> {
    let broken = web("broken").to_string().replace("containers:", "containers: [");
    vec![
        manifest("again", ""),
        code("again", "main.py", HELLO),
        pod("ends", IMAGE, "sleep 1; exit 3", ""),
        pod("grows", IMAGE, "sleep 1; exec tail /dev/zero", "    resources: {limits: {memory: 16Mi}}\n"),
        pod(
            "unready",
            IMAGE,
            "sleep 1000",
            "    readinessProbe: {exec: {command: [\"false\"]}, periodSeconds: 1}\n",
        ),
        pod("absent", "127.0.0.1:9/absent:1", "sleep 1000", ""),
        pod("huge", IMAGE, "sleep 1000", "    resources: {requests: {cpu: \"1000\"}}\n"),
        Change::write("broken.yaml", broken),
    ]
}

/// Memory of a process's cgroup without the inactive page cache.
fn working_set_bytes(pid: u32) -> Result<f64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let of_memory = groups.lines().find_map(|line| line.split_once(":memory:"));
    let (folder, usage, cache) = match of_memory {
        Some((_, path)) => {
            (format!("/sys/fs/cgroup/memory{path}"), "memory.usage_in_bytes", "total_inactive_file ")
        }
        None => {
            let path = groups.lines().find_map(|line| line.strip_prefix("0::")).context("no cgroup")?;
            (format!("/sys/fs/cgroup{path}"), "memory.current", "inactive_file ")
        }
    };
    let used: f64 = fs::read_to_string(format!("{folder}/{usage}"))?.trim().parse()?;
    let stat = fs::read_to_string(format!("{folder}/memory.stat"))?;
    let cache = stat.lines().find_map(|line| line.strip_prefix(cache)).context("no inactive page cache")?;
    Ok(used - cache.trim().parse::<f64>()?)
}

/// A cluster, and the Prometheus that scrapes it.
struct Scraped<'c> {
    cluster: &'c Cluster,
    prometheus: Prometheus,
}

#[test]
fn prometheus_scrapes_three_nodes_and_every_panel_has_data() -> Result<()> {
    if !is_installed() {
        return Ok(());
    }
    let options = ClusterOptions { place: Where::Namespaces(3), python: true, ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    accept_hooks(&mut cluster, 0)?;
    cluster.run_story(|cluster| {
        let rules = fs::read_to_string(shipped().join("prometheus/alerts.yml"))?;
        cluster.start_all()?;
        let prometheus = start(cluster, &rules)?;
        scrapes_all(&prometheus)?;
        let scraped = Scraped { cluster, prometheus };
        let shop = Workload::new("shop", 2);
        cluster.push(&healthy(&shop), "Open")?;
        shop.serves(cluster)?;
        scraped.counts_running_pods()?;
        let load = scraped.fill_memory()?;
        // Twice, because a rate shows nothing of a counter that begins with its first request.
        scraped.first_answers()?;
        scraped.calls("hello", 3.0)?;
        scraped.requests(1)?;
        let commit = cluster.push(&unhealthy(), "More, and faults")?;
        let (code, answer) = hook(cluster, 0, "d1", &commit)?;
        ensure!(code == 202, "{code} {answer}");
        scraped.calls("again", 3.0)?;
        scraped.calls("hello", 6.0)?;
        scraped.requests(2)?;
        FAULTS.iter().try_for_each(|query| scraped.shows(&format!("{query} >= bool 1"), 1.0))?;
        scraped.measures_memory(&load)?;
        scraped.is_small_and_complete()?;
        let lost = cluster.numbered(3)?;
        let ready = format!("minik8s_node_ready{{node=\"{}\"}}", lost.name);
        scraped.shows(&ready, 1.0)?;
        lost.cut_off()?;
        // In the meantime its heartbeat expires.
        scraped.every_panel_has_data()?;
        scraped.shows(&ready, 0.0)?;
        scraped.shows(&format!("up{{node=\"{}\"}}", lost.name), 0.0)?;
        lost.reconnect()
    })
}

impl Scraped<'_> {
    /// Waits until a query returns this number.
    fn shows(&self, query: &str, wanted: f64) -> Result<()> {
        eventually(&format!("{query} is {wanted}"), secs(60), || {
            let value = self.prometheus.value(query)?;
            ensure!(value == wanted, "{value}");
            Ok(())
        })
    }

    fn counts_running_pods(&self) -> Result<()> {
        eventually("as many pods run as Docker has containers of pods", secs(60), || {
            let all = self.cluster.containers()?;
            let is_of_pod = |name: &str| !["", "POD"].contains(&name);
            let running = all.iter().filter(|one| one.running && is_of_pod(one.label("container"))).count();
            let shown = self.prometheus.value("sum(minik8s_pods{phase=\"Running\"})")?;
            // Two of the shop, one each of the load and of the web pod; functions come and go.
            ensure!(running >= 4 && shown == running as f64, "{shown} pods, {running} containers");
            Ok(())
        })
    }

    /// Sends requests to the host through the gateway of a node, all of which must be answered.
    fn request(&self, node: &Node, count: usize) -> Result<()> {
        let (host, count) = (format!("Host: {HOST}"), count.to_string());
        let url = format!("http://{}/", service_address(self.cluster, 11)?);
        let script = "for i in $(seq \"$1\"); do curl -sf -m 5 -H \"$2\" \"$3\" || exit 1; done";
        node.net.run("sh", &["-c", script, "-", &count, &host, &url]).map(drop)
    }

    /// Requests the host on each node until it answers.
    fn first_answers(&self) -> Result<()> {
        self.cluster
            .nodes
            .iter()
            .try_for_each(|node| eventually("the host answers", secs(45), || self.request(node, 1)))
    }

    /// Calls a function three times through the first node, after which this many calls are counted.
    fn calls(&self, function: &str, counted: f64) -> Result<()> {
        let url = format!("http://127.0.0.1:8081/default/{function}");
        let call = || self.cluster.node().net.run("curl", &["-sf", "-m", "100", "-d", "{}", &url]);
        eventually("the function answers", secs(100), call)?;
        for _ in 0..2 {
            call()?;
        }
        let of = format!("function=\"{function}\",code=\"2xx\"");
        self.shows(&format!("sum(minik8s_function_calls_total{{{of}}})"), counted)
    }

    /// Sends requests through all gateways, to the name server and to the API, for the `turn`-th time.
    fn requests(&self, turn: usize) -> Result<()> {
        let cluster = self.cluster;
        cluster.nodes.iter().try_for_each(|node| self.request(node, REQUESTS))?;
        let dns = service_address(cluster, 10)?.to_string();
        for name in ["shop.default.svc.cluster.local", "none.default.svc.cluster.local"] {
            dig(&cluster.node().net, &dns, name, "A", &[])?;
        }
        cluster.cli(&["get", "pods"])?.ok()?;
        http_get(&cluster.api(0), "/v1/nowhere")?;
        let sent = cluster.nodes.len() * (1 + turn * REQUESTS);
        self.shows("sum(minik8s_gateway_requests_total{code=\"2xx\"})", sent as f64)
    }

    /// Fills the memory of the load's pod; returns its container.
    fn fill_memory(&self) -> Result<ContainerView> {
        let mut all = self.cluster.containers()?.into_iter();
        let load = all.find(|one| one.running && one.label("container") == "load");
        let load = load.context("no container of the load")?;
        let pod = self.cluster.pod(load.label("pod"))?;
        let mib = KEPT_BYTES / f64::from(1 << 20);
        let url = format!("http://{}:8080/cgi-bin/load?memory={mib}", pod.address()?);
        eventually("it is asked for memory", secs(20), || {
            self.cluster.node().net.run("curl", &["-sf", "-m", "5", &url])
        })?;
        Ok(load)
    }

    fn measures_memory(&self, load: &ContainerView) -> Result<()> {
        let query = format!("minik8s_pod_memory_working_set_bytes{{pod=\"{}\"}}", load.label("pod"));
        eventually("the memory of the pod is that of its cgroup", secs(60), || {
            let (kernel, shown) = (working_set_bytes(load.pid)?, self.prometheus.value(&query)?);
            ensure!(kernel > KEPT_BYTES && (shown - kernel).abs() < 0.2 * kernel, "{shown}, not {kernel}");
            Ok(())
        })
    }

    fn every_panel_has_data(&self) -> Result<()> {
        let mut missing = panels()?;
        let count = missing.len();
        eventually("every panel has data", secs(60), || {
            let mut why = Vec::new();
            missing.retain(|panel| match self.prometheus.has_returned(&panel.query) {
                Ok(()) => false,
                Err(error) => {
                    why.push(format!("{}: {}: {error:#}", panel.title, panel.query));
                    true
                }
            });
            ensure!(why.is_empty(), "{} of {count} have none:\n{}", why.len(), why.join("\n"));
            Ok(())
        })?;
        println!("{count} queries return data");
        Ok(())
    }

    /// Checks that no target has too many series, and that Prometheus rejected nothing.
    fn is_small_and_complete(&self) -> Result<()> {
        let targets = self.prometheus.query("scrape_samples_post_metric_relabeling")?;
        for target in &targets {
            println!("{} series: {:?}", target.value, target.labels);
        }
        ensure!(targets.len() == TARGETS, "{targets:?}");
        ensure!(targets.iter().all(|target| target.value <= SERIES_MAX), "{targets:?}");
        for counter in REJECTED {
            let count = self.prometheus.own(counter)?;
            ensure!(count == 0.0, "{counter} is {count}");
        }
        Ok(())
    }
}
