//! Removes everything that carries a slot's name: processes, containers, namespaces, links,
//! rules, files. Never touches anything else, and is harmless if there is nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::docker_world::DockerWorld;
use crate::net_world::NetWorld;
use crate::process::{run, start_time};
use crate::slot::Slot;
use crate::wait::{eventually, secs};

/// Programs that a slot may have running; nothing else is ever killed.
const OURS: [&str; 7] = [
    "minik8s",
    "minik8s-agent",
    "etcd",
    "docker-registry",
    "dockerd",
    "containerd",
    "containerd-shim-runc-v2",
];

pub(crate) fn sweep(slot: &Slot) -> Result<()> {
    kill_processes(slot.dir())?;
    let machine = DockerWorld::of_machine();
    for label in ["minik8s.io/instance", "minik8s-test.slot"] {
        machine.remove_by_filter(&format!("label={label}={}", slot.instance()))?;
    }
    // Mostly missing; its bridge is removed with it.
    let _ = machine.run(&["network", "rm", &format!("{}-builds", slot.instance())]);
    remove_images(slot, &machine)?;
    remove_namespaces(&slot.instance())?;
    remove_links(&slot.instance())?;
    remove_rules(slot)?;
    unmount_below(slot.dir())?;
    match fs::remove_dir_all(slot.dir()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Kills the processes in the pid files, then every program of ours that works below the slot's folder or runs
/// a container of a daemon there.
fn kill_processes(dir: &Path) -> Result<()> {
    let mut doomed: BTreeSet<u32> = recorded(dir).into_iter().collect();
    let marks = container_ids(dir);
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if belongs(pid, dir, &marks) {
            doomed.insert(pid);
        }
    }
    doomed.remove(&std::process::id());
    for pid in &doomed {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    eventually("processes of the slot are gone", secs(10), || {
        let left: Vec<_> = doomed.iter().filter(|pid| lives(**pid)).collect();
        ensure!(left.is_empty(), "{left:?} live");
        Ok(())
    })
}

/// Recorded pids of our daemons that still are the same process.
fn recorded(dir: &Path) -> Vec<u32> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "pid"))
        .filter_map(|path| {
            let text = fs::read_to_string(path).ok()?;
            let (pid, started) = text.split_once(' ')?;
            let pid = pid.parse().ok()?;
            (start_time(pid).ok()? == started.parse::<u64>().ok()?).then_some(pid)
        })
        .collect()
}

/// Ids of the containers whose daemon keeps its data below `dir`.
fn container_ids(dir: &Path) -> Vec<String> {
    let nodes = fs::read_dir(dir).into_iter().flatten().flatten();
    let stores = nodes.filter_map(|node| fs::read_dir(node.path().join("data/containers")).ok());
    stores.flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn belongs(pid: u32, dir: &Path, containers: &[String]) -> bool {
    let read = |file: &str| {
        fs::read(format!("/proc/{pid}/{file}")).map(|b| String::from_utf8_lossy(&b).into_owned())
    };
    let Ok(command) = read("cmdline") else { return false };
    let program = command.split('\0').next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let below = format!("{}/", dir.display());
    let named = OURS.contains(&program)
        && (command.contains(&below) || containers.iter().any(|id| command.contains(id)));
    named || read("cgroup").is_ok_and(|cgroup| containers.iter().any(|id| cgroup.contains(id)))
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie is dead: only its parent, possibly this very process, has not reaped it yet.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Removes images pulled from the slot's registries: the name is removed, and the image with its last name.
fn remove_images(slot: &Slot, machine: &DockerWorld) -> Result<()> {
    let form = "{{.Repository}} {{.Tag}} {{.Digest}}";
    let ours = slot.all_ports().map(|port| format!("127.0.0.1:{port}/")).collect::<Vec<_>>();
    for line in machine.run(&["images", "--digests", "--format", form])?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [repository, tag, digest] = words[..] else { continue };
        if ours.iter().any(|registry| repository.starts_with(registry)) {
            let name = match tag {
                "<none>" => format!("{repository}@{digest}"),
                tag => format!("{repository}:{tag}"),
            };
            // It may have been removed with another of its names.
            let _ = machine.run(&["rmi", &name]);
        }
    }
    Ok(())
}

fn remove_namespaces(instance: &str) -> Result<()> {
    for line in run("ip", &["netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.starts_with(instance) {
            run("ip", &["netns", "del", name])?;
        }
    }
    Ok(())
}

fn remove_links(instance: &str) -> Result<()> {
    for link in NetWorld::of_machine().links()? {
        if link.starts_with(instance) {
            // The other end of a veth is removed with the first.
            let _ = run("ip", &["link", "del", &link]);
        }
    }
    let left: Vec<_> =
        NetWorld::of_machine().links()?.into_iter().filter(|link| link.starts_with(instance)).collect();
    ensure!(left.is_empty(), "links {left:?} can't be removed");
    Ok(())
}

/// Removes foreign rules that lead to our chains or links, then the chains.
fn remove_rules(slot: &Slot) -> Result<()> {
    let (prefix, link) = (slot.chain_prefix(), slot.instance());
    let rules = NetWorld::of_machine().rules()?;
    let of_chain =
        |line: &str, mark: &str| line.strip_prefix(mark).is_some_and(|rest| rest.starts_with(&prefix));
    let mut chains = Vec::new();
    for rule in &rules {
        let Some((table, line)) = rule.split_once(": ") else { continue };
        if of_chain(line, ":") {
            chains.push((table, line[1..].split(' ').next().unwrap_or_default()));
        } else if !of_chain(line, "-A ") && (line.contains(&prefix) || line.contains(&format!(" {link}"))) {
            let line = line.replacen("-A", "-D", 1);
            // The line comes from the kernel, including its quotes; a shell parses it as iptables wrote it.
            run("sh", &["-c", &format!("iptables -w -t {table} {line}")])?;
        }
    }
    for act in ["-F", "-X"] {
        for (table, chain) in &chains {
            run("iptables", &["-w", "-t", table, act, chain])?;
        }
    }
    // An error if it is not there.
    let _ = run("nft", &["delete", "table", "bridge", &format!("{link}-senders")]);
    Ok(())
}

fn unmount_below(dir: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let below: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(dir))
        .collect();
    // The last mount is the innermost.
    for mount in below.iter().rev() {
        run("umount", &["-l", &mount.to_string_lossy()])?;
    }
    Ok(())
}
