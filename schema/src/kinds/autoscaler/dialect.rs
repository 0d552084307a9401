//! Older HorizontalPodAutoscaler manifests: `workload`, metrics as a mapping or of `autoscaling/v2beta1`, one replica per
//! interval.

use crate::document::edit::{
    below, entries_mut, entry, items_mut, list, mapping, number, plain, put, rename, take, text,
};
use crate::kinds::Kind;
use crate::manifest::dialects::{Entry, Mark, Node, Notes, Value};
use crate::meta::DEFAULT_NAMESPACE;
use crate::violation::rules;

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(document, &["spec"]) else { return };
    let target_namespace = target(spec, notes);
    if let Some(namespace) = target_namespace {
        same_namespace(document, namespace, notes);
    }
    let Some(spec) = below(document, &["spec"]) else { return };
    metrics(spec, notes);
    for metric in below(spec, &["metrics"]).and_then(items_mut).into_iter().flatten() {
        listed_metric(metric, notes);
    }
    replicas_min(spec, notes);
    interval(spec, notes);
}

/// Refuses to scale to zero, as Kubernetes does without a metric that can wake the target.
fn replicas_min(spec: &mut Node, notes: &mut Notes<'_>) {
    let Some(min) = below(spec, &["minReplicas"]).filter(|min| number(min) == Some(0.0)) else { return };
    let message = "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1: without a metric of type \
                   Object or External nothing would wake a target without pods";
    let help = "write 1; a Function scales to zero, and a call wakes it";
    notes.mistake(min.mark, &rules::SCALING, message.to_owned(), help);
    *min = plain(min.mark, 1);
}

/// Rewrites `workload: {kind, metadata: {name}}` as `scaleTargetRef: {kind, name}`. Returns the target's namespace.
fn target(spec: &mut Node, notes: &mut Notes<'_>) -> Option<Entry> {
    if let Some(mark) = rename(spec, "workload", "scaleTargetRef") {
        notes.older(mark, "workload", "scaleTargetRef");
    }
    drop_selector(spec, notes);
    let target = below(spec, &["scaleTargetRef"])?;
    drop_selector(target, notes);
    target_kind(target, notes);
    let Entry { mark, value: mut metadata, .. } = take(target, "metadata")?;
    if let (Some(name), None) = (take(&mut metadata, "name"), target.entry("name")) {
        notes.older(mark, "metadata.name", "name");
        put(target, name);
    }
    let namespace = take(&mut metadata, "namespace");
    // Other fields of the metadata are unknown here, and reported as such.
    for rest in entries_mut(&mut metadata).map(std::mem::take).unwrap_or_default() {
        put(target, rest);
    }
    namespace
}

fn drop_selector(node: &mut Node, notes: &mut Notes<'_>) {
    if let Some(selector) = take(node, "selector") {
        notes.dropped(selector.mark, "selector", "replicas carry the labels of their template");
    }
}

/// Moves an autoscaler without a namespace to that of its target: both must be in the same one.
fn same_namespace(document: &mut Node, target: Entry, notes: &mut Notes<'_>) {
    let (mark, Some(namespace)) = (target.value.mark, target.value.text().map(str::to_owned)) else { return };
    let Some(metadata) = below(document, &["metadata"]) else { return };
    let own = metadata.entry("namespace").and_then(|entry| entry.value.text());
    match own {
        None if namespace == DEFAULT_NAMESPACE => {}
        None => {
            notes.older(target.mark, "namespace of the target", "metadata.namespace");
            put(metadata, target);
        }
        Some(own) if own == namespace => {}
        Some(own) => {
            let message = format!("the target is in the namespace `{namespace}`, the autoscaler in `{own}`");
            notes.error(mark, &rules::SCALING, message, "put both in the same namespace");
        }
    }
}

/// Rewrites older names and versions of the target's kind.
fn target_kind(target: &mut Node, notes: &mut Notes<'_>) {
    let Some(Node { mark, value: Value::Scalar { text, .. } }) = below(target, &["kind"]) else { return };
    if let Some(kind) = Kind::from_manifest_word(text) {
        *text = kind.to_string();
    }
    if let Some(kind) = Kind::from_older_word(text) {
        notes.older(*mark, &format!("kind: {text}"), &format!("kind: {kind}"));
        *text = kind.to_string();
    }
    let Ok(kind) = text.parse::<Kind>() else {
        // Its version can't be judged.
        take(target, "apiVersion");
        return;
    };
    let older = kind.descriptor().older.api_versions;
    let Some(Node { mark, value: Value::Scalar { text, .. } }) = below(target, &["apiVersion"]) else {
        return;
    };
    if older.contains(&text.as_str()) {
        let today = kind.api_version();
        notes.older(*mark, &format!("apiVersion: {text}"), &format!("apiVersion: {today}"));
        *text = today.to_owned();
    }
}

