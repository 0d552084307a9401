//! `minik8s-agent reset`: removes everything that an instance made on this machine.
//!
//! Finds containers by label, links by alias, rules by chain name, mounts and files by path, without etcd or its
//! own state. Order: containers, the builds' network, links, tunnel, bridge, rules, with `--leave` the node's place in
//! the cluster, mounts, files, pause image.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use schema::trust::Credentials;
use tokio::time::Instant;

use super::locks::{RUN_DIR, StateLock};
use super::packet_rules::chain::Names;
use super::{locks, names};
use crate::config::{LeavingNode, MachineConfig};
use crate::converge::dns::host::MachineFiles;
use crate::converge::services::names::ServiceNames;
use crate::packet_rules::chain::ChainRef;
use crate::packet_rules::jumps::removal;
use crate::packet_rules::restore::{RuleChange, restore_input};
use crate::packet_rules::saved::saved_rules;
use crate::standby;
use crate::worlds::admission::RealAdmission;
use crate::worlds::docker::{
    Docker, DockerError, EngineState, ListedContainer, RealDocker, remove_build_cgroup,
};
use crate::worlds::iptables::{Iptables, IptablesError, RealIptables};
use crate::worlds::netlink::{Netlink, RealNetlink, Tunnels};
use crate::worlds::ssh;

mod files;
mod leave;
#[cfg(test)]
mod tests;

pub(crate) use files::ResetOutcome;

/// Longest grace period of a container.
const GRACE_MAX: Duration = Duration::from_secs(5);

/// Longest wait for Docker to finish a removal in progress; polled every `LOOK_AGAIN`.
const GONE_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Number of containers stopped and removed concurrently.
const REMOVALS: usize = 16;

/// Removes everything and prints what it removed.
pub async fn run(machine: &MachineConfig, leaving: Option<&LeavingNode>) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("reset removes links, rules and mounts and must run as root; start it with sudo");
    }
    let lock = lock(machine)?;
    // The instance's agent may have another state directory. Dropping the lock removes its file.
    let instance = locks::take_instance_lock(Path::new(RUN_DIR), machine)?;
    // Before anything is removed, so that a wrong address fails early.
    let own = match leaving {
        Some(leaving) => Some(leave::prepare(machine, leaving).await?),
        None => None,
    };
    let netlink = RealNetlink::open(&machine.instance)?;
    let docker = RealDocker::connect(&machine.docker).await;
    let mut removed = ResetOutcome::default();
    match &docker {
        Ok(docker) => {
            remove_containers(machine, docker, &mut removed).await;
            let network = Names::for_instance(&machine.instance).build_network;
            let result = docker.remove_network(&network).await;
            removed.note(format!("network {network}"), result);
            let cgroup = names::build_cgroup(&machine.instance);
            if remove_build_cgroup(&cgroup) {
                removed.done(format!("cgroup {cgroup}"));
            }
        }
        // Remove the rest all the same: a machine without Docker must be cleanable.
        Err(error) => removed.failures.push(format!("containers: {error}")),
    }
    removed.note("the standby process".to_owned(), standby::end(&machine.agent_dir()));
    removed.note(
        "the connections to Slurm login hosts".to_owned(),
        ssh::end_all(Path::new(RUN_DIR), &machine.agent_dir()),
    );
    remove_network(machine, &netlink, &RealIptables::new(), &mut removed).await;
    // Before the directory that holds the saved file is removed.
    match MachineFiles::undo(&machine.agent_dir(), &machine.instance) {
        Ok(Some(path)) => removed.done(format!("the cluster's name server from {path}")),
        Ok(None) => {}
        Err(error) => removed.failures.push(format!("the cluster's name server from resolv.conf: {error}")),
    }
    // With the certificate that is among the files.
    let has_left = match leaving.zip(own) {
        Some((leaving, own)) => leave_cluster(leaving, &own, &mut removed).await,
        None => true,
    };
    if has_left {
        files::remove(machine, &mut removed);
    }
    drop((instance, lock));
    if let Ok(docker) = &docker {
        files::remove_images(docker, &machine.instance, &mut removed).await;
    }
    for line in &removed.lines {
        println!("removed {line}");
    }
    if removed.lines.is_empty() && removed.failures.is_empty() {
        println!("this machine has nothing of instance {}", machine.instance);
    }
    for remark in &removed.remarks {
        println!("{remark}");
    }
    match removed.failures.is_empty() {
        true => Ok(()),
        false => {
            bail!("cannot remove {}; run reset again once the cause is gone", removed.failures.join("; "))
        }
    }
}

/// Leaves the cluster once nothing of the node runs here; false if that failed. Then the certificate is needed again.
async fn leave_cluster(leaving: &LeavingNode, own: &Credentials, removed: &mut ResetOutcome) -> bool {
    if !removed.failures.is_empty() {
        let kept = "this node from the cluster and the agent's directory, until the rest is removed";
        removed.failures.push(kept.to_owned());
        return false;
    }
    match leave::leave(&RealAdmission, own, &leaving.reconcilers).await {
        Ok(()) => removed.done(format!("{} from the cluster", own.identity())),
        Err(error) => removed.failures.push(format!("this node from the cluster: {error:#}")),
    }
    removed.failures.is_empty()
}

