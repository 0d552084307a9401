//! Turns findings into checks. Pure: every sentence that the doctor prints is decided here.

use jiff::SignedDuration;
use schema::names::is_in_clear;
use schema::records::{EtcdMember, EtcdUpkeep, LOGIN_FAULT_REMEDY, repair_commands};

use super::check::{Check, Ranges};
use super::network_judge;
use super::probe::{DockerFacts, EtcdFacts, HostFacts, TrustFacts};
use crate::config::Config;
use crate::packet_rules::chain::Names;

/// Free bytes below which images and logs will soon run out of space.
const DISK_WARN: u64 = 2 << 30;

/// Free bytes below which an agent can't keep its state.
const DISK_FAIL: u64 = 100 << 20;

/// Time before its end at which a certificate that is not renewed yet is reported.
const RENEW_WARN: SignedDuration = SignedDuration::from_hours(24);

/// Difference of two clocks that is reported: half of that by which certificates begin in the past.
const CLOCK_WARN: SignedDuration = SignedDuration::from_mins(5);

/// Evaluates the findings, in the order in which to repair.
pub(super) fn judge(config: &Config, ranges: Ranges, seen: &HostFacts) -> Vec<Check> {
    let mut checks = vec![root(seen), kernel(seen), state_dir(config, seen), disk(seen)];
    checks.extend(docker(config, seen));
    checks.extend(trust(config, seen));
    checks.push(etcd(config, seen));
    checks.extend(etcd_doors(seen));
    checks.extend(etcd_sizes(config, seen));
    checks.push(port(config, seen));
    checks.extend(features(seen));
    checks.extend([
        iptables(seen),
        forward_policy(config, seen),
        jumps(seen),
        ip_forward(seen),
        bridge_nf(seen),
        conntrack(seen),
    ]);
    checks.extend(network_judge::judge(config, ranges, &seen.network));
    checks
}

fn root(seen: &HostFacts) -> Check {
    match seen.is_root {
        true => Check::ok("root", "runs as root"),
        false => Check::fail("root", "does not run as root", "start the agent with sudo or systemd"),
    }
}

fn kernel(seen: &HostFacts) -> Check {
    let release = format!("Linux {}", seen.kernel);
    match seen.has_openat2 {
        true => Check::ok("kernel", release),
        false => Check::fail(
            "kernel",
            format!("{release} has no openat2: pod folders are not removed and subPaths not mounted"),
            "boot Linux 5.6 or later, such as Debian 11's 5.10",
        ),
    }
}

fn state_dir(config: &Config, seen: &HostFacts) -> Check {
    let dir = config.machine.state_dir.display();
    match (&seen.state_dir, seen.agent_runs) {
        (_, true) => Check::ok("state directory", format!("{dir}, in use by a running agent")),
        (Ok(()), false) => Check::ok("state directory", format!("{dir} can be written")),
        (Err(why), false) => {
            Check::fail("state directory", format!("{dir}: {why}"), "give a writable --state-dir")
        }
    }
}

fn disk(seen: &HostFacts) -> Check {
    let Some(disk) = seen.disk else {
        return Check::warn("disk", "free space is unknown", "check with df -h");
    };
    let free = disk.free_bytes;
    let found = format!("{} MiB free ({} %)", free >> 20, disk.free_percent());
    match free {
        _ if free < DISK_FAIL => Check::fail("disk", found, "free some space below --state-dir"),
        _ if free < DISK_WARN => Check::warn("disk", found, "images and logs will soon need more"),
        _ if disk.is_low() => Check::warn("disk", found, "make room before the disk of --state-dir is full"),
        _ => Check::ok("disk", found),
    }
}

fn docker(config: &Config, seen: &HostFacts) -> Vec<Check> {
    let docker = match &seen.docker {
        Ok(docker) => docker,
        Err(why) => {
            let found = format!("{}: {why}", config.machine.docker);
            return vec![Check::fail(
                "docker",
                found,
                "install and start Docker, or give its socket with --docker",
            )];
        }
    };
    let DockerFacts { version, api, cgroup_driver, cgroup_version, storage_driver, live_restore } = docker;
    let found =
        format!("Docker {version}, API {api}, {storage_driver}, cgroup v{cgroup_version} by {cgroup_driver}");
    let live = match live_restore {
        true => Check::ok("live-restore", "on: pods outlive a restart of Docker"),
        false => Check::warn(
            "live-restore",
            "off: a restart of Docker ends all pods",
            "put {\"live-restore\": true} into /etc/docker/daemon.json and reload Docker with SIGHUP",
        ),
    };
    vec![Check::ok("docker", found), live]
}

