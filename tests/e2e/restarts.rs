//! Restarts of ended containers, as a table: restart policy × exit code × failed startup or liveness
//! probe × whether the agent lived at that time; time until the first restart; and the crash backoff, which
//! outlives the agent.
//!
//! Fails when `restarts` in `agent/src/converge/pods/container/machine.rs` treats OnFailure as Always, and, for the
//! backoff, when `Container::read` in facts.rs does not read the label `minik8s.io/backoff`. The rows of probes
//! were seen red with `end.code == 0` alone in `succeeded` there, and with a `kills` that ignores the startup probe.

use std::fs;
use std::time::Instant;

use harness::{
    Change, Cluster, ClusterOptions, ContainerView, Context, IMAGE, Result, ensure, eventually, secs,
};
use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::kinds::pod::{ContainerState, PodPhase, PodStatus};
use schema::meta::NamespacedName;

/// Exit code after SIGKILL.
const KILLED: i64 = 137;

/// Cause of a container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Exits by itself.
    Itself,
    /// A failed liveness probe; with code 0 it handles SIGTERM.
    Liveness,
    /// A failed startup probe.
    Startup,
}

/// A row of the table: a pod whose container ends once, with `code`.
#[derive(Debug, Clone, Copy)]
struct Row {
    policy: &'static str,
    by: By,
    code: i64,
    /// True if the agent lives when it ends.
    agent: bool,
    /// True if it is restarted.
    again: bool,
    /// Final phase of the pod.
    phase: PodPhase,
}

const fn row(policy: &'static str, by: By, code: i64, again: bool, phase: PodPhase) -> [Row; 2] {
    let row = Row { policy, by, code, agent: true, again, phase };
    [row, Row { agent: false, ..row }]
}

const TABLE: [[Row; 2]; 14] = [
    row("Always", By::Itself, 0, true, PodPhase::Running),
    row("Always", By::Itself, 1, true, PodPhase::Running),
    row("OnFailure", By::Itself, 0, false, PodPhase::Succeeded),
    row("OnFailure", By::Itself, 1, true, PodPhase::Running),
    row("Never", By::Itself, 0, false, PodPhase::Succeeded),
    row("Never", By::Itself, 1, false, PodPhase::Failed),
    row("Always", By::Liveness, KILLED, true, PodPhase::Running),
    row("OnFailure", By::Liveness, KILLED, true, PodPhase::Running),
    // It has still failed.
    row("OnFailure", By::Liveness, 0, true, PodPhase::Running),
    row("Never", By::Liveness, KILLED, false, PodPhase::Failed),
    // The kubelet decides by the exit code.
    row("Never", By::Liveness, 0, false, PodPhase::Succeeded),
    row("Always", By::Startup, KILLED, true, PodPhase::Running),
    row("OnFailure", By::Startup, KILLED, true, PodPhase::Running),
    row("Never", By::Startup, KILLED, false, PodPhase::Failed),
];

impl Row {
    fn name(&self) -> String {
        let when = if self.agent { "alive" } else { "dead" };
        let by = format!("{:?}", self.by).to_lowercase();
        format!("{}-{by}-{}-{when}", self.policy.to_lowercase(), self.code)
    }

    fn gate(&self) -> &'static str {
        if self.agent { "alive" } else { "dead" }
    }
}

/// Ends when the test opens its gate, or becomes sick then; the next start stays, unless it has to crash
/// again.
fn pod(name: &str, gate: &str, row: &Row) -> String {
    let Row { policy, by, code, .. } = *row;
    // Only the first start is sick, and marks that in its own file system: a probe may run before the script's
    // first line, and must not mistake the next start for the former one.
    let sick = format!("[ -e /gates/{name} ] || {{ touch /gates/{name}; touch /sick; }}; touch /began");
    let (script, grace) = match (by, code) {
        (By::Itself, _) => (
            format!(
                "[ ! -e /gates/{name}.done ] || exec sleep 100000; until [ -e /gates/{gate} ]; do sleep 0.05; done; \
                 [ {gate} = crash ] || touch /gates/{name}.done; exit {code}"
            ),
            0,
        ),
        (_, 0) => (format!("trap 'exit 0' TERM; {sick}; sleep 100000 & wait"), 30),
        _ => (format!("{sick}; sleep 100000"), 0),
    };
    let probe = match by {
        By::Itself => String::new(),
        // Its command takes long only on a machine that is too busy, which must not end a pod for good.
        By::Liveness => format!(
            "    livenessProbe: {{exec: {{command: [sh, -c, '[ ! -e /sick ] || [ ! -e /gates/{gate} ]']}}, \
             periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 60}}\n"
        ),
        // A startup probe that succeeds is over, so it takes until the gate is open.
        By::Startup => format!(
            "    startupProbe: {{exec: {{command: [sh, -c, 'until [ -e /gates/{gate} ] && [ -e /began ]; do sleep 0.1; \
             done; [ ! -e /sick ]']}}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 600}}\n"
        ),
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: {policy}\n  \
         terminationGracePeriodSeconds: {grace}\n  volumes:\n  - name: gates\n    hostPath: {{path: GATES}}\n  \
         containers:\n  - name: main\n    image: {IMAGE}\n    command: [sh, -c, {script:?}]\n    \
         volumeMounts: [{{name: gates, mountPath: /gates}}]\n{probe}"
    )
}