/// Keys that set a metric: the resource, and the factor that turns the number into percent.
const METRICS: &[(&str, &str, f64)] = &[
    ("cpuPercent", "cpu", 100.0),
    ("memPercent", "memory", 100.0),
    ("CPUUtilizationPercentage", "cpu", 1.0),
    ("MemoryUtilizationPercentage", "memory", 1.0),
    // autoscaling/v1, in the spec itself.
    ("targetCPUUtilizationPercentage", "cpu", 1.0),
    ("targetMemoryUtilizationPercentage", "memory", 1.0),
];

/// Maximum of a share: 10 means ten times the pods' requests.
const SHARE_MAX: f64 = 10.0;

/// Converts metrics in a mapping, or in the spec itself, into a list.
fn metrics(spec: &mut Node, notes: &mut Notes<'_>) {
    let is_known = |entry: &Entry| METRICS.iter().any(|(key, ..)| *key == entry.key);
    match below(spec, &["metrics"]) {
        Some(metrics) => {
            let Some(entries) = entries_mut(metrics).filter(|entries| entries.iter().any(is_known)) else {
                return;
            };
            let entries = std::mem::take(entries);
            let mut items = Vec::new();
            for one in entries {
                match METRICS.iter().find(|(key, ..)| *key == one.key) {
                    Some(metric) => items.push(utilization(one, metric, notes)),
                    None => {
                        let message = format!("spec.metrics.{0}: unknown field `{0}`", one.key);
                        let help = "known: `cpuPercent`, `memPercent`; or write a list of metrics";
                        notes.error(one.mark, &rules::UNKNOWN_FIELD, message, help);
                    }
                }
            }
            *metrics = list(metrics.mark, items);
        }
        None => {
            let in_spec = METRICS.iter().filter(|(key, ..)| key.starts_with("target"));
            let mut items = Vec::new();
            for metric in in_spec {
                items.extend(take(spec, metric.0).map(|one| (one.mark, utilization(one, metric, notes))));
            }
            if let Some((mark, _)) = items.first() {
                let mark = *mark;
                let items = items.into_iter().map(|(_, item)| item).collect();
                put(spec, entry("metrics", mark, list(mark, items)));
            }
        }
    }
}

/// Metrics that only Kubernetes has: their type, and the field with their details.
const FOREIGN_METRICS: [(&str, &str); 4] = [
    ("Pods", "pods"),
    ("Object", "object"),
    ("External", "external"),
    ("ContainerResource", "containerResource"),
];

/// Targets of `autoscaling/v2beta1`: the field, and the type and the field of today.
const TARGETS: [(&str, &str, &str); 2] = [
    ("targetAverageUtilization", "Utilization", "averageUtilization"),
    ("targetAverageValue", "AverageValue", "averageValue"),
];

/// Rewrites the target of a metric in the list.
fn listed_metric(metric: &mut Node, notes: &mut Notes<'_>) {
    let kind = metric.entry("type").and_then(|entry| entry.value.text());
    if let Some((_, details)) = FOREIGN_METRICS.iter().find(|(foreign, _)| kind == Some(foreign)) {
        // The type is reported; an error about the details would only repeat that.
        take(metric, details);
    }
    let Some(resource) = below(metric, &["resource"]).filter(|resource| resource.entry("target").is_none())
    else {
        return;
    };
    for (old, kind, field) in TARGETS {
        let Some(Entry { mark, value, .. }) = take(resource, old) else { continue };
        if value.is_null() {
            continue;
        }
        notes.older(mark, old, &format!("target.{field}"));
        let at = value.mark;
        put(resource, entry("target", mark, mapping(at, [("type", text(at, kind)), (field, value)])));
        // Another one beside it is reported as unknown.
        break;
    }
}

