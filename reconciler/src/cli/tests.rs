//! Pages and tables at 80 and 120 columns, and the output of the whole program.

use schema::keys::Key;
use schema::kinds::pod::HostPortStatus;
use schema::records::{
    ContainerUsage, EtcdMember, Event, EventType, HeldPrune, NodeUsage, PodUsage, Quarantine, SourceError,
    SourceErrorKind, SourceState,
};
use schema::snapshot::Snapshot;
use schema::violation::{Severity, Violation};

use super::output::{Layout, Screen, TableItem, TableOptions, names, table};
use crate::view::testing::*;
use crate::view::{self, LeaderView};

const NARROW: Screen = Screen { width: Some(80), color: false };
const BROAD: Screen = Screen { width: Some(120), color: false };
const PIPE: Screen = Screen { width: None, color: false };
const WIDE: TableOptions =
    TableOptions { wide: true, namespaces: false, kinds: false, ids: false, bare: false };
const ALL: TableOptions =
    TableOptions { wide: false, namespaces: true, kinds: false, ids: false, bare: false };

fn drawn<T: TableItem>(items: &[T], shape: TableOptions, screen: Screen) -> String {
    let text = table(&items.iter().collect::<Vec<_>>(), shape, screen, &mut Layout::default());
    if let Some(width) = screen.width {
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(longest <= usize::from(width), "{longest} columns on a screen of {width}:\n{text}");
    }
    text
}

fn two_pods() -> Snapshot {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    let message = "no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it";
    put_pod(&mut snapshot, "frontend", pod_waiting("ErrImagePull", message));
    snapshot
}

fn degraded() -> Snapshot {
    let mut snapshot = two_pods();
    let mut source = snapshot.sources["main"].value.clone();
    source.state = SourceState::Degraded;
    source.observed_commit = Some(C3.to_owned());
    source.objects = 14;
    source.path = "prod".to_owned();
    source.quarantined = vec![Quarantine {
        file: "apps/db.yaml".to_owned(),
        commit: C3.to_owned(),
        author: "Bob <bob@example.org>".to_owned(),
        violations: vec![Violation {
            file: "apps/db.yaml".to_owned(),
            line: 7,
            column: 3,
            severity: Severity::Error,
            rule: "unknown-field".to_owned(),
            message: "`imagee` is not a field of a container".to_owned(),
            help: "write `image`".to_owned(),
            object: None,
        }],
        violations_total: 3,
    }];
    source.held_prune = Some(HeldPrune {
        commit: C3.to_owned(),
        why: "push a commit with the trailer `Minik8s-Allow-Prune: true` to release it".to_owned(),
        deletes: 12,
        owned: 14,
        since: 0,
        objects: Vec::new(),
    });
    source.error = Some(SourceError {
        kind: SourceErrorKind::RemoteUnreachable,
        message: "cannot fetch /srv/repo.git: no such directory".to_owned(),
        since: at(90),
    });
    put_source(&mut snapshot, source);
    snapshot
}

