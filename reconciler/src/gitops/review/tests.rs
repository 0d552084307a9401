//! Reviews of small repositories: golden text, the wording for each kind, and the content of the hash.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use insta::assert_snapshot;
use proptest::prelude::*;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;

use super::*;
use crate::git::{CommitMeta, Relation};
use crate::gitops::load::Manifests;
use crate::gitops::offline::objects_of;
use crate::gitops::plan::plan;
use crate::gitops::prune::Lineage;
use schema::manifest::load_file as parse;

type Files = BTreeMap<String, String>;
fn files<const N: usize>(all: [(&str, &str); N]) -> Files {
    all.map(|(path, text)| (path.to_owned(), text.to_owned())).into()
}

fn load(files: &Files) -> Manifests {
    let parsed =
        |(path, text): (&String, &String)| (Arc::from(path.as_str()), Arc::new(parse(path, text.as_bytes())));
    files.iter().map(parsed).collect()
}

fn commit(id: &str) -> Arc<CommitMeta> {
    Arc::new(CommitMeta {
        id: id.repeat(40),
        author: "Ada <ada@example.org>".into(),
        subject: "x".into(),
        committed_at: jiff::Timestamp::UNIX_EPOCH,
        allows_prune: false,
    })
}

fn situation(base: &Files, head: &Files) -> PlanInput {
    let (before, after) = (commit("a"), commit("b"));
    let live: Table<ObjectRef, Object> = objects_of("main", &before, &load(base)).0;
    let base = before.id.clone();
    PlanInput {
        source: "main".into(),
        manifests: load(head),
        lineage: Lineage {
            base: Some(base.clone()),
            relations: [(base, Relation::Related)].into(),
            is_unused: false,
        },
        commit: after,
        live,
        malformed: std::collections::BTreeSet::new(),
        held: None,
        revision: 0,
        lost: std::collections::BTreeMap::new(),
        limits: Default::default(),
        service_cidr: None,
        incomplete: None,
    }
}

fn reviewed_with(base: &Files, head: &Files, nodes: Option<&[NodeRoom]>) -> Review {
    reviewed_while(base, head, nodes, &BTreeMap::new())
}

fn reviewed_while(
    base: &Files,
    head: &Files,
    nodes: Option<&[NodeRoom]>,
    running: &BTreeMap<ObjectRef, u32>,
) -> Review {
    let situation = situation(base, head);
    let (decided, effects) = (plan(&situation), crate::cli::kinds::effects);
    let context = ReviewContext { base: &"a".repeat(40), nodes, running, notes: &[], effects };
    review(&situation, &decided, &context)
}

fn reviewed(base: &Files, head: &Files) -> Review {
    reviewed_with(base, head, None)
}

#[track_caller]
fn effects(base: &str, head: &str) -> String {
    let of = |text: &str| if text.is_empty() { Files::new() } else { files([("a.yaml", text)]) };
    let keep = ("keep.yaml", POD_KEEP);
    let with = |mut all: Files| {
        all.insert(keep.0.to_owned(), keep.1.to_owned());
        all
    };
    let review = reviewed(&with(of(base)), &with(of(head)));
    let found: Vec<String> = review.violations.iter().map(ToString::to_string).collect();
    assert!(!review.has_errors(), "{found:?}");
    let mut text = String::new();
    for change in &review.changes {
        writeln!(text, "{} {}", change.action, change.title()).unwrap();
        for effect in &change.effects {
            writeln!(text, "  {effect}").unwrap();
        }
    }
    text
}

const POD_KEEP: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: keep}\nspec: {containers: [{name: m, image: 'i:1'}]}\n";

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec: {{containers: [{{name: main, image: '{image}'}}]}}\n"
    )
}

fn replica_set(replicas: u32, image: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: api}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: api}}}}\n  template:\n    metadata: {{labels: {{app: api}}}}\n    \
         spec: {{containers: [{{name: main, image: '{image}', resources: {{requests: {{cpu: 500m, memory: 1Gi}}}}}}]}}\n"
    )
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: api}\nspec:\n  type: NodePort\n  selector: {app: api}\n  ports: [{port: 80, nodePort: 30080}]\n";

