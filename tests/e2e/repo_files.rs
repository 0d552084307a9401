//! Files of the repository in pods, and secrets that stay ciphertext until they reach the node that uses them.
//!
//! Fails without the `files` in `Object::hash_of` (a changed file replaces nothing), without the check of
//! the unpacked files in `agent/src/files/cache.rs` (a changed cache is mounted unnoticed), and with
//! `VolumePrep::Secret` created as a folder on disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, PodView, Result, ensure, eventually, recipient, sealed,
    secs,
};

/// A sleeping pod with these volumes and these lines of its container.
fn sleeper(name: &str, volumes: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         volumes: {volumes}\n  containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, '100000']\n{container}"
    )
}

const FOLDER: &str = "[{name: conf, repo: {path: config/app}}, {name: one, repo: {path: config/motd.txt}}]";
const MOUNTS: &str = "    volumeMounts:\n    - {name: conf, mountPath: /etc/app}\n    \
    - {name: one, mountPath: /etc/motd}\n    - {name: conf, mountPath: /only.conf, subPath: app.conf}\n";

fn cat(cluster: &Cluster, pod: &PodView, file: &str) -> Result<String> {
    cluster.node().docker.exec(pod.container("main")?, &["cat", file])
}

fn files() -> Vec<Change> {
    vec![
        Change::write("config/app/app.conf", "colour = red\n"),
        Change::write("config/app/more/b.conf", "deep\n"),
        // Hides manifests, but not files for pods.
        Change::write(".minik8signore", "config/\n"),
        Change::write("config/motd.txt", "welcome\n"),
        Change::write("a.yaml", sleeper("reader", FOLDER, MOUNTS)),
        Change::write("b.yaml", sleeper("neighbour", "[]", "")),
    ]
}

#[test]
fn a_changed_file_replaces_just_the_pod_that_mounts_it() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&files(), "Files")?;
        let before = cluster.running("reader", &["main"])?;
        let neighbour = cluster.running("neighbour", &["main"])?;
        ensure!(cat(cluster, &before, "/etc/app/app.conf")? == "colour = red\n");
        ensure!(cat(cluster, &before, "/etc/app/more/b.conf")? == "deep\n");
        ensure!(cat(cluster, &before, "/etc/motd")? == "welcome\n");
        ensure!(cat(cluster, &before, "/only.conf")? == "colour = red\n");
        for place in ["/etc/app/new", "/etc/app/app.conf", "/etc/motd", "/only.conf"] {
            let tried = format!("echo x > {place}");
            let denied = cluster.node().docker.outcome(&[
                "exec",
                &before.container("main")?.id,
                "sh",
                "-c",
                &tried,
            ])?;
            ensure!(denied.code != 0 && denied.stderr.contains("Read-only"), "{place}: {denied:?}");
        }

        // The review names object and file.
        cluster.repo.git(&["checkout", "-q", "-b", "blue"])?;
        fs::write(cluster.repo.work().join("config/app/app.conf"), "colour = blue\n")?;
        cluster.repo.git(&["commit", "-qam", "Blue"])?;
        let repo = cluster.repo.work().to_string_lossy().into_owned();
        let plan = cluster.cli(&["plan", "--repo", &repo, "--base", "main", "--head", "blue"])?;
        ensure!(
            plan.code == 2 && plan.stdout.contains("config/app") && plan.stdout.contains("reader"),
            "{plan:?}"
        );
        ensure!(!plan.stdout.contains("neighbour"), "{plan:?}");
        cluster.repo.git(&["checkout", "-q", "main"])?;

        cluster.push(&[Change::write("config/app/app.conf", "colour = blue\n")], "Blue")?;
        let after = eventually("the pod has the new file", secs(40), || {
            let pod = cluster.running("reader", &["main"])?;
            ensure!(cat(cluster, &pod, "/etc/app/app.conf")? == "colour = blue\n");
            Ok(pod)
        })?;
        ensure!(after.container("main")?.id != before.container("main")?.id);
        ensure!(cluster.pod("neighbour")?.lives() == neighbour.lives(), "the neighbour was touched");
        Ok(())
    })
}

#[test]
fn without_reconciler_and_etcd_a_removed_container_comes_back_with_its_files() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&files(), "Files")?;
        let before = cluster.running("reader", &["main"])?;
        // Content that no manifest names is not served.
        let nothing = harness::http_get(&cluster.api(0), &format!("/v1/blobs/{}", "0".repeat(64)))?;
        ensure!(nothing.0 == 404 && nothing.1.contains("refers"), "{nothing:?}");

        // A change made on the node is detected before the next mount.
        let changed = changed_file(cluster)?;
        cluster.node().docker.run(&["rm", "-f", &before.container("main")?.id])?;
        eventually("the file is what the repository has", secs(40), || {
            let pod = cluster.running("reader", &["main"])?;
            ensure!(pod.container("main")?.id != before.container("main")?.id);
            ensure!(cat(cluster, &pod, "/etc/app/app.conf")? == "colour = red\n");
            Ok(())
        })?;
        ensure!(fs::read_to_string(changed)? == "colour = red\n");
        eventually("an event reports it", secs(20), || {
            let said = cluster.cli(&["events"])?.ok()?;
            ensure!(said.contains("FilesChanged"), "{said}");
            Ok(())
        })?;

        let again = cluster.running("reader", &["main"])?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        cluster.node().docker.run(&["rm", "-f", &again.container("main")?.id, &again.pause.id])?;
        eventually("the pod is back with its files", secs(60), || {
            let pod = cluster.running("reader", &["main"])?;
            ensure!(pod.pause.id != again.pause.id);
            ensure!(cat(cluster, &pod, "/etc/motd")? == "welcome\n");
            ensure!(cat(cluster, &pod, "/etc/app/app.conf")? == "colour = red\n");
            Ok(())
        })
    })
}