#[test]
fn ended_containers_start_again_as_their_policy_says_and_the_backoff_outlives_the_agent() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let gates = cluster.dir("gates");
        fs::create_dir_all(&gates)?;
        let open = |gate: &str| fs::write(gates.join(gate), "");
        let rows: Vec<Row> = TABLE.into_iter().flatten().collect();
        let [crashing, _] = row("Always", By::Itself, 1, true, PodPhase::Running);
        let table = |pods: Vec<String>| pods.join("---\n").replace("GATES", &gates.to_string_lossy());
        let half = |agent: bool| {
            let rows = rows.iter().filter(move |row| row.agent == agent);
            rows.map(|row| pod(&row.name(), row.gate(), row)).collect::<Vec<_>>()
        };
        let mut alive = half(true);
        alive.push(pod("crashing", "crash", &crashing));
        cluster.push(&[Change::write("alive.yaml", table(alive))], "Pods that end while the agent lives")?;
        all_run(cluster, rows.len() / 2 + 1)?;

        open("alive")?;
        for row in rows.iter().filter(|row| row.agent) {
            eventually(&format!("{row:?}"), secs(45), || became(cluster, row))?;
        }
        first_restarts(cluster, &rows)?;
        let again = rows.iter().filter(|row| row.agent && row.again).count();
        cluster.push(&[Change::write("dead.yaml", table(half(false)))], "Pods that end without an agent")?;
        all_run(cluster, again + 1 + rows.len() / 2)?;

        // The first restart comes immediately, the second 10 s after the second crash, the third 20 s after the third
        // crash. The agent dies during this last wait, and with it everything that it kept in memory.
        open("crash")?;
        let crashed = eventually("it crashed three times", secs(60), || {
            let starts = starts_of(cluster, "crashing")?;
            let third = starts.into_iter().find(|c| c.label("attempt") == "2").context("no third start")?;
            ensure!(!third.running && third.exit_code == 1, "{third:?}");
            Ok(third)
        })?;
        cluster.node_mut().agent.kill()?;
        cluster.start_agent()?;
        let back = Timestamp::now().duration_since(ended(&crashed)?);
        ensure!(
            back < SignedDuration::from_secs(18),
            "the agent was back only after {back:?}: nothing to see"
        );
        backs_off(cluster, &crashed)?;

        cluster.node_mut().agent.kill()?;
        open("dead")?;
        eventually("they ended without an agent", secs(10), || {
            let running =
                cluster.containers()?.into_iter().filter(|c| c.running && c.label("container") == "main");
            // Without an agent there are no probes.
            let (sick, dead): (Vec<_>, Vec<_>) = running
                .filter(|c| c.label("pod").ends_with("-dead"))
                .map(|c| c.name)
                .partition(|name| !name.contains("-itself-"));
            ensure!(dead.is_empty() && sick.len() == 8, "{dead:?} run, and of the sick {sick:?}");
            Ok(())
        })?;
        cluster.start_agent()?;
        for row in rows.iter().filter(|row| !row.agent) {
            eventually(&format!("{row:?}"), secs(45), || became(cluster, row))?;
        }
        // The first half has not changed since.
        rows.iter().try_for_each(|row| became(cluster, row))
    })
}

/// Waits until this many pods run, each with one container and its pause container.
fn all_run(cluster: &Cluster, pods: usize) -> Result<()> {
    let began = Instant::now();
    eventually(&format!("{pods} pods run"), secs(60), || {
        let all = cluster.containers()?;
        let running = all.iter().filter(|c| c.running).count();
        let ended: Vec<_> = all.iter().filter(|c| !c.running).map(|c| (&c.name, c.exit_code)).collect();
        ensure!(running == 2 * pods, "{running} containers run, and these do not: {ended:?}");
        Ok(())
    })?;
    println!("restarts: {pods} pods were running after {:?}", began.elapsed());
    Ok(())
}