/// The two sides of a pull request that exercises every part of a comment.
fn example() -> (Files, Files) {
    let base = files([
        ("apps/api.yaml", &replica_set(2, "api:1")),
        ("apps/service.yaml", SERVICE),
        ("apps/old.yaml", &pod("old", "old:1")),
        (
            "apps/web.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: web:1\n    env: [{name: API_TOKEN, value: canary-1}]\n",
        ),
    ]);
    let mut head = base.clone();
    head.remove("apps/old.yaml");
    head.insert("apps/api.yaml".into(), replica_set(3, "api:1"));
    head.insert("apps/new.yaml".into(), pod("new", "new:1"));
    head.insert(
        "apps/broken.yaml".into(),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}\n".into(),
    );
    let web = base["apps/web.yaml"].replace("web:1", "web:2").replace("canary-1", "canary-2");
    head.insert("apps/web.yaml".into(), web);
    (base, head)
}

#[test]
fn a_review_reads_so_on_a_terminal() {
    let (base, head) = example();
    assert_snapshot!(text(&reviewed(&base, &head), false));
}

#[test]
fn a_review_reads_so_in_a_comment() {
    let (base, head) = example();
    assert_snapshot!(markdown(&reviewed(&base, &head)));
}

#[test]
fn a_review_is_this_json() {
    let (base, head) = example();
    assert_snapshot!(reviewed(&base, &head).json().unwrap());
}

#[test]
fn no_form_carries_a_secret() {
    let (base, head) = example();
    let review = reviewed(&base, &head);
    for form in [text(&review, true), markdown(&review), review.json().unwrap()] {
        assert!(!form.contains("canary"), "{form}");
    }
}

#[test]
fn each_kind_says_what_its_change_does() {
    let set = |replicas| replica_set(replicas, "api:1");
    let with_service = |set: &str| format!("{set}---\n{SERVICE}");
    let moved = with_service(&set(3)).replace("30080", "30081");
    let outside = with_service(&set(3))
        .replace("nodePort: 30080}]", "nodePort: 30080, targetPort: 8080}]\n  externalIPs: [192.0.2.1]");
    let host = |set: &str| {
        let dns = "apiVersion: v1\nkind: Dns\nmetadata: {name: web}\nspec:\n  host: web.example";
        let paths = format!("  paths: [{{path: /, service: {{name: api, port: 80}}{set}}}]");
        format!("{}---\n{dns}\n{paths}\n", with_service(&replica_set(3, "api:1")))
    };
    let shared = |old: u32, new: u32| {
        let backend = |weight| format!("{{service: api, port: 80, weight: {weight}}}");
        host("").replace(
            "service: {name: api, port: 80}",
            &format!("backends: [{}, {}]", backend(old), backend(new)),
        )
    };
    let cases = [
        ("a new set", String::new(), set(3)),
        ("fewer of a set", set(3), set(1)),
        ("another template", set(3), replica_set(3, "api:2")),
        ("a new service", set(3), with_service(&set(3))),
        ("no service any more", with_service(&set(3)), set(3)),
        ("no pod behind a service", with_service(&set(3)), with_service(&set(0))),
        ("another node port", with_service(&set(3)), moved),
        ("open to the outside, and another port of the pods", with_service(&set(3)), outside),
        ("another path to the same service", host(""), host(", rewrite: /v2")),
        ("a share for a canary", shared(100, 0), shared(90, 10)),
    ];
    let mut all = String::new();
    for (what, base, head) in &cases {
        write!(all, "# {what}\n{}", effects(base, head)).unwrap();
    }
    assert_snapshot!(all);
}

