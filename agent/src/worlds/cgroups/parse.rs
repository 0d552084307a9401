//! Parsers for the texts of `/proc` and of cgroups. Pure.
//!
//! Formats: proc(5), cgroups(7) and the kernel's Documentation/admin-guide/cgroup-{v1,v2}.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use procfs::ProcessCGroups;
use procfs::net::{DeviceStatus, InterfaceDeviceStatus, RouteEntries, RouteEntry};
use procfs::prelude::FromRead;

use super::{CgroupPaths, Version};
use crate::metrics::Traffic;
use crate::mounts::unescape;

/// Nanoseconds of one tick of `/proc/stat`: USER_HZ is 100 on every architecture that Docker runs on.
const TICK_NS: u64 = 10_000_000;

/// Finds the cgroups of a process from `/proc/<pid>/cgroup` and `/proc/self/mountinfo`. The error names the missing
/// part.
pub fn place(cgroup: &str, mountinfo: &str) -> Result<CgroupPaths, String> {
    let ProcessCGroups(groups) =
        ProcessCGroups::from_read(cgroup.as_bytes()).map_err(|error| error.to_string())?;
    let own = |controller: &str| {
        let group = groups.iter().find(|group| group.controllers.iter().any(|name| name == controller));
        group.map(|group| group.pathname.as_str())
    };
    // With both versions mounted (systemd's hybrid) the controllers are still those of v1.
    if let (Some(cpu), Some(memory)) = (own("cpuacct"), own("memory")) {
        let folder = |controller: &str, path: &str| {
            let mount = mounts(mountinfo).find(|mount| mount.controls(controller));
            mount.ok_or_else(|| format!("the {controller} controller is not mounted"))?.below(path)
        };
        let (cpu, memory) = (folder("cpuacct", cpu)?, folder("memory", memory)?);
        let io = own("blkio").and_then(|io| folder("blkio", io).ok());
        return Ok(CgroupPaths { version: Version::V1, cpu, memory, io });
    }
    let unified = groups.iter().find(|group| group.hierarchy == 0).ok_or("it is in no cgroup")?;
    let mount = mounts(mountinfo).find(|mount| mount.kind == "cgroup2").ok_or("cgroup2 is not mounted")?;
    let folder = mount.below(&unified.pathname)?;
    let io = Some(folder.clone());
    Ok(CgroupPaths { version: Version::V2, cpu: folder.clone(), memory: folder, io })
}

/// A cgroup mount.
struct Mount<'a> {
    kind: &'a str,
    options: &'a str,
    /// The cgroup mounted at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount<'_> {
    fn controls(&self, controller: &str) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == controller)
    }

    fn below(&self, path: &str) -> Result<PathBuf, String> {
        let below = Path::new(path).strip_prefix(&self.root);
        let below = below.map_err(|_| {
            format!("{path} is outside of {}, which is all that is mounted", self.root.display())
        })?;
        if below.components().any(|part| part.as_os_str() == "..") {
            return Err(format!("{path} is outside of this process's cgroup namespace"));
        }
        Ok(self.point.join(below))
    }
}

/// The cgroup mounts, the topmost first.
fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().rev().filter_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescape(place.next()?.as_bytes()), unescape(place.next()?.as_bytes()));
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?;
        let options = file_system.nth(1).unwrap_or_default();
        kind.starts_with("cgroup").then_some(Mount { kind, options, root, point })
    })
}

/// Parses a file that holds a number.
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Parses the number after the word that begins a line.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (word, value) = line.split_once(' ')?;
        (word == name).then(|| number(value))?
    })
}

/// CPU time of a container in nanoseconds: `cpuacct.usage` of v1, `cpu.stat` of v2.
pub fn cpu_ns(version: Version, text: &str) -> Option<u64> {
    match version {
        Version::V1 => number(text),
        Version::V2 => field(text, "usage_usec").map(|us| us.saturating_mul(1000)),
    }
}

/// The working set as the kubelet counts it: memory in use less the inactive page cache.
pub fn working_set(version: Version, usage: &str, stat: &str) -> Option<u64> {
    let inactive = match version {
        // Includes descendants; the plain field covers the cgroup alone.
        Version::V1 => "total_inactive_file",
        Version::V2 => "inactive_file",
    };
    Some(number(usage)?.saturating_sub(field(stat, inactive)?))
}

