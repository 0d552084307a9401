//! Invalid pods: each breaks one rule at one position. `§` marks the position and is removed.

use super::cases::{check, unmarked};
use super::{container, load, pod, rules, with};
use schema::violation::{Severity, rules as known};

/// The rule, and the text with its marks.
fn cases() -> Vec<(&'static str, String)> {
    let mut cases = envelope();
    cases.extend(shape());
    cases.extend(containers());
    cases.extend(ports_and_probes());
    cases.extend(volumes());
    cases.extend(pods());
    cases.extend(affinity());
    cases
}

fn envelope() -> Vec<(&'static str, String)> {
    let rest = "spec:\n  containers:\n  - {name: a, image: b}\n";
    let meta = |meta: &str| format!("apiVersion: v1\nkind: Pod\nmetadata:\n{meta}{rest}");
    let owned = |rule, text: &str| (rule, text.to_owned());
    vec![
        owned("missing-kind", "apiVersion: v1\n§knd: Pod\nmetadata: {name: a}\nspec: {}\n"),
        owned("missing-kind", "§apiVersion: v1\nmetadata: {name: a}\nspec: {}\n"),
        owned("missing-kind", "§knd: Pod\n"),
        owned("unknown-kind", "apiVersion: v1\nkind: §pod\nmetadata: {name: a}\n"),
        owned("unknown-kind", "apiVersion: apps/v1\nkind: §Deploymnet\nmetadata: {name: a}\n"),
        owned("unknown-kind", "apiVersion: v1\nkind: §Foo\nmetadata: {name: a}\n"),
        owned("unknown-kind", "apiVersion: apps/v1\nkind: §StatefulSet\nmetadata: {name: a}\n"),
        ("api-version", format!("§kind: Pod\nmetadata: {{name: a}}\n{rest}")),
        ("api-version", format!("apiVersion: §apps/v1\nkind: Pod\nmetadata: {{name: a}}\n{rest}")),
        ("missing-field", format!("§apiVersion: v1\nkind: Pod\n{rest}")),
        owned("missing-field", "§apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"),
        ("unknown-field", format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n§data: 1\n{rest}")),
        ("no-effect", format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n§status: {{a: b}}\n{rest}")),
        ("missing-field", "apiVersion: v1\nkind: Pod\n§metadata: {}\nSPEC".replace("SPEC", rest)),
        ("unknown-field", meta("  §nmae: a\n")),
        ("unsupported-field", meta("  name: a\n  §generateName: b-\n")),
        ("unsupported-field", meta("  §generateName: b-\n")),
        ("missing-field", meta("  generateName:\n").replace("metadata", "§metadata")),
        ("invalid-name", meta("  name: §a/b\n")),
        ("invalid-name", meta("  name: §\"\"\n")),
        ("invalid-name", meta(&format!("  name: §{}\n", "a".repeat(254)))),
        ("invalid-name", meta(&format!("  name: §A{}\n", "a".repeat(63)))),
        ("name-style", meta("  name: §Web_1\n")),
        ("invalid-name", meta("  name: a\n  namespace: §Team_A\n")),
        ("invalid-label", meta("  name: a\n  labels:\n    §-x: z\n")),
        ("invalid-label", meta("  name: a\n  labels:\n    x: §\"y z\"\n")),
        ("invalid-label", meta("  name: a\n  annotations:\n    §a b: z\n")),
        ("unknown-value", meta("  name: a\n  annotations:\n    minik8s.io/prune: §\"False\"\n")),
        ("unknown-value", meta("  name: a\n  annotations:\n    minik8s.io/prune: §disabled\n")),
        ("unknown-value", meta("  name: a\n  annotations:\n    §minik8s.io/prun: \"false\"\n")),
        ("wrong-type", meta("  name: a\n  labels:\n    x: §1.10\n")),
        ("ambiguous-scalar", meta("  name: a\n  labels:\n    x: §no\n")),
        ("wrong-type", meta("  name: §8080\n")),
    ]
}

fn shape() -> Vec<(&'static str, String)> {
    vec![
        ("missing-field", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n§spec: {}\n".to_owned()),
        ("missing-field", pod("§containers:")),
        ("required", pod("§containers: []")),
        ("wrong-type", pod("containers:\n  §name: web\n  image: nginx")),
        ("missing-field", pod("containers:\n- §image: nginx")),
        ("missing-field", pod("containers:\n- name: web\n  §image:")),
        ("wrong-type", pod("containers:\n- §web")),
        ("unknown-field", container("§imagePullPolcy: Always")),
        ("unknown-field", container("§ImagePullPolicy: Always")),
        ("unsupported-field", container("§volumeDevices: []")),
        ("no-effect", with("§serviceAccountName: x")),
        ("unsupported-field", with("§runtimeClassName: x")),
        ("unsupported-field", with("§schedulingGates: []")),
        ("unknown-value", with("restartPolicy: §always")),
        ("unknown-value", container("imagePullPolicy: §Sometimes")),
        ("wrong-type", with("hostNetwork: §\"true\"")),
        ("ambiguous-scalar", with("hostNetwork: §yes")),
        ("wrong-type", with("terminationGracePeriodSeconds: §030")),
        ("wrong-type", with("terminationGracePeriodSeconds: §1.5")),
        ("out-of-range", with("terminationGracePeriodSeconds: §-1")),
        ("out-of-range", with("terminationGracePeriodSeconds: §100000")),
        ("wrong-type", container("args: §--verbose")),
        ("wrong-type", container("args:\n- §8080")),
        ("wrong-type", container("env:\n- name: A\n  value: §true")),
        ("ambiguous-scalar", container("env:\n- name: A\n  value: §on")),
        ("duplicate-key", container("tty: true\n§tty: false")),
        ("yaml-tag", container("workingDir: §!path /a")),
        ("quantity", container("resources:\n  limits: {cpu: §half}")),
        ("quantity", container("resources:\n  limits: {memory: §1Xi}")),
        ("wrong-type", container("resources:\n  limits: {memory: §[1]}")),
        ("nano-cpu", container("resources:\n  limits: {cpu: §500000000}")),
        ("quantity", container("resources:\n  limits: {nvidia.com/gpu: §0.5}")),
        ("unsupported-field", container("resources:\n  limits: {§amd.com/gpu: 1}")),
    ]
}

fn containers() -> Vec<(&'static str, String)> {
    vec![
        ("invalid-name", pod("containers:\n- name: §-Web\n  image: nginx")),
        ("name-style", pod("containers:\n- name: §Web\n  image: nginx")),
        ("duplicate-name", with("- name: §web\n  image: nginx")),
        ("duplicate-name", with("initContainers:\n- name: a\n  image: b\n- name: §a\n  image: b")),
        ("invalid-image", pod("containers:\n- name: web\n  image: §Nginx")),
        ("invalid-image", pod("containers:\n- name: web\n  image: §\"\"")),
        ("invalid-path", container("workingDir: §tmp")),
        ("invalid-env-name", container("env:\n- name: §1A\n  value: a")),
        ("literal-secret", container("args: [--verbose, §--token=ghp_0123456789]")),
        (
            "literal-secret",
            container("command: [sh, -c, §\"cat <<E\\n-----BEGIN RSA PRIVATE KEY-----\\nE\"]"),
        ),
        ("duplicate-env", container("env:\n- {name: A, value: a}\n- {name: §A, value: b}")),
        (
            "exclusive",
            container("env:\n- name: A\n  value: a\n  §valueFrom: {fieldRef: {fieldPath: metadata.name}}"),
        ),
        ("exclusive", container("env:\n- name: A\n  §valueFrom: {}")),
        ("literal-secret", container("env:\n- name: DB_PASSWORD\n  §value: hunter2")),
        ("field-path", container("env:\n- name: A\n  valueFrom: {fieldRef: {fieldPath: §metadata.nme}}")),
        ("resources", container("resources: {requests: {cpu: §2}, limits: {cpu: 1}}")),
        ("resources", container("resources: {requests: {memory: §2Gi}, limits: {memory: 1Gi}}")),
        ("resources", container("resources: {limits: {memory: §128m}}")),
        ("resources", container("resources: {requests: {§nvidia.com/gpu: 1}}")),
        ("resources", container("resources: {requests: {nvidia.com/gpu: §1}, limits: {nvidia.com/gpu: 2}}")),
        (
            "resources",
            with(
                "  resources: {limits: {nvidia.com/gpu: 1}}\n- name: b\n  image: b\n  resources: {limits: {§nvidia.com/gpu: 1}}",
            ),
        ),
        ("capability", container("securityContext: {capabilities: {add: [§CAP_NET_ADMINS]}}")),
        ("capability", container("securityContext: {capabilities: {drop: [§FLY]}}")),
        ("security", container("securityContext: {runAsNonRoot: true, runAsUser: §0}")),
        ("security", container("securityContext: {privileged: true, allowPrivilegeEscalation: §false}")),
        (
            "security",
            with(
                "  volumeMounts: [{name: a, mountPath: /a, mountPropagation: §Bidirectional}]\nvolumes: [{name: a}]",
            ),
        ),
        ("out-of-range", container("securityContext: {runAsUser: §-1}")),
        ("exclusive", container("lifecycle:\n  §preStop: {}")),
        ("exclusive", container("lifecycle:\n  §postStart: {}")),
        ("exclusive", container("lifecycle: {postStart: {exec: {command: [a]}, §sleep: {seconds: 1}}}")),
        ("out-of-range", container("lifecycle: {preStop: {sleep: {seconds: §31}}}")),
        ("exclusive", with("hostPID: true\nshareProcessNamespace: §true")),
        ("invalid-address", with("hostAliases: [{ip: §localhost, hostnames: [a]}]")),
        ("invalid-name", with("hostAliases: [{ip: 10.0.0.1, hostnames: [a.b, §a_b]}]")),
        ("required", container("lifecycle: {preStop: {exec: {§command: []}}}")),
        (
            "exclusive",
            with("initContainers:\n- name: a\n  image: b\n  §livenessProbe: {tcpSocket: {port: 1}}"),
        ),
        ("exclusive", container("§restartPolicy: Always")),
        ("unknown-value", with("initContainers:\n- {name: a, image: b, restartPolicy: §OnFailure}")),
    ]
}

fn ports_and_probes() -> Vec<(&'static str, String)> {
    vec![
        ("wrong-type", container("ports:\n- containerPort: §\"80\"")),
        ("out-of-range", container("ports:\n- containerPort: §0")),
        ("out-of-range", container("ports:\n- containerPort: §65536")),
        ("missing-field", container("ports:\n- §name: http")),
        ("unknown-value", container("ports:\n- {containerPort: 80, protocol: §tcp}")),
        ("invalid-port", container("ports:\n- {containerPort: 80, name: §HTTP}")),
        (
            "duplicate-name",
            container("ports:\n- {containerPort: 80, name: a}\n- {containerPort: 81, name: §a}"),
        ),
        (
            "host-port",
            container(
                "ports:\n- {containerPort: 80, hostPort: 8080}\n- {containerPort: 81, hostPort: §8080}",
            ),
        ),
        ("host-port", with("  ports: [{containerPort: 80, hostPort: §81}]\nhostNetwork: true")),
        (
            "host-port",
            with(
                "  ports: [{containerPort: 80, hostPort: 81}]\ninitContainers:\n- {name: a, image: b, ports: \
[{containerPort: 1, hostPort: 81}]}\n- {name: c, image: b, restartPolicy: Always, ports: [{containerPort: 1, \
hostPort: §81}]}",
            ),
        ),
        (
            "host-port",
            container(
                "ports:\n- {containerPort: 80, hostPort: 8080, hostIP: 10.0.0.1}\n- {containerPort: 81, hostPort: §8080}",
            ),
        ),
        ("invalid-address", container("ports:\n- {containerPort: 80, hostPort: 80, hostIP: §10.0.0}")),
        ("invalid-address", container("ports:\n- {containerPort: 80, hostPort: 80, hostIP: §\"::1\"}")),
        ("no-effect", container("ports:\n- {containerPort: 80, §hostIP: 10.0.0.1}")),
        ("exclusive", container("§livenessProbe: {periodSeconds: 5}")),
        ("exclusive", container("livenessProbe: {exec: {command: [a]}, §tcpSocket: {port: 1}}")),
        ("exclusive", container("livenessProbe: {tcpSocket: {port: 1}, §grpc: {port: 1}}")),
        ("out-of-range", container("livenessProbe: {grpc: {port: §0}}")),
        ("wrong-type", container("livenessProbe: {grpc: {port: §http}}")),
        ("not-found", container("readinessProbe: {httpGet: {port: §http}}")),
        ("invalid-port", container("readinessProbe: {tcpSocket: {port: §0}}")),
        ("out-of-range", container("readinessProbe: {tcpSocket: {port: 1}, timeoutSeconds: §-1}")),
        ("out-of-range", container("livenessProbe: {tcpSocket: {port: 1}, initialDelaySeconds: §86401}")),
        ("out-of-range", container("readinessProbe: {tcpSocket: {port: 1}, periodSeconds: §4294967295}")),
        ("out-of-range", container("startupProbe: {tcpSocket: {port: 1}, timeoutSeconds: §86401}")),
        ("probe", container("livenessProbe: {tcpSocket: {port: 1}, successThreshold: §2}")),
        ("probe", container("startupProbe: {tcpSocket: {port: 1}, successThreshold: §2}")),
        ("probe", container("readinessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: §5}")),
        (
            "out-of-range",
            container("livenessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: §0}"),
        ),
        (
            "out-of-range",
            container("startupProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: §86401}"),
        ),
        ("probe", container("startupProbe: {httpGet: {port: 1, httpHeaders: [{name: §\"a b\", value: c}]}}")),
        ("wrong-type", container("readinessProbe: {httpGet: {port: §1.5}}")),
    ]
}

fn volumes() -> Vec<(&'static str, String)> {
    let mounted = |mount: &str| {
        with(&format!("  volumeMounts:\n  - {{name: v, {mount}}}\nvolumes:\n- name: v\n  emptyDir: {{}}"))
    };
    vec![
        ("exclusive", with("volumes:\n- name: v\n  emptyDir: {}\n  §hostPath: {path: /a}")),
        ("unsupported-field", with("volumes:\n- name: v\n  §gitRepo: {repository: x}")),
        ("invalid-name", with("volumes:\n- name: §V\n  emptyDir: {}")),
        ("duplicate-name", with("volumes:\n- name: v\n  emptyDir: {}\n- name: §v\n  emptyDir: {}")),
        ("invalid-path", with("volumes:\n- name: v\n  hostPath: {path: §data}")),
        ("invalid-path", with("volumes:\n- name: v\n  hostPath: {path: §/data/../etc}")),
        ("unknown-value", with("volumes:\n- name: v\n  hostPath: {path: /data, type: §Dir}")),
        ("unknown-value", with("volumes:\n- name: v\n  emptyDir: {medium: §RAM}")),
        ("invalid-path", with("volumes:\n- name: v\n  repo: {path: §../x}")),
        ("invalid-path", with("volumes:\n- name: v\n  repo: {path: §/x}")),
        ("not-found", container("volumeMounts:\n- {name: §w, mountPath: /a}")),
        ("invalid-path", mounted("mountPath: §a")),
        ("invalid-path", mounted("mountPath: §/")),
        ("invalid-path", mounted("mountPath: §/a/../b")),
        ("invalid-path", mounted("mountPath: /a, subPath: §../b")),
        ("invalid-path", mounted("mountPath: /a, subPath: §/b")),
        ("exclusive", mounted("mountPath: /a, subPath: b, §subPathExpr: $(B)")),
        ("duplicate-name", mounted("mountPath: /a}\n  - {name: v, mountPath: §/a/")),
    ]
}

fn pods() -> Vec<(&'static str, String)> {
    vec![
        ("invalid-name", with("hostname: §Web")),
        ("invalid-name", with("subdomain: §a.b")),
        ("unsupported-field", with("§setHostnameAsFQDN: true")),
        ("invalid-name", with("nodeName: §a/b")),
        ("invalid-label", with("nodeSelector:\n  disk: §\"a b\"")),
        ("toleration", with("tolerations:\n- {operator: §Equal, value: a}")),
        ("toleration", with("tolerations:\n- {key: a, operator: Exists, value: §b}")),
        ("toleration", with("tolerations:\n- {key: a, operator: Exists, tolerationSeconds: §5}")),
        ("unknown-value", with("tolerations:\n- {key: a, operator: §exists}")),
        ("dns-config", with("dnsPolicy: §None")),
        ("dns-config", with("dnsConfig: {nameservers: [§dns.example.com]}")),
        ("dns-config", with("dnsConfig:\n  §nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]")),
        ("dns-config", with("dnsConfig: {searches: [§a b]}")),
        ("security", with("securityContext: {runAsNonRoot: true, runAsUser: §0}")),
        ("out-of-range", with("securityContext: {fsGroup: §-5}")),
        ("unsupported-field", with("securityContext: {§sysctls: []}")),
    ]
}

fn affinity() -> Vec<(&'static str, String)> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let nodes = |nodes: &str| with(&format!("affinity:\n  nodeAffinity:\n    {required}: {nodes}"));
    let label = |requirement: &str| {
        // The mark is on the values, or on the requirement that lacks them.
        let mark = if requirement.contains('§') { "" } else { "§" };
        nodes(&format!("{{nodeSelectorTerms: [{{matchExpressions: [{mark}{{key: disk, {requirement}}}]}}]}}"))
    };
    let apart = |term: &str| with(&format!("affinity:\n  podAntiAffinity:\n    {required}: [{term}]"));
    vec![
        (
            "no-effect",
            with("affinity:\n  nodeAffinity:\n    §preferredDuringSchedulingIgnoredDuringExecution: []"),
        ),
        (
            "no-effect",
            with("affinity:\n  podAffinity:\n    §preferredDuringSchedulingIgnoredDuringExecution: []"),
        ),
        (
            "no-effect",
            with("affinity:\n  podAntiAffinity:\n    §preferredDuringSchedulingIgnoredDuringExecution: []"),
        ),
        ("missing-field", nodes("{}").replace("required", "§required")),
        ("selector", nodes("{§nodeSelectorTerms: []}")),
        ("selector", label("operator: In, §values: []")),
        ("selector", label("operator: NotIn")),
        ("selector", label("operator: Exists, §values: [a]")),
        ("selector", label("operator: Gt, §values: [many]")),
        ("selector", label("operator: Lt, §values: [\"1\", \"2\"]")),
        ("invalid-label", label("operator: In, values: [§a b]")),
        ("unknown-value", label("operator: §in, values: [a]")),
        (
            "selector",
            nodes("{nodeSelectorTerms: [{matchFields: [{key: §name, operator: In, values: [a]}]}]}"),
        ),
        (
            "selector",
            nodes("{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: §Exists}]}]}"),
        ),
        (
            "selector",
            nodes(
                "{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, §values: [a, b]}]}]}",
            ),
        ),
        ("missing-field", apart("§{labelSelector: {}}")),
        ("required", apart("{topologyKey: §\"\"}")),
        ("unknown-value", apart("{topologyKey: §topology.kubernetes.io/zone}")),
        ("invalid-name", apart("{topologyKey: kubernetes.io/hostname, namespaces: [§A]}")),
        (
            "invalid-label",
            apart("{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: §\"b c\"}}}"),
        ),
        ("unsupported-field", apart("{topologyKey: kubernetes.io/hostname, §namespaceSelector: {}}")),
        ("unsupported-field", apart("{topologyKey: kubernetes.io/hostname, §matchLabelKeys: [a]}")),
    ]
}

#[test]
fn each_bad_pod_breaks_exactly_its_rule_at_its_place() {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    check(&cases);
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    let mut text = String::new();
    for (_, marked) in cases() {
        for violation in load(&unmarked(&marked).0).violations {
            text.push_str(&format!("{violation}\n"));
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn every_violation_is_of_a_known_rule_and_names_its_object() {
    for (_, marked) in cases().into_iter().skip(envelope().len()) {
        for violation in load(&unmarked(&marked).0).violations {
            assert!(known::ALL.iter().any(|rule| rule.id == violation.rule), "{violation}");
            assert_eq!(violation.object.as_deref(), Some("Pod/default/web"), "{violation}");
        }
    }
}

#[test]
fn all_mistakes_are_reported_in_one_run() {
    let text = container(
        "imagePullPolcy: Always\nports: [{containerPort: 0}]\nresources: {limits: {memory: 1Xi}}\nvolumeMounts: [{name: v, mountPath: a}]",
    );
    let found: Vec<String> = load(&text).violations.into_iter().map(|violation| violation.rule).collect();
    assert_eq!(found, ["unknown-field", "out-of-range", "quantity", "invalid-path"]);
}

#[test]
fn one_bad_document_does_not_hide_the_others() {
    let text = format!("{}---\n{}---\n{}", container("tty: maybe"), container(""), container("tt: true"));
    let loaded = load(&text);
    assert_eq!(loaded.documents.len(), 1);
    assert_eq!(loaded.documents[0].line, 11);
    assert_eq!(rules(&loaded), ["wrong-type 9:10", "unknown-field 28:5"]);
    assert!(loaded.has_errors());
    assert!(loaded.violations.iter().all(|violation| violation.severity == Severity::Error));
}

// Seen red with every violation of the document assumed to have hidden the name.
#[test]
fn a_name_that_is_not_found_is_reported_beside_mistakes_that_do_not_hide_it() {
    let pod = |fields: &str| {
        let mounts = "    volumeMounts:\n    - {name: w, mountPath: /a}\n";
        load(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: m\n    image: i:1\n{mounts}{fields}"
        ))
    };
    assert_eq!(rules(&pod("    comand: [x]\n")), ["not-found 9:14", "unknown-field 10:5"]);
    // The volume may be in the misspelled field.
    assert_eq!(rules(&pod("  volmes:\n  - {name: w, emptyDir: {}}\n")), ["unknown-field 10:3"]);
    assert_eq!(rules(&pod("  volumes:\n  - {nme: w, emptyDir: {}}\n")), ["unknown-field 11:6"]);
}
