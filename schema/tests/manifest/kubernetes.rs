//! Manifests written for Kubernetes run unchanged within the supported fields; for other fields the message names the
//! field.

use schema::kinds::{Kind, Resource};
use schema::violation::rules as known;

use super::cases::check;
use super::{container, load, rules, with};

/// A web shop's front end, as in a first tutorial, with the usual additions.
const SHOP: &str = "apiVersion: v1
kind: Service
metadata:
  name: front
  namespace: shop
  labels: {app.kubernetes.io/name: front}
spec:
  type: NodePort
  selector:
    app.kubernetes.io/name: front
  sessionAffinity: None
  ports:
  - name: http
    port: 80
    targetPort: http
    nodePort: 30080
    protocol: TCP
  - {name: metrics, port: 9113}
---
apiVersion: v1
kind: Service
metadata: {name: front-pods, namespace: shop}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {app.kubernetes.io/name: front}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: front
  namespace: shop
  creationTimestamp: null
  labels: {app.kubernetes.io/name: front, tier: frontend}
spec:
  replicas: 3
  minReadySeconds: 5
  selector:
    matchLabels: {app.kubernetes.io/name: front}
    matchExpressions:
    - {key: tier, operator: In, values: [frontend]}
  template:
    metadata:
      creationTimestamp: null
      labels: {app.kubernetes.io/name: front, tier: frontend}
      annotations: {example.com/revision: \"7\"}
    spec:
      restartPolicy: Always
      terminationGracePeriodSeconds: 20
      containers:
      - name: nginx
        image: nginx:1.27
        ports:
        - {name: http, containerPort: 80}
        resources:
          requests: {cpu: 200m, memory: 64Mi}
          limits: {cpu: 500m, memory: 128Mi}
        readinessProbe:
          httpGet: {path: /, port: http}
status: {}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: front, namespace: shop}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: front}
  minReplicas: 1
  maxReplicas: 10
  metrics:
  - type: Resource
    resource:
      name: cpu
      target: {type: Utilization, averageUtilization: 50}
  - type: Resource
    resource:
      name: memory
      target: {type: AverageValue, averageValue: 500Mi}
  behavior:
    scaleDown:
      stabilizationWindowSeconds: 300
      policies:
      - {type: Percent, value: 100, periodSeconds: 15}
    scaleUp:
      selectPolicy: Max
      policies:
      - {type: Percent, value: 100, periodSeconds: 15}
      - {type: Pods, value: 4, periodSeconds: 15}
";

#[test]
fn kubernetes_manifests_run_unchanged() {
    let loaded = load(SHOP);
    assert_eq!(rules(&loaded), Vec::<String>::new());
    let objects: Vec<String> =
        loaded.documents.iter().map(|document| document.object.reference().to_string()).collect();
    assert_eq!(
        objects,
        [
            "Service/shop/front",
            "Service/shop/front-pods",
            "ReplicaSet/shop/front",
            "HorizontalPodAutoscaler/shop/front"
        ]
    );
}

/// Seen red without the rewrite, and with a replica set's deadline.
#[test]
fn a_deployment_is_a_replica_set_that_has_more_time() {
    let text = SHOP
        .replacen("kind: ReplicaSet", "kind: Deployment", 1)
        .replacen("  minReadySeconds", "  revisionHistoryLimit: 3\n  minReadySeconds", 1)
        .replace("kind: ReplicaSet, name", "kind: Deployment, name");
    let loaded = load(&text);
    let left_out = loaded.violations.iter().filter(|note| note.rule == known::NO_EFFECT.id);
    assert_eq!(left_out.map(|note| note.line).collect::<Vec<_>>(), [37], "{:?}", loaded.violations);
    let object = &loaded.documents[2].object;
    let Resource::ReplicaSet(spec) = &object.resource else { panic!("a replica set") };
    assert_eq!(spec.progress_deadline_seconds, Some(600));
    let Resource::HorizontalPodAutoscaler(scaler) = &loaded.documents[3].object.resource else { panic!() };
    assert_eq!(scaler.target(&object.metadata), object.metadata.reference(Kind::ReplicaSet, "front"));
}

#[test]
fn the_selector_of_a_kubernetes_replica_set_matches_its_template() {
    let loaded = load(SHOP);
    let Resource::ReplicaSet(spec) = &loaded.documents[2].object.resource else { panic!("a replica set") };
    assert!(spec.selector.matches(&spec.template.metadata.labels));
}

