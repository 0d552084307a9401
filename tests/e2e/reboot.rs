//! `up --systemd` installs services whose own commands bring a node back after a reboot: pods, rules and names, without a
//! push. They tell systemd when they are ready, and that they live until a loop hangs. `down` takes them away again.
//!
//! No systemd runs here: the node, whose /etc, /run and /var/lib are its own, has a `systemctl` that only notes its
//! arguments, and the story does what systemd would.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context as _, Daemon, NotifySocket, Result, Unit, Where, agent_binary,
    dig, ensure, eventually, minik8s_binary, outcome, run, secs, service_address,
};
use nix::sys::signal::Signal;

use crate::services::service;

/// The services in the order of their start.
const UNITS: [&str; 3] = ["minik8s-etcd", "minik8s", "minik8s-agent"];
/// Time within which this story's systemd wants a sign of life, and after which a run of a loop has hung.
const WATCHDOG: Duration = Duration::from_secs(4);
const READY: &str = "READY=1";
const ALIVE: &str = "WATCHDOG=1";

#[test]
fn a_node_of_services_comes_back_after_a_reboot_without_a_push() -> Result<()> {
    let options =
        ClusterOptions { place: Where::Namespaces(1), live_restore: false, ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    let mut up = Daemon::new("up", cluster.slot().dir(), Vec::new());
    let mut services = Vec::new();
    let told = cluster.run_story(|cluster| story(cluster, &mut up, &mut services));
    if told.is_err() {
        let daemons = services.iter().map(|service: &Service| &service.daemon);
        daemons
            .chain([&up])
            .for_each(|daemon| eprintln!("---- {} ----\n{}", daemon.name(), daemon.log_tail()));
    }
    told
}

fn story(cluster: &mut Cluster, up: &mut Daemon, services: &mut Vec<Service>) -> Result<()> {
    prepare_machine(cluster)?;
    let files = [
        Change::write("pod.yaml", web("shop").label("group", "shop").to_string()),
        service("shop", "group: shop", "{port: 80, targetPort: 8080}", ""),
    ];
    cluster.repo.push(&files, "Open")?;

    // Children at first: with systemd on the machine, `up` mentions services.
    up.set_command(up_command(cluster, &up_flags(cluster)?));
    up.start()?;
    all_serves(cluster)?;
    eventually("up mentions services", secs(30), || {
        ensure!(
            up.log_tail().contains("'minik8s up --systemd' makes the node come back"),
            "{}",
            up.log_tail()
        );
        Ok(())
    })?;
    ensure!(up.end(Signal::SIGINT, secs(30))?.success(), "up did not end well");
    let before = cluster.lives()?;

    // Services take over what runs, with the settings of the former `up`.
    up.set_command(up_command(cluster, &["--systemd".to_owned()]));
    up.start()?;
    eventually("up starts the services", secs(30), || {
        ensure!(
            calls(cluster)?.ends_with(&["restart minik8s-agent.service".to_owned()]),
            "{}",
            up.log_tail()
        );
        Ok(())
    })?;
    let mut expected = vec!["daemon-reload".to_owned()];
    expected.extend(
        UNITS.iter().flat_map(|unit| [format!("enable {unit}.service"), format!("restart {unit}.service")]),
    );
    ensure!(calls(cluster)? == expected, "{:?}", calls(cluster)?);
    for unit in UNITS {
        services.push(Service::new(cluster, unit)?);
    }
    start_all(services)?;
    ensure!(up.wait_end(secs(60))?.success(), "{}", up.log_tail());
    all_serves(cluster)?;
    ensure!(cluster.lives()? == before, "the services restarted pods: {:?}", cluster.lives()?);
    for service in &services[..2] {
        let status = fs::read_to_string(format!("/proc/{}/status", service.daemon.pid()?))?;
        ensure!(!status.contains("Uid:\t0") && status.contains("CapEff:\t0000000000000000"), "{status}");
    }
    refused(cluster, &[], "the services of an earlier 'minik8s up --systemd' run on /var/lib/minik8s")?;

    a_hung_loop_ends_the_signs_of_life(cluster, &services[2])?;

    reboot(cluster, services)?;
    // All at once, in the wrong order.
    for service in services.iter_mut().rev() {
        service.start()?;
    }
    all_serves(cluster)?;
    let after = running(cluster)?;
    ensure!(
        after.values().all(|started| !before.values().any(|then| then == started)),
        "{after:?}, {before:?}"
    );
    eventually("all services are ready", secs(30), || services.iter().try_for_each(Service::is_ready))?;

    removed_without_a_trace(cluster, services)
}

/// Makes the node a machine of its own where systemd seems to run and both programs are installed.
fn prepare_machine(cluster: &Cluster) -> Result<()> {
    let lib = cluster.dir("var-lib");
    fs::create_dir_all(&lib)?;
    let mut script = format!(
        "mkdir -p /run/systemd/system /run/etc/upper /run/etc/work /run/bin
         mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
         mount --bind {} /var/lib
         git config --file /etc/gitconfig --add safe.directory {}
         printf '#!/bin/sh\\necho \"$*\" >>/run/calls\\n' >/run/bin/systemctl
         chmod 755 /run /run/bin /run/bin/systemctl\n",
        lib.display(),
        cluster.repo.bare().display()
    );
    for program in [minik8s_binary(), agent_binary()] {
        let name = program.file_name().context("a program without a name")?.to_string_lossy().into_owned();
        script += &format!("touch /run/bin/{name}; mount --bind {} /run/bin/{name}\n", program.display());
    }
    in_machine(cluster, &script).map(drop)
}

fn in_machine(cluster: &Cluster, script: &str) -> Result<String> {
    let command = cluster.node().command(&["sh", "-ec", script]);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    run(words[0], &words[1..])
}

/// A file of the node.
fn file(cluster: &Cluster, path: &str) -> Result<std::path::PathBuf> {
    Ok(cluster.node().root()?.join(path.trim_start_matches('/')))
}

/// The calls of `systemctl` so far.
fn calls(cluster: &Cluster) -> Result<Vec<String>> {
    let text = fs::read_to_string(file(cluster, "/run/calls")?).unwrap_or_default();
    Ok(text.lines().map(str::to_owned).collect())
}

fn up_command(cluster: &Cluster, flags: &[String]) -> Vec<String> {
    minik8s_command(cluster, "up", flags)
}

fn minik8s_command(cluster: &Cluster, subcommand: &str, flags: &[String]) -> Vec<String> {
    let mut command = cluster.node().command(&[
        "env",
        "-i",
        "PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/run/bin/minik8s",
        subcommand,
    ]);
    command.extend(flags.iter().cloned());
    command
}

fn up_flags(cluster: &Cluster) -> Result<Vec<String>> {
    let (slot, node) = (cluster.slot(), cluster.node());
    let flags = [
        ("--repo", cluster.repo_url()),
        ("--poll", "500ms".to_owned()),
        ("--cluster-cidr", slot.cluster_cidr()),
        ("--service-cidr", slot.service_cidr()),
        ("--instance", slot.instance()),
        ("--node", node.name.clone()),
        ("--node-ip", node.address()?.to_owned()),
        ("--docker", node.docker.host().to_owned()),
    ];
    let own = [
        format!("--agent-arg=--vxlan-vni={}", slot.vxlan_vni()),
        format!("--agent-arg=--vxlan-port={}", slot.port(8)),
    ];
    Ok(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).chain(own).collect())
}

