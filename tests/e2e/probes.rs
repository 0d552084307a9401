//! Probes and hooks on a real node: the agent queries the pod at its own address.
//!
//! Seen red when the probe's answer is not checked for a status from 200 to 399.

use std::io::{Read, Write};
use std::net::TcpListener;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, HttpsServer, Result, ensure, eventually, holds, secs,
};
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::Heartbeat;

/// Generous timeouts: an exec that takes longer than its second on a busy machine is no failure.
const PROBES: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}\n    \
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}\n    \
    livenessProbe: {exec: {command: [test, '!', -e, /tmp/sick]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}\n";

fn status(cluster: &Cluster) -> Result<PodStatus> {
    cluster.etcd.value(Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "shop")))
}

/// Waits until the pod is reported ready, or not; returns the time of the change.
fn ready(cluster: &Cluster, wanted: bool) -> Result<String> {
    eventually(&format!("ready: {wanted}"), secs(30), || {
        let status = status(cluster)?;
        let ready = status.conditions.iter().find(|c| c.kind == "Ready").context("no condition")?;
        ensure!((ready.status == ConditionStatus::True) == wanted, "{ready:?}");
        Ok(ready.last_transition_time.to_string())
    })
}

#[test]
fn readiness_follows_the_answer_and_liveness_restarts_one_container() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let shop = web("shop").container_fields(PROBES).with_sidecar().to_string();
        cluster.push(&[Change::write("shop.yaml", shop)], "Open")?;
        let before = cluster.running("shop", &["files", "web"])?;
        ready(cluster, true)?;
        let docker = cluster.node().docker.clone();
        let web = before.container("web")?;

        docker.exec(web, &["mv", "/data/index.html", "/data/away"])?;
        ready(cluster, false)?;
        docker.exec(web, &["mv", "/data/away", "/data/index.html"])?;
        let since = ready(cluster, true)?;
        ensure!(cluster.pod("shop")?.lives() == before.lives(), "readiness restarts nothing");

        // The next agent trusts the state of the former one.
        let beat =
            || -> Result<Heartbeat> { cluster.etcd.value(Key::Heartbeat(cluster.node().name.clone())) };
        let former = beat()?.since;
        cluster.node_mut().agent.kill()?;
        cluster.start_agent()?;
        let node = cluster.node().name.clone();
        eventually("the next agent is at work", secs(30), || {
            let now: Heartbeat = cluster.etcd.value(Key::Heartbeat(node.clone()))?;
            ensure!(now.since != former);
            Ok(())
        })?;
        ensure!(ready(cluster, true)? == since, "it was never unready");

        docker.exec(web, &["touch", "/tmp/sick"])?;
        let after = eventually("another web", secs(40), || {
            let pod = cluster.pod("shop")?;
            ensure!(pod.container("web")?.id != web.id);
            Ok(pod)
        })?;
        ensure!(after.container("files")? == before.container("files")? && after.pause == before.pause);
        ready(cluster, true)?;
        ensure!(status(cluster)?.container_statuses.iter().any(|c| c.name == "web" && c.restart_count == 1));
        let said = cluster.cli(&["describe", "pod/shop"])?.ok()?;
        ensure!(said.contains("Unhealthy") && said.contains("failed liveness probe"), "{said}");
        Ok(())
    })
}

const WELL: &str =
    "{exec: {command: [test, -e, /tmp/well]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: ";

// Seen red with the state of a container kept by its id alone: it counts as started, and its
// liveness probe kills it.
#[test]
fn a_container_that_is_restarted_by_hand_begins_with_its_startup_probe_again() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let probes = format!(
            "    startupProbe: {WELL}600}}\n    readinessProbe: {WELL}600}}\n    livenessProbe: {WELL}1}}\n"
        );
        let shop = web("shop").container_fields(&probes).to_string();
        cluster.push(&[Change::write("shop.yaml", shop)], "Open")?;
        let before = cluster.running("shop", &["web"])?;
        let (docker, web) = (cluster.node().docker.clone(), before.container("web")?.clone());
        docker.exec(&web, &["touch", "/tmp/well"])?;
        ready(cluster, true)?;
        // With the agent away, because it might replace the container just as quickly.
        cluster.node_mut().agent.kill()?;
        docker.exec(&web, &["rm", "/tmp/well"])?;
        docker.run(&["restart", &web.id])?;
        cluster.start_agent()?;
        ready(cluster, false)?;
        holds("it is neither ready nor ended", secs(4), || {
            let now = cluster.pod("shop")?;
            let shown = status(cluster)?;
            ensure!(now.container("web")?.id == web.id && !shown.is_ready(), "{shown:?}");
            ensure!(
                shown.container_statuses.iter().all(|one| !one.started && one.restart_count == 0),
                "{shown:?}"
            );
            Ok(())
        })?;
        docker.exec(&web, &["touch", "/tmp/well"])?;
        ready(cluster, true)?;
        ensure!(cluster.pod("shop")?.container("web")?.id == web.id);
        Ok(())
    })
}

#[test]
fn a_hook_by_http_comes_before_the_end_also_of_a_pod_whose_binding_is_gone() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let hook = format!(
            "    lifecycle: {{preStop: {{httpGet: {{path: /bye, port: {port}, host: 127.0.0.1}}}}}}\n"
        );
        let shop = web("shop").container_fields(&hook).to_string();
        cluster.push(
            &[Change::write("shop.yaml", shop), Change::write("keep.yaml", web("keep").to_string())],
            "Open",
        )?;
        let pod = cluster.running("shop", &["web"])?;
        cluster.repo.push(&[Change::remove("shop.yaml")], "Close")?;
        let (mut asked, _) = listener.accept()?;
        asked.set_read_timeout(Some(secs(10)))?;
        let mut request = [0; 512];
        let length = asked.read(&mut request)?;
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        ensure!(request.starts_with("GET /bye "), "{request}");
        // While the hook is unanswered, the container lives.
        let web = pod.container("web")?;
        ensure!(
            cluster.containers()?.iter().any(|c| c.id == web.id && c.running),
            "it ended before its hook"
        );
        // It is terminating from the first moment.
        eventually("it is not ready", secs(10), || {
            let status = status(cluster)?;
            ensure!(status.is_terminating() && !status.is_ready() && !status.has_ended(), "{status:?}");
            Ok(())
        })?;
        let shown = cluster.cli(&["get", "pods"])?.ok()?;
        ensure!(shown.lines().any(|line| line.contains("shop") && line.contains("Terminating")), "{shown}");
        asked.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        cluster.gone("shop")
    })
}

// As in Kubernetes, the certificate's issuer is not checked.
#[test]
fn a_probe_by_https_takes_any_certificate_and_follows_the_answer() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let server = HttpsServer::serve(&cluster.dir("unknown-ca.pem"))?;
        let probe = format!(
            "    readinessProbe: {{httpGet: {{scheme: HTTPS, host: 127.0.0.1, port: {}}}, periodSeconds: 1, \
             failureThreshold: 1}}\n",
            server.port
        );
        let shop = web("shop").container_fields(&probe).to_string();
        cluster.push(&[Change::write("shop.yaml", shop)], "Open")?;
        ready(cluster, true)?;
        server.be_sick(true);
        ready(cluster, false)?;
        server.be_sick(false);
        ready(cluster, true).map(|_| ())
    })
}
