//! Invalid functions, jobs, nodes, Cluster objects and dependencies: each breaks one rule at one position. `§` marks
//! the position and is removed.

use super::compute::{cluster, function, job, node};
use crate::cases::{Case, check, messages, unmarked};
use crate::load;
use schema::violation::rules as known;

fn cases() -> Vec<Case> {
    let mut cases = functions();
    cases.extend(jobs());
    cases.extend(logins());
    cases.extend(job_files());
    cases.extend(nodes());
    cases.extend(clusters());
    cases.extend(metadata());
    cases
}

fn functions() -> Vec<Case> {
    let with = |fields: &str| function(&format!("source: functions/hello\n{fields}"));
    vec![
        (
            "required",
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: web}\n§spec: {}\n".to_owned(),
        ),
        ("invalid-path", function("source: §/home/alice/hello")),
        ("invalid-path", function("source: §../hello")),
        ("invalid-path", function("source: §~/hello")),
        ("invalid-path", function("source: §\"\"")),
        ("invalid-path", function("source: §.git/hooks")),
        ("invalid-path", function("source: §https://example.com/hello.git")),
        ("invalid-path", function("source: §\"a\\nb\"")),
        ("invalid-path", function("source: §'functions\\hello'")),
        ("wrong-type", function("source:\n  §path: functions/hello")),
        ("unknown-value", with("runtime: §node")),
        ("exclusive", with("runtime: dockerfile\n§handler: main")),
        ("invalid-name", with("handler: §main()")),
        ("invalid-name", with("handler: §a..b")),
        ("invalid-name", with("handler: §1st")),
        ("invalid-env-name", with("env: [{name: §a=b, value: c}]")),
        ("resources", with("resources: {limits: {memory: §1Mi}}")),
        ("out-of-range", with("timeoutSeconds: §0")),
        ("out-of-range", with("timeoutSeconds: §601")),
        ("out-of-range", with("coldStartTimeoutSeconds: §0")),
        ("out-of-range", with("concurrency: §0")),
        ("out-of-range", with("concurrency: §1001")),
        ("out-of-range", with("targetUtilizationPercentage: §101")),
        ("out-of-range", with("queueLength: §10001")),
        ("out-of-range", with("minScale: §1001")),
        ("out-of-range", with("maxScale: §0")),
        ("out-of-range", with("scaleToZeroAfterSeconds: §0")),
        ("scaling", with("minScale: §3\nmaxScale: 2")),
        ("out-of-range", with("requestBodyLimit: §0")),
        ("out-of-range", with("responseBodyLimit: §65Mi")),
        ("quantity", with("requestBodyLimit: §1MB")),
        ("out-of-range", with("sandbox: {runAsUser: §0}")),
        ("out-of-range", with("sandbox: {pidsLimit: §1}")),
        ("out-of-range", with("sandbox: {openFilesLimit: §1}")),
        ("out-of-range", with("sandbox: {tmpSizeLimit: §17Gi}")),
        ("exclusive", with("public: true\n§auth: {tokenFrom: {secretKeyRef: {name: a, key: b}}}")),
        ("required", with("auth: {tokenFrom: {secretKeyRef: {name: a, key: §\"\"}}}")),
        ("missing-field", with("auth: {§tokenFrom: {}}")),
        ("unknown-field", with("sandbox: {§privileged: true}")),
        ("unknown-field", with("§maxReplicas: 3")),
    ]
}

