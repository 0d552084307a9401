//! Autoscalers: valid ones with their loaded form, and the errors of invalid ones.

use schema::kinds::Resource;
use schema::kinds::autoscaler::{AverageValue, HorizontalPodAutoscalerSpec, PolicyType, SelectPolicy};
use schema::quantity::Share;

use crate::cases::{Case, check, document, messages};
use crate::{load, rules};

const TARGET: &str = "scaleTargetRef: {kind: ReplicaSet, name: web}\n";

fn autoscaler(spec: &str) -> String {
    document("autoscaling/v2", "HorizontalPodAutoscaler", spec)
}

/// A valid autoscaler with these additional fields.
fn with(fields: &str) -> String {
    autoscaler(&format!("{TARGET}maxReplicas: 5\n{fields}"))
}

fn spec(text: &str) -> HorizontalPodAutoscalerSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}");
    let Resource::HorizontalPodAutoscaler(spec) = &loaded.documents[0].object.resource else {
        panic!("an autoscaler")
    };
    (**spec).clone()
}

#[test]
fn a_short_autoscaler_and_a_long_one_of_the_same_meaning_are_equal() {
    let short = spec(&with(""));
    let long = spec(&autoscaler(
        "scaleTargetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web}\nminReplicas: 1\nmaxReplicas: 5\nmetrics:\n\
         - type: Resource\n  resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}",
    ));
    assert_eq!(short, long);
    assert_eq!(short.behavior, None, "Kubernetes goes other steps without behaviour than with its defaults");
}

#[test]
fn behaviour_has_the_defaults_of_kubernetes() {
    let behavior = spec(&with("behavior: {}")).behavior.unwrap();
    let (up, down) = (behavior.scale_up.unwrap(), behavior.scale_down.unwrap());
    assert_eq!((up.stabilization_window_seconds, up.select_policy), (Some(0), Some(SelectPolicy::Max)));
    assert_eq!(down.stabilization_window_seconds, Some(300));
    let policies = |policies: &[schema::kinds::autoscaler::ScalingPolicy]| {
        policies.iter().map(|one| (one.kind, one.value, one.period_seconds)).collect::<Vec<_>>()
    };
    assert_eq!(policies(&up.policies), [(PolicyType::Pods, 4, 15), (PolicyType::Percent, 100, 15)]);
    assert_eq!(policies(&down.policies), [(PolicyType::Percent, 100, 15)]);
    let own = spec(&with(
        "behavior: {scaleDown: {policies: [{type: Pods, value: 1, periodSeconds: 1800}], stabilizationWindowSeconds: 0}}",
    ));
    let down = own.behavior.unwrap().scale_down.unwrap();
    assert_eq!((down.stabilization_window_seconds, down.policies.len()), (Some(0), 1));
}

#[test]
fn a_tolerance_is_a_share_for_each_direction() {
    let behavior = |fields: &str| spec(&with(&format!("behavior: {{{fields}}}"))).behavior.unwrap();
    for written in ["0.05", "\"0.05\"", "50m"] {
        let behavior = behavior(&format!("scaleUp: {{tolerance: {written}}}"));
        let share = Share { thousandths: 50 };
        assert_eq!(behavior.scale_up.unwrap().tolerance, Some(share), "{written}");
        assert_eq!(behavior.scale_down.unwrap().tolerance, None, "the default is not of this object");
    }
}

#[test]
fn amounts_are_read_by_their_resource() {
    let value = |resource: &str, value: &str| {
        let target = format!("{{type: AverageValue, averageValue: {value}}}");
        let metric =
            format!("metrics: [{{type: Resource, resource: {{name: {resource}, target: {target}}}}}]");
        let resource = spec(&with(&metric)).metrics.remove(0).resource.unwrap();
        resource.target.average_value.unwrap()
    };
    for (resource, written, wanted) in [
        ("cpu", "1", "1"),
        ("cpu", "0.5", "500m"),
        ("cpu", "2000000", "2000000"),
        ("memory", "\"1.5Gi\"", "1536Mi"),
        ("memory", "1024Mi", "1Gi"),
        ("memory", "134217728", "128Mi"),
    ] {
        assert_eq!(value(resource, written), AverageValue(wanted.to_owned()), "{resource} {written}");
    }
}