#[test]
fn pods_in_a_terminal_of_80_columns() {
    insta::assert_snapshot!(drawn(&view::pods(&two_pods(), None, at(100)), TableOptions::default(), NARROW), @r"
    NAME       READY   STATUS         RESTARTS   AGE   WHY
    frontend   0/1     ErrImagePull   0          39s   container app: no such image…
    web        1/1     Running        0          39s   -
    ");
}

#[test]
fn pods_of_all_namespaces_in_120_columns() {
    insta::assert_snapshot!(drawn(&view::pods(&two_pods(), None, at(100)), ALL, BROAD), @r"
    NAMESPACE   NAME       READY   STATUS         RESTARTS   AGE   WHY
    default     frontend   0/1     ErrImagePull   0          39s   container app: no such image registry.example.org/shop/f…
    default     web        1/1     Running        0          39s   -
    ");
}

#[test]
fn pods_in_a_pipe_are_whole_however_long() {
    let mut pods = view::pods(&two_pods(), None, at(100));
    let port = HostPortStatus { host_port: 20_000, container_port: 80, ..HostPortStatus::default() };
    pods[1].host_ports = vec![port];
    let text = drawn(&pods, WIDE, PIPE);
    insta::assert_snapshot!(text, @r"
    NAME       READY   STATUS         RESTARTS   AGE   IP           HOST-PORTS      NODE   COMMIT    FILE                   WHY
    frontend   0/1     ErrImagePull   0          39s   -            -               n1     2222222   apps/frontend.yaml:3   container app: no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it
    web        1/1     Running        0          39s   10.244.0.5   20000->80/TCP   n1     2222222   apps/web.yaml:3        -
    ");
}

#[test]
fn nothing_to_remark_means_no_column_for_it() {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    insta::assert_snapshot!(drawn(&view::pods(&snapshot, None, at(100)), TableOptions::default(), NARROW), @r"
    NAME   READY   STATUS    RESTARTS   AGE
    web    1/1     Running   0          39s
    ");
}

#[test]
fn nodes_in_a_terminal_of_80_columns_and_wide_in_a_pipe() {
    let mut snapshot = two_pods();
    put_node(&mut snapshot, "n2");
    snapshot.heartbeats.remove("n2");
    let narrow = drawn(&view::nodes(&snapshot, at(100)), TableOptions::default(), NARROW);
    insta::assert_snapshot!(narrow, @r"
    NAME   STATUS     AGE    VERSION   PODS    CPU   MEMORY   WHY
    n1     Ready      100s   0.1.0     2/110   0/2   0/4Gi    -
    n2     NotReady   100s   0.1.0     0/110   0/2   0/4Gi    no heartbeat: the age…
    ");
    insta::assert_snapshot!(drawn(&view::nodes(&snapshot, at(100)), WIDE, PIPE), @r"
    NAME   STATUS     AGE    VERSION   PODS    CPU   MEMORY   TAINTS   ADDRESS     POD-CIDR        DOCKER     OS                               KERNEL   ARCH    AGE-RECIPIENT   WHY
    n1     Ready      100s   0.1.0     2/110   0/2   0/4Gi    -        192.0.2.7   10.244.0.0/24   20.10.24   Debian GNU/Linux 12 (bookworm)   6.1.0    amd64   -               -
    n2     NotReady   100s   0.1.0     0/110   0/2   0/4Gi    -        192.0.2.7   10.244.0.0/24   20.10.24   Debian GNU/Linux 12 (bookworm)   6.1.0    amd64   -               no heartbeat: the agent is stopped or can't reach etcd
    ");
}

#[test]
fn sources_and_revisions_as_tables() {
    let snapshot = degraded();
    insta::assert_snapshot!(drawn(&view::sources(&snapshot, at(100)), TableOptions::default(), BROAD), @r"
    NAME   STATE      COMMIT    AUTHOR                  OBJECTS   AGE   WHY
    main   Degraded   2222222   Ada <ada@example.org>   14        40s   RemoteUnreachable: cannot fetch /srv/repo.git: no s…
    ");
    insta::assert_snapshot!(drawn(&view::history(&snapshot, None, at(100)), TableOptions::default(), NARROW), @r"
    REVISION   COMMIT    VERDICT   CHANGES    PLAN   AGE   AUTHOR           SUBJECT
    2          2222222   Applied   +1 ~0 -0   -      40s   Ada <ada@exam…   Change 2
    1          1111111   Applied   +1 ~0 -0   -      70s   Ada <ada@exam…   Change 1
    ");
    insta::assert_snapshot!(drawn(&view::history(&snapshot, None, at(100)), WIDE, PIPE), @r"
    REVISION   COMMIT    VERDICT   CHANGES    PLAN   AGE   AUTHOR                  SUBJECT    SOURCE   TOOK
    2          2222222   Applied   +1 ~0 -0   -      40s   Ada <ada@example.org>   Change 2   main     120ms
    1          1111111   Applied   +1 ~0 -0   -      70s   Ada <ada@example.org>   Change 1   main     120ms
    ");
}

fn events() -> Vec<view::EventView> {
    let event = Event {
        time: at(70),
        kind: EventType::Warning,
        object_kind: "Pod".to_owned(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        reason: "BackOff".to_owned(),
        message: "container app ends again and again;\nnext start in 40 s".to_owned(),
        reporter: "agent/n1".to_owned(),
    };
    view::event_views(vec![event], 10, at(100))
}

#[test]
fn events_as_a_table_without_line_breaks() {
    insta::assert_snapshot!(drawn(&events(), ALL, BROAD), @r"
    NAMESPACE   LAST SEEN   TYPE      REASON    OBJECT    MESSAGE
    default     30s         Warning   BackOff   pod/web   container app ends again and again; next start in 40 s
    ");
}

#[test]
fn names_are_kind_and_name() {
    let pods = view::pods(&two_pods(), None, at(100));
    assert_eq!(names(&pods.iter().collect::<Vec<_>>()), "pod/frontend\npod/web\n");
}

#[test]
fn a_table_that_goes_on_keeps_its_columns_and_repeats_no_header() {
    let pods = view::pods(&two_pods(), None, at(100));
    let mut layout = Layout::default();
    let first = table(&[&pods[0]], TableOptions::default(), PIPE, &mut layout);
    let second = table(&[&pods[1]], TableOptions::default(), PIPE, &mut layout);
    insta::assert_snapshot!(format!("{first}{second}"), @r"
    NAME       READY   STATUS         RESTARTS   AGE   WHY
    frontend   0/1     ErrImagePull   0          39s   container app: no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it
    web        1/1     Running        0          39s   -
    ");
}

#[test]
fn colours_are_there_only_where_they_are_wanted() {
    let pods = view::pods(&two_pods(), None, at(100));
    let colour = Screen { width: Some(80), color: true };
    let text =
        table(&pods.iter().collect::<Vec<_>>(), TableOptions::default(), colour, &mut Layout::default());
    assert!(text.contains("\u{1b}["), "{text:?}");
    assert!(!drawn(&pods, TableOptions::default(), NARROW).contains('\u{1b}'));
    assert_eq!(colour.paint("Running"), "\u{1b}[32mRunning\u{1b}[0m");
    assert_eq!(NARROW.paint("Running"), "Running");
}

#[test]
fn the_status_page_of_a_healthy_cluster() {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    let leader = LeaderView { id: "host-1".to_owned(), since: Some(at(0)) };
    let status = view::cluster_status(&snapshot, Some(leader), at(100));
    insta::assert_snapshot!(super::status::page(&status, NARROW, at(100)), @r"
    source   main: Synced at 2222222 by Ada <ada@example.org>, 40s ago
             1 object of /srv/repo.git, branch `main`
    pods     1/1 ready: 1 Running
    nodes    1/1 ready
    leader   host-1, for 100s
    ");
}

#[test]
fn the_status_page_shows_etcd_and_what_is_wrong_with_it() {
    let member = |name: &str, mib: u64| EtcdMember {
        name: name.to_owned(),
        size_bytes: mib << 20,
        quota_bytes: Some(2 << 30),
        ..EtcdMember::default()
    };
    let etcd = view::EtcdView {
        members: vec![member("a", 20), member("b", 1_700)],
        problems: vec!["member b has 1700 MiB of its quota of 2048 MiB (83 %): …".to_owned()],
        upkeep: true,
        compacted_at: Some(at(40)),
        ..view::EtcdView::default()
    };
    let leader = LeaderView { id: "host-1".to_owned(), since: Some(at(0)) };
    let mut status = view::cluster_status(&snapshot(), Some(leader), at(100));
    status.etcd = Some(etcd);
    let page = |status: &view::ClusterStatus| {
        let page = super::status::page(status, NARROW, at(100));
        page.split_once("leader").map(|(_, rest)| rest.to_owned()).unwrap()
    };
    insta::assert_snapshot!(page(&status), @r"
       host-1, for 100s
    etcd     1700 MiB of its quota of 2048 MiB (83 %), 2 members, compacted 60s ago
             member b has 1700 MiB of its quota of 2048 MiB (83 %): …
    ");
    status.etcd = Some(view::EtcdView { members: vec![member("a", 20)], ..view::EtcdView::default() });
    assert!(page(&status).ends_with("(0 %), 1 member, not maintained by Minik8s\n"), "{}", page(&status));
}

#[test]
fn the_status_page_names_all_that_is_wrong() {
    let mut snapshot = degraded();
    put_node(&mut snapshot, "n2");
    snapshot.heartbeats.remove("n2");
    snapshot.malformed.insert("/minik8s/pods/default/odd".to_owned(), "expected value at line 1".into());
    let status = view::cluster_status(&snapshot, None, at(100));
    let status = view::ClusterStatus { etcd_error: Some("etcd did not answer".to_owned()), ..status };
    insta::assert_snapshot!(super::status::page(&status, PIPE, at(100)), @r"
    source   main: Degraded at 2222222 by Ada <ada@example.org>, 40s ago
             14 objects of /srv/repo.git, branch `main`, folder prod
             newest commit 3333333 is not applied
             RemoteUnreachable: cannot fetch /srv/repo.git: no such directory
             apps/db.yaml:7:3: error[unknown-field]: `imagee` is not a field of a container (write `image`) (commit 3333333, Bob <bob@example.org>)
             apps/db.yaml: and 2 more
             prune of 12 of 14 objects by commit 3333333 is held: push a commit with the trailer `Minik8s-Allow-Prune: true` to release it
    pods     1/2 ready: 1 ErrImagePull, 1 Running
             default/frontend: ErrImagePull: container app: no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it
    nodes    1/2 ready; no heartbeat of n2
    etcd     etcd did not answer; this page is as of revision 42
    etcd     /minik8s/pods/default/odd can't be read: expected value at line 1
    ");
}

#[test]
fn a_pod_described() {
    let snapshot = two_pods();
    let pod = schema::meta::NamespacedName::new("default", "frontend");
    let mut detail = view::pod(&snapshot, &pod, events(), at(100)).unwrap();
    detail.row.uid = "abc".to_owned();
    detail.hash = "def".to_owned();
    insta::assert_snapshot!(super::describe::objects::pod_page(&detail, NARROW, at(100)), @r"
    Name:          frontend
    Namespace:     default
    Status:        ErrImagePull
    Why:           container app: no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it
    Ready:         0/1
    Age:           39s
    Node:          n1
    Chosen for:    fewest pods of 1 node
    Owner:         Pod/frontend
    Set by:        apps/frontend.yaml:3 of source main
    Commit:        2222222222222222222222222222222222222222 by Ada <ada@example.org>
    Grace period:  0 s
    Hash:          def
    UID:           abc
    Containers:
      app:
        Image:     app:1
        Image ID:  sha256:aa
        Container: c0ffee
        State:     Waiting: ErrImagePull: no such image registry.example.org/shop/frontend:1.27.3; see whether the registry has it
        Ready:     no
        Restarts:  0
    Events:
      TYPE      REASON    AGE   FROM       MESSAGE
      Warning   BackOff   30s   agent/n1   container app ends again and again; next…
    ");
}

/// A pod that fills every field of its page. Seen red with `env` showing what `is_plain_value` does not allow.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_pod_that_crashes_described() {
    let spec = serde_json::json!({
        "volumes": [
            {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "fast", "emptyDir": {"medium": "Memory"}},
            {"name": "logs", "hostPath": {"path": "/var/log"}}
        ],
        "containers": [{
            "name": "app", "image": "app:1", "command": ["serve", "--token", "Tr0ub4dor"],
            "env": [
                {"name": "LOG_LEVEL", "value": "INFO"}, {"name": "DB_PASSWORD", "value": "Tr0ub4dor"},
                {"name": "GREETING", "value": "Tr0ub4dor"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
            ],
            "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "web"}},
            "lifecycle": {"preStop": {"exec": {"command": ["nginx", "-s", "quit"]}}},
            "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 5},
            "startupProbe": {"exec": {"command": ["test", "-e", "/up"]}, "failureThreshold": 30},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a", "readOnly": true}]
        }]
    });
    let mut status = pod_waiting("CrashLoopBackOff", "back-off 40s restarting failed container app, until …");
    status.container_statuses[0].restart_count = 3;
    status.container_statuses[0].last_state = Some(schema::kinds::pod::TerminatedState {
        exit_code: 137,
        reason: "OOMKilled".to_owned(),
        message: String::new(),
        started_at: Some(at(70)),
        finished_at: Some(at(80)),
    });
    let mut snapshot = snapshot();
    let pod = put_pod(&mut snapshot, "web", status);
    let containers = [("app".to_owned(), ContainerUsage { cpu: 250, memory: 64 << 20 })].into();
    let volumes = [("data".to_owned(), 12 << 20), ("fast".to_owned(), 5000)].into();
    let usage = PodUsage { uid: pod.uid.clone(), containers, volumes, at_least: vec!["fast".to_owned()] };
    let pods = [("default/web".to_owned(), usage)].into();
    let left_out = String::new();
    let usage =
        NodeUsage { at: at(90), window_seconds: 15, cpu: 1000, memory: 1 << 30, disk: None, pods, left_out };
    snapshot.usage.insert("n1".to_owned(), versioned(usage));
    let mut detail = view::pod(&snapshot, &pod.reference(), Vec::new(), at(100)).unwrap();
    detail.spec = Some(std::sync::Arc::new(serde_json::from_value(spec).unwrap()));
    detail.row.uid = "abc".to_owned();
    detail.hash = "def".to_owned();
    let event = |second: i64, reason: &str| Event {
        time: at(second),
        kind: EventType::Warning,
        object_kind: "Pod".to_owned(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        reason: reason.to_owned(),
        message: format!("it says {reason}"),
        reporter: "agent/n1".to_owned(),
    };
    let all = [(10, "BackOff"), (20, "Started"), (30, "BackOff"), (95, "BackOff")];
    let all = all.into_iter().map(|(second, reason)| event(second, reason)).collect();
    detail.events = view::event_views(all, 10, at(100));
    let page = super::describe::objects::pod_page(&detail, PIPE, at(100));
    assert!(!page.contains("Tr0ub4dor"), "{page}");
    insta::assert_snapshot!(page, @r"
    Name:          web
    Namespace:     default
    Status:        CrashLoopBackOff
    Why:           container app: back-off 40s restarting failed container app, until …
    Ready:         0/1
    Age:           39s
    Node:          n1
    Chosen for:    fewest pods of 1 node
    Uses:          cpu 250m, memory 64Mi, 10s ago
    Owner:         Pod/web
    Set by:        apps/web.yaml:3 of source main
    Commit:        2222222222222222222222222222222222222222 by Ada <ada@example.org>
    Grace period:  30 s
    Hash:          def
    UID:           abc
    Containers:
      app:
        Image:     app:1
        Command:   serve --token (hidden)
        Requests:  cpu 100m
        Limits:    cpu 500m, memory 128Mi
        Liveness:  http-get http://:web/healthz delay=0s timeout=1s period=10s #success=1 #failure=3
        Readiness: tcp-socket :80 delay=0s timeout=1s period=5s #success=1 #failure=3
        Startup:   exec test -e /up delay=0s timeout=1s period=10s #success=1 #failure=30
        PreStop:   exec nginx -s quit
        Env:       LOG_LEVEL=INFO
                   DB_PASSWORD=(hidden)
                   GREETING=(hidden)
                   IP from status.podIP
        Mounts:    /data from data/a (read-only)
        Uses:      cpu 250m (13%), memory 64Mi (2%)
        Image ID:  sha256:aa
        Container: c0ffee
        State:     Waiting: CrashLoopBackOff: back-off 40s restarting failed container app, until …
        Last state: Terminated: OOMKilled with code 137, 20s ago (ran 2026-01-01T00:01:10Z to 2026-01-01T00:01:20Z)
        Ready:     no
        Restarts:  3
    Volumes:
      data:        emptyDir, 12Mi in use of 1Gi
      fast:        emptyDir in memory, at least 5000 in use
      logs:        hostPath /var/log
    Events:
      TYPE      REASON    AGE                FROM       MESSAGE
      Warning   Started   80s                agent/n1   it says Started
      Warning   BackOff   5s (x3 over 90s)   agent/n1   it says BackOff
    ");
}

#[test]
fn a_node_described() {
    let detail = view::node(&two_pods(), "n1", at(100)).unwrap();
    insta::assert_snapshot!(super::describe::objects::node_page(&detail, NARROW, at(100)), @r"
    Name:          n1
    Status:        Ready
    Age:           100s
    Addresses:     192.0.2.7
    Pod CIDR:      10.244.0.0/24
    Agent:         0.1.0 at http://127.0.0.1:7071
    Docker:        20.10.24
    System:        Debian GNU/Linux 12 (bookworm), Linux 6.1.0, amd64
    Pods:          2 of 110
    CPU:           0 requested of 2
    Memory:        0 requested of 4Gi
    Labels:        kubernetes.io/arch=amd64
    Pod list:
      NAMESPACE   NAME       READY   STATUS         RESTARTS   AGE   WHY
      default     frontend   0/1     ErrImagePull   0          39s   container app:…
      default     web        1/1     Running        0          39s   -
    ");
}

/// Text that drives a terminal or reverses what follows.
const HOSTILE: &str = "\u{1b}[31mX\u{1b}]0;t\u{7}\u{202e}\u{9b}2J";

/// Copies of the value, each with a hostile text at the end of one of its texts, where the type takes it.
fn with_hostile_texts<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> Vec<T> {
    fn places(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        match value {
            serde_json::Value::String(_) => found.push(path.to_owned()),
            serde_json::Value::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| places(item, &format!("{path}/{at}"), found));
            }
            serde_json::Value::Object(fields) => fields.iter().for_each(|(name, field)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                places(field, &format!("{path}/{name}"), found);
            }),
            _ => {}
        }
    }
    let plain = serde_json::to_value(value).unwrap();
    let mut found = Vec::new();
    places(&plain, "", &mut found);
    let spoiled = found.iter().filter_map(|path| {
        let mut json = plain.clone();
        let place = json.pointer_mut(path)?;
        *place = format!("{}{HOSTILE}", place.as_str()?).into();
        serde_json::from_value(json).ok()
    });
    spoiled.collect()
}

#[test]
fn a_message_has_a_short_commit_in_the_table_and_in_its_json_only_what_there_is() {
    let mut snapshot = snapshot();
    let message = serde_json::json!({"event": "verdict", "state": "success", "title": "all is healthy"});
    let subject = format!("commit.{C2}");
    let entry = serde_json::json!({"target": "source.main", "subject": subject, "wanted": message, "sequence": 1,
        "since": at(0)});
    snapshot.put(&Key::Outbox("source.main".to_owned(), subject.clone()), &entry, 43);
    let rows = view::notifications(&snapshot, at(100));
    let text = drawn(&rows, TableOptions::default(), PIPE);
    assert!(text.contains(" commit.222222222222 ") && !text.contains(C2), "{text}");
    assert_eq!(names(&[&rows[0]]), format!("notification/source.main/{subject}\n"));
    assert!(
        ["commit.222222222222", &subject].iter().all(|one| rows[0].is_named(&format!("source.main/{one}")))
    );
    let json = serde_json::to_value(&rows[0]).unwrap();
    assert_eq!(json.get("sent"), None);
    assert_eq!(json["waiting"], "try 1");
}

/// Checks that a text has no control characters but line ends. Returns whether it shows some as escapes.
fn shows_escapes(text: &str) -> bool {
    let bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!text.contains(bad), "{text:?}");
    text.contains("\\u{1b}[31mX\\u{1b}]0;t\\u{7}\\u{202e}\\u{9b}2J")
}

/// Seen red without `visible` in `output::cell_text`, in `Page::line`, and in `status::push`.
#[test]
fn what_others_wrote_never_drives_the_terminal() {
    let mut snapshot = degraded();
    let object = put_object(&mut snapshot, "noted", C2);
    let instance = put_instance(&mut snapshot, &object);
    bind(&mut snapshot, &instance, "n1");
    let pod = schema::meta::NamespacedName::new("default", "frontend");
    let mut shown = std::collections::BTreeMap::new();
    let mut count = |what: &str, text: &str| {
        *shown.entry(what.to_owned()).or_insert(0) += usize::from(shows_escapes(text));
    };
    for pod in view::pods(&snapshot, None, at(100)).iter().flat_map(with_hostile_texts) {
        for screen in [NARROW, PIPE] {
            count("pods", &table(&[&pod], WIDE, screen, &mut Layout::default()));
        }
        count("names", &names(&[&pod]));
    }
    for detail in with_hostile_texts(&view::pod(&snapshot, &pod, events(), at(100)).unwrap()) {
        count("pod", &super::describe::objects::pod_page(&detail, PIPE, at(100)));
    }
    for detail in with_hostile_texts(&view::node(&snapshot, "n1", at(100)).unwrap()) {
        count("node", &super::describe::objects::node_page(&detail, PIPE, at(100)));
    }
    for event in events().iter().flat_map(with_hostile_texts) {
        count("events", &table(&[&event], ALL, PIPE, &mut Layout::default()));
    }
    for status in with_hostile_texts(&view::cluster_status(&snapshot, None, at(100))) {
        count("status", &super::status::page(&status, PIPE, at(100)));
    }
    for kind in ["pods", "names", "pod", "node", "events", "status"] {
        assert!(shown[kind] > 0, "no text of `{kind}` was spoiled");
    }
}
