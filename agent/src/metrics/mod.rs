//! Metrics of the agent: its counters and histograms, and the families of what the usage loop samples.
//!
//! Counts begin at 0 with the process. The standby process serves while no agent runs, and counts, too; nobody reads
//! its counts.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use schema::control::LoopRuns;
use schema::meta::NamespacedName;
use schema::metrics::{
    Counters, FamilyInfo, Histograms, MetricSet, StateFamily, StoreMetrics, loop_families, process_families,
};

mod resources;

use resources::resource_families;
pub use resources::{PodResources, Resources, Traffic};

/// Metrics of this process. Static, because whatever counts lies deep: as a parameter they would pass through forty
/// constructors. Tests share them, and so assert differences only, or give the part under test metrics of its own.
pub static METRICS: LazyLock<AgentMetrics> = LazyLock::new(AgentMetrics::default);

static PULLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_image_pulls",
    "Pulls of images that ended, one for all containers that wait for it: pulled or failed",
    &["outcome"],
);
static PULL_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_image_pull_duration_seconds",
    "Duration of successful pulls, without the wait for their turn",
    &[],
);
static STARTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_starts",
    "Attempts to create and start a container of a pod: started or failed",
    &["outcome"],
);
static EXITS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_exits",
    "Ends of containers of pods, stopped ones included: Completed with code 0, Error, or OOMKilled",
    &["reason"],
);
static OOM_KILLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_oom_kills",
    "Processes that the kernel killed because their container used more memory than its limit",
    &["namespace", "workload"],
);
static PROBES: FamilyInfo = FamilyInfo::counter(
    "minik8s_probes",
    "Results of probes that count: of startup, readiness or liveness, success or failure",
    &["kind", "outcome"],
);
static RULES: FamilyInfo =
    FamilyInfo::counter("minik8s_rules_programmed", "Runs of iptables-restore: ok or failed", &["outcome"]);
static RULES_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_rules_program_duration_seconds",
    "Duration of successful runs of iptables-restore",
    &[],
);
static REPAIRS: FamilyInfo = FamilyInfo::counter(
    "minik8s_rules_repairs",
    "Times that a loop wrote its packet rules again because other programs had changed them",
    &[],
);
static DNS_QUERIES: FamilyInfo = FamilyInfo::counter(
    "minik8s_dns_queries",
    "Queries that the node's name server answered, by response code",
    &["code"],
);
static DNS_FORWARDED: FamilyInfo = FamilyInfo::counter(
    "minik8s_dns_forwarded",
    "Queries for names outside of the cluster that were not in the cache: answered or failed",
    &["outcome"],
);
static GATEWAY: FamilyInfo = FamilyInfo::counter(
    "minik8s_gateway_requests",
    "Requests that the node's gateway for hosts answered, by class of the status code",
    &["code"],
);
static GATEWAY_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_gateway_request_duration_seconds",
    "Time from the head of a request through the gateway for hosts to the head of its response",
    &["code"],
);
static CALLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_function_calls",
    "Calls of functions through this node, by class of the status code; refused callers do not count",
    &["namespace", "function", "code"],
);
static CALL_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_function_call_duration_seconds",
    "Duration of calls of functions through this node, with the wait for a replica",
    &["namespace", "function"],
);
static COLD_STARTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_function_cold_starts",
    "Calls that waited for the start of a replica",
    &["namespace", "function"],
);
static COLD_START_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_function_cold_start_duration_seconds",
    "Wait of a call for the start of a replica: all of it (queued), and its phases",
    &["phase"],
);
static BUILDS: FamilyInfo = FamilyInfo::counter(
    "minik8s_builds",
    "Builds of images of functions that ended and were still wanted: built or failed",
    &["outcome"],
);
static BUILD_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_build_duration_seconds",
    "Duration of successful builds of images of functions",
    &[],
);
static SUBMISSIONS: FamilyInfo = FamilyInfo::counter(
    "minik8s_job_submissions",
    "Attempts to submit a job to Slurm: submitted or failed",
    &["outcome"],
);

static BUILD_INFO: FamilyInfo =
    FamilyInfo::gauge("minik8s_build_info", "Version of this daemon", &["version"]);

