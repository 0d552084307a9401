//! A cluster of an earlier version, without certificates, becomes one with them: no container is touched, no rule
//! changes, and names answer as before.
//!
//! No earlier version runs here. The stories make what it leaves out of a present cluster: an etcd without TLS, users and
//! keys about trust, and state directories without certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context as _, Daemon, Outcome, PrintedToken, Result, Where, ensure,
    eventually, holds, minik8s_binary, outcome, run, secs,
};
use nix::sys::signal::Signal;
use schema::keys::{Key, prefix};
use schema::trust::TrustDir;
use serde_json::Value;

use crate::reboot::all_serves;
use crate::services::service;
use crate::up_down;

/// Folder that the printed commands name on etcd's machines.
const ETCD_FOLDER: &str = "/etc/etcd/minik8s";
/// Fields of `up.json` that earlier versions did not have.
const NEW_FIELDS: [&str; 6] =
    ["advertise", "authorityLifetime", "certificateLifetime", "etcdCa", "etcdCert", "etcdKey"];

/// State of the nodes that must outlast the upgrade.
#[derive(Debug, PartialEq)]
struct NodeState {
    /// Ids and start times of all containers.
    lives: BTreeMap<String, String>,
    /// Rules of the cluster, by node.
    rules: BTreeMap<String, BTreeSet<String>>,
}

fn state(cluster: &Cluster) -> Result<NodeState> {
    let own = [cluster.slot().instance(), cluster.slot().instance().to_uppercase()];
    let mut rules = BTreeMap::new();
    for node in &cluster.nodes {
        let of_node = node.net.rules()?.into_iter().filter(|rule| own.iter().any(|name| rule.contains(name)));
        rules.insert(node.name.clone(), of_node.collect());
    }
    Ok(NodeState { lives: cluster.lives()?, rules })
}

/// Waits until everything answers, then checks for a while that nothing was touched.
fn nothing_was_touched(cluster: &Cluster, before: &NodeState) -> Result<()> {
    all_serves(cluster)?;
    let is_same = || -> Result<()> {
        let now = state(cluster)?;
        ensure!(now.lives == before.lives, "containers: {:?}, before {:?}", now.lives, before.lives);
        for (node, rules) in &now.rules {
            let then = &before.rules[node];
            let (new, gone): (Vec<_>, Vec<_>) =
                (rules.difference(then).collect(), then.difference(rules).collect());
            ensure!(new.is_empty() && gone.is_empty(), "{node}: new rules {new:?}, gone {gone:?}");
        }
        Ok(())
    };
    eventually("containers and rules are as before", secs(30), is_same)?;
    holds("containers and rules stay", secs(10), is_same)
}

fn shop() -> [Change; 2] {
    [
        Change::write("web.yaml", web("shop").label("group", "shop").to_string()),
        service("shop", "group: shop", "{port: 80, targetPort: 8080}", ""),
    ]
}

fn refused(said: &Outcome, words: &[&str]) -> Result<()> {
    ensure!(said.code != 0 && words.iter().all(|word| said.stderr.contains(word)), "{words:?}: {said:?}");
    Ok(())
}

fn start(command: &[String]) -> Result<Outcome> {
    outcome(Command::new(&command[0]).args(&command[1..]), secs(60))
}

// etcd, as an earlier version left it.

/// Command line of a member at these addresses.
fn etcd_command(name: &str, data: &Path, clients: &str, peer_port: u16, more: &[String]) -> Vec<String> {
    let peer = format!("http://127.0.0.1:{peer_port}");
    let flags = [
        format!("--name={name}"),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={name}={peer}"),
    ];
    ["etcd".to_owned()].into_iter().chain(flags).chain(more.iter().cloned()).collect()
}