/// Seen red with Git's numbers alone.
#[test]
fn effects_and_capacity_count_the_pods_that_run() {
    let file = |text: &str| match text {
        "" => files([("keep.yaml", POD_KEEP)]),
        text => files([("a.yaml", text), ("keep.yaml", POD_KEEP)]),
    };
    let set = ObjectRef { kind: Kind::ReplicaSet, namespace: "default".into(), name: "api".into() };
    let running = BTreeMap::from([(set, 7)]);
    let room = NodeRoom {
        name: "n1".into(),
        labels: Default::default(),
        cpu: schema::quantity::Cpu { millis: 8_000 },
        memory: schema::quantity::Memory { bytes: 1 << 34 },
        max_pods: 7,
    };
    let review = |base: &str, head: &str| {
        let review = reviewed_while(&file(base), &file(head), Some(std::slice::from_ref(&room)), &running);
        let effects = review.changes.iter().flat_map(|change| &change.effects).map(ToString::to_string);
        (effects.filter(|effect| effect.contains("pod")).collect::<Vec<_>>(), review.capacity)
    };
    let set = |replicas: u32, image: &str| replica_set(replicas, image);
    let too_many = vec!["pods: 8 wanted, live nodes take 7; 1 would wait".to_owned()];
    let restarts =
        vec!["restarts 7 pods (container main), because of spec.template.spec.containers[0].image".into()];
    assert_eq!(review(&set(3, "api:1"), &set(3, "api:2")), (restarts, too_many.clone()));
    assert_eq!(review(&set(3, "api:1"), "").0, ["stops 7 pods (container main)"]);
    assert_eq!(
        review(&set(3, "api:1"), &set(4, "api:1")),
        (vec!["replicas 7 -> 4: 3 pods fewer".into()], vec![])
    );
    let scaler = "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: api}\nspec:\n  \
                  scaleTargetRef: {kind: ReplicaSet, name: api}\n  minReplicas: 1\n  maxReplicas: 9\n";
    let scaled = |replicas| set(replicas, "api:1") + scaler;
    let decides = vec!["its autoscaler sets the number of pods, not `replicas`".to_owned()];
    assert_eq!(review(&scaled(3), &scaled(4)), (decides, too_many));
}

/// Seen red with a count that ignores taints.
#[test]
fn a_daemon_set_has_one_pod_on_each_node_that_fits() {
    let daemon = |image: &str, more: &str| {
        format!(
            "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: log}}\nspec:\n  selector: {{matchLabels: {{app: log}}}}\n  \
             template:\n    metadata: {{labels: {{app: log}}}}\n    spec:\n      containers: [{{name: main, image: '{image}'}}]\n{more}"
        )
    };
    let node = |name: &str| NodeRoom {
        name: name.into(),
        labels: [("disk".to_owned(), if name == "n1" { "ssd" } else { "hdd" }.to_owned())].into(),
        cpu: "8".parse().unwrap(),
        memory: "16Gi".parse().unwrap(),
        max_pods: 1,
    };
    let rooms = [node("n1"), node("n2"), node("n3")];
    let set = ObjectRef { kind: Kind::DaemonSet, namespace: "default".into(), name: "log".into() };
    let shown = |base: &str, head: &str, rooms: Option<&[NodeRoom]>, running: Option<u32>| {
        let file = |text: &str| match text {
            "" => files([("keep.yaml", POD_KEEP)]),
            text => files([("a.yaml", text), ("keep.yaml", POD_KEEP)]),
        };
        let running = running.map(|pods| (set.clone(), pods)).into_iter().collect();
        let review = reviewed_while(&file(base), &file(head), rooms, &running);
        let effects = review.changes.iter().flat_map(|change| &change.effects).map(ToString::to_string);
        (effects.filter(|effect| effect.contains("node")).collect::<Vec<_>>(), review.capacity)
    };
    let one = |effect: &str| vec![effect.to_owned()];
    let new = daemon("log:1", "");
    assert_eq!(shown("", &new, None, None).0, one("starts one pod on each node that fits (container main)"));
    let (effects, capacity) = shown("", &new, Some(&rooms), None);
    assert_eq!(effects, one("starts one pod on each of 3 nodes (container main)"));
    assert_eq!(capacity, ["pods: 4 wanted, live nodes take 3; 1 would wait"]);
    let taint = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\nspec: {taints: [{key: gpu, effect: NoSchedule}]}\n";
    let (effects, _) = shown("", &daemon("log:1", taint), Some(&rooms), None);
    assert!(effects.iter().any(|effect| effect.contains("one pod on each of 2 nodes")), "{effects:?}");
    let because = "because of spec.template.spec.containers[0].image";
    assert_eq!(
        shown(&new, &daemon("log:2", ""), Some(&rooms), Some(3)).0,
        [format!("restarts one pod on each of 3 nodes (container main), {because}")]
    );
    let picky = daemon("log:1", "      nodeSelector: {disk: ssd}\n");
    assert_eq!(
        shown(&new, &picky, Some(&rooms), Some(3)).0,
        [
            "restarts one pod on 1 node (container main), because of spec.template.spec.nodeSelector",
            "nodes with a pod 3 -> 1"
        ]
    );
    let named = "      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                 {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: NotIn, values: [n2]}]}]}}}\n";
    assert_eq!(shown(&new, &daemon("log:1", named), Some(&rooms), Some(3)).0[1], "nodes with a pod 3 -> 2");
    assert_eq!(
        shown(&new, "", Some(&rooms), Some(3)).0,
        one("stops one pod on each of 3 nodes (container main)")
    );
}

