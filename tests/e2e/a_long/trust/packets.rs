//! Packets on the links between machines, while a node joins, pods are pushed, logs are read, and, in a soak, functions
//! are built, sent to another node and called, and a workflow runs: nothing of it is there in clear, but for the requests
//! of pods within the tunnel.

use std::net::UdpSocket;
use std::time::{SystemTime, UNIX_EPOCH};

use harness::manifests::web;
use harness::{
    Capture, Change, Cluster, ClusterOptions, Context, IMAGE, Node, PrintedToken, Result, Where, ensure,
    eventually, node_is_ready, run, secs,
};

use super::is_soak;
use crate::functions::{code, manifest};
use crate::workflows;
use crate::workloads::node_file;

/// Port of the machine to which a datagram in clear is sent, for nobody.
const DISCARD: u16 = 9;

/// A text that is nowhere else.
fn canary(what: &str) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(format!("canary-{what}-{:x}", now.as_nanos()))
}

/// Captures on the links of all nodes: within the tunnel, and outside of it.
struct Links {
    tunnel: Vec<Capture>,
    outside: Vec<Capture>,
}

impl Links {
    fn watch(cluster: &Cluster) -> Result<Self> {
        let tunnel = format!("udp port {}", cluster.slot().port(8));
        let capture = |name: &str, filter: &str| -> Result<Vec<Capture>> {
            let dir = cluster.slot().dir();
            cluster.nodes.iter().map(|node| Capture::start(node, dir, name, filter)).collect()
        };
        Ok(Self {
            tunnel: capture("tunnel", &tunnel)?,
            outside: capture("outside", &format!("not {tunnel}"))?,
        })
    }

    /// Sends a datagram in clear from each node, and waits until the captures outside of the tunnel have it: they have all
    /// that was sent before, too.
    fn have_all(&self, cluster: &Cluster) -> Result<()> {
        let text = canary("in-clear")?;
        for node in &cluster.nodes {
            let to = (cluster.slot().underlay(1), DISCARD);
            node.net.within(|| {
                // Nobody listens, which is of no interest.
                UdpSocket::bind("0.0.0.0:0")?.send_to(text.as_bytes(), (to.0.as_str(), to.1))?;
                Ok(())
            })?;
        }
        for capture in &self.outside {
            eventually("the capture has a datagram in clear", secs(20), || {
                ensure!(capture.has(&text)?, "{} does not", capture.name);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.tunnel.iter_mut().chain(&mut self.outside).try_for_each(Capture::end)
    }
}

#[test]
fn between_machines_nothing_is_in_clear_but_what_pods_send_in_the_tunnel() -> Result<()> {
    let (place, python) = (Where::Namespaces(2), is_soak());
    let mut cluster = Cluster::prepare(ClusterOptions { place, python, ..ClusterOptions::default() })?;
    cluster.run_story(|cluster| {
        let fresh = cluster.nodes.pop().context("no node")?;
        std::fs::remove_dir_all(fresh.state_dir())?;
        cluster.start_all()?;
        cluster.nodes.push(fresh);
        let mut links = Links::watch(cluster)?;
        let mut secrets = vec![joins(cluster)?];
        let within = pods(cluster, &mut secrets)?;
        if python {
            functions(cluster, &mut secrets)?;
            runs(cluster, &mut secrets)?;
        }
        links.have_all(cluster)?;
        links.end()?;
        // Would fail with a capture that sees nothing: pods speak in clear in the tunnel.
        for capture in &links.tunnel {
            ensure!(capture.has(&within)?, "{} has no request of a pod", capture.name);
        }
        for capture in &links.outside {
            for secret in secrets.iter().chain([&within]) {
                ensure!(!capture.has(secret)?, "{} has {secret}", capture.name);
            }
        }
        println!("packets: {} texts, none in clear on {} links", secrets.len() + 1, links.outside.len());
        Ok(())
    })
}

/// Lets the second node join; returns the secret of its token.
fn joins(cluster: &mut Cluster) -> Result<String> {
    let name = cluster.numbered(2)?.name.clone();
    let PrintedToken { url, token } = PrintedToken::create(cluster, &["--node", &name])?;
    let mut command = cluster.numbered(2)?.agent_command("join", "");
    command.extend([url, "--token".to_owned(), token.to_string()]);
    cluster.nodes[1].agent.set_command(command);
    cluster.nodes[1].agent.start()?;
    eventually("the node is ready", secs(60), || node_is_ready(cluster, &name))?;
    Ok(token.secret)
}

/// Pushes pods to both nodes, reads their logs, and lets one node ask the pod of the other; returns the answer of that.
fn pods(cluster: &Cluster, secrets: &mut Vec<String>) -> Result<String> {
    let (label, log, within) = (canary("label")?, canary("log")?, canary("within")?);
    let mut changes = Vec::new();
    for number in 1..=2 {
        let (name, node) = (format!("web-{number}"), &cluster.numbered(number)?.name);
        let pod = web(&name).greeting(&within).label("canary", &label).on(node);
        changes.push(Change::write(format!("{name}.yaml"), pod.to_string()));
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: talks-{number}}}\nspec:\n  nodeName: {node}\n  \
             terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {IMAGE}\n    \
             command: [sh, -c, 'echo {log}-$((40 + 2)); exec sleep 100000']\n"
        );
        changes.push(Change::write(format!("talks-{number}.yaml"), text));
    }
    cluster.push(&changes, "Pods")?;
    for number in 1..=2 {
        cluster.running(&format!("talks-{number}"), &["main"])?;
        eventually("the log is shown", secs(30), || {
            let said = cluster.cli(&["logs", &format!("talks-{number}")])?.ok()?;
            ensure!(said.contains(&format!("{log}-42")), "{said}");
            Ok(())
        })?;
    }
    let pods = [cluster.running("web-1", &["web"])?, cluster.running("web-2", &["web"])?];
    for (node, pod) in cluster.nodes.iter().zip(pods.iter().rev()) {
        let url = format!("http://{}:8080/", pod.address()?);
        eventually("the pod of the other node answers", secs(30), || {
            let said = node.net.run("curl", &["-sSf", "-m", "5", &url])?;
            ensure!(said.trim() == within, "{said}");
            Ok(())
        })?;
    }
    secrets.extend([label, log]);
    Ok(within)
}