/// Modifies the node's copy of `app.conf`; returns its path.
fn changed_file(cluster: &Cluster) -> Result<std::path::PathBuf> {
    let blobs = cluster.node().state_dir().join("agent/blobs");
    let folders = fs::read_dir(&blobs)?.flatten().map(|entry| entry.path());
    let path =
        folders.map(|folder| folder.join("app.conf")).find(|path| path.exists()).context("no app.conf")?;
    fs::write(&path, "colour = black\n")?;
    Ok(path)
}

const CANARY: &str = "canary-Zx81-open-sesame";

const SECRETS: &str = "[{name: s, secret: {secretName: db}}]";
const USES: &str = "    env:\n    - {name: DB_PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}\n    \
    - {name: DB_URL, value: 'pg://$(DB_PASSWORD)@db'}\n    volumeMounts: [{name: s, mountPath: /run/db}]\n";

/// Checks that no file below `dir`, mounts excepted, contains the text.
fn is_nowhere(text: &str, dir: &Path) -> Result<()> {
    let found = Command::new("grep").args(["-rlaF", "--", text]).arg(dir).output()?;
    let files = String::from_utf8_lossy(&found.stdout).into_owned();
    let on_disk: Vec<&str> = files.lines().filter(|file| !file.contains("/secrets/s/")).collect();
    ensure!(on_disk.is_empty(), "{text} is in {on_disk:?}");
    Ok(())
}

#[test]
fn a_secret_reaches_its_container_and_nothing_else() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let recipient = recipient(cluster)?;
        ensure!(cluster.cli(&["get", "nodes", "-o", "wide"])?.ok()?.contains(&recipient));

        let plain =
            |word: &str| sealed(&recipient, "default", "db", &format!("user: app\npassword: {word}\n"));
        let pod = sleeper("app", SECRETS, USES);
        cluster.push(
            &[Change::write("app.yaml", pod), Change::write("secrets/default/db.age", plain(CANARY)?)],
            "A secret",
        )?;
        let before = cluster.running("app", &["main"])?;
        let main = before.container("main")?;
        let docker = &cluster.node().docker;
        ensure!(docker.exec(main, &["sh", "-c", "echo -n $DB_PASSWORD"])? == CANARY);
        ensure!(docker.exec(main, &["sh", "-c", "echo -n $DB_URL"])? == format!("pg://{CANARY}@db"));
        ensure!(docker.exec(main, &["cat", "/run/db/password"])? == CANARY);
        ensure!(docker.exec(main, &["stat", "-c", "%a", "/run/db/password"])?.trim() == "400");
        let mounts = docker.exec(main, &["cat", "/proc/mounts"])?;
        ensure!(mounts.lines().any(|l| l.starts_with("tmpfs /run/db tmpfs ro")), "{mounts}");

        // Nowhere else: etcd, the API, events, logs, and the disks of reconciler and agent.
        let all = cluster.etcd.etcdctl(&["get", "--prefix", ""])?;
        ensure!(all.contains("db.age") && !all.contains(CANARY), "etcd has the secret");
        for path in ["/v1/objects/pod/default/app", "/v1/pods/default/app", "/v1/events", "/v1/status"] {
            let (_, body) = harness::http_get(&cluster.api(0), path)?;
            ensure!(!body.contains(CANARY), "{path}: {body}");
        }
        is_nowhere(CANARY, cluster.slot().dir())?;

        cluster.push(&[Change::write("secrets/default/db.age", plain("second-word")?)], "Another")?;
        let after = eventually("the pod has the changed secret", secs(40), || {
            let pod = cluster.running("app", &["main"])?;
            ensure!(cat(cluster, &pod, "/run/db/password")? == "second-word");
            Ok(pod)
        })?;
        ensure!(after.container("main")?.id != main.id);

        // Encrypted for another recipient: reported with a remedy, and nothing is started.
        let stranger = harness::run("age-keygen", &[])?;
        let stranger = stranger.lines().find_map(|l| l.strip_prefix("# public key: ")).context("no key")?;
        let foreign = sealed(stranger, "default", "db", "password: other\n")?;
        cluster.push(&[Change::write("secrets/default/db.age", foreign)], "For somebody else")?;
        eventually("status says for whom to encrypt", secs(40), || {
            let said = cluster.cli(&["describe", "pod/app"])?.ok()?;
            ensure!(said.contains("CreateContainerConfigError"), "{said}");
            ensure!(said.replace(['\n', ' '], "").contains(&recipient), "{said}");
            Ok(())
        })?;

        // Plain text is refused before it is anywhere but in Git.
        cluster.repo.push(&[Change::write("secrets/default/db.age", "password: oops\n")], "Plain")?;
        eventually("the commit is degraded", secs(30), || {
            let said = cluster.cli(&["status"])?.stdout;
            ensure!(said.replace(['\n', ' '], "").contains("isnotencrypted"), "{said}");
            Ok(())
        })
    })
}