/// Bytes that a container read from disks and wrote to them: `blkio.throttle.io_service_bytes` of v1 (`8:0 Read 4096`),
/// `io.stat` of v2 (`8:0 rbytes=4096 wbytes=0 …`). Adds up all devices: bytes that pass through two, as with LVM, may
/// count twice.
pub fn io(text: &str) -> Traffic {
    let mut io = Traffic::default();
    let words: Vec<&str> = text.split([' ', '=', '\n']).collect();
    for pair in words.windows(2) {
        let (counter, bytes) = match *pair {
            ["Read" | "rbytes", bytes] => (&mut io.input, bytes),
            ["Write" | "wbytes", bytes] => (&mut io.output, bytes),
            _ => continue,
        };
        *counter = counter.saturating_add(number(bytes).unwrap_or_default());
    }
    io
}

/// Bytes received and transmitted by each link, from `/proc/net/dev`.
pub fn link_traffic(dev: &str) -> Result<BTreeMap<String, Traffic>, String> {
    let InterfaceDeviceStatus(links) =
        InterfaceDeviceStatus::from_read(dev.as_bytes()).map_err(|error| error.to_string())?;
    let traffic =
        |link: DeviceStatus| (link.name, Traffic { input: link.recv_bytes, output: link.sent_bytes });
    Ok(links.into_values().map(traffic).collect())
}

/// Link of the IPv4 default route, from `/proc/net/route`; of several, that with the lowest metric.
pub fn uplink(route: &str) -> Option<String> {
    let RouteEntries(routes) = RouteEntries::from_read(route.as_bytes()).ok()?;
    let is_default = |route: &RouteEntry| route.destination.is_unspecified() && route.mask.is_unspecified();
    let routes = routes.into_iter().filter(is_default);
    routes.min_by_key(|route| route.metrics).map(|route| route.iface)
}

/// CPU time that the machine was not idle, in nanoseconds, from `/proc/stat`.
pub fn machine_cpu_ns(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(number).collect();
    // user nice system idle iowait irq softirq steal; guest time is already in user. Time stolen by the hypervisor
    // was not used here.
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = *ticks.as_slice() else { return None };
    Some((user + nice + system + irq + softirq).saturating_mul(TICK_NS))
}