fn trust(config: &Config, seen: &HostFacts) -> Vec<Check> {
    let (name, node) = ("certificate", &config.node);
    match &seen.trust {
        Ok(None) => vec![Check::warn(
            name,
            "this node has not joined a cluster",
            format!(
                "run 'minik8s token create --node {node}' on a reconciler, and the command that it prints here"
            ),
        )],
        Err(why) => vec![Check::fail(name, why, "run 'minik8s-agent reset', and join again")],
        Ok(Some(facts)) if facts.identity.node() != Some(node.as_str()) => vec![Check::fail(
            name,
            format!("it is that of {}, and not of node {node}", facts.identity),
            "leave out --node, or run 'minik8s-agent reset' and join under this name",
        )],
        Ok(Some(facts)) => {
            let clock = facts.ahead.as_ref().map(|ahead| clock(ahead.as_ref()));
            [Some(certificate(facts)), clock].into_iter().flatten().collect()
        }
    }
}

fn certificate(facts: &TrustFacts) -> Check {
    let TrustFacts { identity, renew_at, not_after, now, .. } = facts;
    let (left, overdue) = (not_after.duration_since(*now), now.duration_since(*renew_at));
    let is_late = overdue > not_after.duration_since(*renew_at) / 3 || left < RENEW_WARN;
    let found = format!("{identity}, until {not_after}");
    match overdue.is_positive() && is_late {
        false => Check::ok("certificate", found),
        true => Check::warn(
            "certificate",
            format!("{found}, and not renewed since {renew_at}"),
            "start the agent, which renews it; if it runs, its log says why it could not",
        ),
    }
}

fn clock(ahead: Result<&SignedDuration, &String>) -> Check {
    let name = "clock";
    let ahead = match ahead {
        Ok(ahead) => *ahead,
        Err(why) => {
            return Check::warn(name, why, "check that the reconciler runs and can be reached from here");
        }
    };
    let seconds = ahead.as_secs();
    match ahead.abs() > CLOCK_WARN {
        false => Check::ok(name, format!("{seconds:+} s from a reconciler's")),
        true => Check::warn(
            name,
            format!("{seconds:+} s from a reconciler's"),
            "let both machines take the time from the network: certificates begin 10 minutes in the past only",
        ),
    }
}

fn etcd(config: &Config, seen: &HostFacts) -> Check {
    let endpoints = config.etcd.endpoints.join(",");
    match &seen.etcd {
        Ok(_) => Check::ok("etcd", format!("{endpoints} answers")),
        Err(why) => Check::warn(
            "etcd",
            why,
            "'minik8s up' runs its own; otherwise start etcd, or give its address with --etcd",
        ),
    }
}

/// Judges versions whose logins fail, and ports at which the members answer in clear.
fn etcd_doors(seen: &HostFacts) -> Vec<Check> {
    let Ok(facts) = &seen.etcd else { return Vec::new() };
    let version = |member: &EtcdMember| {
        let fault = member.login_fault()?;
        Some(Check::warn("etcd version", format!("{}: {fault}", member.endpoint), LOGIN_FAULT_REMEDY))
    };
    let in_clear = |whom: &str, urls: &[String], remedy: &str| {
        let open: Vec<&str> = urls.iter().map(String::as_str).filter(|url| is_in_clear(url)).collect();
        let found = format!("its members answer {whom} in clear at {}", open.join(", "));
        (!open.is_empty()).then(|| Check::warn("etcd port", found, remedy))
    };
    let clients = "give it certificates: docs/operations.md, \"Upgrading a cluster without certificates\"";
    let peers = "give its members --peer-cert-file, --peer-key-file, --peer-trusted-ca-file and \
                 --peer-client-cert-auth, and https addresses with 'etcdctl member update'";
    let mut checks: Vec<Check> = facts.members.iter().filter_map(version).collect();
    checks.extend(in_clear("clients", &facts.client_urls, clients));
    checks.extend(in_clear("each other", &facts.peer_urls, peers));
    checks
}

/// Judges each member's size, and whether somebody maintains it.
fn etcd_sizes(config: &Config, seen: &HostFacts) -> Vec<Check> {
    let Ok(EtcdFacts { members, upkeep, .. }) = &seen.etcd else { return Vec::new() };
    let is_on = upkeep.as_ref().is_some_and(|upkeep| upkeep.is_on);
    let check = |member: &EtcdMember| {
        let name = "etcd size";
        let found = format!("{}: {}", member.endpoint, member.usage());
        let commands = repair_commands(&config.etcd.endpoints, member.revision);
        let by_hand = format!("run '{commands}', or start the reconcilers with --etcd-upkeep");
        let remedy = if is_on { "the leader makes room; see 'minik8s status'".to_owned() } else { by_hand };
        if member.is_full() {
            return Check::fail(name, format!("{found}: etcd refuses writes"), remedy);
        }
        if let Some(alarm) = member.alarms.first() {
            return Check::fail(name, format!("{found}, alarm {alarm}"), "see etcd's documentation");
        }
        if member.is_nearly_full() || !is_on && member.is_worth_defragmenting() {
            return Check::warn(name, found, remedy);
        }
        match upkeep {
            Some(EtcdUpkeep { is_on: false, .. }) => Check::warn(
                name,
                format!("{found}; the reconcilers do not maintain it"),
                format!(
                    "start them with --etcd-upkeep, or give etcd --auto-compaction-retention=5m and from time to time \
                     run '{commands}'"
                ),
            ),
            _ => Check::ok(name, found),
        }
    };
    members.iter().map(check).collect()
}