/// Seen red with every port shown.
#[test]
fn of_many_external_ports_the_first_few_are_reported() {
    let set = replica_set(3, "api:1");
    let addresses = |count: usize| (1..=count).map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>().join(", ");
    let with = |count: usize, port: u16| {
        let ports = format!("nodePort: 30080, name: http}}, {{name: more, port: {port}}}]");
        let service =
            SERVICE.replace("nodePort: 30080}]", &format!("{ports}\n  externalIPs: [{}]", addresses(count)));
        format!("{set}---\n{service}")
    };
    let shown = |base: String, head: String| {
        let all = effects(&base, &head);
        let one_by_one = all.lines().filter(|line| line.contains(" 192.0.2.")).count();
        (
            one_by_one,
            all.lines().filter(|line| line.contains(" more ports")).map(str::trim).collect::<String>(),
        )
    };
    assert_eq!(shown(with(30, 81), with(55, 81)), (50, String::new()));
    let more = "opens 10 more ports of external addresses".to_owned();
    assert_eq!(shown(with(30, 81), with(60, 81)), (50, more));
    // Replace one port of each address by another.
    let more =
        "closes 10 more ports of external addressesopens 10 more ports of external addresses".to_owned();
    assert_eq!(shown(with(60, 81), with(60, 82)), (100, more));
}

#[test]
fn labels_are_changed_in_place() {
    let labelled = pod("a", "i:1").replace("labels: {app: a}", "labels: {app: a, tier: front}");
    let shown = effects(&pod("a", "i:1"), &labelled);
    assert_eq!(shown, "update Pod default/a\n  changed in place, nothing restarts\n");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x}\n";
    assert!(effects(map, &map.replace("a: x", "a: y")).contains("each object that uses it is replaced"));
}

#[test]
fn another_image_or_label_of_a_function_replaces_its_replicas() {
    let function = |image: &str, label: &str| {
        format!(
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: f, labels: {{tier: {label}}}}}\n\
             spec: {{image: '{image}'}}\n"
        )
    };
    let shown = effects(&function("i:1", "a"), &function("i:2", "a"));
    assert_eq!(
        shown,
        "replace Function default/f\n  the function's replicas are replaced by those of image i:2\n"
    );
    let shown = effects(&function("i:1", "a"), &function("i:1", "b"));
    assert_eq!(
        shown,
        "replace Function default/f\n  the function's replicas are replaced, its image stays\n"
    );
}

#[test]
fn what_does_not_fit_on_the_nodes_is_said() {
    let head = files([("a.yaml", &replica_set(5, "api:1"))]);
    let room = NodeRoom {
        name: "n1".into(),
        labels: Default::default(),
        cpu: "2".parse().unwrap(),
        memory: "4194000Ki".parse().unwrap(),
        max_pods: 110,
    };
    let room = Some(&[room][..]);
    let cluster = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\n\
                   spec: {defaults: {resources: {requests: {cpu: 3}}}}\n";
    let defaulted = files([("a.yaml", &*pod("a", "i:1")), ("cluster.yaml", cluster)]);
    assert_eq!(
        reviewed_with(&Files::new(), &defaulted, room).capacity,
        [
            "Pod/default/a: a pod requests more than the largest node has",
            "CPU: 3 requested, live nodes have 2; 1 missing"
        ]
    );
    let review = reviewed_with(&Files::new(), &head, room);
    assert_eq!(
        review.capacity,
        [
            "CPU: 2500m requested, live nodes have 2; 500m missing",
            "memory: 5Gi requested, live nodes have 3.9Gi; 1.0Gi missing"
        ]
    );
    assert_eq!(
        reviewed_with(&Files::new(), &head, Some(&[])).capacity,
        ["no node is alive: 5 pods would wait"]
    );
}

#[test]
fn a_removal_that_would_be_held_is_said_first() {
    let many: Files = (0..12).map(|n| (format!("p{n}.yaml"), pod(&format!("p{n}"), "i:1"))).collect();
    let one = files([("p0.yaml", &pod("p0", "i:1"))]);
    let review = reviewed(&many, &one);
    assert_eq!((review.prune.deletes, review.prune.held, review.summary.delete), (11, true, 0));
    assert!(!review.is_empty());
    assert!(markdown(&review).lines().nth(3).unwrap().starts_with("**⚠ 11 removals would be held:**"));
}