fn refused(cluster: &Cluster, flags: &[String], why: &str) -> Result<()> {
    let command = up_command(cluster, flags);
    let said = outcome(std::process::Command::new(&command[0]).args(&command[1..]), secs(30))?;
    ensure!(said.code == 1 && said.stderr.contains(why), "{} {}", said.code, said.stderr);
    Ok(())
}

/// Id and start time of every container that runs.
fn running(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let containers = cluster.containers()?.into_iter().filter(|container| container.running);
    Ok(containers.map(|container| (container.id, container.started_at)).collect())
}

/// The pod answers at its own address, and at that of its service, which its name leads to.
pub(crate) fn all_serves(cluster: &Cluster) -> Result<()> {
    cluster.serving("shop", "hello from shop")?;
    let (net, dns) = (&cluster.node().net, service_address(cluster, 10)?.to_string());
    eventually("the service answers by its name", secs(45), || {
        let said = dig(net, &dns, "shop.default.svc.cluster.local", "A", &[])?;
        let address = said
            .answers
            .first()
            .and_then(|answer| answer.strip_prefix("A "))
            .context("no answer")?
            .to_owned();
        let (code, body) = cluster.get_from_node(&address, 80, "/")?;
        ensure!(code == 200 && body.trim() == "hello from shop", "{code} {body}");
        Ok(())
    })
}

/// A service, run as by systemd.
struct Service {
    daemon: Daemon,
    messages: NotifySocket,
    started: Option<Instant>,
}

impl Service {
    fn new(cluster: &Cluster, unit: &str) -> Result<Self> {
        let text = fs::read_to_string(file(cluster, &format!("/etc/systemd/system/{unit}.service"))?)?;
        let script = Unit::parse(&text).script()?;
        let socket = format!("/run/{unit}.notify");
        let (path, watchdog) =
            (format!("NOTIFY_SOCKET={socket}"), format!("WATCHDOG_USEC={}", WATCHDOG.as_micros()));
        let command =
            ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", &path, &watchdog, "sh", "-ec", &script];
        let daemon = Daemon::new(unit, cluster.slot().dir(), cluster.node().command(&command));
        let messages = NotifySocket::listen(&file(cluster, &socket)?)?;
        Ok(Self { daemon, messages, started: None })
    }

    fn start(&mut self) -> Result<()> {
        self.started = Some(Instant::now());
        self.daemon.start()
    }

    fn is_ready(&self) -> Result<()> {
        let (ready, started) = (self.messages.last(READY), self.started);
        ensure!(ready.is_some() && ready > started, "{} is not ready", self.daemon.name());
        Ok(())
    }
}

/// Starts the services one after the other, each once the one before is ready.
fn start_all(services: &mut [Service]) -> Result<()> {
    for service in services {
        service.start()?;
        eventually("the service is ready", secs(30), || service.is_ready())?;
    }
    Ok(())
}