#[test]
fn outside_the_supported_fields_the_message_names_the_field() {
    let with = |before: &str, field: &str| SHOP.replacen(before, &format!("{field}\n{before}"), 1);
    check(&[
        ("unsupported-field", with("  sessionAffinity", "  §ipFamilies: [IPv6]")),
        ("unknown-value", SHOP.replacen("type: NodePort", "type: §LoadBalancer", 1)),
        ("no-effect", with("  minReadySeconds", "  §revisionHistoryLimit: 3")),
        ("unsupported-field", with("      restartPolicy", "      §runtimeClassName: a")),
        ("unsupported-field", with("        ports:\n        - {name: http", "        §volumeDevices: []")),
        ("unknown-value", SHOP.replace("kind: ReplicaSet, name", "kind: §StatefulSet, name")),
        ("unknown-value", SHOP.replacen("type: Resource", "type: §Object", 1)),
        ("unsupported-field", with("      creationTimestamp", "      §generateName: a-")),
    ]);
}

/// Loads the spec of the only pod of a text that has exactly these warnings.
fn pod_of(text: &str, warnings: &[&str]) -> schema::kinds::pod::PodSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), warnings, "{text}");
    let Resource::Pod(pod) = &loaded.documents[0].object.resource else { panic!("a pod") };
    (**pod).clone()
}

#[test]
fn a_volume_without_a_source_is_an_empty_directory() {
    let written = pod_of(&with("volumes:\n- name: cache\n  emptyDir: {}"), &[]);
    assert!(written.volumes[0].empty_dir.is_some());
    for volume in ["- name: cache", "- name: cache\n  emptyDir:", "- {name: cache, emptyDir: null}"] {
        assert_eq!(pod_of(&with(&format!("volumes:\n{volume}")), &[]), written, "{volume}");
    }
}

#[test]
fn zero_in_a_probe_is_the_default() {
    let short = pod_of(&container("readinessProbe: {tcpSocket: {port: 1}}"), &[]);
    let zeros = "periodSeconds: 0, timeoutSeconds: 0, successThreshold: 0, failureThreshold: 0";
    let zero = pod_of(&container(&format!("readinessProbe: {{tcpSocket: {{port: 1}}, {zeros}}}")), &[]);
    assert_eq!(zero, short);
}

#[test]
fn words_of_older_yaml_are_booleans_where_one_is_wanted() {
    for (word, meant) in [("yes", true), ("on", true), ("Y", true), ("no", false), ("off", false)] {
        let pod = pod_of(&with(&format!("hostNetwork: {word}")), &["ambiguous-scalar 9:16"]);
        assert_eq!(pod.host_network, meant, "{word}");
    }
}

#[test]
fn names_may_be_as_long_as_in_kubernetes_but_for_room_for_those_of_pods() {
    let long = "a".repeat(253);
    let pod = with(&format!("nodeName: {long}")).replacen("name: web", &format!("name: {long}"), 1);
    assert_eq!(pod_of(&pod, &[]).node_name.as_deref(), Some(long.as_str()));
    let long = "a".repeat(233);
    let set = SHOP.replacen(
        "kind: ReplicaSet\nmetadata:\n  name: front",
        &format!("kind: ReplicaSet\nmetadata:\n  name: {long}"),
        1,
    );
    assert!(set.contains(&long));
    assert_eq!(rules(&load(&set)), Vec::<String>::new());
    check(&[
        ("invalid-name", with(&format!("nodeName: §{}", "a".repeat(254)))),
        ("invalid-name", set.replacen(&long, &format!("§{long}a"), 1)),
        ("invalid-name", SHOP.replacen("name: front-pods", &format!("name: §{}", "a".repeat(64)), 1)),
    ]);
    let refused = load(&set.replacen(&long, &format!("{long}a"), 1)).violations.remove(0);
    assert!(refused.help.starts_with("shorten it: its pods are named"), "{refused:?}");
}

#[test]
fn nothing_is_an_amount_and_a_lifecycle() {
    let none = pod_of(&container(""), &[]);
    assert_eq!(pod_of(&container("lifecycle: {}"), &[]), none);
    let pod = pod_of(&container("resources: {limits: {cpu: \"0\"}}"), &[]);
    assert_eq!(pod.containers[0].resources.limits.cpu.map(|cpu| cpu.millis), Some(0));
}

#[test]
fn dots_in_a_name_are_as_in_kubernetes() {
    let named = |name: &str| container("").replacen("name: web", &format!("name: {name}"), 1);
    pod_of(&named("web.v1"), &[]);
    pod_of(&named("Web.v1"), &["name-style 4:9"]);
    pod_of(&named("web_1"), &["name-style 4:9"]);
    check(&[("invalid-name", SHOP.replacen("name: front-pods", "name: §front.pods", 1))]);
}