/// Counters and histograms of the agent.
#[derive(Debug)]
pub struct AgentMetrics {
    set: MetricSet,
    pub store: StoreMetrics,
    pub pulls: TimedOutcomes,
    pub starts: Outcomes,
    /// By reason.
    pub exits: Counters,
    /// By namespace and workload.
    pub oom_kills: Counters,
    /// By kind and outcome.
    pub probes: Counters,
    pub rules: TimedOutcomes,
    pub repairs: Counter,
    pub dns: QueryCounts,
    pub forwarded: Outcomes,
    pub gateway: RequestCounts,
    calls: Counters,
    call_seconds: Histograms,
    cold_starts: Counters,
    cold_start_seconds: Histograms,
    pub builds: TimedOutcomes,
    pub submissions: Outcomes,
}

impl Default for AgentMetrics {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let of = &mut set;
        Self {
            store: StoreMetrics::new(of),
            pulls: TimedOutcomes::new(of, (&PULLS, &PULL_SECONDS), "pulled"),
            starts: Outcomes::new(of, &STARTS, "started"),
            exits: of.counters(&EXITS),
            oom_kills: of.counters(&OOM_KILLS),
            probes: of.counters(&PROBES),
            rules: TimedOutcomes::new(of, (&RULES, &RULES_SECONDS), "ok"),
            repairs: of.counters(&REPAIRS).one(&[]),
            dns: QueryCounts::new(of),
            forwarded: Outcomes::new(of, &DNS_FORWARDED, "answered"),
            gateway: RequestCounts::new(of),
            calls: of.counters(&CALLS),
            call_seconds: of.histograms(&CALL_SECONDS),
            cold_starts: of.counters(&COLD_STARTS),
            cold_start_seconds: of.histograms(&COLD_START_SECONDS),
            builds: TimedOutcomes::new(of, (&BUILDS, &BUILD_SECONDS), "built"),
            submissions: Outcomes::new(of, &SUBMISSIONS, "submitted"),
            set,
        }
    }
}

impl AgentMetrics {
    /// Counts an answered call of a function. `cold_start`: the phases of the start that it waited for, if any.
    pub fn count_call(
        &self,
        function: &NamespacedName,
        status: u16,
        took: Duration,
        cold_start: &[(&'static str, Duration)],
    ) {
        let (namespace, name) = (function.namespace.as_str(), function.name.as_str());
        let code = CODE_CLASSES.get(class_of(status)).copied().unwrap_or_default();
        self.calls.inc(&[namespace, name, code]);
        self.call_seconds.observe(&[namespace, name], took);
        if !cold_start.is_empty() {
            self.cold_starts.inc(&[namespace, name]);
        }
        for &(phase, took) in cold_start {
            self.cold_start_seconds.observe(&[phase], took);
        }
    }

    /// Writes all metrics of the agent. `resources` are the newest ones, `None` before the first sample.
    pub fn text(&self, runs: &LoopRuns, resources: Option<&Resources>) -> String {
        let mut build = StateFamily::new(&BUILD_INFO);
        build.add([env!("CARGO_PKG_VERSION")], 1.0);
        let mut state = vec![build];
        state.extend(resources.map(resource_families).unwrap_or_default());
        state.extend(loop_families(runs));
        state.extend(process_families());
        self.set.text(state)
    }

    /// Returns the value of a counter or histogram, such as `minik8s_rules_repairs_total`, as it is written; 0 if it is
    /// not.
    #[cfg(test)]
    pub(crate) fn value(&self, series: &str) -> f64 {
        let text = self.set.text(Vec::new());
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_default()
    }
}

/// Returns the families of the agent besides those of every daemon, for `docs/metrics.md`.
pub fn families() -> Vec<&'static FamilyInfo> {
    METRICS.set.infos().iter().copied().chain([&BUILD_INFO]).chain(resources::infos()).collect()
}

// Handles on counters, so that counting on a busy path takes no lock of a map and allocates nothing.

/// Counters of an act by its outcome.
#[derive(Debug, Clone)]
pub struct Outcomes {
    done: Counter,
    failed: Counter,
}

impl Outcomes {
    /// Adds the family. `done` is the word for success.
    fn new(set: &mut MetricSet, info: &'static FamilyInfo, done: &str) -> Self {
        let counters = set.counters(info);
        Self { done: counters.one(&[done]), failed: counters.one(&["failed"]) }
    }

    /// Counts an act.
    pub fn count(&self, is_done: bool) {
        let counter = if is_done { &self.done } else { &self.failed };
        counter.inc();
    }
}

/// Counters of an act by its outcome, and the durations of those that succeeded.
#[derive(Debug, Clone)]
pub struct TimedOutcomes {
    outcomes: Outcomes,
    seconds: Histogram,
}

impl TimedOutcomes {
    fn new(
        set: &mut MetricSet,
        (outcomes, seconds): (&'static FamilyInfo, &'static FamilyInfo),
        done: &str,
    ) -> Self {
        let outcomes = Outcomes::new(set, outcomes, done);
        Self { outcomes, seconds: set.histograms(seconds).one(&[]) }
    }