#[test]
fn a_manifest_can_not_write_markdown() {
    let evil = "</summary></details> @ada <img src=x onerror=alert(1)> ![x](http://x) `code` # Title";
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, annotations: {{note: {evil:?}}}}}\nspec: {{containers: [{{name: main, image: 'i:1'}}]}}\n"
    );
    let base = files([("a.yaml", &pod("web", "i:1")), ("k.yaml", POD_KEEP)]);
    let broken = format!("apiVersion: v1\nkind: {evil:?}\nmetadata: {{name: x}}\n");
    let head = files([("a.yaml", &text), ("k.yaml", POD_KEEP), ("@ada <b>.yaml", &broken)]);
    let comment = markdown(&reviewed(&base, &head));
    let outside = without_code(&comment);
    for word in ["@ada", "<img", "![x]", "<b>.yaml"] {
        assert!(comment.contains(word) || comment.contains("&lt;"), "{word} is not in it at all");
        assert!(!outside.contains(word), "{word} stands outside of code: {outside}");
    }
    assert_eq!(outside.matches("<details>").count(), outside.matches("</details>").count());
}

/// Removes the code spans of a comment by the rules of CommonMark.
fn without_code(markdown: &str) -> String {
    let mut outside = String::new();
    for line in markdown.lines() {
        let mut rest = line;
        while let Some(at) = rest.find('`') {
            outside.push_str(&rest[..at]);
            let fence = rest[at..].len() - rest[at..].trim_start_matches('`').len();
            let inner = &rest[at + fence..];
            let mut from = 0;
            let close = loop {
                let Some(next) = inner[from..].find('`') else { panic!("a fence is open: {line}") };
                let start = from + next;
                let run = inner[start..].len() - inner[start..].trim_start_matches('`').len();
                if run == fence {
                    break start + run;
                }
                from = start + run;
            };
            rest = &inner[close..];
        }
        outside.push_str(rest);
        outside.push('\n');
    }
    outside
}

#[test]
fn a_comment_stays_within_its_bound_and_says_what_it_leaves_out() {
    let many: Files = (0..1000).map(|n| (format!("p{n}.yaml"), pod(&format!("p{n}"), "i:1"))).collect();
    let comment = markdown(&reviewed(&Files::new(), &many));
    assert!(comment.len() <= BYTES_MAX, "{}", comment.len());
    assert!(comment.contains("more objects are not shown here"), "{}", &comment[comment.len() - 600..]);
    assert!(comment.contains("Plan hash"));
}

#[test]
fn no_number_of_creations_hides_what_is_deleted_or_replaced() {
    let base =
        files([("k.yaml", POD_KEEP), ("old.yaml", &pod("old", "i:1")), ("web.yaml", &pod("web", "i:1"))]);
    let mut head: Files = (0..1000).map(|n| (format!("p{n}.yaml"), pod(&format!("p{n}"), "i:1"))).collect();
    head.insert("k.yaml".into(), POD_KEEP.into());
    head.insert("web.yaml".into(), pod("web", "i:2"));
    let review = reviewed(&base, &head);
    assert_eq!((review.summary.delete, review.summary.replace, review.summary.create), (1, 1, 1000));
    let comment = markdown(&review);
    assert!(comment.len() <= BYTES_MAX, "{}", comment.len());
    let at = |text: &str| comment.find(text).unwrap_or_else(|| panic!("no {text} in {}", &comment[..2000]));
    let first_created = at("<b>create</b>");
    assert!(at("`Pod default/old`") < first_created && at("`Pod default/web`") < first_created);
    assert!(at("<b>delete</b>") < at("<b>replace</b>") && at("<b>replace</b>") < first_created);
}

#[test]
fn an_object_that_does_not_fit_hides_none_after_it() {
    let base = files([("a.yaml", &pod("a", "i:1")), ("b.yaml", &pod("b", "i:1"))]);
    let head = files([("a.yaml", &pod("a", "i:2")), ("b.yaml", &pod("b", "i:2"))]);
    let mut review = reviewed(&base, &head);
    let last = review.changes.pop().unwrap();
    let mut large = review.changes.pop().unwrap();
    large.fields[0].path = "x".repeat(250);
    large.fields = large.fields.iter().cycle().take(100).cloned().collect();
    review.changes = std::iter::repeat_n(large, 40).chain([last]).collect();
    let comment = markdown(&review);
    assert!(comment.len() <= BYTES_MAX, "{}", comment.len());
    assert!(comment.contains("more objects are not shown here"));
    assert!(comment.contains("<b>replace</b> <code>Pod default/b</code>"), "the small one fits");
}

