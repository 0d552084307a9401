//! Valid functions, jobs, nodes and Cluster objects, their older spellings, and their loaded form.

use schema::kinds::cluster::ClusterSpec;
use schema::kinds::function::FunctionSpec;
use schema::kinds::job::JobSpec;
use schema::kinds::{Kind, KindSpec, Resource};
use schema::manifest::DraftObject;
use schema::quantity::Memory;
use schema::violation::Severity;

use crate::{load, rules};

/// An object of `kind` whose spec has these fields.
fn object(kind: Kind, name: &str, fields: &str) -> String {
    let version = kind.api_version();
    let mut text = format!("apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n");
    for line in fields.lines() {
        text.push_str(&format!("  {line}\n"));
    }
    if fields.is_empty() {
        text = text.replace("spec:\n", "spec: {}\n");
    }
    text
}

pub(super) fn function(fields: &str) -> String {
    object(Kind::Function, "web", fields)
}

pub(super) fn job(fields: &str) -> String {
    object(Kind::Job, "web", fields)
}

pub(super) fn cluster(fields: &str) -> String {
    object(Kind::Cluster, "cluster", fields)
}

/// A node with `rest` after its metadata.
pub(super) fn node(rest: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: web\n{rest}\n")
}

/// Loads the only object of the text, which must have no violation.
fn only(text: &str) -> DraftObject {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}{:#?}", loaded.violations);
    assert_eq!(loaded.documents.len(), 1, "{text}");
    DraftObject::clone(&loaded.documents[0].object)
}

fn function_of(text: &str) -> FunctionSpec {
    let Resource::Function(spec) = only(text).resource else { panic!("a function") };
    (*spec).clone()
}

fn job_of(text: &str) -> JobSpec {
    let Resource::Job(spec) = only(text).resource else { panic!("a job") };
    (*spec).clone()
}

/// Positions and messages of the notes.
fn older(text: &str) -> Vec<String> {
    let notes = load(text).violations.into_iter().filter(|violation| violation.severity == Severity::Note);
    notes.map(|note| format!("{}:{} {}", note.line, note.column, note.message)).collect()
}

const FULL_JOB: &str = "login:
  host: login.example.edu
  port: 2222
  username: alice
  sshKey: {name: hpc, key: id_ed25519}
  hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ login]
files: ./jobs//matrix/
partition: gpu,cpu_long
account: physics+1
qos: high
nodes: 2
nTasks: 8
nTasksPerNode: 4
cpusPerTask: 6
gpusPerNode: 2
gpuType: a100
memory: 4Gi
timeLimit: 1-02:30:00
array: 0-15%4
compileCommands:
- module load cuda
- nvcc -O2 matrix.cu -o matrix
runCommands:
- |
  for i in 1 2; do
    ./matrix \"$i\"
  done
outputFile: out/%x-%A_%4a.txt
errorFile: err%%.txt
outputs: [results, 'plots/*.png']
";

const FULL_FUNCTION: &str = "source: functions/hello
runtime: python
handler: handlers.on_order
env:
- {name: MODE, value: fast}
- {name: TOKEN, valueFrom: {secretKeyRef: {name: api, key: token}}}
resources: {requests: {cpu: 100m}, limits: {cpu: 1, memory: 128Mi}}
timeoutSeconds: 600
coldStartTimeoutSeconds: 10
concurrency: 20
targetUtilizationPercentage: 100
queueLength: 0
minScale: 1
maxScale: 1
scaleToZeroAfterSeconds: 1
requestBodyLimit: 64Mi
responseBodyLimit: 1k
auth: {tokenFrom: {secretKeyRef: {name: api, key: token}}}
sandbox: {runAsUser: 1000, readOnlyRootFilesystem: false, tmpSizeLimit: 1Gi, pidsLimit: 8, openFilesLimit: 64}
";

const FULL_CLUSTER: &str = "schedulerStrategy: min-memory
nodes: {evictAfterSeconds: 0}
prune: {maxObjects: 0, maxPercent: 100}
dns: {zone: mini.lan, upstreams: [1.1.1.1, '2606:4700::1111']}
defaults: {resources: {limits: {memory: 1Gi}}, progressDeadlineSeconds: 60}
podSecurity: {forbidPrivileged: true, forbidHostNetwork: true, forbidHostPaths: [/, /var/run/docker.sock], allowHostPaths: [/srv]}
registry: {address: 'registry.lan:5000/minik8s', insecure: true, loginSecret: {name: registry}}
functions: {timeoutSeconds: 5, maxScale: 3, scaleToZeroAfterSeconds: 600, callsPerMinute: 120, registries: ['registry.lan:5000'], packageIndex: 'https://index.lan/simple', packageIndexLogin: {name: index}}
slurm: {login: {host: login.example.edu, username: alice, password: {name: hpc, key: password}}}
notifications:
- {name: hook, on: [verdict, disk], allowPrivate: true, webhook: {url: 'http://10.0.0.9:8080/x', template: '{\"a\": \"{{title}}\"}'}}
- {name: signed, secretName: signed, webhook: {}}
- {name: chat, secretName: chat, slack: {}}
- {name: room, secretName: room, matrix: {room: '!abc:example.org'}}
- {name: mail, secretName: mail, smtp: {from: minik8s@example.org, to: [ops@example.org, a@b]}}
";

