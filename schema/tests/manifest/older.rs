//! Manifests of older Minik8s systems load unchanged, with a note at the position of each older spelling.

use schema::manifest::{DraftObject, Layout, load_file};
use schema::violation::Severity;

use super::cases::check;
use super::{load, rules};

/// The object, and `line:column: message` of each note on an older spelling.
fn loaded(text: &str) -> (DraftObject, Vec<String>) {
    let loaded = load(text);
    assert!(!loaded.has_errors(), "{:#?}", loaded.violations);
    let notes = loaded.violations.iter().filter(|one| one.severity == Severity::Note);
    let notes = notes.map(|one| format!("{}:{}: {}", one.line, one.column, one.message)).collect();
    (DraftObject::clone(&loaded.documents[0].object), notes)
}

const REPLICASET: &str = "apiVersion: v1
kind: Replicaset
metadata:
  name: greeter
spec:
  replicas: 3
  selector:
    matchLabels:
      app: greeter
  template:
    metadata:
      name: greeter-pod
      labels:
        app: greeter
    spec:
      containers:
      - name: greeter
        image: greeter:1
        ImagePullPolicy: Never
        resources: {limits: {cpu: 500000000, memory: 104857600}}
";

const REPLICASET_TODAY: &str = "apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: greeter}
spec:
  replicas: 3
  selector: {matchLabels: {app: greeter}}
  template:
    metadata: {labels: {app: greeter}}
    spec:
      containers:
      - name: greeter
        image: greeter:1
        imagePullPolicy: Never
        resources: {limits: {cpu: 500m, memory: 100Mi}}
";

fn autoscaler(api_version: &str, kind: &str, target: &str, rest: &str) -> String {
    format!(
        "apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: busy\nspec:\n  minReplicas: 2\n  maxReplicas: 5\n{target}{rest}"
    )
}

/// The current form of the older autoscalers below.
fn autoscaler_today(kind: &str, cpu: u32, memory: Option<u32>, seconds: Option<u32>) -> String {
    let metric = |name: &str, percent: u32| {
        format!(
            "  - type: Resource\n    resource: {{name: {name}, target: {{type: Utilization, averageUtilization: {percent}}}}}\n"
        )
    };
    let memory = memory.map(|percent| metric("memory", percent)).unwrap_or_default();
    let rules = |seconds| {
        format!(
            "{{stabilizationWindowSeconds: 0, policies: [{{type: Pods, value: 1, periodSeconds: {seconds}}}]}}"
        )
    };
    let behavior =
        seconds.map(rules).map(|rules| format!("  behavior: {{scaleUp: {rules}, scaleDown: {rules}}}\n"));
    autoscaler(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        &format!("  scaleTargetRef: {{kind: {kind}, name: busy-1}}\n"),
        &format!("  metrics:\n{}{memory}{}", metric("cpu", cpu), behavior.unwrap_or_default()),
    )
}

/// Older manifests, each with its current form.
fn pairs() -> Vec<(String, String)> {
    let workload = autoscaler(
        "v1",
        "Hpa",
        "  workload:\n    kind: Pod\n    metadata:\n      name: busy-1\n      namespace: default\n",
        "  adjustInterval: 15s\n  selector:\n    matchLabels:\n      app: busy\n  metrics:\n    cpuPercent: 0.35\n    memPercent: 0.5\n",
    );
    let percentages = autoscaler(
        "autoscaling/v1",
        "HorizontalPodAutoscaler",
        "  scaleTargetRef:\n    apiVersion: v1\n    kind: ReplicaSet\n    metadata:\n      name: busy-1\n",
        "  metrics:\n    CPUUtilizationPercentage: 25\n    MemoryUtilizationPercentage: 0.4\n  scaleInterval: 10\n",
    );
    let version_1 = autoscaler(
        "autoscaling/v1",
        "HPA",
        "  scaleTargetRef: {apiVersion: apps/v1, kind: Replicaset, name: busy-1}\n",
        "  targetCPUUtilizationPercentage: 50\n",
    );
    let sub_paths = "apiVersion: v1\nkind: Dns\nmetadata:\n  name: shop\nspec:\n  host: shop.test\n  paths:\n  - subPath: /cart\n    \
                     svcName: cart\n    svcPort: \"88\"\n";
    let dns = "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {name: shop}\nspec:\n  host: shop.test\n  paths:\n  \
               - {path: /cart, service: {name: cart, port: 88}}\n";
    let lower_case = "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec:\n  type: nodePort\n  ports:\n  \
                      - {name: http, port: 88, targetPort: 80, nodePort: 30088, protocol: tcp}\n  selector: {app: web}\n";
    vec![
        (REPLICASET.to_owned(), REPLICASET_TODAY.to_owned()),
        (
            REPLICASET_TODAY.replace("{matchLabels: {app: greeter}}", "{app: greeter}"),
            REPLICASET_TODAY.to_owned(),
        ),
        (workload, autoscaler_today("Pod", 35, Some(50), Some(15))),
        (percentages, autoscaler_today("ReplicaSet", 25, Some(1), Some(10))),
        (version_1, autoscaler_today("ReplicaSet", 50, None, None)),
        (sub_paths.to_owned(), dns.to_owned()),
        (dns.replace("apiVersion: minik8s.io/v1\nkind: Dns", "kind: DNS"), dns.to_owned()),
        (lower_case.to_owned(), lower_case.replace("tcp", "TCP").replace("nodePort\n", "NodePort\n")),
    ]
}

