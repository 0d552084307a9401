//! A slot: a number below 38, locked for the lifetime of its owner, that determines every
//! name which a cluster uses on the machine. Taking a slot sweeps the leftovers of a dead owner.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

use crate::sweep;

/// 10.201.0.0/16 to 10.238.0.0/16: clear of the default cluster network 10.244.0.0/16.
const SLOTS: u8 = 38;
/// Ports below the kernel's ephemeral range, so that no outgoing connection takes one.
const PORT_BASE: u16 = 17_000;
/// Ports of one slot.
const PORTS: u16 = 20;

/// Exclusive use of one slot.
#[derive(Debug)]
pub struct Slot {
    index: u8,
    dir: PathBuf,
    _lock: Flock<File>,
}

/// Folder of everything that the tests keep: one folder per slot, and the images.
pub(crate) fn root() -> Result<PathBuf> {
    let root = std::env::temp_dir().join("minik8s-tests");
    fs::create_dir_all(&root)?;
    Ok(root)
}

impl Slot {
    /// Takes the first free slot, swept and empty.
    pub fn take() -> Result<Self> {
        let root = root()?;
        for index in 1..=SLOTS {
            let file = File::create(root.join(format!("{index:02}.lock")))?;
            let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            let slot = Self { index, dir: root.join(format!("mt{index:02}")), _lock: lock };
            sweep::sweep(&slot).with_context(|| format!("cannot sweep slot {index}"))?;
            if slot.ports_are_free() {
                fs::create_dir_all(&slot.dir)?;
                return Ok(slot);
            }
        }
        bail!("all {SLOTS} slots below {} are in use", root.display())
    }

    /// Name of the Minik8s instance: `mt07`.
    pub fn instance(&self) -> String {
        format!("mt{:02}", self.index)
    }

    /// Prefix of the instance's iptables chains: `MT07-`.
    pub fn chain_prefix(&self) -> String {
        format!("MT{:02}-", self.index)
    }

    /// Folder of everything on disk.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Port number `offset` of the slot, below 20.
    pub fn port(&self, offset: u16) -> u16 {
        assert!(offset < PORTS, "a slot has {PORTS} ports");
        PORT_BASE + u16::from(self.index) * PORTS + offset
    }

    /// Every port of the slot.
    pub(crate) fn all_ports(&self) -> impl Iterator<Item = u16> {
        (0..PORTS).map(|offset| self.port(offset))
    }

    /// Range of the cluster's pod addresses.
    pub fn cluster_cidr(&self) -> String {
        format!("10.{}.0.0/16", 200 + u16::from(self.index))
    }

    /// Range of the cluster's service addresses.
    pub fn service_cidr(&self) -> String {
        format!("10.{}.0.0/20", 100 + u16::from(self.index))
    }

    /// Number of the VXLAN between its nodes.
    pub fn vxlan_vni(&self) -> u32 {
        u32::from(self.index) + 100
    }

    /// Address number `host` in the network that joins the nodes of the slot, a /24.
    pub fn underlay(&self, host: u8) -> String {
        format!("10.200.{}.{host}", self.index)
    }

    fn ports_are_free(&self) -> bool {
        (0..PORTS).all(|offset| TcpListener::bind(("127.0.0.1", self.port(offset))).is_ok())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Err(error) = sweep::sweep(self) {
            eprintln!("slot {} is not clean, the next run tries again: {error:#}", self.index);
        }
    }
}
