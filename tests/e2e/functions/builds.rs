//! Network access and resources of a build, and leftovers of an interrupted one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use harness::{IMAGE, eventually, secs};

use super::*;

/// Nodes in namespaces, so that builds run on a node with its own Docker.
fn options(nodes: u8) -> ClusterOptions {
    ClusterOptions { place: Where::Namespaces(nodes), ..ClusterOptions::default() }
}

/// A function from a Dockerfile with these steps. It is never called.
fn with_steps(name: &str, steps: &str) -> [Change; 2] {
    let text = format!("FROM {IMAGE}\n{steps}\nCMD [\"sleep\", \"infinity\"]\n");
    [manifest(name, ""), code(name, "Dockerfile", &text)]
}

fn log_of_build(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.cli(&["logs", &format!("function/{name}"), "--build"])?.ok()
}

/// Listens outside of the cluster, accepts every connection and closes it, until the test ends.
fn world(cluster: &Cluster) -> Result<SocketAddr> {
    taken(TcpListener::bind((cluster.slot().underlay(1), 0))?)
}

/// Accepts connections on the listener.
fn taken(listener: TcpListener) -> Result<SocketAddr> {
    let address = listener.local_addr()?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    Ok(address)
}

/// A step that tries to connect to these, and the printed line for each outcome.
fn tries(targets: &[SocketAddr]) -> String {
    let words: Vec<String> = targets.iter().map(|at| format!("'{} {}'", at.ip(), at.port())).collect();
    format!(
        "RUN for at in {}; do if nc -w 2 $at -e true; then echo \"reached $at\"; else echo \"kept from $at\"; fi; done",
        words.join(" ")
    )
}

