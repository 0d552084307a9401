//! `up` runs everything with a private etcd, leaves the pods running on Ctrl-C and adopts them the
//! next time; `down` leaves the machine as it was.
//!
//! Fails when `minik8s-agent reset` leaves the rules, when a daemon leaves the state directory open to other users, and
//! when `up` sets no `oom_score_adj`, where it may.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context as _, Daemon, DockerWorld, IMAGE, NetWorld, Result, ensure,
    eventually, http_get, minik8s_binary, outcome, run, secs,
};
use nix::sys::signal::Signal;

#[test]
fn up_leaves_pods_running_adopts_them_and_down_leaves_nothing() -> Result<()> {
    // Only the slot, the repository and the tools: `up` brings its own etcd and daemons.
    let cluster = Cluster::prepare(ClusterOptions::default())?;
    let _bystander = Bystander::new(&cluster)?;
    let before = machine(&cluster)?;
    let state = cluster.dir("up-state");
    let mut up = Daemon::new("up", cluster.slot().dir(), up_command(&cluster));
    let ended = story(&cluster, &mut up);
    if ended.is_err() {
        eprintln!("---- up ----\n{}", up.log_tail());
    }
    ended?;

    let state = state.to_string_lossy();
    let mut down = std::process::Command::new(minik8s_binary());
    outcome(down.args(["down", "--state-dir", &state]), secs(60))?.ok()?;
    let after = machine(&cluster)?;
    let gone: Vec<_> = before.difference(&after).collect();
    let new: Vec<_> = after.difference(&before).collect();
    ensure!(gone.is_empty() && new.is_empty(), "down left {new:?} and took {gone:?}");
    ensure!(!cluster.dir("up-state").exists(), "down left the state directory");
    // A second `down` with nothing to do is harmless.
    let mut down = std::process::Command::new(minik8s_binary());
    outcome(down.args(["down", "--state-dir", &state]), secs(60))?.ok()?;
    Ok(())
}

fn story(cluster: &Cluster, up: &mut Daemon) -> Result<()> {
    let host_port = cluster.slot().port(7);
    let shop = web("shop").host_port(host_port).to_string();
    cluster.repo.push(&[Change::write("shop.yaml", shop)], "Open")?;
    up.start()?;
    let shop = cluster.serving("shop", "hello from shop")?;
    answers(cluster)?;
    // Would fail with the gateway of functions on all addresses.
    eventually("the agent listens for this machine and its pods", secs(10), || {
        let open = agent_listeners(cluster)?;
        let bridge = format!("{}:8081", bridge(cluster)?);
        ensure!(open.iter().all(|at| !at.starts_with(['*', '[']) && !at.starts_with("0.0.0.0")), "{open:?}");
        // Another node on this machine may have the port on loopback.
        ensure!(open.contains(&bridge), "{open:?}");
        Ok(())
    })?;
    refused(cluster, &["--path", "elsewhere"], "runs with other settings (--path), and nothing was changed")?;

    // Ctrl-C: daemons and etcd stop, the pod keeps running.
    ensure!(up.end(Signal::SIGINT, secs(30))?.success(), "up did not end well");
    ensure!(etcds(cluster)?.is_empty(), "the private etcd is left: {:?}", etcds(cluster)?);
    cluster.serving("shop", "hello from shop")?;
    ensure!(cluster.pod("shop")?.lives() == shop.lives());

    // The address of an unreachable etcd is not remembered.
    refused(cluster, &["--etcd", "http://127.0.0.1:1"], "cannot connect to etcd at http://127.0.0.1:1: ")?;

    // Up again: the same containers, and Git is followed. The state directory is as earlier versions left it.
    let state = cluster.dir("up-state");
    let folders = || ["", "agent", "reconciler", "logs", "run"].map(|name| state.join(name));
    for folder in folders() {
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    up.start()?;
    answers(cluster)?;
    cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
    cluster.serving("blog", "hello from blog")?;
    ensure!(cluster.pod("shop")?.lives() == shop.lives(), "the second up did not adopt the pod");

    let mode = |folder| fs::metadata(folder).map_or(0, |there| there.mode() & 0o7777);
    let modes = folders().map(|folder| format!("{:o}", mode(folder)));
    ensure!(modes.iter().all(|mode| mode == "700"), "{modes:?}");

    // Its etcd is killed: it is restarted, and the next push is applied.
    let etcd = etcds(cluster)?;
    ensure!(etcd.len() == 1, "{etcd:?}");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", etcd[0]))?;
    ensure!(score.trim() == if may_lower_oom_scores()? { "-900" } else { "0" }, "{score}");
    run("kill", &["-9", &etcd[0]])?;
    cluster.repo.push(&[Change::write("wiki.yaml", web("wiki").to_string())], "A third")?;
    cluster.serving("wiki", "hello from wiki")?;
    ensure!(cluster.pod("shop")?.lives() == shop.lives());
    ensure!(up.end(Signal::SIGINT, secs(30))?.success(), "up did not end well");
    eventually("no process of it is left", secs(10), || {
        ensure!(etcds(cluster)?.is_empty());
        Ok(())
    })
}

/// Waits until its reconciler answers at its socket.
pub(crate) fn answers(cluster: &Cluster) -> Result<()> {
    let socket = format!("unix:{}", cluster.dir("up-state/run/api.sock").display());
    eventually("the reconciler answers", secs(45), || {
        let (code, body) = http_get(&socket, "/v1/healthz")?;
        ensure!(code == 200, "{code} {body}");
        Ok(())
    })
}

/// True if this process, and so the daemons, may lower `oom_score_adj`: CAP_SYS_RESOURCE, bit 24.
fn may_lower_oom_scores() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    Ok(u64::from_str_radix(effective.trim(), 16)? & (1 << 24) != 0)
}

