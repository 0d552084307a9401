//! Metrics of the agent: its counters and histograms, and the families of what the usage loop samples.
//!
//! Counts begin at 0 with the process. The standby process serves while no agent runs, and counts, too; nobody reads
//! its counts.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use schema::control::{LoopRuns, lock};
use schema::kinds::pod::OOM_KILLED;
use schema::meta::NamespacedName;
use schema::metrics::{
    CALL_BUCKETS, CODE_CLASSES, Counters, FamilyInfo, Histogram, Histograms, LONG_BUCKETS, MetricSet,
    SHORT_BUCKETS, StoreMetrics, build_info, code_class_index, loop_families, process_families,
};

mod resources;
#[cfg(test)]
mod tests;

use resources::resource_families;
pub use resources::{PodResources, Resources, Traffic};

/// Metrics of this process. Static, because whatever counts lies deep: as a parameter they would pass through forty
/// constructors. Tests share them, and so assert differences only, or give the part under test metrics of its own.
pub static METRICS: LazyLock<AgentMetrics> = LazyLock::new(AgentMetrics::default);

static PULLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_image_pulls",
    "Image pulls that ended: pulled or failed; containers that wait for the same image share one",
    &["outcome"],
);
static PULL_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_image_pull_duration_seconds",
    "Duration of successful image pulls, without their wait in the queue",
    &[],
    LONG_BUCKETS,
);
static STARTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_starts",
    "Attempts to create and start a container: started or failed",
    &["outcome"],
);
static EXITS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_exits",
    "Container exits, including stopped containers: Completed with code 0, Error, or OOMKilled",
    &["reason"],
);
static OOM_KILLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_container_oom_kills",
    "Processes killed by the kernel because their container exceeded its memory limit, of workloads with pods on this node",
    &["kind", "namespace", "workload"],
);
static PROBES: FamilyInfo = FamilyInfo::counter(
    "minik8s_probes",
    "Results of startup, readiness and liveness probes: success or failure",
    &["kind", "outcome"],
);
static RULES: FamilyInfo = FamilyInfo::counter(
    "minik8s_rules_programming_runs",
    "Runs of iptables-restore: ok or failed",
    &["outcome"],
);
static RULES_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_rules_program_duration_seconds",
    "Duration of successful runs of iptables-restore",
    &[],
    SHORT_BUCKETS,
);
static REPAIRS: FamilyInfo = FamilyInfo::counter(
    "minik8s_rules_repairs",
    "Times that packet rules were written again because another program had changed them",
    &[],
);
static DNS_QUERIES: FamilyInfo = FamilyInfo::counter(
    "minik8s_dns_queries",
    "Queries answered by the node's name server, by response code",
    &["code"],
);
static DNS_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_dns_query_duration_seconds",
    "Time that the node's name server took to answer a query, forwarded ones included",
    &[],
    SHORT_BUCKETS,
);
static DNS_FORWARDED: FamilyInfo = FamilyInfo::counter(
    "minik8s_dns_forwarded",
    "Queries for names outside the cluster that were not in the cache: answered or failed",
    &["outcome"],
);
static GATEWAY: FamilyInfo = FamilyInfo::counter(
    "minik8s_gateway_requests",
    "Requests answered by the node's gateway for hosts, by class of the status code",
    &["code"],
);
static GATEWAY_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_gateway_request_duration_seconds",
    "Time from the head of a request to the node's gateway for hosts to the head of its response",
    &["code"],
    SHORT_BUCKETS,
);
static CALLS: FamilyInfo = FamilyInfo::counter(
    "minik8s_function_calls",
    "Function calls through this node, by class of the status code; refused callers do not count",
    &["namespace", "function", "code"],
);
static CALL_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_function_call_duration_seconds",
    "Duration of function calls through this node, including the wait for a replica",
    &["namespace", "function"],
    CALL_BUCKETS,
);
static COLD_STARTS: FamilyInfo = FamilyInfo::counter(
    "minik8s_function_cold_starts",
    "Function calls that waited for a replica to start",
    &["namespace", "function"],
);
static COLD_START_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_function_cold_start_duration_seconds",
    "Time that a function call waited for a replica to start: in total (queued) and by phase",
    &["phase"],
    CALL_BUCKETS,
);
static BUILDS: FamilyInfo = FamilyInfo::counter(
    "minik8s_builds",
    "Builds of function images that ended, without cancelled ones: built or failed",
    &["outcome"],
);
static BUILD_SECONDS: FamilyInfo = FamilyInfo::histogram(
    "minik8s_build_duration_seconds",
    "Duration of successful builds of function images",
    &[],
    LONG_BUCKETS,
);
static SUBMISSIONS: FamilyInfo = FamilyInfo::counter(
    "minik8s_job_submissions",
    "Attempts to submit a job to Slurm: submitted or failed",
    &["outcome"],
);