/// Converts an entry such as `cpuPercent: 0.35` into an item of the list.
fn utilization(written: Entry, (key, resource, factor): &(&str, &str, f64), notes: &mut Notes<'_>) -> Node {
    let Entry { mark, value, .. } = written;
    let at = value.mark;
    let target = match number(&value) {
        Some(share) if *factor > 1.0 && share > SHARE_MAX => {
            let message = format!("{key}: Invalid value: {share}: expected a fraction, 0.5 for 50 %");
            notes.error(
                at,
                &rules::SCALING,
                message,
                "write metrics as Kubernetes does, with averageUtilization",
            );
            plain(at, 1)
        }
        Some(number) => {
            // Whole percent, and at least one: older systems compared fractions of a percent.
            let percent = (number * factor).round();
            let percent = if number > 0.0 { percent.max(1.0) } else { percent };
            notes.older(
                mark,
                &format!("{key}: {number}"),
                &format!("{resource} averageUtilization: {percent}"),
            );
            plain(at, percent)
        }
        // Not a number: the schema walk reports it.
        None => value,
    };
    let target = mapping(at, [("type", text(at, "Utilization")), ("averageUtilization", target)]);
    let resource = mapping(at, [("name", text(at, resource)), ("target", target)]);
    mapping(mark, [("type", text(mark, "Resource")), ("resource", resource)])
}

/// Rewrites `adjustInterval: 15s` and `scaleInterval: 10`: one replica per interval, up and down, immediately.
fn interval(spec: &mut Node, notes: &mut Notes<'_>) {
    if spec.entry("behavior").is_some() {
        return;
    }
    let mut first: Option<(&str, i64)> = None;
    for key in ["adjustInterval", "scaleInterval"] {
        let Some(Entry { mark, value, .. }) = take(spec, key) else { continue };
        let Some(seconds) = seconds(&value) else {
            let message = format!("spec.{key}: expected a duration, for example `15s`");
            notes.error(value.mark, &rules::WRONG_TYPE, message, "");
            continue;
        };
        match first {
            None => {}
            Some((other, of_other)) if of_other == seconds => {
                notes.dropped(mark, key, &format!("{other} has the same value"));
                continue;
            }
            Some((other, of_other)) => {
                let message = format!("spec.{key}: {seconds} s, but {other} is {of_other} s");
                notes.mistake(value.mark, &rules::SCALING, message, "keep one of them");
                continue;
            }
        }
        first = Some((key, seconds));
        let written = value.text().unwrap_or_default();
        notes.older(mark, &format!("{key}: {written}"), &format!("behavior: 1 pod per {seconds} s"));
        let rules = || one_pod_per(value.mark, seconds);
        let behavior = mapping(value.mark, [("scaleUp", rules()), ("scaleDown", rules())]);
        put(spec, entry("behavior", mark, behavior));
    }
}

/// Minimum seconds between two evaluations: by the next one, a change is older than a policy of this period.
const EVALUATION_SECONDS: i64 = 15;

/// Maximum stabilization window in seconds.
const WINDOW_MAX_SECONDS: i64 = 3600;

fn one_pod_per(mark: Mark, seconds: i64) -> Node {
    // Policies count from the start of the period: a reversal within a longer one would undo the previous step and
    // go one further, two pods together.
    let window = if seconds > EVALUATION_SECONDS { seconds.min(WINDOW_MAX_SECONDS) } else { 0 };
    let policy = mapping(
        mark,
        [("type", text(mark, "Pods")), ("value", plain(mark, 1)), ("periodSeconds", plain(mark, seconds))],
    );
    let policies = list(mark, vec![policy]);
    mapping(mark, [("stabilizationWindowSeconds", plain(mark, window)), ("policies", policies)])
}

/// Parses the seconds of a duration: `15s`, `1m30s`, or a number of seconds. Nanoseconds, as Go writes durations,
/// are distinguished from seconds by their size: 1,000,000 s are eleven days.
fn seconds(node: &Node) -> Option<i64> {
    const NANOS_MIN: f64 = 1_000_000.0;
    if let Some(number) = number(node) {
        let seconds = if number >= NANOS_MIN { number / 1e9 } else { number };
        // `as` saturates; the bounds of periodSeconds are checked later.
        return Some(seconds.ceil() as i64);
    }
    let duration: jiff::SignedDuration = node.text()?.parse().ok()?;
    Some(duration.as_secs().saturating_add(i64::from(duration.subsec_nanos() > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let at = Mark::default();
        for (written, wanted) in
            [("15s", Some(15)), ("1m30s", Some(90)), ("500ms", Some(1)), ("soon", None), ("", None)]
        {
            assert_eq!(seconds(&text(at, written)), wanted, "{written}");
        }
        for (number, wanted) in [("10", 10), ("0.5", 1), ("15000000000", 15)] {
            assert_eq!(seconds(&plain(at, number)), Some(wanted), "{number}");
        }
    }
}
