//! Secrets encrypted to the cluster, made with `minik8s secrets` and with `age` alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{
    Change, Cluster, ClusterOptions, Context, GitHttp, GitRepo, IMAGE, Outcome, Result, Where, encrypted,
    ensure, eventually, minik8s_binary, recipient, recipient_of, secs,
};
use schema::keys::Key;
use schema::records::ClusterSettings;

use crate::serving::{self, flags};

const CANARY: &str = "canary-Qv77-open-sesame";
/// Differs from [`CANARY`], which is on the command line of the grep of a parallel story.
const TOKEN: &str = "canary-Tk31-open-sesame";
/// A file written by SOPS 3.11.
const SOPS: &str = include_str!("../../schema/src/secrets/format/sops/testdata/db.sops.yaml");
const SOPS_IDENTITY: &str = include_str!("../../schema/src/secrets/format/sops/testdata/identity.txt");
const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {}\n";

/// A sleeping pod on a node, with a key of the secret as a variable and the whole secret as files.
fn user(name: &str, secret: &str, node: &str) -> Change {
    user_in("default", name, secret, node)
}

fn user_in(namespace: &str, name: &str, secret: &str, node: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 1\n  volumes: [{{name: s, secret: {{secretName: {secret}}}}}]\n  \
         containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, '100000']\n    \
         env: [{{name: P, valueFrom: {{secretKeyRef: {{name: {secret}, key: password}}}}}}]\n    \
         envFrom: [{{prefix: ALL_, secretRef: {{name: {secret}}}}}, {{secretRef: {{name: gone, optional: true}}}}]\n    \
         volumeMounts: [{{name: s, mountPath: /run/s}}]\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

/// A pod whose variables each repeat the one before twice: the last would be a terabyte.
fn endless(node: &str) -> Change {
    let twice = |number: u32| format!("{{name: A{number}, value: $(A{0})$(A{0})}}", number - 1);
    let variables = (1..=40).map(twice).collect::<Vec<_>>().join(", ");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: endless}}\nspec:\n  nodeName: {node}\n  containers:\n  \
         - {{name: main, image: {IMAGE}, env: [{{name: A0, value: x}}, {variables}]}}\n"
    );
    Change::write("endless.yaml", text)
}

/// Runs `minik8s secrets` in the work tree, with an identity next to it.
fn secrets(cluster: &Cluster, args: &[&str]) -> Result<Outcome> {
    let (work, own) = (cluster.repo.work().to_string_lossy().into_owned(), cluster.dir("own.txt"));
    let own = own.to_string_lossy().into_owned();
    cluster.cli(&[&["secrets", "--dir", &work, "--identity", &own], args].concat())
}

/// Encrypts values, and removes their file.
fn seal(cluster: &Cluster, name: &str, values: &str) -> Result<()> {
    let file = cluster.dir("values.yaml");
    fs::write(&file, values)?;
    let sealed = secrets(cluster, &["seal", name, "--from", &file.to_string_lossy()])?.ok();
    fs::remove_file(file)?;
    sealed.map(|_| ())
}

fn password(cluster: &Cluster, pod: &str) -> Result<(String, String)> {
    let pod = cluster.running(pod, &["main"])?;
    let of_file = cluster.exec(&pod, "main", &["cat", "/run/s/password"])?;
    let variables =
        cluster.exec(&pod, "main", &["sh", "-c", "test \"$P\" = \"$ALL_password\" && echo -n \"$P\""])?;
    Ok((variables, of_file))
}

fn has(cluster: &Cluster, pod: &str, wanted: &str) -> Result<()> {
    eventually(&format!("{pod} has its secret"), secs(60), || {
        let found = password(cluster, pod)?;
        ensure!(found == (wanted.to_owned(), wanted.to_owned()), "{found:?}");
        Ok(())
    })
}

