//! Secrets that are encrypted to the cluster, made with `minik8s secrets` and with `age` alone.

use std::collections::BTreeMap;
use std::fs;

use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, Outcome, Result, Where, encrypted, ensure, eventually,
    recipient, recipient_of, secs,
};

const CANARY: &str = "canary-Qv77-open-sesame";
const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {}\n";

/// A pod that sleeps, on a node, with a key of the secret as a variable and all of it as files.
fn user(name: &str, secret: &str, node: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 1\n  volumes: [{{name: s, secret: {{secretName: {secret}}}}}]\n  \
         containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, '100000']\n    \
         env: [{{name: P, valueFrom: {{secretKeyRef: {{name: {secret}, key: password}}}}}}]\n    \
         volumeMounts: [{{name: s, mountPath: /run/s}}]\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

/// `minik8s secrets` in the work tree, with an identity beside it.
fn secrets(cluster: &Cluster, args: &[&str]) -> Result<Outcome> {
    let (work, own) = (cluster.repo.work().to_string_lossy().into_owned(), cluster.dir("own.txt"));
    let own = own.to_string_lossy().into_owned();
    cluster.cli(&[&["secrets", "--dir", &work, "--identity", &own], args].concat())
}

/// Encrypts values; their file is removed.
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
    Ok((cluster.exec(&pod, "main", &["sh", "-c", "echo -n $P"])?, of_file))
}

fn has(cluster: &Cluster, pod: &str, wanted: &str) -> Result<()> {
    eventually(&format!("{pod} has its secret"), secs(60), || {
        let found = password(cluster, pod)?;
        ensure!(found == (wanted.to_owned(), wanted.to_owned()), "{found:?}");
        Ok(())
    })
}

fn is_nowhere(cluster: &Cluster) -> Result<()> {
    let all = harness::run("etcdctl", &["--endpoints", cluster.etcd.endpoint(), "get", "--prefix", ""])?;
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
    // Logs, mirror, blobs and the agents' disks; not tmpfs, and not Docker's own folder, which keeps variables.
    let dir = cluster.slot().dir().to_string_lossy().into_owned();
    let found = harness::outcome(
        std::process::Command::new("grep").args(["-rlaF", "--exclude-dir=data", "--", CANARY, &dir]),
        secs(60),
    )?;
    let files: Vec<&str> = found.stdout.lines().filter(|file| !file.contains("/secrets/s/")).collect();
    ensure!(files.is_empty(), "{CANARY} is in {files:?}");
    Ok(())
}

#[test]
fn a_fourth_node_is_one_new_version_of_one_file_and_restarts_nothing() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(4), ..ClusterOptions::default() };
    Cluster::prepare(options)?.tell(|cluster| {
        cluster.etcd.start()?;
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

        // Another value: only those that use it are new.
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
        let server = format!("http://{}", cluster.api(0));
        let told = secrets(cluster, &["check", "--server", &server])?;
        ensure!(
            told.code == 1 && told.stdout.contains(&format!("recipients add {} {fourth}", names[3])),
            "{told:?}"
        );
        let before = cluster.lives()?;
        secrets(cluster, &["recipients", "add", &names[3], &fourth])?.ok()?;
        let changed = cluster.repo.git(&["status", "--porcelain"])?;
        let changed: Vec<&str> = changed.lines().map(|line| line[2..].trim()).collect();
        ensure!(changed == ["secrets/.identity/cluster.age", "secrets/recipients.txt"], "{changed:?}");
        cluster.push(&[user("app-4", "db", &names[3])], "A fourth node")?;
        has(cluster, "app-4", "second-word")?;
        eventually("all nodes have the identity", secs(30), || {
            let told = secrets(cluster, &["check", "--server", &server])?;
            ensure!(told.code == 0 && told.stdout.contains("4 nodes"), "{told:?}");
            Ok(())
        })?;
        let after = cluster.lives()?;
        let touched: BTreeMap<_, _> =
            before.iter().filter(|(id, since)| after.get(*id) != Some(since)).collect();
        ensure!(touched.is_empty(), "touched: {touched:?}");

        // What a node has it keeps: an agent and a pod start with reconciler and etcd away.
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        cluster.nodes[3].agent.kill()?;
        let pod = cluster.pod("app-4")?;
        cluster.nodes[3].docker.run(&["rm", "-f", &pod.container("main")?.id, &pod.pause.id])?;
        cluster.nodes[3].agent.start()?;
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
        cluster.push(
            &[
                user("app", "db", &node),
                user("copied", "copy", &node),
                user("unbound", "loose", &node),
                user("bombed", "bomb", &node),
                Change::write("secrets/default/db.age", db.clone()),
                Change::write("secrets/default/copy.age", db),
                Change::write("secrets/default/loose.age", encrypted(&recipient, "password: x\n")?),
                Change::write("secrets/default/bomb.age", encrypted(&recipient, &bomb)?),
            ],
            "Good and bad",
        )?;
        has(cluster, "app", "x y")?;
        for (pod, part) in [
            ("copied", "is for default/db"),
            ("unbound", "minik8s secrets seal loose -n default"),
            ("bombed", "has an alias"),
        ] {
            eventually(part, secs(40), || {
                let said = cluster.cli(&["describe", &format!("pod/{pod}")])?.ok()?;
                let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
                ensure!(words.contains("CreateContainerConfigError") && words.contains(part), "{said}");
                Ok(())
            })?;
        }
        // The most that the agent ever had.
        let pid = cluster.node().agent.pid()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse()?;
        ensure!(kib < 200 * 1024, "the agent had {kib} KiB");
        println!("most memory of the agent: {} MiB", kib / 1024);
        Ok(())
    })
}