const FULL_NODE: &str = "spec:
  unschedulable: true
  drain: true
  taints:
  - {key: dedicated, value: gpu, effect: NoSchedule}
  - {key: dedicated, value: gpu, effect: NoExecute}
";

#[test]
fn every_field_can_be_used() {
    let job = job_of(&job(FULL_JOB));
    assert_eq!((job.files.as_deref(), job.n_tasks), (Some("jobs/matrix"), Some(8)));
    let function = function_of(&function(FULL_FUNCTION));
    assert_eq!(function.response_body_limit, Memory { bytes: 1000 });
    let Resource::Cluster(cluster) = only(&cluster(FULL_CLUSTER)).resource else { panic!("a cluster") };
    assert_eq!((cluster.prune.max_objects, cluster.prune.max_percent), (0, 100));
    let channels =
        cluster.notifications.iter().map(|target| target.channel().map(|channel| channel.as_str()));
    let channels: Vec<_> = channels.flatten().collect();
    assert_eq!(channels, ["webhook", "webhook", "slack", "matrix", "smtp"]);
    let Resource::Node(node) = only(&node(FULL_NODE)).resource else { panic!("a node") };
    assert!(node.unschedulable && node.drain && node.taints.len() == 2);
}

#[test]
fn little_need_be_written() {
    let function = function_of(&function("source: ."));
    assert_eq!(
        (function.handler.as_deref(), function.concurrency, function.max_scale),
        (Some("main"), 1, None)
    );
    assert!(function.sandbox.read_only_root_filesystem && function.sandbox.run_as_user == 65532);
    let job = job_of(&job("runCommands: [hostname]"));
    assert_eq!(job.output_file.as_deref(), Some("slurm-%j.out"));
    let Resource::Cluster(cluster) = only(&cluster("")).resource else { panic!("a cluster") };
    assert_eq!(*cluster, ClusterSpec::default());
    assert_eq!((cluster.prune.max_objects, cluster.prune.max_percent), (10, 30));
    only(&node("spec: {}"));
    only(&node(""));
}

/// Writes the object and loads it again.
fn reloaded(draft: &DraftObject) -> DraftObject {
    let mut json = serde_json::to_value(&draft.resource).expect("JSON");
    json["apiVersion"] = draft.api_version.clone().into();
    json["metadata"] = serde_json::to_value(&draft.metadata).expect("JSON");
    only(&json.to_string())
}

#[test]
fn what_is_stored_loads_as_the_same_and_defaults_are_filled_in_once() {
    let texts = [
        function("source: ./f/"),
        function(FULL_FUNCTION),
        job("runCommands: [a]"),
        job(FULL_JOB),
        job("runCommands: [a]\narray: 0-3\ngpusPerNode: 0"),
        cluster(""),
        cluster(FULL_CLUSTER),
        node(FULL_NODE),
        node("spec: {taints: [{key: a, value: '', effect: NoExecute}]}"),
    ];
    for text in texts {
        let draft = only(&text);
        let again = reloaded(&draft);
        assert_eq!(again, draft, "{text}");
        assert_eq!(again.hash(), draft.hash());
        match draft.resource {
            Resource::Function(spec) => stays(&*spec),
            Resource::Job(spec) => stays(&*spec),
            Resource::Cluster(spec) => stays(&*spec),
            Resource::Node(spec) => stays(&*spec),
            other => panic!("{other:?}"),
        }
    }
}

fn stays<S: KindSpec + Clone + PartialEq + std::fmt::Debug>(before: &S) {
    let mut spec = before.clone();
    spec.fill_defaults();
    assert_eq!(spec, *before);
}

#[test]
fn equal_meanings_hash_equal() {
    assert_eq!(
        only(&function("source: f")).hash(),
        only(&function("source: ./f/\nhandler: main\nminScale: 0\nsandbox: {}\nrequestBodyLimit: 1048576"))
            .hash()
    );
    assert_eq!(
        only(&cluster("")).hash(),
        only(&cluster("schedulerStrategy: spread\nprune: {maxPercent: 30}\nslurm: {login: {}}")).hash()
    );
    assert_eq!(
        only(&job("runCommands: [a]")).hash(),
        only(&job("runCommands: [a]\ngpusPerNode: 0\noutputFile: slurm-%j.out\nlogin: {}")).hash()
    );
}