/// Starts of the pod's container, by attempt.
fn starts_of(cluster: &Cluster, pod: &str) -> Result<Vec<ContainerView>> {
    let all = cluster.containers()?.into_iter();
    let mut starts: Vec<_> =
        all.filter(|c| c.label("pod") == pod && c.label("container") == "main").collect();
    starts.sort_by_key(|c| c.label("attempt").parse::<u32>().unwrap_or(u32::MAX));
    Ok(starts)
}

/// Checks that the pod is as its row says, in Docker and in its status.
fn became(cluster: &Cluster, row: &Row) -> Result<()> {
    let name = row.name();
    let starts = starts_of(cluster, &name)?;
    let seen: Vec<_> = starts.iter().map(|c| (c.label("attempt"), c.running, c.exit_code)).collect();
    let pauses = cluster.containers()?.into_iter();
    let pauses =
        pauses.filter(|c| c.label("pod") == name && c.label("container") == "POD" && c.running).count();
    match row.again {
        true => ensure!(seen == [("0", false, row.code), ("1", true, 0)] && pauses == 1, "{seen:?} {pauses}"),
        // A pod that ended for good releases its address, and keeps its container for its log.
        false => ensure!(seen == [("0", false, row.code)] && pauses == 0, "{seen:?} {pauses}"),
    }
    let status = status(cluster, &name)?;
    let restarts = status.container_statuses.first().map(|c| c.restart_count);
    ensure!(status.phase == row.phase && restarts == Some(u32::from(row.again)), "{status:?}");
    Ok(())
}

fn status(cluster: &Cluster, pod: &str) -> Result<PodStatus> {
    cluster.etcd.value(Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", pod)))
}

/// Times from a container's end to its successor's start, as reported by Docker.
fn first_restarts(cluster: &Cluster, rows: &[Row]) -> Result<()> {
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.agent && row.again) {
        let starts = starts_of(cluster, &row.name())?;
        let [first, second] = starts.as_slice() else { harness::bail!("{starts:?}") };
        all.push(started(second)?.duration_since(ended(first)?));
    }
    all.sort();
    println!("restarts: from a container's end to its first restart, all at once: {all:?}");
    Ok(())
}

/// The fourth start comes at the time set by the third crash, not at the start of the new agent.
fn backs_off(cluster: &Cluster, crashed: &ContainerView) -> Result<()> {
    let ended = ended(crashed)?;
    ensure!(crashed.label("backoff") == "2", "{:?}", crashed.labels);
    eventually("status says that it backs off", secs(15), || {
        // On a slow machine the fourth start may have crashed, too, before this check.
        let fourth = starts_of(cluster, "crashing")?.into_iter().any(|c| c.label("attempt") == "3");
        let delay = if fourth { "40s" } else { "20s" };
        let status = status(cluster, "crashing")?;
        let state = &status.container_statuses.first().context("no container")?.state;
        let ContainerState::Waiting(waiting) = state else { harness::bail!("{state:?}") };
        ensure!(waiting.reason == "CrashLoopBackOff" && waiting.message.contains(delay), "{waiting:?}");
        Ok(())
    })?;
    let fourth = eventually("the fourth start", secs(45), || {
        let starts = starts_of(cluster, "crashing")?;
        starts.into_iter().find(|c| c.label("attempt") == "3").context("not yet")
    })?;
    eventually("it has started", secs(10), || {
        ensure!(starts_of(cluster, "crashing")?.last().is_some_and(|c| !c.started_at.starts_with("0001")));
        Ok(())
    })?;
    let fourth =
        starts_of(cluster, "crashing")?.into_iter().find(|c| c.id == fourth.id).context("it is gone")?;
    let waited = started(&fourth)?.duration_since(ended);
    println!("restarts: the fourth start came {waited:?} after the third crash");
    ensure!(waited >= SignedDuration::from_secs(20), "it came after {waited:?}: the backoff was lost");
    ensure!(waited < SignedDuration::from_secs(40), "it came after {waited:?}: the backoff grew");
    ensure!(fourth.label("backoff") == "3", "{:?}", fourth.labels);
    Ok(())
}

fn started(container: &ContainerView) -> Result<Timestamp> {
    container.started_at.parse().with_context(|| container.started_at.clone())
}

fn ended(container: &ContainerView) -> Result<Timestamp> {
    container.finished_at.parse().with_context(|| container.finished_at.clone())
}
