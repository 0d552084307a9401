//! The machine itself: processors, memory, names and versions, from the kernel and files.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use async_trait::async_trait;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use schema::quantity::{Cpu, Memory};
use schema::records::NodeVersions;

use super::docker::Docker;
use crate::node_address::NodeAddress;

/// Facts about the node's machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineFacts {
    /// Addresses at which others reach the machine, the preferred one first.
    pub addresses: Vec<IpAddr>,
    pub cpu: Cpu,
    pub memory: Memory,
    /// Number of NVIDIA GPUs that containers can get; `None` while Docker does not say.
    pub gpus: Option<u64>,
    pub versions: NodeVersions,
}

/// The machine. Never fails: unreadable facts stay empty.
#[async_trait]
pub trait Machine: Send + Sync + 'static {
    /// Current facts about the machine.
    async fn facts(&self) -> MachineFacts;
}

/// This machine.
pub struct RealMachine {
    docker: Arc<dyn Docker>,
    address: NodeAddress,
}

impl RealMachine {
    /// Creates a reader of this machine's facts; `address` is its own.
    pub fn new(docker: Arc<dyn Docker>, address: NodeAddress) -> Self {
        Self { docker, address }
    }
}

impl RealMachine {
    /// Returns the number of GPUs; 0 if Docker has no runtime that passes them to containers.
    async fn gpus(&self) -> Option<u64> {
        match gpus_in(Path::new(NVIDIA_GPUS)) {
            0 => Some(0),
            some => Some(some * u64::from(self.docker.has_runtime("nvidia").await.ok()?)),
        }
    }
}

/// Folder in which NVIDIA's driver has an entry for each GPU.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";

fn gpus_in(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| entries.flatten().count() as u64)
}

#[async_trait]
impl Machine for RealMachine {
    async fn facts(&self) -> MachineFacts {
        let uname = nix::sys::utsname::uname().ok();
        let kernel = uname.as_ref().map(|name| name.release().to_string_lossy().into_owned());
        MachineFacts {
            addresses: self.address.known().into_iter().collect(),
            cpu: cpu(),
            memory: Memory { bytes: memory_bytes() },
            gpus: self.gpus().await,
            versions: NodeVersions {
                agent: env!("CARGO_PKG_VERSION").to_owned(),
                docker: self.docker.version().await.unwrap_or_default(),
                kernel: kernel.unwrap_or_default(),
                os: os_name_of(&read("/etc/os-release")),
                arch: architecture().to_owned(),
            },
        }
    }
}

/// Addresses of all links of this machine, loopback included.
///
/// # Errors
/// Those of the kernel.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let links = getifaddrs()?;
    let address = |link: InterfaceAddress| {
        let socket = link.address?;
        let v4 = socket.as_sockaddr_in().map(|socket| IpAddr::V4(socket.ip()));
        v4.or_else(|| socket.as_sockaddr_in6().map(|socket| IpAddr::V6(socket.ip())))
    };
    Ok(links.filter_map(address).collect())
}

/// The architecture as Docker and Kubernetes spell it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Processors of this machine.
pub fn cpu() -> Cpu {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Cpu { millis: cores as u64 * 1000 }
}

/// Bytes of this machine's memory; 0 if unknown.
pub fn memory_bytes() -> u64 {
    memory_of(&read("/proc/meminfo"))
}

/// Bytes of `MemTotal` in the text of `/proc/meminfo`.
fn memory_of(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// `PRETTY_NAME` in the text of `/etc/os-release`.
fn os_name_of(os_release: &str) -> String {
    let line = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or_default().trim_matches('"').to_owned()
}

// Disk usage.

/// Bytes of a file system, as `df` counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub used_bytes: u64,
    /// Bytes available to users other than root.
    pub free_bytes: u64,
}

impl DiskUsage {
    /// Usable bytes, without the kernel's reserve for root.
    pub fn total_bytes(self) -> u64 {
        self.used_bytes.saturating_add(self.free_bytes)
    }

    /// Usage in percent, rounded up as `df` does.
    pub fn percent(self) -> u8 {
        let total = u128::from(self.total_bytes().max(1));
        u8::try_from((u128::from(self.used_bytes) * 100).div_ceil(total)).unwrap_or(100)
    }
}

/// The node's disks.
#[async_trait]
pub trait Disk: Send + Sync + 'static {
    /// Usage of the file system that holds this path.
    async fn usage(&self, path: &Path) -> io::Result<DiskUsage>;
}

/// This machine's disks.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[async_trait]
impl Disk for RealDisk {
    async fn usage(&self, path: &Path) -> io::Result<DiskUsage> {
        let path = path.to_owned();
        // A network file system may hang.
        let asked = tokio::task::spawn_blocking(move || nix::sys::statvfs::statvfs(&path));
        let stat = asked.await.map_err(io::Error::other)??;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        Ok(DiskUsage {
            used_bytes: bytes(stat.blocks().saturating_sub(stat.blocks_free())),
            free_bytes: bytes(stat.blocks_available()),
        })
    }
}

/// A disk with the usage that a test sets.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct FakeDisk(std::sync::Mutex<DiskUsage>);

#[cfg(test)]
impl FakeDisk {
    pub(crate) fn set(&self, usage: DiskUsage) {
        *schema::control::lock(&self.0) = usage;
    }
}

#[cfg(test)]
#[async_trait]
impl Disk for FakeDisk {
    async fn usage(&self, _path: &Path) -> io::Result<DiskUsage> {
        Ok(*schema::control::lock(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_the_entries_of_the_drivers_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(gpus_in(&folder.path().join("no-driver")), 0);
        for bus in ["0000:01:00.0", "0000:41:00.0"] {
            fs::create_dir(folder.path().join(bus)).unwrap();
        }
        assert_eq!(gpus_in(folder.path()), 2);
    }

    #[test]
    fn memory_and_system_are_read_from_their_files() {
        assert_eq!(memory_of("MemTotal:       24684544 kB\nMemFree: 1 kB\n"), 24_684_544 * 1024);
        assert_eq!(memory_of(""), 0);
        let text = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_name_of(text), "Debian GNU/Linux 12 (bookworm)");
    }
}

#[cfg(test)]
mod disk_tests {
    use super::*;

    #[test]
    fn percent_is_of_what_can_be_used_rounded_up() {
        for (used, free, percent) in [(0, 100, 0), (85, 15, 85), (851, 149, 86), (1, 0, 100), (0, 0, 0)] {
            assert_eq!(DiskUsage { used_bytes: used, free_bytes: free }.percent(), percent);
        }
    }

    #[tokio::test]
    async fn the_machines_own_disk_has_a_size() {
        let usage = RealDisk.usage(Path::new("/")).await.unwrap();
        assert!(usage.total_bytes() > 1 << 20 && usage.used_bytes > 0, "{usage:?}");
        assert!(RealDisk.usage(Path::new("/nonexistent/x")).await.is_err());
    }
}