fn jobs() -> Vec<Case> {
    let with = |fields: &str| job(&format!("runCommands: [./run]\n{fields}"));
    vec![
        ("missing-field", "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {name: web}\n§spec: {nTasks: 1}\n".to_owned()),
        ("required", job("§runCommands: []")),
        ("required", job("runCommands: [§\" \"]")),
        ("slurm-option", job("runCommands: [§\"a\\rb\"]")),
        ("slurm-option", job("runCommands: [§\"#SBATCH --mem=1G\"]")),
        ("slurm-option", with("compileCommands: [§\"a\\0b\"]")),
        ("invalid-path", with("files: §/home/alice")),
        ("slurm-option", with("partition: §\"gpu\\n#SBATCH --uid=root\"")),
        ("slurm-option", with("partition: §--uid=0")),
        ("slurm-option", with("partition: §\"gpu,\"")),
        ("slurm-option", with("account: §$(id)")),
        ("slurm-option", with("account: §a b")),
        ("slurm-option", with("qos: §\"'high'\"")),
        ("slurm-option", with("gpuType: §\"a100:8\"\ngpusPerNode: 1")),
        ("slurm-option", with("gpuType: §a100")),
        ("out-of-range", with("nTasks: §0")),
        ("out-of-range", with("nTasksPerNode: §0")),
        ("out-of-range", with("nodes: §0")),
        ("out-of-range", with("cpusPerTask: §0")),
        ("out-of-range", with("gpusPerNode: §-1")),
        ("slurm-option", with("memory: §4096")),
        ("slurm-option", with("timeLimit: §2h")),
        ("slurm-option", with("timeLimit: §\"0\"")),
        ("wrong-type", with("timeLimit: §30")),
        ("slurm-option", with("extraOptions: [§--wrap=reboot]")),
        ("slurm-option", with("extraOptions: [§--job-name=other]")),
        ("slurm-option", with("extraOptions: [§exclusive]")),
        ("slurm-option", with("extraOptions: [§\"--constraint=a b\"]")),
        ("slurm-option", with("extraOptions: [§\"--constraint=a\\n#SBATCH --uid=0\"]")),
        ("slurm-option", with("extraOptions: [§\"--constraint='a'\"]")),
        ("slurm-option", with("extraOptions: [§--constraint=]")),
        ("invalid-path", with("workDir: §../other")),
        ("invalid-path", with("workDir: §\"/scratch/$USER\"")),
        ("invalid-path", with("workDir: §-rf")),
        ("invalid-name", with("dependency: {job: §\"a b\"}")),
        ("slurm-option", with("array: §0..15")),
        ("slurm-option", with("array: §\"0-15;reboot\"")),
        ("slurm-layout", with("array: §0-1000")),
        ("slurm-layout", with("nTasks: 2\nnodes: §3")),
        ("slurm-layout", with("nTasks: 1\nnTasksPerNode: §6")),
        ("slurm-option", with("nTasks: 9\nnodes: 2\nnTasksPerNode: §4")),
        ("unsupported-field", with("§backoffLimit: 3")),
        ("unsupported-field", with("§parallelism: 3")),
        (
            "api-version",
            "apiVersion: §batch/v1\nkind: Job\nmetadata: {name: web}\nspec:\n  backoffLimit: 4\n  template:\n    spec: {}\n".to_owned(),
        ),
    ]
}

fn logins() -> Vec<Case> {
    let login = |fields: &str| job(&format!("runCommands: [./run]\nlogin:\n  {fields}"));
    vec![
        ("slurm-option", login("host: §-oProxyCommand=sh")),
        ("slurm-option", login("host: §alice@login")),
        ("slurm-option", login("loginPool: [ok, §-oProxyCommand=sh]")),
        ("out-of-range", login("port: §0")),
        ("slurm-option", login("username: §-l")),
        ("slurm-option", login("jumpHost: {host: §-oProxyCommand=sh}")),
        ("slurm-option", login("jumpHost: {host: gate, username: §-l}")),
        ("slurm-option", login("jumpHost: {host: gate, hostKeys: [§gate ssh-ed25519 AAAAC3NzaC1lZDI1NTE5]}")),
        ("invalid-name", login("sshKey: {name: §a/b, key: c}")),
        ("invalid-name", login("password: {name: a, key: §\"\"}")),
        ("exclusive", login("sshKey: {name: a, key: b}\n  §password: {name: a, key: c}")),
        ("slurm-option", login("hostKeys: [§login.example.edu ssh-ed25519 AAAAC3NzaC1lZDI1NTE5]")),
        ("literal-secret", login("§password: hunter2")),
        ("literal-secret", login("§password: 12345678")),
        ("literal-secret", login("§sshKey: |\n    -----BEGIN OPENSSH PRIVATE KEY-----")),
        ("literal-secret", job("runCommands: [./run]\n§password: hunter2")),
        ("literal-secret", job("runCommands: [./run]\n§privateKey: hunter2")),
        ("literal-secret", cluster("slurm:\n  login:\n    §password: hunter2")),
    ]
}

fn job_files() -> Vec<Case> {
    let with = |fields: &str| job(&format!("runCommands: [./run]\n{fields}"));
    vec![
        ("invalid-path", with("outputFile: §/etc/cron.d/x")),
        ("invalid-path", with("outputFile: §../out")),
        ("invalid-path", with("outputFile: §a b")),
        ("invalid-path", with("errorFile: §\"a\\nb\"")),
        ("invalid-path", with("errorFile: §-x")),
        ("slurm-option", with("outputFile: §out-%q")),
        ("slurm-option", with("outputFile: §out%")),
        ("invalid-path", with("outputs: [§\"$(x)\"]")),
        ("invalid-path", with("outputs: [§results/../../x]")),
        ("invalid-path", with("outputs: [§\"\"]")),
    ]
}