/// Counters and histograms of the agent.
#[derive(Debug)]
pub struct AgentMetrics {
    set: MetricSet,
    pub store: StoreMetrics,
    pub pulls: TimedOutcomes,
    pub starts: Outcomes,
    /// By reason.
    pub exits: Counters,
    pub oom_kills: WorkloadCounts,
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
            exits: of.counters(&EXITS).at_zero(["Completed", "Error", OOM_KILLED].map(|reason| [reason])),
            oom_kills: WorkloadCounts { counters: of.counters(&OOM_KILLS), known: Mutex::default() },
            probes: of.counters(&PROBES).at_zero(probe_results()),
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
    /// Adds a function, with counters at 0.
    pub fn add_function(&self, id: &NamespacedName) -> CallCounts {
        let (namespace, name) = (id.namespace.as_str(), id.name.as_str());
        CallCounts {
            calls: CODE_CLASSES.map(|class| self.calls.one(&[namespace, name, class])),
            seconds: self.call_seconds.one(&[namespace, name]),
            cold_starts: self.cold_starts.one(&[namespace, name]),
            cold_start_seconds: self.cold_start_seconds.clone(),
        }
    }

    /// Removes a function.
    pub fn remove_function(&self, id: &NamespacedName) {
        let (namespace, name) = (id.namespace.as_str(), id.name.as_str());
        for class in CODE_CLASSES {
            self.calls.remove(&[namespace, name, class]);
        }
        self.call_seconds.remove(&[namespace, name]);
        self.cold_starts.remove(&[namespace, name]);
    }

    /// Writes all metrics of the agent. `resources` are the newest ones, `None` before the first sample.
    pub fn text(&self, runs: &LoopRuns, resources: Option<&Resources>) -> String {
        let mut state = vec![build_info(env!("CARGO_PKG_VERSION"))];
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
    METRICS.set.infos().iter().copied().chain(resources::infos()).collect()
}

/// Labels of the counters of probes.
fn probe_results() -> impl Iterator<Item = [&'static str; 2]> {
    let results = |kind| ["success", "failure"].map(|outcome| [kind, outcome]);
    ["startup", "readiness", "liveness"].into_iter().flat_map(results)
}

// Handles on counters and histograms, so that counting on a busy path takes no lock and allocates nothing.

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
            self.seconds.observe(took);
        }
    }
}

/// Response codes of DNS that are counted each; the last word stands for all others.
const DNS_CODES: [&str; 5] = ["NOERROR", "NXDOMAIN", "SERVFAIL", "REFUSED", "Other"];

/// Counters of queries by response code, and the durations of all.
#[derive(Debug, Clone)]
pub struct QueryCounts {
    by_code: [Counter; DNS_CODES.len()],
    seconds: Histogram,
}

impl QueryCounts {
    fn new(set: &mut MetricSet) -> Self {
        let queries = set.counters(&DNS_QUERIES);
        let by_code = DNS_CODES.map(|code| queries.one(&[code]));
        Self { by_code, seconds: set.histograms(&DNS_SECONDS).one(&[]) }
    }

    /// Counts a query that is answered with this response code.
    pub fn count(&self, code: u16, took: Duration) {
        self.seconds.observe(took);
        // The numbers of RFC 1035.
        let at = match code {
            0 => 0,
            3 => 1,
            2 => 2,
            5 => 3,
            _ => 4,
        };
        if let Some(counter) = self.by_code.get(at) {
            counter.inc();
        }
    }
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
        if let Some((requests, seconds)) = self.0.get(code_class_index(status)) {
            requests.inc();
            seconds.observe(took);
        }
    }
}

/// Counters and durations of the calls of a function.
#[derive(Debug)]
pub struct CallCounts {
    /// By class of the status code.
    calls: [Counter; CODE_CLASSES.len()],
    seconds: Histogram,
    cold_starts: Counter,
    /// By phase, of all functions.
    cold_start_seconds: Histograms,
}

impl CallCounts {
    /// Counts an answered call. `cold_start`: the phases of the start that it waited for, if any.
    pub fn count(&self, status: u16, took: Duration, cold_start: &[(&'static str, Duration)]) {
        if let Some(calls) = self.calls.get(code_class_index(status)) {
            calls.inc();
        }
        self.seconds.observe(took);
        if !cold_start.is_empty() {
            self.cold_starts.inc();
        }
        for &(phase, took) in cold_start {
            self.cold_start_seconds.observe(&[phase], took);
        }
    }
}

// Counters that come and go with workloads.

/// Kind, namespace and name of a workload.
pub type Workload = [String; 3];

/// Counters of the workloads that have pods on the node.
#[derive(Debug)]
pub struct WorkloadCounts {
    counters: Counters,
    /// Workloads that have a counter.
    known: Mutex<BTreeSet<Workload>>,
}

impl WorkloadCounts {
    /// Adds one for this workload.
    pub fn inc(&self, workload: Workload) {
        let mut known = lock(&self.known);
        self.counters.inc(&labels(&workload));
        known.insert(workload);
    }

    /// Adds counters at 0 for new workloads, and removes those of workloads that are not `present`.
    pub fn follow(&self, present: BTreeSet<Workload>) {
        let mut known = lock(&self.known);
        known.difference(&present).for_each(|gone| self.counters.remove(&labels(gone)));
        present.difference(&known).for_each(|new| self.counters.add(&labels(new), 0));
        *known = present;
    }
}

fn labels(workload: &Workload) -> [&str; 3] {
    workload.each_ref().map(String::as_str)
}
