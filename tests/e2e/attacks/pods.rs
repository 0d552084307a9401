//! Attacks of a pod, its image and its probe on others: labels that pass for the agent's own, words that a terminal
//! obeys, files of other pods, and a place ahead of others when memory is short.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, run, secs};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

use super::Trap;

#[test]
fn labels_of_an_image_or_of_a_foreign_container_do_nothing_to_a_pod() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let trap = Trap::set()?;
        let hook = format!(
            "    lifecycle: {{preStop: {{httpGet: {{path: /bye, port: {}, host: 127.0.0.1}}}}}}\n",
            trap.port
        );
        let files = [
            Change::write("hooked.yaml", web("hooked").container_fields(&hook).to_string()),
            Change::write("victim.yaml", web("victim").to_string()),
        ];
        cluster.push(&files, "A pod with a hook, and another")?;
        let hooked = cluster.running("hooked", &["web"])?;
        let victim = cluster.running("victim", &["web"])?;
        let docker = &cluster.node().docker;
        // The images keep the labels of the containers that they come from: the hook, and all that makes a pod.
        let image = |name: &str| format!("127.0.0.1:{}/{name}:1", cluster.slot().port(8));
        for (name, pod) in [("hooked", &hooked), ("victim", &victim)] {
            let container = pod.container("web")?;
            ensure!(!container.label("uid").is_empty(), "{container:?}");
            docker.run(&["commit", "--pause=false", &container.id, &image(name)])?;
        }
        let copied = image("victim");
        let attempt = "minik8s.io/attempt=999";
        let stray =
            docker.run(&["run", "-d", "--label", attempt, "--entrypoint", "sleep", &copied, "100000"])?;
        let stray = stray.trim();
        cluster.push(&[Change::remove("hooked.yaml")], "Without it")?;
        cluster.gone("hooked")?;
        ensure!(trap.callers() == 1, "the hook itself asks once, not {} times", trap.callers());

        cluster.push(
            &[Change::write("copy.yaml", web("copy").image(&image("hooked")).to_string())],
            "Its image",
        )?;
        let copy = cluster.running("copy", &["web"])?;
        ensure!(copy.container("web")?.label("pre-stop").is_empty(), "{copy:?}");
        cluster.push(&[Change::remove("copy.yaml")], "Without its image")?;
        cluster.gone("copy")?;
        ensure!(trap.callers() == 1, "a label of an image sent a request");

        // By now the agent has listed the stray many times.
        let lives = cluster.lives()?;
        for (id, since) in victim.lives() {
            ensure!(lives.get(&id) == Some(&since), "{id} of the victim was touched: {lives:?}");
        }
        ensure!(
            cluster.containers()?.iter().any(|one| one.id == stray && one.running),
            "the stray was ended"
        );
        let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "victim"));
        let status: PodStatus = cluster.etcd.value(key)?;
        let restarts: Vec<_> = status.container_statuses.iter().map(|one| one.restart_count).collect();
        ensure!(restarts == [0], "{restarts:?}");
        docker.run(&["rm", "-f", stray])?;
        Ok(())
    })
}

/// A readiness probe that fails with a colour, a title of the window and a changed direction of writing.
const PROBE: &str = r"    readinessProbe:
      periodSeconds: 1
      timeoutSeconds: 10
      exec:
        command:
        - sh
        - -c
        - |
          printf '\033[31mPROBE\033]0;owned\007\342\200\256END'; exit 1
";

/// Memory that a pod requests.
const REQUEST_MIB: u64 = 256;

#[test]
fn words_files_and_memory_of_a_pod_stay_within_bounds() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        // As an earlier version left it.
        let state = cluster.node().state_dir().to_owned();
        fs::create_dir_all(&state)?;
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755))?;
        cluster.start_all()?;
        let resources = |text: &str| format!("    resources: {{{text}}}\n");
        let both = format!("{{cpu: 10m, memory: {REQUEST_MIB}Mi}}");
        let escaping = web("escaping").container_fields(PROBE).to_string();
        let noted = "metadata:\n  annotations: {note: \"\\e[31mNOTE\"}\n";
        let files = [
            Change::write("escaping.yaml", escaping.replace("metadata:\n", noted)),
            Change::write(
                "guaranteed.yaml",
                web("guaranteed").container_fields(&resources(&format!("limits: {both}"))).to_string(),
            ),
            Change::write(
                "burstable.yaml",
                web("burstable").container_fields(&resources(&format!("requests: {both}"))).to_string(),
            ),
        ];
        cluster.push(&files, "Pods in \u{1b}[32mgreen")?;
        terminals_get_no_codes(cluster)?;
        oom_scores_follow_the_requests(cluster)?;
        closed_to_others(cluster, &state)
    })
}

