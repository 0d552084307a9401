//! A node joins with the one command that a token prints, and is Ready with a pod seconds later; no other token, name,
//! secret or authority lets anybody in. A person elsewhere sees the cluster by a file, and a second reconciler joins and
//! goes on when the first is killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, Outcome, PrintedToken, Result, Where, anonymous_get,
    anonymous_post, ensure, eventually, holds, http_get, minik8s_binary, outcome, secs,
};
use schema::keys::Key;
use schema::trust::{Identity, JoinToken, KeyPair, Role, TrustDir};
use serde_json::json;

/// Wrong secrets that are tried.
const WRONG: usize = 200;

/// Asks for a certificate as a machine that joins; returns status code and answer.
fn ask(cluster: &Cluster, reconciler: u16, token: &JoinToken, identity: &str) -> Result<(u16, String)> {
    let wanted: Identity = identity.parse()?;
    let body = json!({
        "token": token.id, "secret": token.secret, "identity": identity,
        "signingRequest": KeyPair::generate()?.signing_request(&wanted)?,
    });
    let pki = cluster.trust.user()?;
    anonymous_post(&cluster.listen(reconciler), "/v1/join", &pki, &body.to_string())
}

fn refused(said: &Outcome, words: &[&str]) -> Result<()> {
    let is_clear = words.iter().all(|word| said.stderr.contains(word));
    ensure!(said.code != 0 && is_clear, "{words:?}: {said:?}");
    Ok(())
}

#[test]
fn a_node_a_person_and_a_reconciler_join_with_their_token_and_nobody_else() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::prepare(options)?.run_story(|cluster| {
        let fresh = cluster.nodes.pop().context("no node")?;
        std::fs::remove_dir_all(fresh.state_dir())?;
        cluster.start_all()?;
        let pod = web("there").on(&fresh.name).to_string();
        cluster.push(&[Change::write("there.yaml", pod)], "A pod for the node that joins")?;
        cluster.nodes.push(fresh);

        nobody_without_a_certificate(cluster)?;
        a_node_joins(cluster)?;
        its_certificate_is_its_own(cluster)?;
        a_person_joins(cluster)?;
        a_reconciler_joins_and_leads(cluster)
    })
}

/// Row 1 of the doors, and the same at the API: no certificate, no access.
fn nobody_without_a_certificate(cluster: &Cluster) -> Result<()> {
    let (api, pki) = (cluster.listen(0), cluster.trust.user()?);
    for path in ["/v1/pods", "/v1/nodes", "/v1/tokens", "/", "/metrics"] {
        let (code, said) = anonymous_get(&api, path, &pki)?;
        ensure!(code == 401, "{path}: {code} {said}");
    }
    let said = anonymous_get(&api, "/v1/pods", &pki)?.1;
    ensure!(said.contains("certificate") && said.contains("minik8s user add"), "{said}");
    ensure!(http_get(&api, "/v1/pods").is_err(), "the API answers in clear");
    let stranger = harness::Trust::create(&cluster.dir("strangers"), &[])?.reconciler("r0")?;
    stranger.write_authorities(&pki.authorities()?)?;
    ensure!(harness::tls_get(&api, "/v1/pods", &stranger).is_err(), "of another authority");
    ensure!(cluster.etcd.etcdctl_as(&stranger, &["put", "/minik8s/x", "y"]).is_err(), "etcd, too");
    Ok(())
}

/// Runs `minik8s-agent join` on the second node, with these words, to its end.
fn join(cluster: &Cluster, words: &[&str]) -> Result<Outcome> {
    let mut command = cluster.numbered(2)?.agent_command("join", "");
    command.extend(words.iter().chain(&["--no-run"]).map(|word| (*word).to_owned()));
    outcome(Command::new(&command[0]).args(&command[1..]), secs(60))
}

fn a_node_joins(cluster: &mut Cluster) -> Result<()> {
    let name = cluster.numbered(2)?.name.clone();
    let (first, identity) = (cluster.numbered(1)?.name.clone(), format!("node-{name}"));
    // An agent that has not joined says what to do.
    let run = cluster.numbered(2)?.agent_command("run", &cluster.etcd_for_nodes());
    let said = outcome(Command::new(&run[0]).args(&run[1..]), secs(60))?;
    refused(&said, &["has not joined", "minik8s token create --node"])?;

    let PrintedToken { url, token } = PrintedToken::create(cluster, &["--node", &name])?;
    let mut answers = BTreeSet::new();
    for _ in 0..WRONG {
        let wrong = JoinToken { id: token.id.clone(), ..JoinToken::create(&token.pin)? };
        answers.insert(ask(cluster, 0, &wrong, &identity)?);
    }
    // Row 3: another node's name, a reconciler's, and an id that there is not.
    answers.insert(ask(cluster, 0, &token, &format!("node-{first}"))?);
    answers.insert(ask(cluster, 0, &token, "reconciler-r1")?);
    answers.insert(ask(cluster, 0, &JoinToken::create(&token.pin)?, &identity)?);
    ensure!(answers.len() == 1 && answers.iter().all(|(code, _)| *code == 401), "{answers:?}");
    let other = JoinToken { pin: "ab".repeat(32), ..token.clone() }.to_string();
    refused(&join(cluster, &[&url, "--token", &other])?, &["authority"])?;
    let pki = cluster.numbered(2)?.state_dir().join("agent/pki/certificate.pem");
    ensure!(!pki.exists(), "a refused agent has a certificate");

    let begun = Instant::now();
    let mut command = cluster.numbered(2)?.agent_command("join", "");
    command.extend([url.as_str(), "--token", &token.to_string()].map(str::to_owned));
    cluster.nodes[1].agent.set_command(command);
    cluster.nodes[1].agent.start()?;
    eventually("the node is Ready", secs(30), || {
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        let row = nodes.lines().find(|row| row.starts_with(&name)).context("it is not listed")?;
        ensure!(row.contains("Ready") && !row.contains("NotReady"), "{row}");
        Ok(())
    })?;
    let ready = begun.elapsed();
    cluster.running("there", &["web"])?;
    println!("join: Ready after {ready:.1?}, first pod running after {:.1?}", begun.elapsed());
    cluster.serving("there", "hello from there")?;

    let (code, said) = ask(cluster, 0, &token, &identity)?;
    ensure!(code == 401 && said.contains("used already"), "{code} {said}");
    let late = PrintedToken::create(cluster, &["--node", "late", "--ttl", "1s"])?.token;
    holds("its second is over", secs(2), || Ok(()))?;
    let (code, said) = ask(cluster, 0, &late, "node-late")?;
    ensure!(code == 401 && said.contains("ended at"), "{code} {said}");
    let events = cluster.cli(&["events", "-A"])?.ok()?;
    ensure!(events.contains(&name), "{events}");
    Ok(())
}