fn etcdctl(endpoint: &str, pki: Option<&TrustDir>, args: &[&str]) -> Result<String> {
    let mut words = vec!["ETCDCTL_API=3".to_owned(), "etcdctl".to_owned(), format!("--endpoints={endpoint}")];
    words.extend(["--command-timeout=10s", "--dial-timeout=5s"].map(str::to_owned));
    if let Some(pki) = pki {
        words.push(format!("--cacert={}", pki.authorities_file().display()));
        words.push(format!("--cert={}", pki.certificate_file().display()));
        words.push(format!("--key={}", pki.key_file().display()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).chain(args.iter().copied()).collect();
    run("env", &words)
}

/// Starts etcd in clear on data of a present cluster, whose authentication is off, and removes what is new in it.
fn start_as_before(etcd: &mut Daemon, endpoint: &str) -> Result<()> {
    etcd.start()?;
    let ask = |args: &[&str]| etcdctl(endpoint, None, args);
    eventually("etcd answers in clear", secs(20), || ask(&["get", "/"])).with_context(|| etcd.log_tail())?;
    for prefix in [prefix::TRUST, prefix::IDENTITIES, prefix::REVOKED, prefix::JOINS] {
        ask(&["del", "--prefix", prefix])?;
    }
    for kind in ["user", "role"] {
        for name in ask(&[kind, "list"])?.split_whitespace() {
            ask(&[kind, "delete", name])?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.with_context(|| path.display().to_string())
}

// Several machines with an etcd of the user's.

#[test]
fn a_cluster_with_an_etcd_of_the_users_gets_certificates_and_no_container_is_touched() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let far = web("far").on(&cluster.numbered(2)?.name).to_string();
        let mut changes = shop().to_vec();
        changes.push(Change::write("far.yaml", far));
        cluster.push(&changes, "Open")?;
        cluster.running("far", &["web"])?;
        all_serves(cluster)?;
        cluster.settled()?;
        let before = state(cluster)?;

        let in_clear = clients(cluster, "http");
        let (data, peer) = (cluster.etcd.data_dir().to_owned(), cluster.slot().port(5));
        let of_etcd = |clients: &str, more: &[String]| etcd_command("test", &data, clients, peer, more);
        let mut etcd = Daemon::new("etcd-before", cluster.slot().dir(), of_etcd(&in_clear, &[]));
        leave_as_before(cluster, &mut etcd)?;
        nobody_starts_without_certificates(cluster)?;
        let printed = enabled(cluster)?;

        etcd.end(Signal::SIGTERM, secs(20))?;
        let flags = installed(cluster, &printed)?;
        etcd = Daemon::new("etcd-after", cluster.slot().dir(), of_etcd(&clients(cluster, "https"), &flags));
        etcd.start()?;
        start_with_certificates(cluster).with_context(|| etcd.log_tail())?;
        nothing_was_touched(cluster, &before)?;
        let answered = etcdctl(&format!("http://127.0.0.1:{}", cluster.slot().port(4)), None, &["get", "/"]);
        ensure!(answered.is_err(), "etcd still answers in clear");

        logins_are_on(cluster, &printed)?;
        cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
        cluster.serving("blog", "hello from blog")?;
        let lives = cluster.lives()?;
        ensure!(before.lives.iter().all(|(id, since)| lives.get(id) == Some(since)), "{lives:?}");
        Ok(())
    })
}

/// Addresses of etcd for clients, on loopback and among the nodes.
fn clients(cluster: &Cluster, scheme: &str) -> String {
    let (port, underlay) = (cluster.slot().port(4), cluster.slot().underlay(1));
    format!("{scheme}://127.0.0.1:{port},{scheme}://{underlay}:{port}")
}

/// Reconciler with an etcd that is not the cluster's own.
fn serve_command(cluster: &Cluster) -> Vec<String> {
    let command = cluster.serve_command(0).into_iter();
    command.filter(|word| word != "--own-etcd").collect()
}

fn own_pki(cluster: &Cluster) -> TrustDir {
    TrustDir::new(cluster.dir("state-r0/reconciler/pki"))
}

/// Stops all daemons, and leaves etcd in clear and state directories without certificates.
fn leave_as_before(cluster: &mut Cluster, etcd: &mut Daemon) -> Result<()> {
    cluster.etcd.etcdctl(&["auth", "disable"])?;
    cluster.reconcilers[0].kill()?;
    cluster.nodes.iter_mut().try_for_each(|node| node.agent.kill())?;
    cluster.etcd.daemon.end(Signal::SIGTERM, secs(20))?;
    start_as_before(etcd, &format!("http://127.0.0.1:{}", cluster.slot().port(4)))?;
    remove(own_pki(cluster).path())?;
    for node in &cluster.nodes {
        ["agent/pki", "agent/cluster.json"]
            .iter()
            .try_for_each(|name| remove(&node.state_dir().join(name)))?;
    }
    Ok(())
}

/// Checks that neither daemon starts, and that each names the one command.
fn nobody_starts_without_certificates(cluster: &Cluster) -> Result<()> {
    refused(&start(&serve_command(cluster))?, &["served a cluster without certificates", "trust enable"])?;
    let node = cluster.numbered(1)?;
    let run = node.agent_command("run", &cluster.etcd_for_nodes());
    refused(&start(&run)?, &["has no certificate", &format!("minik8s token create --node {}", node.name)])?;
    ensure!(!own_pki(cluster).path().exists(), "a daemon that was refused made an authority");
    Ok(())
}

fn enable(cluster: &Cluster) -> Result<Outcome> {
    let (state_dir, etcd) = (cluster.dir("state-r0"), clients(cluster, "http"));
    let mut command = Command::new(minik8s_binary());
    command.args(["trust", "enable", "--name", "r0", "--etcd", &etcd, "--state-dir"]).arg(state_dir);
    outcome(&mut command, secs(60))
}

/// Enables trust once no heartbeat is left; returns what is printed.
fn enabled(cluster: &Cluster) -> Result<String> {
    let said = enable(cluster)?;
    refused(&said, &["daemons of the cluster run", &format!("the agent of node {}", cluster.node().name)])?;
    ensure!(!own_pki(cluster).path().exists(), "an authority while daemons run");
    let printed = eventually("all heartbeats have ended", secs(60), || enable(cluster)?.ok())?;
    for node in &cluster.nodes {
        ensure!(printed.contains(&format!("minik8s token create --node {}", node.name)), "{printed}");
    }
    let authority = own_pki(cluster).read("authority.pem")?;
    enable(cluster)?.ok()?;
    ensure!(own_pki(cluster).read("authority.pem")? == authority, "a second authority");
    Ok(printed)
}

/// Copies etcd's certificate as the printed commands do; returns the printed flags.
fn installed(cluster: &Cluster, printed: &str) -> Result<Vec<String>> {
    let from = printed.split_whitespace().find_map(|word| word.strip_suffix("/*.pem"));
    let (from, to) = (from.context("no folder is printed")?, cluster.dir("etcd-pki"));
    fs::create_dir_all(&to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    let flags = printed.lines().map(str::trim).filter(|line| line.starts_with("--"));
    let flags: Vec<String> = flags.map(|flag| flag.replace(ETCD_FOLDER, &to.display().to_string())).collect();
    ensure!(flags.len() == 5, "{flags:?}");
    Ok(flags)
}

/// Starts the reconciler, and each node's agent with a token.
fn start_with_certificates(cluster: &mut Cluster) -> Result<()> {
    let command = serve_command(cluster);
    cluster.reconcilers[0].set_command(command);
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    let etcd = cluster.etcd_for_nodes();
    for index in 0..cluster.nodes.len() {
        let name = cluster.nodes[index].name.clone();
        let PrintedToken { url, token } = PrintedToken::create(cluster, &["--node", &name])?;
        let mut command = cluster.nodes[index].agent_command("join", &etcd);
        command.extend([url, "--token".to_owned(), token.to_string()]);
        cluster.nodes[index].agent.set_command(command);
        cluster.nodes[index].agent.start()?;
    }
    eventually("all nodes are Ready", secs(45), || {
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        let ready = nodes.lines().filter(|row| row.contains("Ready") && !row.contains("NotReady"));
        ensure!(ready.count() == cluster.nodes.len(), "{nodes}");
        Ok(())
    })
}

/// Switches authentication on with the printed command, once each daemon has its user.
fn logins_are_on(cluster: &Cluster, printed: &str) -> Result<()> {
    let (endpoint, own) = (cluster.etcd.endpoint(), own_pki(cluster));
    eventually("all have a user of etcd", secs(90), || {
        let users = etcdctl(endpoint, Some(&own), &["user", "list"])?;
        let nodes = cluster.nodes.iter().map(|node| format!("node-{}", node.name));
        let missing: Vec<String> = nodes
            .chain(["root", "reconciler-r0"].map(str::to_owned))
            .filter(|name| !users.lines().any(|user| user == name))
            .collect();
        ensure!(missing.is_empty(), "{missing:?}");
        Ok(())
    })?;
    let line = printed.lines().find(|line| line.trim().starts_with("etcdctl "));
    run("env", &["ETCDCTL_API=3", "sh", "-c", line.context("no etcdctl is printed")?.trim()])?;
    let node = TrustDir::new(cluster.numbered(1)?.state_dir().join("agent/pki"));
    let other = Key::Heartbeat(cluster.numbered(2)?.name.clone()).to_string();
    let said = etcdctl(endpoint, Some(&node), &["put", &other, "{}"]);
    let is_refused = said.as_ref().is_err_and(|why| format!("{why:#}").contains("permission denied"));
    ensure!(is_refused, "a node wrote {other}: {said:?}");
    Ok(())
}

// One machine, where `up` runs a private etcd.

#[test]
fn a_machine_of_an_earlier_up_gets_certificates_by_the_next_one() -> Result<()> {
    // Only the slot, the repository and the tools.
    let cluster = Cluster::prepare(ClusterOptions::default())?;
    let mut up = Daemon::new("up", cluster.slot().dir(), up_down::up_command(&cluster));
    let told = machine_story(&cluster, &mut up);
    if told.is_err() {
        eprintln!("---- up ----\n{}", up.log_tail());
    }
    up.kill()?;
    let mut down = Command::new(minik8s_binary());
    let down = outcome(down.args(["down", "--state-dir"]).arg(cluster.dir("up-state")), secs(60));
    told?;
    down?.ok().map(drop)
}

fn machine_story(cluster: &Cluster, up: &mut Daemon) -> Result<()> {
    cluster.repo.push(&shop(), "Open")?;
    up.start()?;
    up_down::answers(cluster)?;
    all_serves(cluster)?;
    let (before, dir, port) = (state(cluster)?, cluster.dir("up-state"), cluster.slot().port(8));
    let [own, agent] = ["reconciler/pki", "agent/pki"].map(|name| TrustDir::new(dir.join(name)));
    etcdctl(&format!("https://127.0.0.1:{port}"), Some(&own), &["auth", "disable"])?;
    ensure!(up.end(Signal::SIGINT, secs(30))?.success(), "up did not end well");

    let in_clear = format!("http://127.0.0.1:{port}");
    let command = etcd_command("minik8s", &dir.join("etcd"), &in_clear, port + 1, &[]);
    let mut etcd = Daemon::new("etcd-before", cluster.slot().dir(), command);
    start_as_before(&mut etcd, &in_clear)?;
    let members = etcdctl(&in_clear, None, &["member", "list"])?;
    let id = members.split(',').next().context("no member")?;
    let peer = format!("--peer-urls=http://127.0.0.1:{}", port + 1);
    etcdctl(&in_clear, None, &["member", "update", id.trim(), &peer])?;
    etcd.end(Signal::SIGTERM, secs(20))?;
    for path in [own.path(), agent.path()] {
        remove(path)?;
    }
    let _ = fs::remove_file(dir.join("agent/cluster.json"));
    let file = dir.join("up.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&file)?)?;
    let fields = record.as_object_mut().context("up.json is no map")?;
    fields.retain(|name, _| !NEW_FIELDS.contains(&name.as_str()));
    fs::write(&file, record.to_string())?;

    up.start()?;
    up_down::answers(cluster)?;
    nothing_was_touched(cluster, &before)?;
    ensure!(etcdctl(&in_clear, None, &["get", "/"]).is_err(), "etcd answers in clear");
    cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "Another")?;
    cluster.serving("blog", "hello from blog")?;
    ensure!(up.end(Signal::SIGINT, secs(30))?.success(), "up did not end well");
    Ok(())
}
