//! A policy that no commit lifts for itself, that no link on a node goes round, and that a node enforces without its
//! cluster.

use std::fs;

use harness::manifests::{sleeper, web};
use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, Result, ensure, eventually, secs, service_address,
};
use schema::keys::{Key, prefix};
use schema::kinds::pod::{ContainerState, PodStatus};
use schema::meta::NamespacedName;
use schema::records::{NodeRecord, Quarantine, SourceState};

use super::Trap;
use super::nodes::ipv4_of;
use crate::services::service;
use crate::serving::{self, flags};

/// Capabilities with which a container gains the node or watches it.
const POWERFUL: [&str; 8] =
    ["BPF", "PERFMON", "SYSLOG", "CHECKPOINT_RESTORE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE"];

/// The Cluster object with these restrictions.
fn rules(restrictions: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  podSecurity: {{{restrictions}}}\n"
    );
    Change::write("cluster.yaml", text)
}

fn file(name: &str) -> String {
    format!("{name}.yaml")
}

/// A pod that has a path of its node at `/host`, and runs this command before it sleeps.
fn with_path(name: &str, path: &str, command: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         volumes: [{{name: host, hostPath: {{path: {path}}}}}]\n  containers:\n  - name: main\n    image: {IMAGE}\n    \
         command: [sh, -c, '{command}; exec sleep 100000']\n    volumeMounts: [{{name: host, mountPath: /host}}]\n"
    );
    Change::write(file(name), text)
}

fn on_host_network(name: &str) -> Change {
    let text = sleeper(name).replace("spec:\n", "spec:\n  hostNetwork: true\n");
    Change::write(file(name), text)
}

/// Messages about a quarantined file, with their lines.
fn said_of(held: &[Quarantine], name: &str) -> Vec<String> {
    let of = held.iter().filter(|one| one.file == file(name));
    of.flat_map(|one| &one.violations)
        .map(|one| format!("{}: {}: {}", one.line, one.rule, one.message))
        .collect()
}

/// Quarantined files of the newest commit, once it is applied as far as it may be.
fn held(cluster: &Cluster, commit: &str) -> Result<Vec<Quarantine>> {
    let source = cluster.source_where("the commit is applied in part", |source| {
        source.applied_commit.as_deref() == Some(commit) && source.state == SourceState::Degraded
    })?;
    Ok(source.quarantined)
}

/// Reason and message of the pod's waiting container.
fn waits(cluster: &Cluster, name: &str) -> Result<String> {
    let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", name));
    let status: PodStatus = cluster.etcd.value(key)?;
    match &status.container_statuses.first().context("no container")?.state {
        ContainerState::Waiting(waiting) => Ok(format!("{}: {}", waiting.reason, waiting.message)),
        other => harness::bail!("{other:?}"),
    }
}

/// True if a container of the pod runs, the pause container aside.
fn runs(cluster: &Cluster, name: &str) -> Result<bool> {
    let is_its = |one: &harness::ContainerView| one.label("pod") == name && one.label("container") != "POD";
    Ok(cluster.containers()?.iter().any(|one| is_its(one) && one.running))
}

#[test]
fn no_commit_and_no_link_goes_round_the_policy() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let open = cluster.dir("open").to_string_lossy().into_owned();
        // What a pod plants in the folder that it may have.
        let plant = "ln -s /etc /host/way && ln -s .. /host/up && mkdir -p /host/real && echo there > /host/real/note";
        let strict = format!(
            "forbidPrivileged: true, forbidHostNetwork: true, forbidHostPaths: [/run], allowHostPaths: [{open}, /var]"
        );
        fs::create_dir_all(&open)?;
        cluster.push(&[rules(&strict), with_path("planter", &open, plant)], "A policy")?;
        let planter = cluster.running("planter", &["main"])?;
        refused_in_a_commit(cluster)?;
        refused_behind_links(cluster, &open)?;
        ensure!(cluster.pod("planter")?.lives() == planter.lives(), "the planter was touched");
        refused_while_in_force(cluster)?;
        ensure!(cluster.pod("planter")?.lives() == planter.lives(), "the planter was touched");
        refused_by_the_node(cluster)
    })
}