/// Takes the state directory's lock, so that no agent recreates what is being removed; `None` if there is no such
/// directory.
fn lock(machine: &MachineConfig) -> anyhow::Result<Option<StateLock>> {
    let dir = machine.agent_dir();
    match dir.try_exists().with_context(|| format!("cannot access {}", dir.display()))? {
        true => Ok(Some(locks::take(&dir)?)),
        false => Ok(None),
    }
}

/// Removes the containers of pods first, then those that hold their namespaces.
pub(crate) async fn remove_containers(
    machine: &MachineConfig,
    docker: &dyn Docker,
    removed: &mut ResetOutcome,
) {
    let listed = match docker.list(&machine.instance).await {
        Ok(listed) => listed,
        Err(error) => return removed.failures.push(format!("containers: {error}")),
    };
    let (pauses, others): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_pause);
    for group in [others, pauses] {
        let results: Vec<(String, Result<(), DockerError>)> = futures::stream::iter(group)
            .map(|container| async move {
                let result = remove_container(docker, &container).await;
                (container.name, result)
            })
            .buffer_unordered(REMOVALS)
            .collect()
            .await;
        for (name, result) in results {
            removed.note(format!("container {name}"), result.map(|()| true));
        }
    }
}

fn is_pause(container: &ListedContainer) -> bool {
    container.labels.get(names::CONTAINER).is_some_and(|name| name == names::PAUSE)
}

async fn remove_container(docker: &dyn Docker, container: &ListedContainer) -> Result<(), DockerError> {
    if container.state == EngineState::Running {
        let seconds = container.labels.get(names::GRACE).and_then(|text| text.parse().ok());
        let grace = seconds.map_or(GRACE_MAX, |seconds| Duration::from_secs(seconds).min(GRACE_MAX));
        match docker.stop(&container.id, grace).await {
            Ok(()) | Err(DockerError::NotFound { .. } | DockerError::BeingRemoved { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    match docker.remove(&container.id).await {
        Err(DockerError::NotFound { .. }) => Ok(()),
        Err(DockerError::BeingRemoved { .. }) => until_gone(docker, &container.id).await,
        other => other,
    }
}

/// Waits for a removal that Docker has already begun, for example for an agent that ended in the middle of it:
/// mounts and link can go only then.
async fn until_gone(docker: &dyn Docker, id: &str) -> Result<(), DockerError> {
    let deadline = Instant::now() + GONE_MAX;
    loop {
        match docker.inspect(id).await {
            Err(DockerError::NotFound { .. }) => return Ok(()),
            Err(error) if error.is_outage() => return Err(error),
            _ if Instant::now() >= deadline => return Err(DockerError::BeingRemoved { id: id.to_owned() }),
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Removes links, tunnel, bridge and rules.
pub(crate) async fn remove_network(
    machine: &MachineConfig,
    netlink: &(impl Netlink + Tunnels),
    iptables: &RealIptables,
    removed: &mut ResetOutcome,
) {
    let names = Names::for_instance(&machine.instance);
    match netlink.list_pod_links().await {
        Ok(links) => {
            for link in links.into_keys() {
                let result = netlink.remove_link(&link).await;
                removed.note(format!("link {link}"), result);
            }
        }
        Err(error) => removed.failures.push(format!("links: {error}")),
    }
    let result = netlink.remove_tunnel(&names.tunnel).await;
    removed.note(format!("tunnel {}", names.tunnel), result);
    let result = netlink.remove_bridge(&names.bridge).await;
    removed.note(format!("bridge {}", names.bridge), result);
    removed.note(format!("table {}", names.senders), remove_frames(&names, iptables).await);
    match remove_rules(&names, &ServiceNames::for_instance(&machine.instance), iptables).await {
        Ok(chains) => chains.iter().for_each(|chain| removed.done(format!("chain {chain}"))),
        Err(error) => removed.failures.push(format!("rules: {error}")),
    }
}

/// Removes the table for frames; true if it existed. Without `nft` there is none.
async fn remove_frames(names: &Names, iptables: &RealIptables) -> Result<bool, IptablesError> {
    match iptables.frame_table(&names.senders).await {
        Ok(None) | Err(IptablesError::NotInstalled { .. }) => Ok(false),
        Ok(Some(_)) => {
            let input = format!("delete table bridge {}", names.senders);
            iptables.change_frame_tables(&input).await.map(|()| true)
        }
        Err(error) => Err(error),
    }
}

async fn remove_rules(
    names: &Names,
    services: &ServiceNames,
    iptables: &RealIptables,
) -> anyhow::Result<BTreeSet<ChainRef>> {
    // Jumps may be in any chain, even in one that somebody else made.
    let saved = saved_rules(&iptables.save().await?, |_| true);
    let is_ours = |chain: &&ChainRef| names.chains().contains(chain) || services.is_ours(chain);
    let ours: BTreeSet<ChainRef> = saved.keys().filter(is_ours).cloned().collect();
    let mut chains = Vec::new();
    for change in removal(&ours, &saved) {
        match change {
            RuleChange::DeleteJump { base, rule } => {
                iptables.delete(base.table.to_string(), base.chain, rule).await?;
            }
            other => chains.push(other),
        }
    }
    if !chains.is_empty() {
        iptables.restore(&restore_input(&chains)).await?;
    }
    Ok(ours)
}
