//! Disk usage.

use std::path::Path;

use async_trait::async_trait;

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
    async fn usage(&self, path: &Path) -> Result<DiskUsage, std::io::Error>;
}

/// This machine's disks.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[async_trait]
impl Disk for RealDisk {
    async fn usage(&self, path: &Path) -> Result<DiskUsage, std::io::Error> {
        let path = path.to_owned();
        // A network file system may hang.
        let asked = tokio::task::spawn_blocking(move || nix::sys::statvfs::statvfs(&path));
        let stat = asked.await.map_err(std::io::Error::other)??;
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
    async fn usage(&self, _path: &Path) -> Result<DiskUsage, std::io::Error> {
        Ok(*schema::control::lock(&self.0))
    }
}

#[cfg(test)]
mod tests {
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
