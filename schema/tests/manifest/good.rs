//! Valid manifests and their loaded form.

use schema::kinds::Resource;
use schema::kinds::pod::{HttpScheme, PodSpec, PullPolicy};
use schema::manifest::{Document, load_file};
use schema::object::Provenance;

use super::{container, load, rules, with};

fn spec(document: &Document) -> &PodSpec {
    let Resource::Pod(spec) = &document.object.resource else { panic!("a pod") };
    spec
}

fn only(text: &str) -> Document {
    let mut loaded = load(text);
    assert!(!loaded.has_errors(), "{:#?}", loaded.violations);
    assert_eq!(loaded.documents.len(), 1);
    loaded.documents.remove(0)
}

/// A manifest written by hand for Kubernetes, with the leftovers of `kubectl --dry-run`.
const KUBERNETES: &str = r#"# A web server with a sidecar.
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  name: web
  namespace: shop
  labels:
    app.kubernetes.io/name: web
    version: "1.10"
  annotations:
    example.com/owner: team-a
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 10
  nodeSelector:
    kubernetes.io/arch: amd64
    node-role.kubernetes.io/worker:
  tolerations:
  - key: dedicated
    operator: Equal
    value: web
    effect: NoSchedule
  securityContext:
    runAsUser: 1000
    fsGroup: 2000
  initContainers:
  - name: prepare
    image: busybox:1.36
    command: ["sh", "-c", "echo ready > /work/state"]
    volumeMounts:
    - {name: work, mountPath: /work}
  - name: proxy
    image: envoyproxy/envoy:v1.31
    restartPolicy: Always
    ports:
    - {name: admin, containerPort: 9901}
    startupProbe:
      httpGet: {path: /ready, port: admin}
    readinessProbe:
      httpGet: {path: /ready, port: admin}
    lifecycle:
      preStop:
        exec: {command: [sleep, "5"]}
  containers:
  - name: web
    image: registry.example.com:5000/shop/web:v1.2.3
    args: ["--port", "8080"]
    env:
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    - name: MODE
      value: production
    ports:
    - name: http
      containerPort: 8080
      hostPort: 80
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {cpu: 0.5, memory: 128Mi}
    livenessProbe:
      httpGet: {path: /healthz, port: http}
      initialDelaySeconds: 5
    volumeMounts:
    - name: work
      mountPath: /work
      readOnly: true
  - name: log
    image: busybox
    command:
    - sh
    - -c
    - |
      tail -F /work/log
    resources: {}
    securityContext:
      capabilities:
        drop: [ALL]
    volumeMounts:
    - {name: work, mountPath: /work}
    - {name: certs, mountPath: /etc/ssl/certs}
  volumes:
  - name: work
    emptyDir: {medium: Memory, sizeLimit: 16Mi}
  - name: certs
    hostPath: {path: /etc/ssl/certs, type: Directory}
status: {}
"#;

#[test]
fn a_kubernetes_pod_runs_unchanged() {
    let document = only(KUBERNETES);
    assert_eq!(document.line, 2);
    assert_eq!(document.object.reference().to_string(), "Pod/shop/web");
    let spec = spec(&document);
    assert_eq!(spec.containers.len(), 2);
    assert_eq!(spec.node_selector["node-role.kubernetes.io/worker"], "");
    assert_eq!(spec.containers[0].resources.limits.cpu.map(|cpu| cpu.millis), Some(500));
    assert_eq!(rules(&load(KUBERNETES)), Vec::<String>::new());
}

#[test]
fn every_field_of_a_pod_has_an_effect() {
    let notes = |text: &str| -> Vec<String> {
        load(text).violations.iter().map(|note| format!("{} {}", note.rule, note.line)).collect()
    };
    assert!(notes(KUBERNETES).is_empty());
    let resolver = KUBERNETES.replacen("  restartPolicy", "  dnsPolicy: Default\n  restartPolicy", 1);
    assert!(notes(&resolver).is_empty());
}

#[test]
fn defaults_are_filled_in_so_that_equal_meanings_hash_equal() {
    let short = only(&container(
        "ports: [{containerPort: 80, name: http}]\nresources: {limits: {cpu: 0.5, memory: 128Mi}}\nenv: [{name: A}]\nreadinessProbe: {httpGet: {port: http}}",
    ));
    let long = only(&container(
        "ports:\n- containerPort: 80\n  name: http\n  protocol: TCP\nimagePullPolicy: Always\nresources:\n  requests:\n    cpu: 500m\n    memory: 131072Ki\n  limits:\n    cpu: 500m\n    memory: 134217728\nenv:\n- name: A\n  value: ''\nsecurityContext: {capabilities: {}}\nstdin: false\nreadinessProbe:\n  httpGet:\n    path: /\n    port: http\n    scheme: HTTP\n  periodSeconds: 10",
    ));
    assert_eq!(spec(&short), spec(&long));
    assert_eq!(short.object.hash(), long.object.hash());
    let container = &spec(&short).containers[0];
    assert_eq!(container.image_pull_policy, Some(PullPolicy::Always));
    assert_eq!(
        container.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap().scheme,
        Some(HttpScheme::Http)
    );
    let mut twice = spec(&short).clone();
    twice.fill_defaults();
    assert_eq!(&twice, spec(&short));
}