fn is_nowhere(cluster: &Cluster) -> Result<()> {
    let all = cluster.etcd.etcdctl(&["get", "--prefix", ""])?;
    ensure!(all.contains("db.age") && !all.contains(CANARY), "etcd has the secret");
    ensure!(!all.contains("AGE-SECRET-KEY"), "etcd has an identity");
    for path in ["/v1/objects", "/v1/pods", "/v1/nodes", "/v1/events", "/v1/status", "/v1/loops"] {
        let (_, body) = harness::http_get(&cluster.api(0), path)?;
        ensure!(!body.contains(CANARY), "{path}: {body}");
    }
    for container in cluster.containers()? {
        ensure!(
            !container.labels.values().any(|label| label.contains(CANARY)),
            "a label of {}",
            container.name
        );
    }
    for node in &cluster.nodes {
        let images = node.docker.run(&["images", "-q"])?;
        for image in images.lines() {
            let said = node.docker.run(&["image", "inspect", image])?;
            let history = node.docker.run(&["history", "--no-trunc", image])?;
            ensure!(!said.contains(CANARY) && !history.contains(CANARY), "image {image} has the secret");
        }
    }
    not_in_daemons(cluster)?;
    // Logs, mirror, blobs and the agents' disks; not tmpfs, and not Docker's own folder, which keeps variables.
    let dir = cluster.slot().dir().to_string_lossy().into_owned();
    let found = harness::outcome(
        Command::new("grep").args(["-rlaF", "--exclude-dir=data", "--", CANARY, &dir]),
        secs(60),
    )?;
    let files: Vec<&str> = found.stdout.lines().filter(|file| !file.contains("/secrets/s/")).collect();
    ensure!(files.is_empty(), "{CANARY} is in {files:?}");
    Ok(())
}

/// Checks that it is on no command line, in no daemon's environment, and nowhere in the reconciler's memory.
fn not_in_daemons(cluster: &Cluster) -> Result<()> {
    for process in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        // Another run of these tests may be looking for it.
        let looks = line.starts_with(b"grep\0");
        ensure!(
            looks || !holds(&line, CANARY),
            "{} has the secret on its command line",
            process.path().display()
        );
    }
    let reconciler = cluster.reconcilers[0].pid()?;
    let agents = cluster.nodes.iter().filter_map(|node| node.agent.pid().ok());
    for pid in agents.chain([reconciler, cluster.etcd.daemon.pid()?]) {
        let environment = fs::read(format!("/proc/{pid}/environ"))?;
        ensure!(
            !environment.is_empty() && !holds(&environment, CANARY),
            "process {pid} has it in its environment"
        );
    }
    let memory = memory(reconciler)?;
    ensure!(holds(&memory, "secrets/default/db.age"), "{} bytes are not its memory", memory.len());
    ensure!(
        !holds(&memory, CANARY) && !holds(&memory, "AGE-SECRET-KEY-1"),
        "the reconciler has it in memory"
    );
    Ok(())
}

