//! The alerts and dashboards in deploy/observe: each alert has a runbook and tests, and no query names a metric that
//! docs/metrics.md does not list.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

use crate::{Source, check, root, sources};

const FOLDER: &str = "deploy/observe/";
const ALERTS: &str = "deploy/observe/prometheus/alerts.yml";
const TESTS: &str = "deploy/observe/prometheus/alerts_test.yml";
const RUNBOOKS: &str = "docs/operations.md";
const METRICS: &str = "docs/metrics.md";

/// Most alerts: more would be muted instead of read.
const ALERTS_MAX: usize = 15;
/// Beginnings of our metrics; the others, such as `up`, are Prometheus' own.
const PREFIXES: [&str; 2] = ["minik8s_", "process_"];
/// Endings of the series of a histogram.
const OF_HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn observed(endings: &[&str]) -> Vec<Source> {
    sources(endings).into_iter().filter(|file| file.path.starts_with(FOLDER)).collect()
}

/// Returns what follows each `key`: the name right behind it, and the rest up to the next one.
fn entries<'a>(text: &'a str, key: &str) -> Vec<(&'a str, &'a str)> {
    let entries = text.split(key).skip(1);
    entries.map(|entry| entry.split_at(entry.find([',', '\n']).unwrap_or(entry.len()))).collect()
}

/// Returns the anchors of a page's headings, as Git servers make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| -> String {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    page.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Returns the names of our metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).collect()
}

/// Returns the first column of the tables of docs/metrics.md.
fn listed(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

fn lists(page: &BTreeSet<&str>, name: &str) -> bool {
    let family = |end: &&str| name.strip_suffix(*end).is_some_and(|family| page.contains(family));
    page.contains(name) || OF_HISTOGRAM.iter().any(family)
}

#[test]
fn every_alert_has_a_runbook_and_cases_in_which_it_fires_and_does_not() {
    let (alerts, tests, anchors) = (read(ALERTS), read(TESTS), anchors(&read(RUNBOOKS)));
    let (alerts, tests) = (entries(&alerts, "- alert: "), entries(&tests, "alertname: "));
    assert!((1..=ALERTS_MAX).contains(&alerts.len()), "{} alerts, at most {ALERTS_MAX}", alerts.len());
    let mut complaints = Vec::new();
    for (name, alert) in &alerts {
        for field in ["severity: ", "summary: ", "description: "] {
            if !alert.contains(field) {
                complaints.push(format!("{ALERTS}: {name} has no {field}"));
            }
        }
        let link = alert.split("runbook_url: ").nth(1).and_then(|rest| rest.lines().next());
        let anchor = link.and_then(|link| link.strip_prefix(RUNBOOKS)?.strip_prefix('#'));
        if !anchor.is_some_and(|anchor| anchors.contains(anchor)) {
            complaints.push(format!("{ALERTS}: {name} leads to no heading of {RUNBOOKS}: {link:?}"));
        }
        for (outcome, what) in [("exp_labels: ", "fires"), ("exp_alerts: []", "does not fire")] {
            if !tests.iter().any(|(tested, case)| tested == name && case.contains(outcome)) {
                complaints.push(format!("{TESTS}: no case in which {name} {what}"));
            }
        }
    }
    check(&complaints);
}

#[test]
fn queries_name_only_metrics_that_the_page_lists() {
    let page = read(METRICS);
    let page = listed(&page);
    let mut complaints = Vec::new();
    for file in observed(&[".yml", ".json"]) {
        for name in metrics(&file.text).into_iter().filter(|name| !lists(&page, name)) {
            complaints.push(format!("{}: {METRICS} does not list {name}", file.path));
        }
    }
    check(&complaints);
}

#[test]
fn the_dashboards_can_be_read_and_number_their_panels() {
    let mut uids = BTreeSet::new();
    let mut complaints = Vec::new();
    for Source { path, text } in observed(&[".json"]) {
        let dashboard: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        uids.insert(dashboard["uid"].as_str().unwrap_or_default().to_owned());
        let panels = dashboard["panels"].as_array().expect("a dashboard has panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        if ids.len() != panels.len() {
            complaints.push(format!("{path}: {} panels have {} ids", panels.len(), ids.len()));
        }
        for panel in panels.iter().filter(|panel| panel["datasource"]["uid"] != "${datasource}") {
            complaints.push(format!("{path}: {} has a data source of its own", panel["title"]));
        }
    }
    assert_eq!(uids.len(), 4, "each dashboard has a uid: {uids:?}");
    check(&complaints);
}

#[test]
fn promtool_accepts_the_configuration_and_the_alerts_pass_their_tests() {
    if Command::new("promtool").arg("--version").output().is_err() {
        // Not by `eprintln!`, which the test program swallows.
        let _ = writeln!(std::io::stderr(), "alerts not tested: there is no promtool here");
        return;
    }
    let folder = root().join(FOLDER).join("prometheus");
    for (act, file) in [
        // The files of its certificate are not here.
        (&["check", "config", "--syntax-only"][..], "prometheus.yml"),
        (&["check", "rules"], "alerts.yml"),
        (&["test", "rules"], "alerts_test.yml"),
    ] {
        let output = Command::new("promtool").args(act).arg(folder.join(file)).output();
        let output = output.expect("promtool runs");
        let [text, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{file}: {text}{errors}");
    }
}

#[test]
fn alerts_anchors_and_metrics_are_found_in_their_files() {
    let tests = "- {alertname: A, eval_time: 1m, exp_alerts: []}\n- alertname: B\n  eval_time: 2m\n";
    assert_eq!(
        entries(tests, "alertname: "),
        [("A", ", eval_time: 1m, exp_alerts: []}\n- "), ("B", "\n  eval_time: 2m\n")]
    );
    let page = "# Operations\n## Restarts, backups, removal\n### Minik8sNoLeader\n";
    let expected = ["minik8snoleader", "operations", "restarts-backups-removal"];
    assert_eq!(anchors(page), BTreeSet::from(expected.map(str::to_owned)));
    let query = "sum(rate(minik8s_a_seconds_bucket{loop=\"minik8s\"}[5m])) / up > process_open_fds";
    assert_eq!(metrics(query), BTreeSet::from(["minik8s_a_seconds_bucket", "process_open_fds"]));
    let page = listed("| name | type |\n|---|---|\n| `minik8s_a_seconds` | histogram |\n");
    assert!(lists(&page, "minik8s_a_seconds_bucket") && !lists(&page, "process_open_fds"));
}