/// Fields of a node's exporter, a GPU's worker and a gRPC server, in the spellings of their manifests.
#[test]
fn what_exporters_and_workers_need_loads_without_a_word() {
    let text = with(
        "  lifecycle: {postStart: {httpGet: {port: 80}}, preStop: {sleep: {seconds: 5}}}
  livenessProbe: {grpc: {port: 9000, service: web.v1}}
  ports: [{containerPort: 80, hostPort: 80, hostIP: 127.0.0.1}, {containerPort: 81, hostPort: 80, hostIP: 10.0.0.1}]
  resources: {limits: {nvidia.com/gpu: 1}}
  volumeMounts: [{name: root, mountPath: /host, mountPropagation: HostToContainer}]
hostPID: true
hostIPC: true
hostAliases: [{ip: \"fd00::1\", hostnames: [db, db.example.com]}, {ip: 10.0.0.7}]
volumes: [{name: root, hostPath: {path: /}}]",
    );
    assert_eq!(rules(&load(&text)), Vec::<String>::new());
    let document = only(&text);
    let pod = spec(&document);
    assert!(pod.host_pid && pod.host_ipc);
    assert_eq!(pod.containers[0].resources.requests.gpus.map(|count| count.number), Some(1));
    let at = pod.containers[0].ports.iter().map(|port| port.host_address().unwrap().to_string());
    assert_eq!(at.collect::<Vec<_>>(), ["127.0.0.1", "10.0.0.1"]);
}

#[test]
fn spellings_of_nothing_special_are_the_default() {
    let container = |port: &str, mount: &str, probe: &str| {
        let text = format!(
            "  ports: [{{containerPort: 80, hostPort: 80{port}}}]\n  volumeMounts: [{{name: a, mountPath: /a{mount}}}]\n  \
             livenessProbe: {{grpc: {{port: 1{probe}}}}}\nvolumes: [{{name: a}}]"
        );
        spec(&only(&with(&text))).clone()
    };
    let short = container("", "", "");
    for all in ["\"\"", "0.0.0.0", "\"::\""] {
        let long = container(&format!(", hostIP: {all}"), ", mountPropagation: None", ", service: \"\"");
        assert_eq!(long, short, "{all}");
    }
}

#[test]
fn another_order_of_env_is_another_spec() {
    let first = only(&container("env: [{name: A, value: a}, {name: B, value: b}]"));
    let second = only(&container("env: [{name: B, value: b}, {name: A, value: a}]"));
    assert_ne!(first.object.hash(), second.object.hash());
}

#[test]
fn labels_are_not_part_of_the_hash() {
    let plain = only(&container(""));
    let labelled = only(&container("").replace("name: web\nspec", "name: web\n  labels: {a: b}\nspec"));
    assert_eq!(plain.object.hash(), labelled.object.hash());
    let object = (*labelled.object).clone().into_object(Provenance { line: 7, ..Provenance::default() }, 3);
    assert_eq!((object.generation, object.provenance.line, object.hash), (3, 7, plain.object.hash()));
}

#[test]
fn ports_of_the_host_network_are_host_ports() {
    let document = only(&with("  ports: [{containerPort: 80}]\nhostNetwork: true"));
    assert_eq!(spec(&document).containers[0].ports[0].host_port, Some(80));
}

#[test]
fn nano_cpus_of_older_manifests_are_read() {
    let document = only(&container("resources: {limits: {cpu: 500000000}}"));
    assert_eq!(spec(&document).containers[0].resources.limits.cpu.map(|cpu| cpu.millis), Some(500));
}

#[test]
fn json_is_read_as_well_as_yaml() {
    let json = "{\n\t\"apiVersion\": \"v1\", \"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"web\"},\n\t\"spec\": \
                {\"containers\": [{\"name\": \"web\", \"image\": \"nginx\", \"args\": [\"a\\/\\ud83d\\ude00\"]}]}\n}\n";
    let loaded = load_file("web.json", json.as_bytes());
    assert_eq!(loaded.violations, []);
    assert_eq!(spec(&loaded.documents[0]).containers[0].args, ["a/😀"]);
}

#[test]
fn anchors_and_merge_keys_are_expanded() {
    let text = with(
        "  env: &env [{name: A, value: a}]\n- <<: &base {image: busybox, tty: true}\n  name: second\n  env: *env\n- <<: [*base, {stdin: true}]\n  name: third\n  tty: false",
    );
    let document = only(&text);
    let [first, second, third] = spec(&document).containers.as_slice() else { panic!() };
    assert_eq!(first.env, second.env);
    assert!(second.tty && second.image == "busybox" && !third.tty && third.stdin && third.image == "busybox");
}

#[test]
fn a_list_of_kubernetes_is_its_items() {
    let item =
        "{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {containers: [{name: a, image: b}]}}";
    let text = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {}\n",
        item.replace("NAME", "one"),
        item.replace("NAME", "two")
    );
    let loaded = load(&text);
    assert_eq!(loaded.violations, []);
    let names: Vec<_> = loaded
        .documents
        .iter()
        .map(|document| (document.object.metadata.name.as_str(), document.line))
        .collect();
    assert_eq!(names, [("one", 4), ("two", 5)]);
}