const SELECTOR: &str = "  selector: {matchLabels: {app: greeter}}\n";

/// Manifests of older versions of Kubernetes, each with its current form and the beginnings of its notes.
fn of_kubernetes() -> Vec<(String, String, Vec<&'static str>)> {
    let set = REPLICASET_TODAY;
    let deployment = set.replace("kind: ReplicaSet", "kind: Deployment");
    let daemon = set.replace("ReplicaSet", "DaemonSet").replace("  replicas: 3\n", "");
    let at = |version: &str, text: &str| text.replace("apps/v1", version);
    let without = |text: &str| text.replace(SELECTOR, "");
    let controller = at("v1", &set.replace("kind: ReplicaSet", "kind: ReplicationController"));
    let read = "2:7: a ReplicationController is read as a ReplicaSet";
    let hpa = |version: &str, target: &str, metric: &str| {
        let metrics = format!("  metrics: [{{type: Resource, resource: {{name: cpu, {metric}}}}}]\n");
        autoscaler(version, "HorizontalPodAutoscaler", &format!("  scaleTargetRef: {{{target}}}\n"), &metrics)
    };
    let hpa_today = |target: &str| {
        hpa("autoscaling/v2", "kind: ReplicaSet, name: busy-1", &format!("target: {{{target}}}"))
    };
    let beta = "1:13: `apiVersion: autoscaling/v2beta1`";
    vec![
        (at("apps/v1beta2", &deployment), deployment.clone(), vec!["1:13: `apiVersion: apps/v1beta2`"]),
        (
            at("apps/v1beta1", &without(&deployment)),
            deployment.clone(),
            vec!["1:13: `apiVersion: apps/v1beta1`", "5:3: `no selector`"],
        ),
        (
            at("extensions/v1beta1", &deployment.replace("{matchLabels: {app: greeter}}", "null")),
            deployment.clone(),
            vec!["1:13: `apiVersion: extensions/v1beta1`", "5:3: `no selector`"],
        ),
        (
            at("extensions/v1beta1", &without(set)),
            set.to_owned(),
            vec!["1:13: `apiVersion: extensions/v1beta1`", "5:3: `no selector`"],
        ),
        (at("apps/v1beta2", &daemon), daemon.clone(), vec!["1:13: `apiVersion: apps/v1beta2`"]),
        (
            at("extensions/v1beta1", &without(&daemon)),
            daemon.clone(),
            vec!["1:13: `apiVersion: extensions/v1beta1`", "5:3: `no selector`"],
        ),
        (controller.replace("{matchLabels: {app: greeter}}", "{app: greeter}"), set.to_owned(), vec![read]),
        (without(&controller), set.to_owned(), vec![read]),
        (controller.replace("{matchLabels: {app: greeter}}", "{}"), set.to_owned(), vec![read]),
        (
            hpa(
                "autoscaling/v2beta1",
                "apiVersion: extensions/v1beta1, kind: Deployment, name: busy-1",
                "targetAverageUtilization: 60",
            ),
            hpa_today("type: Utilization, averageUtilization: 60"),
            vec![
                beta,
                "8:32: `apiVersion: extensions/v1beta1`",
                "9:52: `targetAverageUtilization` is an older spelling, read as `target.averageUtilization`",
            ],
        ),
        (
            hpa(
                "autoscaling/v2beta1",
                "apiVersion: v1, kind: ReplicationController, name: busy-1",
                "targetAverageUtilization: null, targetAverageValue: 500m",
            ),
            hpa_today("type: AverageValue, averageValue: 500m"),
            vec![beta, "8:32: `apiVersion: v1`", "9:84: `targetAverageValue`"],
        ),
    ]
}