/// Pods and services that the commit itself shows to be forbidden: each is named with its place, and none exists.
fn refused_in_a_commit(cluster: &Cluster) -> Result<()> {
    let trap = Trap::set()?;
    let node: NodeRecord = cluster.etcd.value(Key::Node(cluster.node().name.clone()))?;
    let machine = ipv4_of(&node)?;
    let asks = format!("{{httpGet: {{path: /, port: {}, host: 127.0.0.1}}}}", trap.port);
    let probed =
        |name: &str, field: &str| Change::write(file(name), web(name).container_fields(field).to_string());
    let external = |name: &str, address: &str, port: u16| {
        service(name, "app: allowed", &format!("{{port: {port}}}"), &format!("  externalIPs: [{address}]\n"))
    };
    let [dns, gateway] = [10, 11].map(|offset| service_address(cluster, offset));
    let mut files = vec![
        with_path("socket", "/var/run/docker.sock", "true"),
        probed("probe", &format!("    readinessProbe: {asks}\n")),
        probed("hook", &format!("    lifecycle: {{preStop: {asks}}}\n")),
        on_host_network("network"),
        external("on-node", &machine.to_string(), 2299),
        external("on-dns", &dns?.to_string(), 53),
        external("on-gateway", &gateway?.to_string(), 80),
        Change::write("allowed.yaml", web("allowed").to_string()),
    ];
    let mut expected = vec![
        ("socket".to_owned(), "forbidHostPaths: /run"),
        ("probe".to_owned(), "readinessProbe.httpGet.host: Forbidden"),
        ("hook".to_owned(), "preStop.httpGet.host: Forbidden"),
        ("network".to_owned(), "forbidHostNetwork"),
        ("on-node".to_owned(), "is an address of node"),
        ("on-dns".to_owned(), "the range of services"),
        ("on-gateway".to_owned(), "the range of services"),
    ];
    for capability in POWERFUL {
        let name = format!("with-{}", capability.to_lowercase().replace('_', "-"));
        let added = format!("    securityContext: {{capabilities: {{add: [{capability}]}}}}\n");
        files.push(probed(&name, &added));
        expected.push((name, "forbidPrivileged"));
    }
    let commit = cluster.push(&files, "Attacks, and a pod")?;
    cluster.running("allowed", &["web"])?;
    let held = held(cluster, &commit)?;
    let shown = cluster.cli(&["status"])?.ok()?;
    let there = cluster.etcd.list(prefix::OBJECTS)?;
    for (name, why) in &expected {
        let said = said_of(&held, name);
        // Never at line 0: the line is the place of the field.
        ensure!(said.iter().any(|one| one.contains(why) && !one.starts_with("0:")), "{name}: {said:?}");
        ensure!(shown.contains(&file(name)), "{name} is not in {shown}");
        let object = there.iter().find(|one| one.key.ends_with(&format!("/{name}")));
        ensure!(object.is_none() && !runs(cluster, name)?, "{object:?}");
    }
    ensure!(trap.callers() == 0, "the node asked its own loopback");
    let rules = cluster.node().net.rules()?;
    ensure!(!rules.iter().any(|rule| rule.contains("--dport 2299")), "{rules:#?}");
    let clean: Vec<_> = expected.iter().map(|(name, _)| Change::remove(file(name))).collect();
    cluster.push(&clean, "Without the attacks").map(drop)
}

/// Paths that are allowed as text, and lead elsewhere on the node.
fn refused_behind_links(cluster: &Cluster, open: &str) -> Result<()> {
    let names = ["way", "up", "real"];
    let takes = |name: &&str| with_path(name, &format!("{open}/{name}"), "true");
    cluster.push(&names.iter().map(takes).collect::<Vec<_>>(), "What was planted")?;
    let real = cluster.running("real", &["main"])?;
    ensure!(cluster.exec(&real, "main", &["cat", "/host/note"])?.trim() == "there");
    for name in ["way", "up"] {
        eventually(&format!("{name} is refused"), secs(20), || {
            let why = waits(cluster, name)?;
            ensure!(why.contains("symbolic links must be relative and stay there"), "{why}");
            Ok(())
        })?;
        ensure!(!runs(cluster, name)?, "{name} runs");
    }
    // Without the bounds, which the next step lifts, the node would follow them.
    cluster.push(&["way", "up"].map(|name| Change::remove(file(name))), "Without the links")?;
    ["way", "up"].into_iter().try_for_each(|name| cluster.gone(name))
}