#[test]
fn the_head_of_a_comment_is_bounded_whatever_is_in_it() {
    let base = files([("k.yaml", POD_KEEP)]);
    let mut review = reviewed(&base, &base);
    let long = "\u{1f600}".repeat(400);
    let lines: Vec<String> = (0..1000).map(|n| format!("{n} {long}")).collect();
    review.capacity = lines.clone();
    review.notes = lines.clone();
    review.prune =
        PruneView { deletes: 1000, held: true, why: long, objects: lines.clone(), protected: vec![] };
    let violation = |(severity, line): (Severity, &String)| Violation {
        file: line.clone(),
        line: 1,
        column: 1,
        severity,
        rule: "unknown-field".into(),
        message: line.clone(),
        help: line.clone(),
        object: None,
    };
    review.violations = [Severity::Error, Severity::Warning]
        .into_iter()
        .flat_map(|severity| lines.iter().map(move |line| (severity, line)))
        .map(violation)
        .collect();
    let mut changes = Vec::new();
    for (action, line) in [Action::Delete, Action::Replace]
        .into_iter()
        .flat_map(|action| lines.iter().map(move |line| (action, line)))
    {
        changes.push(Change {
            action,
            kind: Kind::Pod,
            namespace: "default".into(),
            name: line.clone(),
            file: line.clone(),
            line: 1,
            fields: vec![],
            effects: vec![],
            reason: line.clone(),
        });
    }
    review.changes = changes;
    let comment = markdown(&review);
    assert!(comment.len() <= BYTES_MAX, "{}", comment.len());
    assert!(comment.contains("Plan hash") && comment.contains("more objects are not shown here"));
    assert!(comment.contains("**Deleted (1000):**") && comment.contains("**Stopped and restarted (1000):**"));
}

#[test]
fn the_hash_is_of_content_alone() {
    let (base, head) = example();
    let review = reviewed(&base, &head);
    // The same documents in one file, with other lines, comments and order.
    let one = |files: &Files| -> Files {
        let good = files.iter().filter(|(path, _)| !path.contains("broken"));
        let text: Vec<String> = good.rev().map(|(_, text)| format!("# moved\n{text}")).collect();
        Files::from([("all.yaml".to_owned(), text.join("---\n"))])
    };
    let moved = reviewed(&one(&base), &one(&head));
    let mut without_broken = head;
    without_broken.remove("apps/broken.yaml");
    assert_eq!(moved.hash, reviewed(&base, &without_broken).hash);
    // The quarantined file holds the removal.
    assert_ne!(review.hash, moved.hash);
    let mut other = without_broken.clone();
    other.insert("apps/web.yaml".into(), base["apps/web.yaml"].replace("canary-1", "canary-3"));
    assert_ne!(reviewed(&base, &other).hash, moved.hash);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_is_the_same_however_documents_lie_in_files(
        base in proptest::collection::btree_map(0..12_u8, 0..3_u8, 1..12),
        head in proptest::collection::btree_map(0..12_u8, 0..3_u8, 1..12),
        places in proptest::collection::vec(0..4_u8, 24),
    ) {
        let document = |(name, image): (&u8, &u8)| pod(&format!("p{name}"), &format!("i:{image}"));
        let apart = |all: &BTreeMap<u8, u8>| -> Files {
            all.iter().map(|(name, image)| (format!("p{name}.yaml"), document((name, image)))).collect()
        };
        let together = |all: &BTreeMap<u8, u8>, places: &[u8]| -> Files {
            let mut files = Files::new();
            for (name, image) in all.iter().rev() {
                let text = files.entry(format!("f{}.yaml", places[usize::from(*name)])).or_default();
                text.push_str("---\n");
                text.push_str(&document((name, image)));
            }
            files
        };
        let one = reviewed(&apart(&base), &apart(&head));
        let other = reviewed(&together(&base, &places[..12]), &together(&head, &places[12..]));
        prop_assert_eq!(&one.hash, &other.hash);
        let again = reviewed(&apart(&base), &apart(&head));
        prop_assert_eq!(one.json().unwrap(), again.json().unwrap());
    }
}