fn port(config: &Config, seen: &HostFacts) -> Check {
    let listen = config.listen;
    match &seen.port {
        Ok(()) => Check::ok("port", format!("{listen} is free")),
        Err(_) if seen.agent_runs => Check::ok("port", format!("{listen}, in use by a running agent")),
        Err(why) => {
            Check::fail("port", format!("{listen}: {why}"), "stop what uses it or give another --listen")
        }
    }
}

fn features(seen: &HostFacts) -> Vec<Check> {
    let check = |(name, result): &(&'static str, Result<(), String>)| match result {
        Ok(()) => Check::ok(name, "the kernel supports such links"),
        // Needed only between nodes.
        Err(why) if *name == "vxlan" => {
            Check::warn(name, why, "not needed on a single node; for several load the module vxlan")
        }
        Err(why) => Check::fail(name, why, format!("load the module {name}, for example: modprobe {name}")),
    };
    seen.features.iter().map(check).collect()
}

fn iptables(seen: &HostFacts) -> Check {
    match (&seen.iptables_version, &seen.forward_policy) {
        (Ok(version), Ok(_)) => Check::ok("iptables", version.trim()),
        (Err(why), _) | (_, Err(why)) => {
            Check::fail("iptables", why, "install the package iptables and load the module ip_tables")
        }
    }
}

fn forward_policy(config: &Config, seen: &HostFacts) -> Check {
    let policy = seen.forward_policy.as_deref().unwrap_or("unknown");
    match seen.firewalld {
        true => {
            Check::warn("forward policy", format!("{policy}, and firewalld runs"), firewalld_remedy(config))
        }
        false => Check::ok("forward policy", format!("{policy}; the agent's own rules let pods through")),
    }
}

fn jumps(seen: &HostFacts) -> Check {
    let name = "jumps";
    match &seen.missing_jumps {
        _ if !seen.agent_runs => Check::ok(name, "no agent runs: nothing jumps to its chains yet"),
        Ok(missing) if missing.is_empty() => Check::ok(name, "the kernel's chains jump to the agent's"),
        Ok(missing) => Check::warn(
            name,
            format!("missing: {}", missing.join(", ")),
            "the agent puts them back within 5 s; if it does not, its log says why",
        ),
        Err(why) => Check::warn(name, why, "check that iptables works as root"),
    }
}

/// Remedy for firewalld, whose own rules also judge packets from pods, packets out of the tunnel, and the tunnel's
/// packets themselves.
fn firewalld_remedy(config: &Config) -> String {
    let (names, port) = (Names::for_instance(&config.machine.instance), config.vxlan.port);
    format!(
        "put the links {} and {} into firewalld's trusted zone (firewall-cmd --permanent --zone=trusted \
         --add-interface=LINK), open the tunnel's UDP port {port} (firewall-cmd --permanent \
         --add-port={port}/udp), and reload it (firewall-cmd --reload)",
        names.bridge, names.tunnel
    )
}

fn ip_forward(seen: &HostFacts) -> Check {
    match seen.ip_forward.as_deref() {
        Some("0") => {
            Check::warn("ip_forward", "off", "the agent turns it on; check that nothing turns it off")
        }
        Some(_) => Check::ok("ip_forward", "on"),
        None => Check::fail("ip_forward", "can't be read", "mount /proc"),
    }
}

fn bridge_nf(seen: &HostFacts) -> Check {
    let found = match seen.bridge_nf.as_deref() {
        Some("1") => "on: services see pods of their own node with their own address",
        Some(_) => "off: services see pods of their own node with the bridge's address",
        None => "no module br_netfilter: services see pods of their own node with the bridge's address",
    };
    Check::ok("bridge-nf", found)
}

fn conntrack(seen: &HostFacts) -> Check {
    match seen.has_conntrack {
        true => Check::ok("conntrack", "installed"),
        false => Check::warn(
            "conntrack",
            "not installed: UDP clients may keep sending to a removed pod for minutes",
            "install the package conntrack",
        ),
    }
}