/// The level in force counts for the commit that lifts it, and not for the one after.
fn refused_while_in_force(cluster: &Cluster) -> Result<()> {
    cluster.push(&[rules("level: baseline")], "A level in place of the rest")?;
    let powerful = web("power").container_fields("    securityContext: {capabilities: {add: [NET_ADMIN]}}\n");
    let powerful = Change::write("power.yaml", powerful.to_string());
    let files = [rules("level: privileged"), powerful, on_host_network("network")];
    let commit = cluster.push(&files, "Lift it, and use it")?;
    let held = held(cluster, &commit)?;
    for name in ["power", "network"] {
        let said = said_of(&held, name);
        let is_in_force =
            |one: &String| one.contains("in force since commit") && one.contains("level: baseline");
        ensure!(said.iter().any(is_in_force), "{name}: {said:?}");
        ensure!(!runs(cluster, name)?, "{name} runs");
    }
    cluster.push(&[], "The next commit")?;
    for (name, container) in [("power", "web"), ("network", "main")] {
        cluster.running(name, &[container])?;
    }
    Ok(())
}

/// The node's own floor: what is forbidden there is not created, whoever asks for it, and what runs goes on.
fn refused_by_the_node(cluster: &mut Cluster) -> Result<()> {
    let before = cluster.pod("network")?;
    let floor = cluster.dir("floor.yaml");
    fs::write(&floor, "forbidHostNetwork: true\nforbidPrivileged: true\n")?;
    let etcd = cluster.etcd_for_nodes();
    let node = cluster.node_mut();
    let mut command = node.agent_command("run", &etcd);
    command.extend(["--pod-security".to_owned(), floor.to_string_lossy().into_owned()]);
    node.agent.kill()?;
    node.agent.set_command(command);
    node.agent.start()?;
    node.wait_agent()?;
    cluster.push(&[on_host_network("late"), Change::write("after.yaml", sleeper("after"))], "Two more")?;
    cluster.running("after", &["main"])?;
    eventually("the node refuses the pod", secs(20), || {
        let why = waits(cluster, "late")?;
        ensure!(why.contains("this node (--pod-security) sets podSecurity.forbidHostNetwork"), "{why}");
        Ok(())
    })?;
    let all = cluster.containers()?;
    ensure!(!all.iter().any(|one| one.label("pod") == "late"), "{all:?}");
    ensure!(cluster.pod("network")?.lives() == before.lives(), "a running pod was touched");
    Ok(())
}

#[test]
fn a_source_holds_nothing_but_its_kinds_in_its_namespaces() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        cluster.etcd.start()?;
        let list = cluster.dir("sources.yaml");
        let entry = format!(
            "- name: team\n  repo: {}\n  poll: 500ms\n  allow: {{kinds: [Pod, ConfigMap], namespaces: [team]}}\n",
            cluster.repo.bare().display()
        );
        fs::write(&list, entry)?;
        let pod = |name: &str, namespace: &str| {
            let text = sleeper(name).replace("metadata:\n", &format!("metadata:\n  namespace: {namespace}\n"));
            Change::write(file(name), text)
        };
        let files = [
            pod("own", "team"),
            pod("foreign", "shop"),
            Change::write("nowhere.yaml", sleeper("nowhere")),
            rules("level: privileged"),
            Change::write(
                "service.yaml",
                "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: team}\nspec: {ports: [{port: 80}]}\n",
            ),
        ];
        let commit = cluster.repo.push(&files, "More than its own")?;
        serving::with(cluster, "team", &flags(&[("--sources", &list.display().to_string())]), |_| {
            let source = serving::source(cluster, "team", |source| {
                source.applied_commit.as_deref() == Some(&commit) && source.state == SourceState::Degraded
            })?;
            for name in ["foreign", "nowhere", "cluster", "service"] {
                let said = said_of(&source.quarantined, name);
                ensure!(said.iter().any(|one| one.contains("not-allowed")), "{name}: {said:?}");
            }
            let objects: Vec<_> =
                cluster.etcd.list(prefix::OBJECTS)?.into_iter().map(|one| one.key).collect();
            ensure!(objects.len() == 1 && objects[0].ends_with("Pod/team/own"), "{objects:?}");
            Ok(())
        })
    })
}