/// True if the node runs a replica of the function.
fn runs_at(cluster: &Cluster, node: &Node, name: &str) -> Result<bool> {
    let all = node.docker.containers(&cluster.slot().instance())?;
    let is_replica = |pod: &str| pod.starts_with(&format!("{name}-"));
    Ok(all.iter().any(|c| c.running && c.label("container") == "function" && is_replica(c.label("pod"))))
}

/// Pushes a function that one node builds and the other takes from it, and calls it from both nodes and the machine.
fn functions(cluster: &Cluster, secrets: &mut Vec<String>) -> Result<()> {
    let (source, body) = (canary("source")?, canary("body")?);
    let text = format!("# {source}\ndef main(params):\n    return {{'said': params.get('word')}}\n");
    let builder = node_file(&cluster.numbered(1)?.name, "minik8s.io/build: \"true\"", "");
    let changes = [builder, manifest("echo", "  minScale: 2\n"), code("echo", "main.py", &text)];
    cluster.push(&changes, "A function")?;
    eventually("both nodes run it", secs(240), || {
        for node in &cluster.nodes {
            ensure!(runs_at(cluster, node, "echo")?, "{} does not", node.name);
        }
        Ok(())
    })?;
    let built = cluster.numbered(2)?.state_dir().join("agent/builds");
    let logs = std::fs::read_dir(built).map_or(0, |all| {
        all.flatten().filter(|file| file.path().extension().is_some_and(|end| end == "log")).count()
    });
    ensure!(logs == 0, "the second node has built the image itself");
    let call = format!("{{\"word\": \"{body}\"}}");
    let pki = cluster.trust.reconciler("r0")?;
    let [certificate, key] =
        [pki.certificate_file(), pki.key_file()].map(|file| file.to_string_lossy().into_owned());
    for node in &cluster.nodes {
        // Replicas of both nodes answer, one after the other.
        for _ in 0..10 {
            let words = ["-sSf", "-m", "60", "-d", &call, "http://127.0.0.1:8081/default/echo"];
            let said = node.net.run("curl", &words)?;
            ensure!(said.contains(&body), "{said}");
        }
        // As another machine calls it; the certificate of a node names no address.
        let url = format!("https://{}/default/echo", node.functions()?);
        let words = ["-sSf", "-k", "-m", "60", "--cert", &certificate, "--key", &key, "-d", &call, &url];
        let said = run("curl", &words)?;
        ensure!(said.contains(&body), "{said}");
    }
    secrets.extend([source, body]);
    Ok(())
}

/// Runs a workflow over the function.
fn runs(cluster: &Cluster, secrets: &mut Vec<String>) -> Result<()> {
    let input = canary("input")?;
    let text = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: echoes}\nspec:\n  startAt: first\n  \
                states:\n    first: {type: Task, function: echo, resultPath: $.once, next: second}\n    \
                second: {type: Task, function: echo, end: true}\n";
    cluster.push(&[Change::write("echoes.yaml", text)], "A workflow")?;
    let (ok, output) = workflows::run(cluster, "echoes", &format!("{{\"word\": \"{input}\"}}"), "one")?;
    ensure!(ok && output["said"] == *input, "{output}");
    secrets.push(input);
    Ok(())
}