/// Row 2 of the doors: a node writes no key of another one.
fn its_certificate_is_its_own(cluster: &Cluster) -> Result<()> {
    let (own, other) = (cluster.numbered(2)?, &cluster.numbered(1)?.name);
    let pki = TrustDir::new(own.state_dir().join("agent/pki"));
    let tries = |key: Key| cluster.etcd.etcdctl_as(&pki, &["put", &key.to_string(), "{}"]);
    tries(Key::Event(own.name.clone(), "default".to_owned(), "0-0".to_owned()))?;
    for key in [Key::Node(other.clone()), Key::Heartbeat(other.clone()), Key::Leader, Key::Trust] {
        let said = tries(key.clone());
        let is_refused = said.as_ref().is_err_and(|why| format!("{why:#}").contains("permission denied"));
        ensure!(is_refused, "{key}: {said:?}");
    }
    // At the API, a node gets no more than its content.
    let (code, said) = harness::tls_get(&cluster.listen(0), "/v1/pods", &pki)?;
    ensure!(code == 403, "{code} {said}");
    Ok(())
}

fn a_person_joins(cluster: &Cluster) -> Result<()> {
    let file = cluster.dir("ada.json");
    cluster.cli(&["user", "add", "ada", "-o", &file.to_string_lossy()])?.ok()?;
    let as_ada = |words: &[&str]| -> Result<Outcome> {
        let mut command = Command::new(minik8s_binary());
        command.args(words).env_remove("MINIK8S_SERVER").env("MINIK8S_CONFIG", &file);
        outcome(&mut command, secs(60))
    };
    let pods = as_ada(&["get", "pods"])?.ok()?;
    ensure!(pods.contains("there"), "{pods}");
    for words in
        [&["token", "create", "--node", "x"][..], &["user", "add", "eve"], &["user", "remove", "ada"]]
    {
        let said = as_ada(words)?;
        ensure!(said.code != 0 && !said.stdout.contains("JOIN_TOKEN"), "{words:?}: {said:?}");
    }
    cluster.cli(&["user", "remove", "ada"])?.ok()?;
    eventually("a removed user is refused", secs(20), || {
        let said = as_ada(&["get", "pods"])?;
        ensure!(said.code != 0, "{said:?}");
        Ok(())
    })
}

/// Runs `minik8s join` for the second reconciler.
fn join_reconciler(state_dir: &Path, printed: &PrintedToken) -> Result<()> {
    let mut command = Command::new(minik8s_binary());
    command.args(["join", &printed.url, "--name", "r1", "--token", &printed.token.to_string()]);
    command.arg("--state-dir").arg(state_dir);
    outcome(&mut command, secs(60))?.ok().map(drop)
}

fn a_reconciler_joins_and_leads(cluster: &mut Cluster) -> Result<()> {
    let printed = PrintedToken::create(cluster, &["--reconciler", "r1"])?;
    join_reconciler(&cluster.dir("state-r1"), &printed)?;
    let mut second = Daemon::new("serve-1", cluster.slot().dir(), cluster.serve_command(1));
    second.start()?;
    cluster.wait_reconciler(1)?;
    let leader = cluster.etcd.key(Key::Leader)?.context("no reconciler leads")?;
    cluster.reconcilers[0].kill()?;
    cluster.etcd.end_lease_of(&leader)?;
    eventually("the second one leads", secs(45), || {
        let leader = cluster.etcd.key(Key::Leader)?.context("none leads")?;
        ensure!(leader.value.contains("\"r1\""), "{}", leader.value);
        Ok(())
    })
    .with_context(|| second.log_tail())?;
    cluster.push(&[Change::write("more.yaml", web("more").to_string())], "To the second one")?;
    cluster.serving("more", "hello from more")?;
    // It has the authority: it admits a node by itself.
    let mut create = cluster.cli_command(&["token", "create", "--node", "third"]);
    let said = outcome(create.env("MINIK8S_SERVER", cluster.server(1)), secs(60))?.ok()?;
    let mut words = said.split_whitespace();
    let text = words.find_map(|word| word.strip_prefix("MINIK8S_JOIN_TOKEN=")).context("no token")?;
    let identity = Identity::new(Role::Node, "third")?.to_string();
    let (code, said) = ask(cluster, 1, &text.parse()?, &identity)?;
    ensure!(code == 200 && said.contains("BEGIN CERTIFICATE"), "{code} {said}");
    Ok(())
}