/// Checks that a background `up` with these extra flags does not start and says why.
fn refused(cluster: &Cluster, flags: &[&str], why: &str) -> Result<()> {
    let command = up_command(cluster);
    let mut up = std::process::Command::new(&command[0]);
    let said = outcome(up.args(&command[1..]).arg("--detach").args(flags), secs(30))?;
    ensure!(said.code == 1 && said.stderr.contains(why), "{flags:?}: {} {}", said.code, said.stderr);
    Ok(())
}

pub(crate) fn up_command(cluster: &Cluster) -> Vec<String> {
    let slot = cluster.slot();
    let mut command = vec![minik8s_binary().to_string_lossy().into_owned(), "up".to_owned()];
    for (flag, value) in [
        ("--repo", cluster.repo_url()),
        ("--poll", "500ms".to_owned()),
        ("--state-dir", cluster.dir("up-state").to_string_lossy().into_owned()),
        ("--listen", cluster.listen(0)),
        ("--agent-listen", cluster.node().listen().to_owned()),
        ("--etcd-port", slot.port(8).to_string()),
        ("--cluster-cidr", slot.cluster_cidr()),
        ("--service-cidr", slot.service_cidr()),
        ("--instance", slot.instance()),
        ("--node", cluster.node().name.clone()),
        ("--docker", cluster.node().docker.host().to_owned()),
    ] {
        command.extend([flag.to_owned(), value]);
    }
    command
}

/// Addresses at which the agent accepts TCP connections.
fn agent_listeners(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let all = run("ps", &["-eo", "pid,args"])?;
    let state = cluster.dir("up-state").to_string_lossy().into_owned();
    let is_agent = |line: &&str| line.contains("minik8s-agent run") && line.contains(&state);
    let pid =
        all.lines().find(is_agent).and_then(|line| line.split_whitespace().next()).context("no agent")?;
    let listed = run("ss", &["-Hltnp"])?;
    let own = listed.lines().filter(|line| line.contains(&format!("pid={pid},")));
    Ok(own.filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect())
}

/// Address of the pods' bridge.
fn bridge(cluster: &Cluster) -> Result<String> {
    let name = format!("{}0", cluster.slot().instance());
    let shown = run("ip", &["-4", "-o", "addr", "show", "dev", &name])?;
    let address = shown.split_whitespace().nth(3).and_then(|address| address.split('/').next());
    address.map(str::to_owned).context("the bridge has no address")
}

/// Pids of the etcds that use the cluster's folder.
fn etcds(cluster: &Cluster) -> Result<Vec<String>> {
    let all = run("ps", &["-eo", "pid,args"])?;
    let below = format!("{}/", cluster.slot().dir().display());
    let ours = all.lines().filter(|line| line.contains(&below));
    let etcds = ours.filter(|line| line.split_whitespace().nth(1).is_some_and(|arg| arg.ends_with("etcd")));
    Ok(etcds.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// A foreign container: `down` leaves it alone.
struct Bystander(String);

impl Bystander {
    fn new(cluster: &Cluster) -> Result<Self> {
        let name = format!("bystander-{}", cluster.slot().instance());
        let _ = run("docker", &["rm", "-f", &name]);
        run("docker", &["create", "--name", &name, IMAGE, "true"])?;
        Ok(Self(name))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = run("docker", &["rm", "-f", &self.0]);
    }
}

/// Everything on the machine that `up` could leave behind or remove: items with this instance's
/// name, Docker's own, and the bystander. Anything else on the machine comes and goes.
fn machine(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let net = NetWorld::of_machine();
    let docker = DockerWorld::of_machine();
    let containers = docker.run(&["ps", "-a", "--format", "container {{.Names}}"])?;
    let rules = net.rules()?;
    // A table's built-in chains appear with its first use and can't be removed; they are empty.
    let rules = rules.iter().filter(|rule| rule.contains(": -A") || rule.ends_with(" -"));
    let processes = run("ps", &["-eo", "args"])?;
    let below = format!("{}/", cluster.slot().dir().display());
    let ours = cluster.slot().instance();
    let judged = [ours.clone(), ours.to_uppercase(), "DOCKER".to_owned(), "docker0".to_owned()];
    Ok(containers
        .lines()
        .map(str::to_owned)
        .chain(net.links()?.iter().map(|link| format!("link {link}")))
        .chain(rules.map(|rule| format!("rule {rule}")))
        .chain(processes.lines().filter(|line| line.contains(&below)).map(|line| format!("process {line}")))
        .filter(|line| judged.iter().any(|word| line.contains(word)))
        .collect())
}
