//! Replica sets: valid ones with their loaded form, and the errors of invalid ones.

use schema::kinds::Resource;
use schema::kinds::pod::PullPolicy;
use schema::kinds::replica_set::{IntOrPercent, ReplicaSetSpec};

use crate::cases::{Case, check, document, messages};
use crate::{load, rules};

const TEMPLATE: &str = "template:\n  metadata: {labels: {app: web}}\n  spec:\n    containers:\n    - {name: web, image: nginx}\n";

fn replica_set(spec: &str) -> String {
    document("apps/v1", "ReplicaSet", spec)
}

/// A valid replica set with these additional fields.
fn with(fields: &str) -> String {
    replica_set(&format!("selector: {{matchLabels: {{app: web}}}}\n{TEMPLATE}{fields}"))
}

fn spec(text: &str) -> ReplicaSetSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}");
    let Resource::ReplicaSet(spec) = &loaded.documents[0].object.resource else { panic!("a replica set") };
    (**spec).clone()
}

#[test]
fn a_short_replica_set_and_a_long_one_of_the_same_meaning_are_equal() {
    let short = spec(&with(""));
    let long = spec(&with(
        "replicas: 1\nminReadySeconds: 0\nstrategy:\n  type: RollingUpdate\n  \
         rollingUpdate: {maxSurge: 25%, maxUnavailable: 025%}",
    ));
    assert_eq!(short, long);
    assert_eq!(short.template.spec.containers[0].image_pull_policy, Some(PullPolicy::Always));
    let update = short.strategy.rolling_update.unwrap();
    assert_eq!(update.max_surge, Some(IntOrPercent::quarter()));
}

#[test]
fn a_strategy_loads_as_kubectl_prints_it() {
    let recreate = spec(&with("strategy: {type: Recreate, rollingUpdate: null}"));
    assert_eq!(recreate, spec(&with("strategy: {type: Recreate}")));
}

#[test]
fn the_order_of_a_selector_says_nothing() {
    let expressions = |list: &str| {
        let selector = format!("selector:\n  matchExpressions: [{list}]\n");
        spec(&replica_set(&format!("{selector}{TEMPLATE}"))).selector
    };
    assert_eq!(
        expressions("{key: app, operator: In, values: [web, api]}, {key: tier, operator: DoesNotExist}"),
        expressions("{key: tier, operator: DoesNotExist}, {key: app, operator: In, values: [api, web, api]}"),
    );
}

fn cases() -> Vec<Case> {
    let selector = |rule, selector: &str| (rule, replica_set(&format!("selector: {selector}\n{TEMPLATE}")));
    let pod = |rule, fields: &str| {
        (rule, with("").replace("    containers:", &format!("    {fields}\n      containers:")))
    };
    let spread = |rule, fields: &str| pod(rule, &format!("topologySpreadConstraints:\n      - {fields}"));
    let field = |rule, fields: &str| (rule, with(fields));
    let on_node = |port: &str, fields: &str| {
        let text =
            with("replicas: §2").replace("    containers:", &format!("    {fields}\n      containers:"));
        let ports = format!("image: nginx, ports: [{{containerPort: 80, {port}}}]}}");
        ("host-port", text.replace("image: nginx}", &ports))
    };
    let update = |rule, fields: &str| (rule, with(&format!("strategy: {{rollingUpdate: {{{fields}}}}}")));
    vec![
        ("missing-field", replica_set(TEMPLATE).replace("spec:\n  temp", "§spec:\n  temp")),
        ("missing-field", replica_set("selector: {matchLabels: {app: web}}").replace("spec", "§spec")),
        ("selector", replica_set(&format!("§selector: {{}}\n{TEMPLATE}"))),
        ("selector", replica_set(&format!("§selector: {{matchLabels: {{}}}}\n{TEMPLATE}"))),
        ("selector", with("").replace("labels: {app: web}", "§labels: {app: api}")),
        (
            "selector",
            with("").replace("  metadata: {labels: {app: web}}\n  ", "").replace("template", "§template"),
        ),
        selector("invalid-label", "{matchLabels: {app: §\"a b\"}}"),
        selector("selector", "\n  matchExpressions:\n  - §{key: app, operator: In}"),
        selector("selector", "{matchExpressions: [{key: app, operator: Exists, §values: [a]}]}"),
        selector("unknown-value", "{matchExpressions: [{key: app, operator: §in, values: [web]}]}"),
        selector("unknown-field", "{§matchLabel: {app: {a: b}}}"),
        ("invalid-label", with("").replace("{app: web}}\n    spec", "{app: web, x: §\"y z\"}}\n    spec")),
        (
            "invalid-label",
            with("").replace("{app: web}}\n    spec", "{app: web}, annotations: {§a b: c}}\n    spec"),
        ),
        pod("restart-policy", "restartPolicy: §Never"),
        pod("no-effect", "§serviceAccountName: web"),
        spread("no-effect", "§{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}"),
        spread(
            "no-effect",
            "§{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
             labelSelector: {matchLabels: {app: web}}}",
        ),
        spread(
            "selector",
            "{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
             §labelSelector: {matchLabels: {app: api}}}",
        ),
        spread("unknown-value", "{maxSkew: 1, topologyKey: §zone, whenUnsatisfiable: DoNotSchedule}"),
        spread("out-of-range", "{maxSkew: §0, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}"),
        pod("invalid-name", "hostname: §Web"),
        ("invalid-image", with("").replace("image: nginx", "image: §Nginx")),
        (
            "required",
            with("").replace("    containers:\n      - {name: web, image: nginx}", "    §containers: []"),
        ),
        field("out-of-range", "replicas: §-1"),
        field("out-of-range", "replicas: §10001"),
        // Seen red without the check of one pod per node.
        on_node("hostPort: 8080", "nodeName: n1"),
        on_node("name: http", "nodeName: n1\n      hostNetwork: true"),
        field("rollout", "minReadySeconds: 200\nprogressDeadlineSeconds: §200"),
        field("rollout", "progressDeadlineSeconds: §0"),
        update("rollout", "maxSurge: 0, maxUnavailable: §0"),
        update("rollout", "maxSurge: 0%, maxUnavailable: §0"),
        update("rollout", "maxSurge: §half"),
        update("rollout", "maxSurge: §\"1\""),
        update("rollout", "maxUnavailable: §101%"),
        update("wrong-type", "maxSurge: §1.5"),
        update("out-of-range", "maxSurge: §-1"),
        field("exclusive", "strategy: {type: Recreate, §rollingUpdate: {maxSurge: 1}}"),
        field("unknown-value", "strategy: {type: §OnDelete}"),
    ]
}

#[test]
fn each_bad_replica_set_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

/// Seen red with the check applied to any number of pods, and to ports that the node chooses.
#[test]
fn pods_that_can_run_side_by_side_on_a_node_may_be_many() {
    for (fields, port) in
        [("replicas: 1", "hostPort: 80"), ("replicas: 2", "hostPort: 0"), ("replicas: 2", "name: http")]
    {
        let text = with(fields).replace("    containers:", "    nodeName: n1\n      containers:");
        let ports = format!("image: nginx, ports: [{{containerPort: 80, {port}}}]}}");
        spec(&text.replace("image: nginx}", &ports));
    }
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}