    /// Counts an act.
    pub fn count(&self, is_done: bool, took: Duration) {
        self.outcomes.count(is_done);
        if is_done {
            self.seconds.observe(took.as_secs_f64());
        }
    }
}

/// Response codes of DNS that are counted each; the last word stands for all others.
const DNS_CODES: [&str; 5] = ["NOERROR", "NXDOMAIN", "SERVFAIL", "REFUSED", "Other"];

/// Counters of queries by response code.
#[derive(Debug, Clone)]
pub struct QueryCounts([Counter; DNS_CODES.len()]);

impl QueryCounts {
    fn new(set: &mut MetricSet) -> Self {
        let counters = set.counters(&DNS_QUERIES);
        Self(DNS_CODES.map(|code| counters.one(&[code])))
    }

    /// Counts a query that is answered with this response code.
    pub fn count(&self, code: u16) {
        // The numbers of RFC 1035.
        let at = match code {
            0 => 0,
            3 => 1,
            2 => 2,
            5 => 3,
            _ => 4,
        };
        if let Some(counter) = self.0.get(at) {
            counter.inc();
        }
    }
}

/// Classes of status codes.
const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Returns the place of a status code's class in [`CODE_CLASSES`].
fn class_of(status: u16) -> usize {
    usize::from(status / 100).clamp(1, CODE_CLASSES.len()) - 1
}

/// Counters and durations of requests by class of the status code.
#[derive(Debug, Clone)]
pub struct RequestCounts([(Counter, Histogram); CODE_CLASSES.len()]);

impl RequestCounts {
    fn new(set: &mut MetricSet) -> Self {
        let (requests, seconds) = (set.counters(&GATEWAY), set.histograms(&GATEWAY_SECONDS));
        Self(CODE_CLASSES.map(|class| (requests.one(&[class]), seconds.one(&[class]))))
    }