fn cases() -> Vec<Case> {
    let field = |rule, fields: &str| (rule, with(fields));
    let metric = |rule, metric: &str| (rule, with(&format!("metrics:\n- {metric}")));
    let cpu = |rule, target: &str| {
        (rule, with(&format!("metrics:\n- type: Resource\n  resource:\n    name: cpu\n    {target}")))
    };
    let up = |rule, fields: &str| (rule, with(&format!("behavior:\n  scaleUp: {{{fields}}}")));
    let policy = |rule, fields: &str| up(rule, &format!("policies: [{{type: Pods, {fields}}}]"));
    vec![
        ("missing-field", autoscaler(TARGET).replace("spec", "§spec")),
        ("missing-field", autoscaler("maxReplicas: 5").replace("spec", "§spec")),
        ("scaling", autoscaler(&format!("{TARGET}minReplicas: 5\nmaxReplicas: §4"))),
        field("scaling", "minReplicas: §0"),
        ("out-of-range", autoscaler(&format!("{TARGET}maxReplicas: §0"))),
        ("unknown-value", with("").replace("kind: ReplicaSet", "kind: §StatefulSet")),
        ("unknown-value", with("").replace("kind: ReplicaSet", "kind: §replicaset")),
        ("invalid-name", with("").replace("name: web}", "name: §a/b}")),
        ("invalid-name", with("").replace("name: web}", &format!("name: §{}}}", "a".repeat(234)))),
        ("api-version", with("").replace("{kind", "{apiVersion: §apps/v2, kind")),
        (
            "unknown-value",
            with("").replace("{kind: ReplicaSet", "{apiVersion: apps/v1beta1, kind: §StatefulSet"),
        ),
        metric("unknown-value", "type: §Pods"),
        metric("unknown-value", "{type: §Pods, pods: {metric: {name: requests}}}"),
        metric("unknown-value", "{type: §Object, object: {metric: {name: requests}}}"),
        metric("unknown-value", "{external: {metric: {name: queue}}, type: §External}"),
        metric("unknown-value", "{type: §ContainerResource, containerResource: {name: cpu, container: a}}"),
        metric(
            "unsupported-field",
            "{type: Resource, §pods: {}, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}",
        ),
        metric(
            "unknown-field",
            "{type: Resource, resource: {name: cpu, targetAverageUtilization: 1, §targetAverageValue: 1}}",
        ),
        metric("required", "§type: Resource"),
        metric(
            "unknown-value",
            "{type: Resource, resource: {name: §disk, target: {type: Utilization, averageUtilization: 1}}}",
        ),
        metric("wrong-type", "§Resource"),
        field("wrong-type", "metrics: §{type: Resource}"),
        cpu("required", "§target: {type: Utilization}"),
        cpu("exclusive", "target: {type: Utilization, averageUtilization: 50, §averageValue: 500m}"),
        cpu("exclusive", "target: {type: §Utilization, averageValue: 500m}"),
        cpu("exclusive", "target: {type: §AverageValue, averageUtilization: 50}"),
        cpu("scaling", "target: {type: Utilization, averageUtilization: §0}"),
        cpu("scaling", "target: {type: AverageValue, averageValue: §0}"),
        cpu("quantity", "target: {type: AverageValue, averageValue: §half}"),
        cpu("unknown-value", "target: {type: §Value, averageValue: 500m}"),
        up("scaling", "stabilizationWindowSeconds: §3601"),
        up("unknown-value", "selectPolicy: §Most"),
        up("quantity", "tolerance: §-0.05"),
        up("quantity", "tolerance: §5%"),
        policy("scaling", "value: §0, periodSeconds: 15"),
        policy("scaling", "value: 1, periodSeconds: §0"),
        policy("scaling", "value: 1, periodSeconds: §1801"),
        field("unknown-field", "§behaviour: {}"),
    ]
}

#[test]
fn each_bad_autoscaler_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}