fn holds(bytes: &[u8], word: &str) -> bool {
    let word = word.as_bytes();
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == word[0]) {
        if rest[at..].starts_with(word) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Everything that a process can write to, as in a core dump.
fn memory(pid: u32) -> Result<Vec<u8>> {
    let mut file = fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut all = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().filter(|line| line.contains(" rw")) {
        let (from, to) =
            line.split_whitespace().next().and_then(|range| range.split_once('-')).context("a range")?;
        let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
        file.seek(SeekFrom::Start(from))?;
        // A range may have disappeared, and untouched pages can't be read.
        let _ = file.by_ref().take(to - from).read_to_end(&mut all);
    }
    Ok(all)
}

/// The engine's error names the missing program, which is the secret itself.
fn what_cannot_start_does_not_show_it(cluster: &Cluster, node: &str) -> Result<()> {
    let Change::Write(_, text) = user("broken", "db", node) else { unreachable!() };
    let broken = Change::write("broken.yaml", text.replace("[sleep, '100000']", "[$(P)]"));
    cluster.push(&[broken], "A broken one")?;
    eventually("the broken pod says so", secs(40), || {
        let said = cluster.cli(&["describe", "pod/broken"])?.ok()?;
        ensure!(said.contains("RunContainerError") && !said.contains(CANARY), "{said}");
        Ok(())
    })?;
    is_nowhere(cluster)?;
    cluster.push(&[Change::remove("broken.yaml")], "Without the broken one")?;
    eventually("the broken pod is gone", secs(40), || {
        let left = cluster.containers()?.iter().filter(|one| one.label("pod") == "broken").count();
        ensure!(left == 0, "{left} containers");
        Ok(())
    })
}

/// A node keeps its secrets: its agent and a pod restart with reconciler and etcd away.
fn starts_with_etcd_away(cluster: &mut Cluster, node: usize, pod: &str) -> Result<()> {
    let settings: ClusterSettings = cluster.etcd.value(Key::Settings)?;
    let identity = settings.identity.context("no identity")?.digest;
    let catalog = cluster.nodes[node].state_dir().join("agent/catalog.json");
    eventually("the disk names the valid identity", secs(10), || {
        ensure!(fs::read_to_string(&catalog)?.contains(&identity), "not yet");
        Ok(())
    })?;
    cluster.reconcilers[0].kill()?;
    cluster.etcd.daemon.kill()?;
    cluster.nodes[node].agent.kill()?;
    let pod = cluster.pod(pod)?;
    cluster.nodes[node].docker.run(&["rm", "-f", &pod.container("main")?.id, &pod.pause.id])?;
    cluster.nodes[node].agent.start()
}

#[test]
fn a_fourth_node_is_one_new_version_of_one_file_and_restarts_nothing() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(4), ..ClusterOptions::default() };
    Cluster::prepare(options)?.run_story(|cluster| {
        cluster.start_etcd()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let etcd = cluster.etcd_for_nodes();
        for node in &mut cluster.nodes[..3] {
            node.start_agent(&etcd)?;
        }
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
        let mut init = vec!["init".to_owned()];
        for number in 1..=3 {
            let node = format!("{}={}", names[number - 1], recipient_of(cluster, number)?);
            init.extend(["--node".to_owned(), node]);
        }
        secrets(cluster, &init.iter().map(String::as_str).collect::<Vec<_>>())?.ok()?;
        seal(cluster, "db", &format!("user: app\npassword: {CANARY}\n"))?;
        seal(cluster, "other", "password: other\n")?;
        let mut files = vec![Change::write("cluster.yaml", CLUSTER), user("neighbour", "other", &names[0])];
        files.extend((0..3).map(|index| user(&format!("app-{}", index + 1), "db", &names[index])));
        cluster.push(&files, "Secrets")?;
        for pod in ["app-1", "app-2", "app-3"] {
            has(cluster, pod, CANARY)?;
        }
        has(cluster, "neighbour", "other")?;
        is_nowhere(cluster)?;
        what_cannot_start_does_not_show_it(cluster, &names[0])?;

        // Another value: only its users are replaced.
        let before = cluster.lives()?;
        seal(cluster, "db", "user: app\npassword: second-word\n")?;
        cluster.repo.commit_all("Another password")?;
        for pod in ["app-1", "app-2", "app-3"] {
            has(cluster, pod, "second-word")?;
        }
        let neighbour = cluster.pod("neighbour")?.lives();
        ensure!(
            neighbour.iter().all(|(id, since)| before.get(id) == Some(since)),
            "the neighbour was touched"
        );

        // A fourth node: the identity is encrypted to it, too. Nothing else changes.
        cluster.nodes[3].start_agent(&etcd)?;
        let fourth = recipient_of(cluster, 4)?;
        let server = cluster.server(0);
        let reported = secrets(cluster, &["check", "--server", &server])?;
        ensure!(
            reported.code == 1 && reported.stdout.contains(&format!("recipients add {} {fourth}", names[3])),
            "{reported:?}"
        );
        let before = cluster.lives()?;
        secrets(cluster, &["recipients", "add", &names[3], &fourth])?.ok()?;
        let changed = cluster.repo.git(&["status", "--porcelain"])?;
        let changed: Vec<&str> = changed.lines().map(|line| line[2..].trim()).collect();
        ensure!(changed == ["secrets/.identity/cluster.age", "secrets/recipients.txt"], "{changed:?}");
        cluster.push(&[user("app-4", "db", &names[3])], "A fourth node")?;
        has(cluster, "app-4", "second-word")?;
        eventually("all nodes have the identity", secs(30), || {
            let reported = secrets(cluster, &["check", "--server", &server])?;
            ensure!(reported.code == 0 && reported.stdout.contains("4 nodes"), "{reported:?}");
            Ok(())
        })?;
        let after = cluster.lives()?;
        let touched: BTreeMap<_, _> =
            before.iter().filter(|(id, since)| after.get(*id) != Some(since)).collect();
        ensure!(touched.is_empty(), "touched: {touched:?}");

        starts_with_etcd_away(cluster, 3, "app-4")?;
        has(cluster, "app-4", "second-word")
    })
}