#[test]
fn older_versions_of_kubernetes_mean_what_today_s_do() {
    for (older, today, notes) in of_kubernetes() {
        let ((found, noted), (wanted, none)) = (loaded(&older), loaded(&today));
        assert_eq!(found, wanted, "{older}");
        assert_eq!(none, Vec::<String>::new(), "{today}");
        let as_expected = noted.iter().zip(&notes).all(|(note, start)| note.starts_with(start));
        assert!(as_expected && noted.len() == notes.len(), "{noted:#?}\nfor {older}");
    }
}

#[test]
fn a_selector_is_taken_from_the_template_only_in_versions_that_do_so() {
    let without = |version: &str| REPLICASET_TODAY.replace("apps/v1", version).replace(SELECTOR, "");
    for version in ["apps/v1", "apps/v1beta2"] {
        assert_eq!(rules(&load(&without(version))), ["missing-field 4:1"], "{version}");
    }
    let unlabelled = without("apps/v1beta1").replace("    metadata: {labels: {app: greeter}}\n", "");
    assert_eq!(rules(&load(&unlabelled)), ["missing-field 4:1"]);
}

#[test]
fn messages_name_the_kind_of_the_manifest() {
    let text = REPLICASET_TODAY.replace("apps/v1", "apps/v2").replace("{matchLabels: {app: greeter}}", "{}");
    let text = text.replace("    spec:\n", "    spec:\n      restartPolicy: Never\n");
    for kind in ["Deployment", "ReplicationController"] {
        let found = load(&text.replace("kind: ReplicaSet", &format!("kind: {kind}"))).violations;
        let said: String = found.iter().map(|one| format!("{} ({})\n", one.message, one.help)).collect();
        assert!(said.contains(&format!("apiVersion `apps/v2` does not match kind {kind}")), "{said}");
        assert!(said.contains(&format!("the pods of a {kind} are meant to keep running")), "{said}");
    }
}

#[test]
fn older_manifests_load_unchanged_and_mean_what_today_s_do() {
    for (older, today) in pairs() {
        let ((found, _), (wanted, notes)) = (loaded(&older), loaded(&today));
        assert_eq!(found, wanted, "{older}");
        assert_eq!(notes, Vec::<String>::new(), "{today}");
    }
}

#[test]
fn each_older_spelling_is_noted_at_its_place() {
    let notes: Vec<String> = pairs().iter().map(|(older, _)| loaded(older).1.join("\n")).collect();
    insta::assert_snapshot!(notes.join("\n\n"));
}

#[test]
fn no_byte_of_an_older_manifest_brings_the_loader_down_or_hides_the_object() {
    let of_kubernetes = of_kubernetes().into_iter().map(|(older, ..)| older);
    for older in pairs().into_iter().map(|(older, _)| older).chain(of_kubernetes) {
        for at in 0..older.len() {
            for byte in b"\n :{0x" {
                let mut broken = older.clone().into_bytes();
                broken[at] = *byte;
                let loaded = load_file("a.yaml", &broken);
                let shown = String::from_utf8_lossy(&broken);
                assert!(loaded.has_errors() || loaded.documents.len() == 1, "byte {at}:\n{shown}");
            }
        }
    }
}

#[test]
fn places_of_older_spellings_are_where_they_are_written() {
    let (older, _) = &pairs()[5];
    let document = load(older).documents.remove(0);
    let places: Vec<_> = document.places.iter().map(|place| (place.line, place.column)).collect();
    assert_eq!(places, [(6, 9), (8, 14), (9, 14), (10, 14)]);
    for place in &document.places {
        let found = Layout::read("a.yaml", older.as_bytes()).find(document.line, &place.path);
        assert_eq!(found, Some((place.line, place.column)), "{place:?}");
    }
}

#[test]
fn an_autoscaler_follows_its_target_into_another_namespace() {
    let older =
        autoscaler("v1", "Hpa", "  workload: {kind: Pod, metadata: {name: busy-1, namespace: night}}\n", "");
    assert_eq!(loaded(&older).0.reference().to_string(), "HorizontalPodAutoscaler/night/busy");
}