#[test]
fn a_build_reaches_the_world_and_neither_the_cluster_nor_its_node() -> Result<()> {
    Cluster::run(options(2), |cluster| {
        let builder = cluster.nodes[0].name.clone();
        let node = format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: {builder}\n  labels: {{minik8s.io/build: \"true\"}}\n"
        );
        let web = Change::write("plain.yaml", harness::manifests::web("plain").to_string());
        cluster.push(&[other_object(), Change::write("node.yaml", node), web], "One node builds")?;
        let pod = cluster.serving("plain", "hello from plain")?;
        let world = world(cluster)?;
        let (own, other) = (cluster.nodes[0].address()?.to_owned(), cluster.nodes[1].address()?.to_owned());
        let at =
            |address: &str, port: u16| -> Result<SocketAddr> { Ok(format!("{address}:{port}").parse()?) };
        let etcd = cluster.etcd_for_nodes();
        let etcd: SocketAddr = etcd.split("//").last().unwrap_or_default().parse()?;
        let guarded = [
            etcd,
            cluster.listen(0).parse()?,
            at(&own, 7071)?,
            at(&own, 8081)?,
            at(&other, 7071)?,
            at(&other, 8081)?,
            // Not a port of ours, unlike a host port.
            taken(cluster.nodes[1].net.within(|| Ok(TcpListener::bind((other.as_str(), 0))?))?)?,
            at(pod.address()?, 8080)?,
        ];
        // The node itself reaches all of them, so it is not their own state that keeps the build out.
        for target in [&guarded[..], &[world]].concat() {
            cluster.node().net.within(|| {
                TcpStream::connect_timeout(&target, secs(5)).with_context(|| target.to_string()).map(drop)
            })?;
        }
        let metadata = at("169.254.169.254", 80)?;
        let cgroup = format!("{}_builds", cluster.slot().instance().replace('-', "_"));
        let tries = tries(&[&guarded[..], &[metadata, world]].concat());
        let steps = format!(
            "{tries}\nRUN cat /proc/self/cgroup; cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>&1 || true"
        );
        // Docker itself would fetch the base.
        let listener = TcpListener::bind((cluster.slot().underlay(1), 0))?;
        listener.set_nonblocking(true)?;
        let based = format!("FROM {}/base:1\n", listener.local_addr()?);
        let based = [manifest("based", ""), code("based", "Dockerfile", &based)];
        cluster.push(&[with_steps("curious", &steps), based].concat(), "Curious builds")?;
        eventually("the base is refused", secs(60), || {
            let described = cluster.cli(&["describe", "function/based"])?.ok()?;
            ensure!(described.contains("no public address"), "{described}");
            Ok(())
        })?;
        ensure!(listener.accept().is_err(), "Docker asked for the base");
        eventually("it is built", secs(120), || {
            let log = log_of_build(cluster, "curious")?;
            ensure!(log.contains(&format!("reached {} {}\n", world.ip(), world.port())), "{log}");
            ensure!(log.contains("100000"), "a core at most: {log}");
            ensure!(log.contains(&format!("/{cgroup}/")), "a cgroup with a bound of processes: {log}");
            for target in guarded.iter().chain([&metadata]) {
                ensure!(log.contains(&format!("kept from {} {}\n", target.ip(), target.port())), "{log}");
            }
            Ok(())
        })?;
        let bound = std::fs::read_to_string(format!("/sys/fs/cgroup/pids/{cgroup}/pids.max"))?;
        ensure!(bound.trim() == "4096", "{bound}");
        its_network_goes_with_the_node(cluster)?;
        ensure!(!std::path::Path::new("/sys/fs/cgroup/pids").join(&cgroup).exists(), "{cgroup} is left");
        Ok(())
    })
}

fn its_network_goes_with_the_node(cluster: &mut Cluster) -> Result<()> {
    let instance = cluster.slot().instance();
    let traces = |node: &Node| -> Result<Vec<String>> {
        let networks = node.docker.run(&["network", "ls", "--format", "{{.Name}}"])?;
        let named = networks.lines().map(str::to_owned).chain(node.net.links()?).chain(node.net.rules()?);
        let marks = [format!("{instance}-builds"), format!("{instance}-b0"), "-BUILDS".to_owned()];
        Ok(named.filter(|line| marks.iter().any(|mark| line.contains(mark))).collect())
    };
    let found = traces(cluster.node())?;
    ensure!(found.len() >= 4, "network, link, chain and jump: {found:?}");
    ensure!(traces(&cluster.nodes[1])?.is_empty(), "one that builds nothing has none of it");
    cluster.node_mut().agent.kill()?;
    let reset = cluster.node().reset()?.ok()?;
    ensure!(reset.contains(&format!("removed network {instance}-builds")), "{reset}");
    let left = traces(cluster.node())?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Leftovers of builds on a node: containers without our labels, unnamed images, images with these names.
fn left_of_builds(cluster: &Cluster) -> Result<(Vec<String>, Vec<String>)> {
    let docker = &cluster.node().docker;
    let all = docker.by_filter("status=running")?.into_iter().chain(docker.by_filter("status=exited")?);
    let strange = all.filter(|one| one.label("instance").is_empty()).map(|one| one.name);
    let nameless = docker.run(&["images", "-q", "--filter", "dangling=true"])?;
    Ok((strange.collect(), nameless.split_whitespace().map(str::to_owned).collect()))
}

#[test]
fn a_build_that_takes_too_much_is_stopped_with_the_reason_and_leaves_nothing_running() -> Result<()> {
    let mut cluster = Cluster::prepare(options(1))?;
    cluster.run_story(|cluster| {
        let agent = &mut cluster.node_mut().agent;
        agent.set_env("MINIK8S_BUILD_TIMEOUT", "25");
        agent.set_env("MINIK8S_BUILD_MEMORY", "32Mi");
        agent.set_env("MINIK8S_BUILD_DISK", "2Gi");
        cluster.start_all()?;
        cluster.push(&[other_object()], "Something")?;
        for (name, steps, said) in [
            ("hungry", "RUN tail /dev/zero", "it was killed: a build may use 32 MiB of memory"),
            ("filling", "RUN fallocate -l 3G /filled && sleep 3600", "MiB were written since it began"),
            ("lasting", "RUN sleep 3600", "the build took longer than 25s"),
        ] {
            cluster.push(&with_steps(name, steps), name)?;
            eventually(&format!("{said} is said of {name}"), secs(120), || {
                let described = cluster.cli(&["describe", &format!("function/{name}")])?.ok()?;
                let log = log_of_build(cluster, name)?;
                ensure!(described.contains(said) && log.contains(said), "{described}\n{log}");
                Ok(())
            })?;
            cluster.push(&[Change::remove(format!("{name}.yaml"))], "Not again")?;
            eventually("no step of it runs any more", secs(60), || {
                let (strange, _) = left_of_builds(cluster)?;
                ensure!(strange.is_empty(), "{strange:?}");
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Waits for the next step that asks for an answer.
fn next_that_waits(listener: &TcpListener) -> Result<TcpStream> {
    let (mut waits, _) = eventually("a step waits", secs(120), || Ok(listener.accept()?))?;
    waits.set_nonblocking(false)?;
    waits.set_read_timeout(Some(secs(60)))?;
    let _ = waits.read(&mut [0; 64])?;
    Ok(waits)
}

#[test]
fn an_agent_that_is_killed_amid_a_build_builds_it_again_once_and_leaves_nothing() -> Result<()> {
    Cluster::run(options(1), |cluster| {
        let listener = TcpListener::bind((cluster.slot().underlay(1), 0))?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        // The step ends once it is answered.
        let steps = format!(
            "RUN echo first >/first\nRUN echo waits | nc {} {} >/word && grep go /word",
            at.ip(),
            at.port()
        );
        cluster.push(&[&[other_object()][..], &with_steps("cut", &steps)].concat(), "A build")?;
        let first = next_that_waits(&listener)?;
        cluster.node_mut().agent.kill()?;
        eventually("the step ends with the agent", secs(60), || {
            let (strange, _) = left_of_builds(cluster)?;
            ensure!(strange.is_empty(), "{strange:?}");
            Ok(())
        })?;
        drop(first);
        cluster.start_agent()?;
        next_that_waits(&listener)?.write_all(b"go\n")?;
        eventually("the image is there", secs(120), || {
            let record = cluster.etcd.list("/minik8s/status/")?;
            let ready: Vec<_> = record.iter().filter(|one| one.key.contains("/images/")).collect();
            ensure!(ready.len() == 1 && ready[0].value.contains("\"ready\""), "{ready:?}");
            Ok(())
        })?;
        let form = "{{.Repository}} {{.ID}}";
        let listed = cluster.node().docker.run(&["images", "--no-trunc", "--format", form])?;
        let ids: std::collections::BTreeSet<_> = listed
            .lines()
            .filter(|line| line.starts_with("minik8s.local/function "))
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        ensure!(ids.len() == 1, "{listed}");
        eventually("nothing is left of the build that was cut off", secs(30), || {
            let (strange, nameless) = left_of_builds(cluster)?;
            ensure!(strange.is_empty() && nameless.is_empty(), "{strange:?} {nameless:?}");
            Ok(())
        })
    })
}