/// Docker stops answering in the middle of the agent's work, and answers again.
fn a_hung_loop_ends_the_signs_of_life(cluster: &Cluster, agent: &Service) -> Result<()> {
    let dockerd = cluster.node().dockerd.as_ref().context("no Docker of its own")?;
    let silent_for = || agent.messages.last(ALIVE).map(|at| at.elapsed()).context("no sign of life yet");
    eventually("the agent gives signs of life", secs(10), || {
        let silent = silent_for()?;
        ensure!(silent < WATCHDOG / 2, "none for {silent:?}");
        Ok(())
    })?;
    dockerd.signal(Signal::SIGSTOP)?;
    // Wakes the loop of pods.
    cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "And a blog")?;
    let hung = eventually("systemd would restart the agent", secs(40), || {
        let silent = silent_for()?;
        ensure!(silent > WATCHDOG, "a sign of life {silent:?} ago");
        Ok(())
    });
    dockerd.signal(Signal::SIGCONT)?;
    hung?;
    ensure!(agent.daemon.log_tail().contains("loops hang"), "{}", agent.daemon.log_tail());
    cluster.serving("blog", "hello from blog")?;
    eventually("the agent gives signs of life again", secs(20), || {
        let silent = silent_for()?;
        ensure!(silent < WATCHDOG / 2, "none for {silent:?}");
        Ok(())
    })
}

/// Ends and removes what a reboot ends and removes: all processes at once, mounts, links, rules, files in /run.
fn reboot(cluster: &mut Cluster, services: &mut [Service]) -> Result<()> {
    for service in services.iter_mut() {
        service.daemon.kill()?;
    }
    let docker = cluster.node().docker.clone();
    let pids = run("ip", &["netns", "pids", &cluster.node().name])?.lines().collect::<Vec<_>>().join(",");
    let standbys = run("ps", &["-o", "pid=,args=", "-p", &pids])?;
    let standbys: Vec<&str> =
        standbys.lines().filter(|line| line.contains("minik8s-agent standby")).collect();
    ensure!(standbys.len() == 1, "{standbys:?}");
    let pid = standbys[0].split_whitespace().next().context("a process without a number")?;
    run("kill", &["-9", pid])?;
    let running = running(cluster)?;
    let kill: Vec<&str> = ["kill"].into_iter().chain(running.keys().map(String::as_str)).collect();
    docker.run(&kill)?;
    cluster.node_mut().stop_docker()?;
    let mounts = cluster.node().mounts()?;
    for mount in mounts.iter().rev().filter(|mount| mount.starts_with("/var/lib/minik8s/")) {
        in_machine(cluster, &format!("umount -l {mount}"))?;
    }
    in_machine(
        cluster,
        "for link in $(ip -o link | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/' | grep -v -e '^lo$' -e '^eth0$'); do
           ip link del $link 2>/dev/null || true
         done
         for table in filter nat mangle raw; do iptables -w -t $table -F; iptables -w -t $table -X; done
         nft flush ruleset
         conntrack -F 2>/dev/null
         echo 0 >/proc/sys/net/ipv4/ip_forward
         rm -rf /run/minik8s /run/minik8s-agent /run/docker.pid",
    )?;
    let (links, rules) = (cluster.node().net.links()?, cluster.node().net.rules()?);
    let ours = cluster.slot().instance();
    ensure!(!links.iter().any(|link| link.starts_with(&ours)), "{links:?}");
    ensure!(!rules.iter().any(|rule| rule.contains(&cluster.slot().chain_prefix())), "{rules:?}");
    ensure!(!in_machine(cluster, "nft list ruleset")?.contains(&ours));
    cluster.node_mut().start_docker()?;
    ensure!(cluster.containers()?.iter().all(|container| !container.running));
    Ok(())
}

/// `down` after systemd has stopped the services.
fn removed_without_a_trace(cluster: &Cluster, services: &mut [Service]) -> Result<()> {
    for service in services.iter_mut().rev() {
        service.daemon.end(Signal::SIGTERM, secs(30))?;
    }
    eventually("the agent's last message arrives", secs(5), || {
        ensure!(services[2].messages.last("STOPPING=1").is_some(), "the agent does not say that it stops");
        Ok(())
    })?;
    let command = minik8s_command(cluster, "down", &[]);
    outcome(std::process::Command::new(&command[0]).args(&command[1..]), secs(60))?.ok()?;
    let calls = calls(cluster)?;
    let expected =
        ["minik8s-agent", "minik8s", "minik8s-etcd"].map(|unit| format!("disable --now {unit}.service"));
    ensure!(expected.iter().all(|call| calls.contains(call)), "{calls:?}");
    let left = UNITS.iter().map(|unit| format!("/etc/systemd/system/{unit}.service"));
    for path in left.chain(["/etc/minik8s", "/var/lib/minik8s"].map(str::to_owned)) {
        ensure!(!Path::new(&file(cluster, &path)?).exists(), "down left {path}");
    }
    ensure!(cluster.containers()?.is_empty(), "{:?}", cluster.containers()?);
    Ok(())
}