#[test]
fn copies_unbound_secrets_and_bombs_are_errors_of_their_pods_alone() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let (node, recipient) = (cluster.node().name.clone(), recipient(cluster)?);
        let db =
            encrypted(&recipient, "namespace: default\nname: db\nformat: dotenv\n---\npassword='x y'\n")?;
        let mut bomb =
            format!("namespace: default\nname: bomb\n---\npassword: &a \"{}\"\n", "x".repeat(24_000));
        (0..45_000).for_each(|number| bomb += &format!("k{number}: *a\n"));
        // A SOPS file for namespace shop, and its copy; the cluster's identity is its recipient.
        cluster.push(
            &[
                Change::write("cluster.yaml", CLUSTER),
                Change::write("secrets/.identity/cluster.age", encrypted(&recipient, SOPS_IDENTITY)?),
                Change::write("secrets/shop/db.sops.yaml", SOPS),
                user_in("shop", "sops", "db", &node),
                Change::write("secrets/default/taken.sops.yaml", SOPS),
                user("stolen", "taken", &node),
                user("app", "db", &node),
                user("copied", "copy", &node),
                user("unbound", "loose", &node),
                user("bombed", "bomb", &node),
                endless(&node),
                Change::write("secrets/default/db.age", db.clone()),
                Change::write("secrets/default/copy.age", db),
                Change::write("secrets/default/loose.age", encrypted(&recipient, "password: x\n")?),
                Change::write("secrets/default/bomb.age", encrypted(&recipient, &bomb)?),
            ],
            "Good and bad",
        )?;
        has(cluster, "app", "x y")?;
        eventually("the pod of shop has what SOPS encrypted", secs(40), || {
            let containers = cluster.containers()?.into_iter();
            let mut mains =
                containers.filter(|one| one.label("pod") == "sops" && one.label("container") == "main");
            let main = mains.next().context("no container")?;
            let command = ["exec", &main.id, "sh", "-c", "echo -n \"$P\"; cat /run/s/pin"];
            let found = cluster.node().docker.run(&command)?;
            ensure!(found == "hunter2 öß: \"x\"42", "{found}");
            Ok(())
        })?;
        for (pod, part) in [
            ("copied", "is for default/db"),
            ("stolen", "is for shop/db"),
            ("unbound", "minik8s secrets seal loose -n default"),
            ("bombed", "has an alias"),
            ("endless", "exceed 2 MiB"),
        ] {
            eventually(part, secs(40), || {
                let said = cluster.cli(&["describe", &format!("pod/{pod}")])?.ok()?;
                let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
                ensure!(words.contains("CreateContainerConfigError") && words.contains(part), "{said}");
                Ok(())
            })?;
        }
        // Peak memory of the agent.
        let pid = cluster.node().agent.pid()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse()?;
        ensure!(kib < 200 * 1024, "the agent had {kib} KiB");
        println!("most memory of the agent: {} MiB", kib / 1024);
        Ok(())
    })
}

/// Values in clear: a Secret with a text and bytes, and a variable of the pod that mounts it.
const IN_CLEAR: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {user: app}\n\
                        data: {key.bin: /wAB}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: shop}\nspec:\n  \
                        terminationGracePeriodSeconds: 1\n  volumes:\n  - name: s\n    \
                        secret: {secretName: db, items: [{key: key.bin, path: keys/own, mode: 0440}]}\n  \
                        - name: p\n    projected: {sources: [{secret: {name: db, items: [{key: user, path: user}]}}]}\n  \
                        containers:\n  - name: main\n    image: IMAGE\n    \
                        command: [sleep, '100000']\n    env:\n    - {name: DB_PASSWORD, value: hunter2}\n    \
                        - {name: PIN, valueFrom: {secretKeyRef: {name: late, key: pin, optional: true}}}\n    \
                        volumeMounts: [{name: s, mountPath: /s}, {name: p, mountPath: /p}]\n";