    /// Counts an answered request.
    pub fn count(&self, status: u16, took: Duration) {
        if let Some((requests, seconds)) = self.0.get(class_of(status)) {
            requests.inc();
            seconds.observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use schema::control::{LastRun, Pulse};
    use schema::metrics::{FamilyType, common_families};
    use schema::records::DiskSpace;
    use schema::store::memory::MemoryStore;
    use tokio::sync::watch;

    use super::*;

    /// A node with this many pods, each with every figure.
    fn resources(pods: usize) -> Resources {
        let traffic = Some(Traffic { input: 3, output: 4 });
        let of_pod = PodResources {
            cpu_ns: 1_500_000_000,
            memory_bytes: 2,
            network: traffic,
            disk: traffic,
            volume_bytes: Some(5),
        };
        let named = |number: usize| (NamespacedName::new("default", format!("pod-{number}")), of_pod.clone());
        Resources {
            cpu_ns: 1,
            memory_bytes: 2,
            memory_total_bytes: 3,
            network: traffic,
            disk: Some(DiskSpace { total_bytes: 9, free_bytes: 8 }),
            containers: 2 * pods,
            pods: (0..pods).map(named).collect(),
        }
    }

    /// Makes every kind of request that the agent makes.
    async fn touch_store(metrics: &AgentMetrics) {
        let store = metrics.store.metered(Arc::new(MemoryStore::new()));
        store.get("k").await.unwrap();
        store.list("k").await.unwrap();
        let _ = store.txn(Vec::new(), Vec::new()).await.unwrap();
        drop(store.watch("k", 1).await);
        let lease = store.lease_grant(Duration::from_secs(60)).await.unwrap();
        store.lease_keep_alive(lease).await.unwrap();
        store.lease_revoke(lease).await.unwrap();
    }

    fn touch_counts(metrics: &AgentMetrics) {
        let took = Duration::from_millis(20);
        for is_done in [true, false] {
            for timed in [&metrics.pulls, &metrics.rules, &metrics.builds] {
                timed.count(is_done, took);
            }
            for outcomes in [&metrics.starts, &metrics.forwarded, &metrics.submissions] {
                outcomes.count(is_done);
            }
        }
        for reason in ["Completed", "Error", "OOMKilled"] {
            metrics.exits.inc(&[reason]);
        }
        for kind in ["startup", "readiness", "liveness"] {
            metrics.probes.inc(&[kind, "success"]);
            metrics.probes.inc(&[kind, "failure"]);
        }
        metrics.repairs.inc();
        (0..20).for_each(|code| metrics.dns.count(code));
        for number in 0..20 {
            let of = NamespacedName::new("default", format!("function-{number}"));
            let phases = ["queued", "scheduled", "created", "started", "imported", "routed"];
            for status in [200, 404, 503] {
                metrics.gateway.count(status, took);
                metrics.count_call(&of, status, took, &phases.map(|phase| (phase, took)));
            }
            metrics.oom_kills.inc(&[of.namespace.as_str(), of.name.as_str()]);
        }
    }

    fn loops(count: usize) -> LoopRuns {
        let runs = LoopRuns::default();
        for number in 0..count {
            let (_, last) = watch::channel(Some(LastRun::default()));
            runs.add(format!("loop-{number}"), last, Pulse::default());
        }
        runs
    }

    /// Names of the labels of a line such as `a_total{b="c",d="e"} 1`, and the name of its series.
    fn parts(line: &str) -> (&str, Vec<&str>) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let labels = labels.split(',').filter(|label| !label.is_empty());
        (name, labels.map(|label| label.split_once('=').unwrap().0).collect())
    }

    #[tokio::test]
    async fn a_node_with_100_pods_has_at_most_2000_series_each_with_the_labels_of_its_family() {
        let metrics = AgentMetrics::default();
        touch_store(&metrics).await;
        touch_counts(&metrics);
        let text = metrics.text(&loops(30), Some(&resources(100)));
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        println!("{} series of a node with 100 pods, {} bytes", series.len(), text.len());
        assert!((1000..=2000).contains(&series.len()), "{} series", series.len());
        let infos = [families(), common_families()].concat();
        let mut seen = BTreeSet::new();
        for line in series {
            let (name, mut labels) = parts(line);
            let names = |info: &&&FamilyInfo| match info.kind {
                FamilyType::Histogram => {
                    ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{}{end}", info.name))
                }
                FamilyType::Counter | FamilyType::Gauge => name == info.full_name(),
            };
            let info = infos.iter().find(names).unwrap_or_else(|| panic!("no family has {line}"));
            labels.retain(|label| *label != "le");
            assert_eq!(labels, info.labels, "{line}");
            seen.insert(info.name);
        }
        let untouched: Vec<&str> =
            infos.iter().map(|info| info.name).filter(|name| !seen.contains(name)).collect();
        assert!(untouched.is_empty(), "without a series: {untouched:?}");
    }

    #[test]
    fn families_are_named_once_and_only_resources_have_a_pod() {
        let infos = [families(), common_families()].concat();
        let names: BTreeSet<&str> = infos.iter().map(|info| info.name).collect();
        assert_eq!(names.len(), infos.len());
        for info in infos {
            let is_of_pod = info.name.starts_with("minik8s_pod_");
            assert_eq!(info.labels.contains(&"pod"), is_of_pod, "{}", info.name);
            assert!(!info.labels.iter().any(|label| ["uid", "path", "commit"].contains(label)), "{info:?}");
            assert!(!info.help.ends_with('.') && !info.name.ends_with("_total"), "{info:?}");
        }
    }

    #[test]
    fn codes_are_counted_in_their_classes() {
        let metrics = AgentMetrics::default();
        for status in [101, 200, 204, 304, 404, 503, 599, 0, 999] {
            metrics.gateway.count(status, Duration::from_secs(1));
        }
        let requests = |class: &str| {
            let name = ["minik8s_gateway_requests_total", "minik8s_gateway_request_duration_seconds_count"];
            name.map(|name| metrics.value(&format!("{name}{{code=\"{class}\"}}")))
        };
        let counts = [("1xx", 2.0), ("2xx", 2.0), ("3xx", 1.0), ("4xx", 1.0), ("5xx", 3.0)];
        for (class, count) in counts {
            assert_eq!(requests(class), [count; 2], "{class}");
        }
        for code in [0, 0, 3, 2, 5, 1, 4, 16] {
            metrics.dns.count(code);
        }
        let queries = |code: &str| metrics.value(&format!("minik8s_dns_queries_total{{code=\"{code}\"}}"));
        assert_eq!(DNS_CODES.map(queries), [2.0, 1.0, 1.0, 1.0, 3.0]);
    }
}