#[test]
fn what_cannot_be_carried_over_is_an_error_at_its_place() {
    let hpa =
        |rest: &str| autoscaler("v1", "Hpa", "  workload: {kind: Pod, metadata: {name: busy-1}}\n", rest);
    let target = |target: &str| autoscaler("v1", "Hpa", target, "");
    check(&[
        (
            "scaling",
            target("  workload: {kind: Pod, metadata: {name: busy-1, namespace: §other}}\n")
                .replace("name: busy\n", "name: busy\n  namespace: own\n"),
        ),
        ("unknown-field", target("  workload: {kind: Pod, metadata: {name: busy-1, §lables: {a: b}}}\n")),
        ("missing-field", target("  §workload: {kind: Pod, metadata: {}}\n")),
        ("scaling", hpa("  metrics: {cpuPercent: §50}\n")),
        ("scaling", hpa("  metrics: {cpuPercent: §0}\n")),
        ("wrong-type", hpa("  metrics: {cpuPercent: §half}\n")),
        ("unknown-field", hpa("  metrics: {cpuPercent: 0.5, §diskPercent: 0.5}\n")),
        ("wrong-type", hpa("  adjustInterval: §soon\n")),
        ("unknown-field", hpa("  behavior: {}\n  §adjustInterval: 15s\n")),
        ("scaling", hpa("  adjustInterval: 15s\n  scaleInterval: §10\n")),
        ("unknown-field", hpa("  metrics: []\n  §targetCPUUtilizationPercentage: 50\n")),
        ("api-version", autoscaler_today("Pod", 1, None, None).replace("autoscaling/v2", "§autoscaling/v3")),
        (
            "unknown-field",
            REPLICASET_TODAY.replace("imagePullPolicy", "imagePullPolicy: Never\n        §ImagePullPolicy"),
        ),
    ]);
    // Ten pods in a period of zero seconds, or of an hour: both directions report it.
    let reported = rules(&load(&hpa("  adjustInterval: 1h\n")));
    assert_eq!(reported, ["scaling 9:19", "scaling 9:19"]);
}

#[test]
fn a_node_needs_no_api_version() {
    let (object, notes) = loaded("kind: Node\nmetadata: {name: n1}\nip: 10.0.0.2\n");
    assert_eq!((object.api_version.as_str(), notes.len()), ("v1", 2), "{notes:?}");
    assert_eq!(notes[0], "1:1: `no apiVersion` is an older spelling, read as `apiVersion: v1`");
    let pod = load("kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n");
    assert_eq!(rules(&pod), ["api-version 1:1"]);
}

#[test]
fn older_container_names_are_warned_of() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}
spec: {containers: [{name: volumeContainer-1, image: b}, {name: testContainer-1, image: b}]}\n";
    let found = load(text);
    assert_eq!(rules(&found), ["name-style 4:28", "name-style 4:65"]);
    assert!(!found.has_errors() && found.documents.len() == 1);
    let twice = load(&text.replace("test", "volume"));
    assert_eq!(rules(&twice), ["name-style 4:28", "duplicate-name 4:65"]);
}

#[test]
fn an_empty_host_name_is_none() {
    let pod = |fields: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{{fields}containers: [{{name: a, image: b}}]}}\n"
        );
        loaded(&text).0
    };
    assert_eq!(pod("hostname: \"\", subdomain: \"\", "), pod(""));
}

#[test]
fn older_spellings_are_notes_only() {
    let violations = load(REPLICASET).violations;
    let worst = violations.iter().map(|one| one.severity).min();
    assert_eq!(worst, Some(Severity::Warning), "{violations:#?}");
    assert_eq!(rules(&load(REPLICASET)), ["nano-cpu 20:35"]);
}

#[test]
fn the_same_interval_under_both_older_names_is_one() {
    let hpa = |fields: &str| {
        let target = "  scaleTargetRef: {kind: Pod, name: busy-1}\n";
        autoscaler("autoscaling/v2", "HorizontalPodAutoscaler", target, fields)
    };
    let both = load(&hpa("  adjustInterval: 15s\n  scaleInterval: 15\n"));
    assert_eq!(rules(&both), Vec::<String>::new());
    assert_eq!(both.documents[0].object, load(&hpa("  adjustInterval: 15s\n")).documents[0].object);
    let message = "`scaleInterval` has no effect here and is left out: adjustInterval has the same value";
    assert!(both.violations.iter().any(|note| note.message == message), "{:?}", both.violations);
}