/// The probe's output reaches tables and pages with its control characters made visible.
fn terminals_get_no_codes(cluster: &Cluster) -> Result<()> {
    let shown = "\\u{1b}[31mPROBE\\u{1b}]0;owned\\u{7}\\u{202e}END";
    eventually("the probe's words are shown", secs(30), || {
        let page = cluster.cli(&["describe", "pod/escaping"])?.ok()?;
        ensure!(page.contains(shown) && page.contains("\\u{1b}[31mNOTE"), "{page:?}");
        // JSON has the words as they are.
        let json = cluster.cli(&["events", "-A", "-o", "json"])?.ok()?;
        ensure!(json.contains("\\u001b[31mPROBE"), "{json}");
        Ok(())
    })?;
    for args in [
        &["status"] as &[&str],
        &["get", "pods"],
        &["get", "pods", "-o", "wide"],
        &["describe", "pod/escaping"],
        &["describe", "revision/1"],
        &["events", "-A"],
        &["history"],
        &["get", "sources"],
        &["get", "nodes"],
        &["wait", "--for", "healthy", "--timeout", "1s"],
    ] {
        let said = cluster.cli(args)?;
        let text = said.stdout + &said.stderr;
        for code in ['\u{1b}', '\u{7}', '\u{202e}'] {
            ensure!(!text.contains(code), "{args:?} prints {code:?}: {text:?}");
        }
    }
    Ok(())
}

/// Each container has the `oom_score_adj` that the kubelet would give it, as far as it may be set here.
fn oom_scores_follow_the_requests(cluster: &Cluster) -> Result<()> {
    let score = |pid: u32| -> Result<i64> {
        Ok(fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?.trim().parse()?)
    };
    // A process without CAP_SYS_RESOURCE, bit 24, sets no lower value than its own.
    let agent = cluster.node().agent.pid()?;
    let status = fs::read_to_string(format!("/proc/{agent}/status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no CapEff")?;
    let may_lower = u64::from_str_radix(effective.trim(), 16)? & (1 << 24) != 0;
    let least = if may_lower { -1000 } else { score(agent)? };
    let machine = fs::read_to_string("/proc/meminfo")?;
    let machine = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("no MemTotal")?;
    let machine: u64 = machine.trim().trim_end_matches(" kB").parse()?;
    let share = i64::try_from(REQUEST_MIB * 1024 * 1000 / machine)?;
    for (name, wanted) in [("guaranteed", -997), ("burstable", 1000 - share), ("escaping", 1000)] {
        let pod = cluster.running(name, &["web"])?;
        let found = [score(pod.container("web")?.pid)?, score(pod.pause.pid)?];
        ensure!(found == [wanted, -998].map(|score: i64| score.max(least)), "{name}: {found:?}, {least}");
    }
    Ok(())
}

/// Another user of the machine sees nothing of what the daemons keep.
fn closed_to_others(cluster: &Cluster, state: &Path) -> Result<()> {
    let as_other = |program: &str, path: &Path| {
        let path = path.to_string_lossy();
        run("setpriv", &["--reuid", "1000", "--regid", "1000", "--clear-groups", program, &path])
    };
    as_other("ls", &cluster.dir(""))?;
    let volumes = state.join("agent/pods");
    ensure!(fs::read_dir(&volumes)?.count() > 0);
    for path in [state.to_owned(), volumes, cluster.dir("state-r0"), cluster.dir("state-r0/reconciler")] {
        let said = as_other("ls", &path);
        let refused = said.as_ref().is_err_and(|why| format!("{why:#}").contains("Permission denied"));
        ensure!(refused, "{}: {said:?}", path.display());
    }
    Ok(())
}