const SHOP: &str = "apps/shop.yaml";

/// Runs `minik8s` in the clone, as its owner would.
fn in_clone(cluster: &Cluster, args: &[&str]) -> Result<Outcome> {
    let mut command = cluster.cli_command(args);
    command.current_dir(cluster.repo.work()).env("MINIK8S_AGE_IDENTITY", cluster.dir("own.txt"));
    harness::outcome(&mut command, secs(60))
}

/// Advice on each error of the clone.
fn advice(cluster: &Cluster) -> Result<Vec<String>> {
    let said = in_clone(cluster, &["validate", "-o", "json"])?;
    let report: serde_json::Value =
        serde_json::from_str(&said.stdout).with_context(|| format!("{said:?}"))?;
    let violations = report["violations"].as_array().context("no violations")?;
    let errors = violations.iter().filter(|one| one["severity"] == "error");
    errors.map(|one| one["help"].as_str().map(str::to_owned).context("no help")).collect()
}

#[test]
fn what_a_manifest_holds_in_clear_is_refused_and_sealed_with_the_commands_that_are_printed() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let node = format!("{}={}", cluster.node().name, recipient(cluster)?);
        in_clone(cluster, &["secrets", "init", "--node", &node])?.ok()?;
        cluster.push(
            &[Change::write("cluster.yaml", CLUSTER), Change::write(SHOP, IN_CLEAR.replace("IMAGE", IMAGE))],
            "In clear",
        )?;
        let source = cluster.source_where("the file is refused", |s| !s.quarantined.is_empty())?;
        let [refused] = source.quarantined.as_slice() else { harness::bail!("{:?}", source.quarantined) };
        ensure!(refused.file == SHOP && refused.violations_total == 2, "{refused:?}");
        ensure!(cluster.containers()?.is_empty(), "{:?}", cluster.containers()?);

        // After the first command the variable is on another line.
        for left in [2, 1] {
            let advice = advice(cluster)?;
            ensure!(advice.len() == left, "{advice:?}");
            let printed = advice[0].split('\'').nth(1).and_then(|command| command.strip_prefix("minik8s "));
            let printed = printed.with_context(|| format!("no command in {advice:?}"))?;
            ensure!(printed.starts_with("secrets seal --from"), "{printed}");
            let said = in_clone(cluster, &printed.split(' ').collect::<Vec<_>>())?.ok()?;
            println!("{printed}: {said}");
            ensure!(!said.contains("hunter2"), "{said}");
        }
        let left = advice(cluster)?;
        ensure!(left.is_empty(), "{left:?}");
        let text = fs::read_to_string(cluster.repo.work().join(SHOP))?;
        ensure!(["hunter2", "/wAB", "user: app"].iter().all(|value| !text.contains(value)), "{text}");

        let commit = cluster.repo.commit_all("Sealed")?;
        cluster.applied(&commit)?;
        let pod = cluster.running("shop", &["main"])?;
        let main = |command: &[&str]| cluster.exec(&pod, "main", command);
        ensure!(
            main(&["cat", "/p/user"])? == "app" && main(&["ls", "/p", "/s"])? == "/p:\nuser\n\n/s:\nkeys\n"
        );
        // ff 00 01
        ensure!(main(&["base64", "/s/keys/own"])?.trim() == "/wAB");
        ensure!(main(&["stat", "-L", "-c", "%a", "/s/keys/own"])? == "440\n");
        ensure!(main(&["sh", "-c", "echo -n $DB_PASSWORD${PIN-unset}"])? == "hunter2unset");
        Ok(())
    })
}

