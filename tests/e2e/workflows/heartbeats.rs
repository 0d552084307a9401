//! Tasks with `heartbeatSeconds`: a function that sends heartbeats is waited for, and a silent one is given up.

use harness::{Node, Where};

use super::*;
use crate::functions::{code, manifest};

/// Works for 8 s, and sends two heartbeats per second if requested.
const SLOW: &str = "import os
import time
import urllib.request


def main(params):
    url = os.environ['MINIK8S_HEARTBEAT_URL']
    for _ in range(16):
        if params['beats']:
            urllib.request.urlopen(url, data=b'', timeout=5).read()
        time.sleep(0.5)
    return {'url': url}
";

/// Two concurrent calls through the gateways of two nodes, one of which has the replica.
const FLOW: &str = r"
apiVersion: minik8s.io/v1
kind: Workflow
metadata: {name: patient}
spec:
  startAt: both
  states:
    both:
      type: Parallel
      end: true
      branches:
      - {startAt: a, states: {a: {type: Task, function: slow, timeoutSeconds: 60, heartbeatSeconds: 3, end: true}}}
      - {startAt: b, states: {b: {type: Task, function: slow, heartbeatSeconds: 3, end: true}}}
";

#[test]
fn a_function_that_beats_is_waited_for_and_one_that_is_silent_is_not() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..one_node() };
    Cluster::run(options, |cluster| {
        let spec = "  minScale: 1\n  maxScale: 1\n  concurrency: 4\n";
        let changes =
            [manifest("slow", spec), code("slow", "main.py", SLOW), Change::write("flow.yaml", FLOW)];
        let commit = cluster.push(&changes, "A slow function")?;
        cluster.applied(&commit)?;
        eventually("the function is ready", secs(120), || {
            let found: Value =
                serde_json::from_str(&cluster.cli(&["get", "function", "slow", "-o", "json"])?.ok()?)?;
            ensure!(found["health"] == "Healthy", "{}", found["health"]);
            Ok(())
        })?;
        cluster.cli(&["run", "patient", "-d", r#"{"beats": false}"#, "--id", "silent"])?.ok()?;
        let (ok, output) = run(cluster, "patient", r#"{"beats": true}"#, "alive")?;
        let urls = [0, 1].map(|branch| output[branch]["url"].as_str().unwrap_or_default().to_owned());
        ensure!(ok && urls.iter().all(|url| url.starts_with("http://")), "{output:#}");
        let at = |url: &str| url.split("/_/").next().map(str::to_owned);
        ensure!(at(&urls[0]) != at(&urls[1]), "both went through one gateway: {urls:?}");
        let silent = ended(cluster, "patient", "silent")?;
        ensure!(silent["phase"] == "Failed" && silent["error"] == "States.HeartbeatTimeout", "{silent:#}");
        // The calls have ended: heartbeats for them are no longer accepted.
        for url in urls {
            // At the bridge of the node whose gateway passed the call on.
            let host = url.split(['/', ':']).nth(3).context("no host")?.to_owned();
            let has_it = |node: &&Node| {
                node.net
                    .addresses()
                    .is_ok_and(|all| all.iter().any(|line| line.contains(&format!(" {host}/"))))
            };
            let node = cluster.nodes.iter().find(has_it).with_context(|| format!("no node has {host}"))?;
            let words = ["-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", &url];
            let status = node.net.run("curl", &words)?;
            ensure!(status == "404", "{url}: {status}");
        }
        Ok(())
    })
}