#[test]
fn dependencies_may_name_any_kind_and_namespace() {
    let text = function("source: f").replace(
        "name: web\n",
        "name: web\n  dependsOn: [ReplicaSet/db, Function/other/web, Node/one, Service/shop/db, Pod/Old_Name.1]\n",
    );
    assert_eq!(only(&text).metadata.depends_on.len(), 5);
}

#[test]
fn an_older_function_loads_with_a_note() {
    let text = "apiVersion: v1\nkind: Function\nmetadata:\n  name: hello\nspec:\n  userUploadFilePath: \"functions/hello\"\n";
    assert_eq!(function_of(text), function_of(&function("source: functions/hello")));
    assert_eq!(
        older(text),
        [
            "1:13 `apiVersion: v1` is an older spelling, read as `apiVersion: minik8s.io/v1`",
            "6:3 `spec.userUploadFilePath` is an older spelling, read as `spec.source`",
        ]
    );
}

#[test]
fn a_folder_outside_the_repository_is_reported_at_its_place() {
    let text = "apiVersion: app/v1\nkind: Function\nmetadata:\n  name: hello\nspec:\n  userUploadFilePath: /home/alice/hello\n";
    assert_eq!(rules(&load(text)), ["invalid-path 6:23"]);
}

const OLDER_JOB: &str = "apiVersion: v1
kind: Job
metadata:
  name: matrix
  namespace: lab
spec:
  partition: dgx2
  nTasks: 6
  nTasksPerNode: 6
  gpuNums: 1
  submitDirectory: jobs/matrix
  submitHost: login.example.edu
  username: alice
  password: \"\"
  compileCommands: [\"nvcc matrix.cu -o matrix\"]
  runCommands: [
    \"module load cuda\",
    \"./matrix\",
  ]
  outputFile: matrix.out
  errorFile: matrix.err
";

#[test]
fn an_older_job_loads_with_a_note_for_each_spelling() {
    let job = job_of(OLDER_JOB);
    assert_eq!((job.gpus_per_node, job.files.as_deref()), (Some(1), Some("jobs/matrix")));
    assert_eq!(
        (job.login.host.as_deref(), job.login.username.as_deref()),
        (Some("login.example.edu"), Some("alice"))
    );
    assert_eq!(
        older(OLDER_JOB),
        [
            "1:13 `apiVersion: v1` is an older spelling, read as `apiVersion: minik8s.io/v1`",
            "10:3 `spec.gpuNums` is an older spelling, read as `spec.gpusPerNode`",
            "11:3 `spec.submitDirectory` is an older spelling, read as `spec.files`",
            "12:3 `spec.submitHost` is an older spelling, read as `spec.login.host`",
            "13:3 `spec.username` is an older spelling, read as `spec.login.username`",
            "14:3 `spec.password` has no effect here and is left out: it is empty",
        ]
    );
}

#[test]
fn an_older_field_beside_todays_is_not_taken_silently() {
    let text = job("runCommands: [a]\nusername: alice\nlogin: {username: bob}");
    assert_eq!(rules(&load(&text)), ["unknown-field 7:3"]);
    let text = job("runCommands: [a]\ngpuNums: 1\ngpusPerNode: 2");
    assert_eq!(rules(&load(&text)), ["unknown-field 7:3"]);
}

#[test]
fn an_older_node_loads_with_a_note() {
    let text =
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  labels: {disk: ssd}\nip: 192.168.0.1\n";
    let draft = only(text);
    assert_eq!(draft.metadata.labels["disk"], "ssd");
    assert_eq!(load(text).documents[0].line, 1);
    let note = "6:1 `ip` has no effect here and is left out: the node's agent reports its address";
    assert_eq!(older(text), [note]);
}

#[test]
fn a_batch_job_of_kubernetes_is_one_error_that_says_what_to_use() {
    let text = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: pi\nspec:\n  backoffLimit: 4\n  completions: 3\n  template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - {name: pi, image: perl}\n";
    let loaded = load(text);
    assert_eq!(loaded.documents, []);
    let errors: Vec<_> = loaded.violations.iter().filter(|one| one.severity == Severity::Error).collect();
    let [error] = errors.as_slice() else { panic!("{errors:?}") };
    assert_eq!((error.line, error.column, error.rule.as_str()), (1, 13, "api-version"));
    assert!(error.message.contains("a Minik8s Job is a Slurm job"), "{error}");
    assert!(error.help.contains("write a Pod"), "{error}");
}