/// The token for one repository is in another, encrypted to the reconciler alone.
#[test]
fn a_reconciler_reads_the_credentials_of_a_source_from_another_source() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.start_etcd()?;
    let dir = cluster.dir("other");
    fs::create_dir_all(&dir)?;
    let other = GitRepo::create(&dir)?;
    let server = GitHttp::serve_tls(&dir, cluster.slot().port(13), TOKEN)?;
    let list = cluster.dir("sources.yaml");
    let (home, url, ca) = (cluster.repo.bare().display(), server.url("repo.git"), server.ca_file());
    let entries = format!(
        "- name: main\n  repo: {home}\n  poll: 500ms\n- name: extra\n  repo: {url}\n  poll: 500ms\n  \
         caFile: {}\n  credentialsFrom: main\n",
        ca.display()
    );
    fs::write(&list, entries)?;
    let head = other.push(&[Change::write("b.yaml", harness::manifests::sleeper("b"))], "One")?;
    let first = cluster.repo.push(&[Change::write("cluster.yaml", CLUSTER)], "One")?;
    serving::with(&cluster, "sealed", &flags(&[("--sources", &list.display().to_string())]), |_| {
        serving::source(&cluster, "main", |s| s.applied_commit.as_deref() == Some(&first))?;
        let reported = serving::source(&cluster, "extra", |s| {
            s.error.as_ref().is_some_and(|error| format!("{error:?}").contains("secrets/.sources/extra.age"))
        })?;
        ensure!(format!("{reported:?}").contains("minik8s secrets seal extra -n .sources"), "{reported:?}");
        let identity = fs::read_to_string(cluster.dir("state-sealed/reconciler/age-identity.txt"))?;
        let recipient =
            identity.lines().find_map(|line| line.strip_prefix("# public key: ")).context("a recipient")?;
        secrets(&cluster, &["init"])?.ok()?;
        secrets(&cluster, &["recipients", "add", "r0", recipient, "--reconciler"])?.ok()?;
        let file = cluster.dir("values.yaml");
        fs::write(&file, format!("token: {TOKEN}\n"))?;
        let sealed = ["seal", "extra", "-n", ".sources", "--from", &file.to_string_lossy()];
        secrets(&cluster, &sealed)?.ok()?;
        fs::remove_file(file)?;
        cluster.repo.commit_all("The token of extra")?;
        serving::source(&cluster, "extra", |s| s.applied_commit.as_deref() == Some(&head))?;
        serving::nowhere(&cluster, TOKEN)
    })?;
    serving::nowhere_in_logs(&cluster, TOKEN)
}

/// Seen red without the handler: the folder stays.
#[test]
fn a_terminal_that_is_closed_leaves_no_plaintext_behind() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        secrets(cluster, &["init"])?.ok()?;
        seal(cluster, "db", "password: x\n")?;
        let (place, editor) = (cluster.dir("where"), cluster.dir("editor"));
        let script = format!(
            "#!/bin/sh\necho \"$1\" > {}\nfor _ in $(seq 300); do [ -e \"$1\" ] || exit 0; sleep 0.1; done\n",
            place.display()
        );
        fs::write(&editor, script)?;
        fs::set_permissions(&editor, fs::Permissions::from_mode(0o755))?;
        for signal in ["-HUP", "-TERM"] {
            let mut edit = Command::new(minik8s_binary())
                .args(["secrets", "--dir", &cluster.repo.work().to_string_lossy()])
                .args(["--identity", &cluster.dir("own.txt").to_string_lossy(), "edit", "db"])
                .env("EDITOR", &editor)
                .env_remove("VISUAL")
                .stderr(Stdio::null())
                .spawn()?;
            let file = eventually("the editor runs", secs(20), || {
                let file = fs::read_to_string(&place)?.trim().to_owned();
                ensure!(fs::read_to_string(&file)?.contains("password: x"), "not yet");
                Ok(file)
            })?;
            harness::run("kill", &[signal, &edit.id().to_string()])?;
            ensure!(!edit.wait()?.success(), "it went on after {signal}");
            ensure!(
                !Path::new(&file).parent().context("a folder")?.exists(),
                "{file} is left after {signal}"
            );
            fs::remove_file(&place)?;
        }
        Ok(())
    })
}