fn nodes() -> Vec<Case> {
    vec![
        ("taint", node("spec:\n  taints: [{key: §a b, effect: NoSchedule}]")),
        ("taint", node("spec:\n  taints: [{key: a, value: §b/c, effect: NoSchedule}]")),
        (
            "taint",
            node(
                "spec:\n  taints:\n  - {key: a, effect: NoSchedule}\n  - {key: §a, value: b, effect: NoSchedule}",
            ),
        ),
        ("unknown-value", node("spec:\n  taints: [{key: a, effect: §noSchedule}]")),
        ("missing-field", node("spec:\n  taints: [§{key: a}]")),
        ("unsupported-field", node("spec:\n  §podCIDR: 10.244.0.0/24")),
        ("unsupported-field", node("spec:\n  §providerID: kind://a")),
        ("no-effect", node("spec:\n  taints: [{key: a, effect: NoExecute, §timeAdded: x}]")),
        ("wrong-type", node("spec:\n  unschedulable: §\"true\"")),
    ]
}

fn clusters() -> Vec<Case> {
    vec![
        ("unknown-value", cluster("schedulerStrategy: §binpack")),
        ("unknown-value", cluster("schedulerStrategy: §minPods")),
        ("out-of-range", cluster("prune: {maxPercent: §101}")),
        ("out-of-range", cluster("prune: {maxObjects: §-1}")),
        ("invalid-image", cluster("registry: {address: §https://registry.lan}")),
        ("invalid-image", cluster("registry: {address: §registry}")),
        ("invalid-image", cluster("registry: {address: §\"\"}")),
        ("invalid-name", cluster("registry: {address: \"r:5000\", loginSecret: {name: §a/b}}")),
        ("invalid-image", cluster("functions: {registries: [\"r.lan:5000/team\", §\"https://r.lan\"]}")),
        ("literal-secret", cluster("functions: {packageIndex: §'http://kim:s3cret@i.lan/simple'}")),
        ("exclusive", cluster("functions: {§packageIndexLogin: {name: index}}")),
        ("dns-config", cluster("dns: {zone: §Cluster.Local}")),
        ("dns-config", cluster("dns: {upstreams: [§dns.google]}")),
        ("dns-config", cluster("dns:\n  §upstreams: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]")),
        ("resources", cluster("defaults: {resources: {requests: {cpu: §2}, limits: {cpu: 1}}}")),
        ("out-of-range", cluster("defaults: {progressDeadlineSeconds: §0}")),
        ("out-of-range", cluster("nodes: {evictAfterSeconds: §100000}")),
        ("invalid-path", cluster("podSecurity: {forbidHostPaths: [§etc]}")),
        ("invalid-path", cluster("podSecurity: {forbidHostPaths: [§/a/../b]}")),
        ("invalid-path", cluster("podSecurity: {allowHostPaths: [/srv, §srv/a]}")),
        ("invalid-name", cluster("podSecurity: {exemptNamespaces: [§Kube_Tools]}")),
        ("unknown-value", cluster("podSecurity: {level: §Baseline}")),
        ("out-of-range", cluster(&format!("§podSecurity: {{allowHostPaths: [/{}]}}", "a".repeat(9000)))),
        ("resources", cluster("functions: {resources: {limits: {memory: §1Mi}}}")),
        ("out-of-range", cluster("functions: {timeoutSeconds: §601}")),
        ("out-of-range", cluster("functions: {callsPerMinute: §0}")),
        ("slurm-option", cluster("slurm: {login: {host: §\"a;b\"}}")),
        ("unknown-field", cluster("§scheduler: spread")),
        ("invalid-name", cluster("").replace("name: cluster", "name: §settings")),
    ]
}

