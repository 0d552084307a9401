//! Watches Docker's disk during a build: Docker limits a build's memory and CPU, but not its writes.

use std::time::Duration;

use tokio::time::sleep;

use crate::worlds::disk::{Disk, DiskUsage};
use crate::worlds::docker::Docker;

/// Interval between checks. At 1 GB/s a build is stopped 2 GB late.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Bytes that a build must leave free for the pods of the node.
const FREE_MIN: u64 = 1 << 30;

/// Returns the reason once a build must be stopped because the disk fills. Never returns if the disk can't be read.
pub(super) async fn filled(docker: &dyn Docker, disk: &dyn Disk, growth_max: u64) -> String {
    let Ok(root) = docker.data_root().await else { return std::future::pending().await };
    let Ok(at_first) = disk.usage(&root).await else { return std::future::pending().await };
    loop {
        if let Ok(now) = disk.usage(&root).await
            && let Some(why) = trouble(at_first, now, growth_max)
        {
            return format!("the build was stopped: {why} on the disk of {}", root.display());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns the problem with a disk, compared to its usage `before`.
fn trouble(before: DiskUsage, now: DiskUsage, growth_max: u64) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    let grown = now.used_bytes.saturating_sub(before.used_bytes);
    if grown > growth_max {
        // Others write, too.
        return Some(format!(
            "{} MiB were written since it began, more than {} MiB,",
            mib(grown),
            mib(growth_max)
        ));
    }
    let is_low = now.free_bytes < FREE_MIN;
    is_low.then(|| format!("{} MiB are left, less than {} MiB,", mib(now.free_bytes), mib(FREE_MIN)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::disk::FakeDisk;
    use crate::worlds::docker::FakeDocker;

    // Seen red without `is_low`.
    #[tokio::test(start_paused = true)]
    async fn a_build_that_fills_the_disk_is_stopped() {
        let of = |used: u64, free: u64| DiskUsage { used_bytes: used << 30, free_bytes: free << 30 };
        for (after, says) in [(of(19, 41), "9216 MiB were written since"), (of(12, 0), "0 MiB are left")] {
            let (docker, disk) = (FakeDocker::default(), FakeDisk::default());
            disk.set(of(10, 50));
            let watch = filled(&docker, &disk, 8 << 30);
            tokio::pin!(watch);
            let quiet = tokio::time::timeout(Duration::from_secs(60), &mut watch).await;
            assert!(quiet.is_err(), "{quiet:?}");
            disk.set(after);
            let why = tokio::time::timeout(Duration::from_secs(60), &mut watch).await.unwrap();
            assert!(why.contains(says), "{why}");
        }
    }
}
