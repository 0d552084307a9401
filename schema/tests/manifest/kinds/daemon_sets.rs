//! Daemon sets: the loaded form of valid ones, and the messages about invalid ones.

use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::pod::TolerationOperator;
use schema::kinds::replica_set::IntOrPercent;
use schema::kinds::{Kind, Resource};

use crate::cases::{Case, check, document, messages};
use crate::{load, rules};

const TEMPLATE: &str = "template:\n  metadata: {labels: {app: web}}\n  spec:\n    containers:\n    - {name: web, image: nginx}\n";

/// A DaemonSet like that of Prometheus' node exporter on Kubernetes, without the fields that only Kubernetes has.
const EXPORTER: &str = "\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  labels: {app.kubernetes.io/name: node-exporter}
  name: node-exporter
  namespace: monitoring
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: node-exporter
  template:
    metadata:
      creationTimestamp: null
      annotations:
        kubectl.kubernetes.io/default-container: node-exporter
      labels:
        app.kubernetes.io/name: node-exporter
    spec:
      containers:
      - args:
        - --web.listen-address=127.0.0.1:9101
        - --path.sysfs=/host/sys
        - --path.rootfs=/host/root
        image: quay.io/prometheus/node-exporter:v1.8.2
        name: node-exporter
        resources:
          limits: {cpu: 250m, memory: 180Mi}
          requests: {cpu: 102m, memory: 180Mi}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {add: [SYS_TIME], drop: [ALL]}
          readOnlyRootFilesystem: true
        volumeMounts:
        - mountPath: /host/sys
          name: sys
          readOnly: true
        - mountPath: /host/root
          mountPropagation: HostToContainer
          name: root
          readOnly: true
      hostNetwork: true
      hostPID: true
      nodeSelector:
        kubernetes.io/os: linux
      securityContext: {runAsGroup: 65534, runAsNonRoot: true, runAsUser: 65534}
      tolerations:
      - operator: Exists
      volumes:
      - hostPath: {path: /sys}
        name: sys
      - hostPath: {path: /}
        name: root
  updateStrategy:
    rollingUpdate: {maxUnavailable: 10%}
    type: RollingUpdate
";

fn daemon_set(spec: &str) -> String {
    document("apps/v1", "DaemonSet", spec)
}

/// A valid daemon set with these additional fields.
fn with(fields: &str) -> String {
    daemon_set(&format!("selector: {{matchLabels: {{app: web}}}}\n{TEMPLATE}{fields}"))
}

fn spec(text: &str) -> DaemonSetSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}");
    let Resource::DaemonSet(spec) = &loaded.documents[0].object.resource else { panic!("a daemon set") };
    (**spec).clone()
}

#[test]
fn a_daemon_set_of_kubernetes_loads_without_a_word() {
    let set = spec(EXPORTER);
    assert!(set.template.spec.host_network && set.template.spec.host_pid);
    assert_eq!(set.template.spec.tolerations[0].operator, TolerationOperator::Exists);
    assert_eq!(set.max_unavailable(25), 3);
    let loaded = load(EXPORTER);
    let object = &loaded.documents[0].object;
    let pod = object.resource.pod(&object.metadata).unwrap();
    assert!(pod.is_per_node);
    assert_eq!(object.reference().kind, Kind::DaemonSet);
}

#[test]
fn what_only_kubernetes_has_is_named_at_its_place() {
    let pod =
        |field: &str| EXPORTER.replacen("      hostNetwork", &format!("      {field}\n      hostNetwork"), 1);
    check(&[
        ("unsupported-field", pod("§hostUsers: false")),
        ("no-effect", pod("§priorityClassName: system-node-critical")),
        ("no-effect", pod("§serviceAccountName: node-exporter")),
        ("unsupported-field", pod("§runtimeClassName: a")),
        (
            "unsupported-field",
            EXPORTER.replacen("name: sys\n", "name: sys\n          §recursiveReadOnly: Enabled\n", 1),
        ),
    ]);
}

#[test]
fn a_short_daemon_set_and_a_long_one_of_the_same_meaning_are_equal() {
    let short = spec(&with(""));
    let long = spec(&with(
        "minReadySeconds: 0\nupdateStrategy:\n  type: RollingUpdate\n  \
         rollingUpdate: {maxSurge: 0, maxUnavailable: 1}",
    ));
    assert_eq!(short, long);
    assert_eq!(short, spec(&with("updateStrategy: {rollingUpdate: {maxSurge: 0%}}")));
    let update = short.update_strategy.rolling_update.unwrap();
    assert_eq!(update.max_unavailable, Some(IntOrPercent::Number(1)));
    let share =
        |share: &str| spec(&with(&format!("updateStrategy: {{rollingUpdate: {{maxUnavailable: {share}}}}}")));
    assert_eq!(share("25%"), share("025%"));
}

#[test]
fn a_limit_of_history_is_noted_and_dropped() {
    let loaded = load(&with("revisionHistoryLimit: 3"));
    let reported: Vec<&str> = loaded.violations.iter().map(|violation| &*violation.message).collect();
    assert!(reported.len() == 1 && reported[0].contains("revisionHistoryLimit"), "{reported:?}");
    assert_eq!(spec(&with("revisionHistoryLimit: 3")), spec(&with("")));
}

fn cases() -> Vec<Case> {
    let pod = |rule, fields: &str| {
        (rule, with("").replace("    containers:", &format!("    {fields}\n      containers:")))
    };
    let field = |rule, fields: &str| (rule, with(fields));
    let update =
        |rule, fields: &str| (rule, with(&format!("updateStrategy: {{rollingUpdate: {{{fields}}}}}")));
    let target = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\nspec:\n  \
                  maxReplicas: 3\n  scaleTargetRef: {kind: §DaemonSet, name: web}\n";
    vec![
        ("missing-field", daemon_set(TEMPLATE).replace("spec:\n  temp", "§spec:\n  temp")),
        ("selector", daemon_set(&format!("§selector: {{}}\n{TEMPLATE}"))),
        ("selector", with("").replace("labels: {app: web}", "§labels: {app: api}")),
        pod("restart-policy", "restartPolicy: §OnFailure"),
        field("unsupported-field", "§replicas: 3"),
        field("unsupported-field", "§strategy: {type: RollingUpdate}"),
        field("unknown-value", "updateStrategy: {type: §OnDelete}"),
        field("unknown-value", "updateStrategy: {type: §Recreate}"),
        field("rollout", "progressDeadlineSeconds: §0"),
        update("rollout", "maxUnavailable: §0"),
        update("rollout", "maxUnavailable: §0%"),
        update("rollout", "maxUnavailable: §101%"),
        update("rollout", "maxUnavailable: §all"),
        update("rollout", "maxSurge: §1"),
        update("rollout", "maxSurge: §10%"),
        ("unknown-value", target.to_owned()),
    ]
}

#[test]
fn each_bad_daemon_set_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}