/// The machine's working set in bytes, from `/proc/meminfo`, as the kubelet counts it on v2.
pub fn machine_memory(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        number(line.trim().trim_end_matches("kB"))
    };
    let used = kibibytes("MemTotal")?.checked_sub(kibibytes("MemFree")?)?;
    Some(used.saturating_sub(kibibytes("Inactive(file)").unwrap_or(0)) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2_MOUNTS: &str = "\
24 31 0:21 / /proc rw,nosuid - proc proc rw
29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

    #[test]
    fn places_are_found_for_both_versions_and_both_drivers() {
        for (name, cgroup, mounts, version, [cpu, memory, io]) in [
            (
                "v1, cgroupfs driver",
                "6:blkio:/docker/abc\n4:memory:/docker/abc\n2:cpuacct:/docker/abc\n1:cpu:/docker/abc\n0::/\n",
                "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 36 31 0:33 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n",
                Version::V1,
                [
                    "/sys/fs/cgroup/cpuacct/docker/abc",
                    "/sys/fs/cgroup/memory/docker/abc",
                    "/sys/fs/cgroup/blkio/docker/abc",
                ],
            ),
            (
                "v1 under systemd (hybrid)",
                "11:memory:/system.slice/docker-abc.scope\n4:cpu,cpuacct:/system.slice/docker-abc.scope\n\
                 1:name=systemd:/system.slice/docker-abc.scope\n0::/system.slice/docker-abc.scope\n",
                V1_MOUNTS,
                Version::V1,
                [
                    "/sys/fs/cgroup/cpu,cpuacct/system.slice/docker-abc.scope",
                    "/sys/fs/cgroup/memory/system.slice/docker-abc.scope",
                    "",
                ],
            ),
            (
                "v2, systemd driver",
                "0::/system.slice/docker-abc.scope\n",
                V2_MOUNTS,
                Version::V2,
                ["/sys/fs/cgroup/system.slice/docker-abc.scope"; 3],
            ),
            (
                "v2, cgroupfs driver",
                "0::/docker/abc\n",
                V2_MOUNTS,
                Version::V2,
                ["/sys/fs/cgroup/docker/abc"; 3],
            ),
            (
                "only a part of the hierarchy is mounted",
                "0::/outer/docker/abc\n",
                "29 23 0:26 /outer /cg\\040roups rw - cgroup2 cgroup2 rw\n",
                Version::V2,
                ["/cg roups/docker/abc"; 3],
            ),
        ] {
            let io = Some(io).filter(|io| !io.is_empty()).map(PathBuf::from);
            let expected = CgroupPaths { version, cpu: cpu.into(), memory: memory.into(), io };
            assert_eq!(place(cgroup, mounts), Ok(expected), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_seen_from_here_says_why() {
        for (cgroup, mounts, part) in [
            ("0::/docker/abc\n", "", "cgroup2 is not mounted"),
            ("", V2_MOUNTS, "no cgroup"),
            ("0::/../docker/abc\n", V2_MOUNTS, "outside of this process's cgroup namespace"),
            ("0::/docker/abc\n", "29 23 0:26 /outer /x rw - cgroup2 cgroup2 rw\n", "outside of /outer"),
            ("2:cpuacct:/a\n4:memory:/a\n", V2_MOUNTS, "cpuacct controller is not mounted"),
        ] {
            let why = place(cgroup, mounts).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn counters_are_read_in_both_versions() {
        assert_eq!(cpu_ns(Version::V1, "81234567\n"), Some(81_234_567));
        let v2 = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 3\n";
        assert_eq!(cpu_ns(Version::V2, v2), Some(1_500_000));
        let v1 = "cache 900\ninactive_file 1\ntotal_cache 900\ntotal_inactive_file 300\n";
        // Red when the plain field of v1 is taken.
        assert_eq!(working_set(Version::V1, "1000\n", v1), Some(700));
        assert_eq!(working_set(Version::V2, "1000\n", "anon 5\ninactive_file 400\n"), Some(600));
        // Counted a moment apart, the cache may be more than the whole.
        assert_eq!(working_set(Version::V2, "300\n", "inactive_file 400\n"), Some(0));
        assert_eq!(working_set(Version::V2, "max\n", "inactive_file 400\n"), None);
        assert_eq!(working_set(Version::V1, "1\n", "inactive_file 400\n"), None);
        assert_eq!(cpu_ns(Version::V2, "user_usec 3\n"), None);
    }

    #[test]
    fn bytes_of_disks_are_added_up_in_both_versions() {
        let v1 = "8:16 Read 4096\n8:16 Write 100\n8:16 Sync 4000\n8:16 Async 196\n8:16 Discard 7\n8:16 Total 4196\n\
                  8:0 Read 904\n8:0 Write 0\n8:0 Sync 904\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 904\nTotal 5100\n";
        assert_eq!(io(v1), Traffic { input: 5000, output: 100 });
        let v2 = "259:0 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n7:1 \n\
                  8:0 rbytes=800 wbytes=1 rios=1 wios=1 dbytes=9 dios=1\n";
        assert_eq!(io(v2), Traffic { input: 1_460_000, output: 314_773_505 });
        // A container that has used no disk yet.
        assert_eq!((io(""), io("Total 0\n")), (Traffic::default(), Traffic::default()));
    }

    #[test]
    fn links_and_the_one_to_the_world_are_read_from_proc() {
        let dev = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1036780   10380    0    0    0     0          0         0  1036780   10380    0    0    0     0       0          0
  ens5: 81234567 70000    0    2    0     0          0        11  4567890   50000    0    0    0     0       0          0
mk8sv0a1b2c3d4: 900 9 0 0 0 0 0 0 1100 11 0 0 0 0 0 0
";
        let links = link_traffic(dev).unwrap();
        assert_eq!(links.len(), 3);
        assert_eq!(links["ens5"], Traffic { input: 81_234_567, output: 4_567_890 });
        assert_eq!(links["mk8sv0a1b2c3d4"], Traffic { input: 900, output: 1100 });
        assert!(link_traffic("a\nb\neth0: 1 2\n").is_err());
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let lines = "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                     ens5\t00000000\t010010AC\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                     mk8s0\t0003F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(uplink(&format!("{head}{lines}")), Some("ens5".to_owned()));
        assert_eq!(uplink(head), None);
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        let stat = "cpu  100 20 30 5000 600 7 8 90 100 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine_cpu_ns(stat), Some(165 * TICK_NS));
        assert_eq!(machine_cpu_ns("cpu  1 2\n"), None);
        let meminfo = "MemTotal:  1000 kB\nMemFree:  400 kB\nInactive:  300 kB\nInactive(file):  250 kB\n";
        assert_eq!(machine_memory(meminfo), Some(350 * 1024));
    }
}