fn notifications() -> Vec<Case> {
    let with = |targets: &str| cluster(&format!("notifications: [{targets}]"));
    let webhook = |fields: &str| with(&format!("{{name: a, webhook: {{{fields}}}}}"));
    let matrix = |room: &str| with(&format!("{{name: a, secretName: s, matrix: {{room: {room}}}}}"));
    let smtp = |fields: &str| with(&format!("{{name: a, secretName: s, smtp: {{{fields}}}}}"));
    let many: Vec<String> =
        (0..17).map(|index| format!("{{name: t{index}, secretName: s, slack: {{}}}}")).collect();
    vec![
        ("out-of-range", cluster(&format!("§notifications: [{}]", many.join(", ")))),
        ("invalid-name", with("{name: §A_b, secretName: s, slack: {}}")),
        ("invalid-name", with("{name: a, secretName: §a/b, slack: {}}")),
        ("duplicate-name", with("{name: a, secretName: s, slack: {}}, {name: §a, secretName: t, slack: {}}")),
        ("missing-field", with("§{secretName: s, slack: {}}")),
        ("required", with("§{name: a, secretName: s}")),
        ("exclusive", with("{name: a, secretName: s, §slack: {}, webhook: {url: 'https://a'}}")),
        ("required", with("§{name: a, slack: {}}")),
        ("required", with("§{name: a, matrix: {room: '!a:b'}}")),
        ("required", with("{name: a, §webhook: {}}")),
        ("unknown-field", with("{name: a, secretName: s, slack: {§url: 'https://a'}}")),
        ("unknown-value", with("{name: a, secretName: s, slack: {}, on: [verdict, §held]}")),
        ("unknown-value", webhook("url: §'ftp://a'")),
        ("unknown-value", webhook("url: §'https://'")),
        ("unknown-value", webhook("url: §'https://a/b c'")),
        ("literal-secret", webhook("url: §'https://kim:s3cret@a'")),
        ("unknown-value", webhook("url: 'https://a', template: §'{{title}}'")),
        ("unknown-value", webhook("url: 'https://a', template: §'{\"a\": \"{{titel}}\"}'")),
        ("unknown-value", matrix("§'#ops:example.org'")),
        ("unknown-value", matrix("§'!ops example'")),
        ("missing-field", with("{name: a, secretName: s, §matrix: {}}")),
        ("unknown-value", smtp("from: §ops, to: [a@b]")),
        ("unknown-value", smtp("from: a@b, to: [a@b, §\"a@b\\nBcc: c@d\"]")),
        ("required", smtp("from: a@b, §to: []")),
    ]
}

fn metadata() -> Vec<Case> {
    let depends =
        |list: &str| function("source: f").replace("name: web", &format!("name: web\n  dependsOn:\n{list}"));
    vec![
        ("cluster-scoped", node("").replace("name: web", "name: web\n  namespace: §shop")),
        ("cluster-scoped", cluster("").replace("name: cluster", "name: cluster\n  namespace: §shop")),
        ("depends-on", depends("  - §web")),
        ("depends-on", depends("  - §Pod/a/b/c")),
        ("depends-on", depends("  - §Replicaset/db")),
        ("depends-on", depends("  - §StatefulSet/db")),
        ("depends-on", depends("  - §Deploymnet/db")),
        ("depends-on", depends("  - §Pod/A_B/c")),
        ("depends-on", depends("  - §Pod/a b")),
        ("depends-on", depends("  - §Function/web")),
        ("depends-on", depends("  - §Function/default/web")),
        ("depends-on", depends("  - Pod/db\n  - §Pod/default/db")),
    ]
}

#[test]
fn each_bad_object_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

#[test]
fn each_bad_target_of_notifications_breaks_exactly_its_rule_at_its_place() {
    check(&notifications());
}

#[test]
fn a_field_that_belongs_into_the_secret_is_sent_there() {
    for (channel, help) in [
        ("slack: {§url: 'https://a'}", "put it as `url` into the secret"),
        ("matrix: {room: '!a:b', §token: x}", "put it as `token` into the secret"),
        ("slack: {§channel: ops}", "remove it: there are no fields here"),
    ] {
        let text = cluster(&format!("notifications: [{{name: a, secretName: s, {channel}}}]"));
        let said = messages(&[("unknown-field", text)]);
        assert!(said.contains(help), "{said}");
    }
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}

#[test]
fn no_message_repeats_a_secret() {
    for (_, marked) in cases() {
        for violation in load(&unmarked(&marked).0).violations {
            let text = format!("{violation:?}");
            assert!(
                !text.contains("hunter2") && !text.contains("12345678") && !text.contains("BEGIN"),
                "{text}"
            );
        }
    }
}

#[test]
fn every_rule_of_these_kinds_has_a_case() {
    let cases = cases();
    for rule in [
        &known::CLUSTER_SCOPED,
        &known::DEPENDS_ON,
        &known::TAINT,
        &known::LITERAL_SECRET,
        &known::SLURM_OPTION,
        &known::SLURM_LAYOUT,
        &known::SCALING,
    ] {
        assert!(cases.iter().any(|(id, _)| *id == rule.id), "{}", rule.id);
    }
}
