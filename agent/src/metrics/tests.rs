//! Series of an agent: how many there are, with which labels, and when they come and go.

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

/// Adds the series that are not there from the beginning: of 100 workloads and 20 functions.
fn touch_counts(metrics: &AgentMetrics) {
    let took = Duration::from_millis(20);
    let workload = |number| ["Pod", "default", &format!("pod-{number}")].map(str::to_owned);
    metrics.oom_kills.follow((0..100).map(workload).collect());
    for number in 0..20 {
        let calls = metrics.add_function(&NamespacedName::new("default", format!("function-{number}")));
        let phases = ["queued", "scheduled", "created", "started", "imported", "routed"];
        calls.count(200, took, &phases.map(|phase| (phase, took)));
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
async fn a_node_with_100_bare_pods_and_20_functions_has_at_most_2000_series_each_with_the_labels_of_its_family()
 {
    let metrics = AgentMetrics::default();
    touch_store(&metrics).await;
    touch_counts(&metrics);
    let text = metrics.text(&loops(30), Some(&resources(100)));
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    // A function has 19 series, and a workload one.
    println!("{} series of a node with 100 pods and 20 functions, {} bytes", series.len(), text.len());
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
    let counts = [("1xx", 1.0), ("2xx", 2.0), ("3xx", 1.0), ("4xx", 1.0), ("5xx", 4.0)];
    for (class, count) in counts {
        assert_eq!(requests(class), [count; 2], "{class}");
    }
    for code in [0, 0, 3, 2, 5, 1, 4, 16] {
        metrics.dns.count(code, Duration::from_millis(1));
    }
    let queries = |code: &str| metrics.value(&format!("minik8s_dns_queries_total{{code=\"{code}\"}}"));
    assert_eq!(DNS_CODES.map(queries), [2.0, 1.0, 1.0, 1.0, 3.0]);
}

// Would fail with counters that are created by their first event: `rate()` counts no increase for that one.
#[test]
fn counters_of_fixed_words_begin_at_0() {
    let text = AgentMetrics::default().text(&LoopRuns::default(), None);
    for series in [
        "container_exits_total{reason=\"OOMKilled\"}",
        "container_starts_total{outcome=\"failed\"}",
        "probes_total{kind=\"liveness\",outcome=\"failure\"}",
        "image_pulls_total{outcome=\"failed\"}",
        "builds_total{outcome=\"failed\"}",
        "job_submissions_total{outcome=\"failed\"}",
        "gateway_requests_total{code=\"5xx\"}",
        "dns_queries_total{code=\"SERVFAIL\"}",
        "rules_programming_runs_total{outcome=\"failed\"}",
    ] {
        assert!(
            text.lines().any(|line| line == format!("minik8s_{series} 0")),
            "{series} is not in:\n{text}"
        );
    }
}

#[test]
fn series_of_a_function_and_of_a_workload_begin_at_0_and_go_with_it() {
    let metrics = AgentMetrics::default();
    let has = |series: &str| metrics.set.text(Vec::new()).contains(&format!("minik8s_{series}\n"));
    let of = "namespace=\"default\",function=\"brief\"";
    let id = NamespacedName::new("default", "brief");
    let calls = metrics.add_function(&id);
    for class in CODE_CLASSES {
        assert!(has(&format!("function_calls_total{{{of},code=\"{class}\"}} 0")), "{class}");
    }
    calls.count(200, Duration::from_secs(1), &[]);
    assert!(has(&format!("function_calls_total{{{of},code=\"2xx\"}} 1")));
    assert!(has(&format!("function_call_duration_seconds_count{{{of}}} 1")));
    metrics.remove_function(&id);
    assert!(!metrics.set.text(Vec::new()).contains("brief"));
    let web = || ["Deployment", "default", "web"].map(str::to_owned);
    let killed = |count| {
        has(&format!(
            "container_oom_kills_total{{kind=\"Deployment\",namespace=\"default\",workload=\"web\"}} {count}"
        ))
    };
    metrics.oom_kills.follow([web()].into());
    assert!(killed(0));
    metrics.oom_kills.inc(web());
    metrics.oom_kills.follow([web()].into());
    assert!(killed(1));
    metrics.oom_kills.follow(BTreeSet::new());
    assert!(!metrics.set.text(Vec::new()).contains("web"));
}
