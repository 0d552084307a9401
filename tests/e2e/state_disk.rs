//! State directories on a disk without a free byte: what runs goes on, a container that ends is restarted, daemons that
//! are killed start again, `status` names the disks, and a commit that could not be read is applied once there is room.

use std::io::Write as _;
use std::path::PathBuf;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Node, Result, bail, ensure, eventually, run, secs};
use nix::errno::Errno;

/// Mounts it at `$1`, with what is there: keys and certificates.
const MOUNT: &str = "mkdir -p \"$1\" \"$1.kept\"; cp -a \"$1/.\" \"$1.kept\"; \
                     mount -t tmpfs -o size=64m tmpfs \"$1\"; cp -a \"$1.kept/.\" \"$1\"; rm -r \"$1.kept\"";

/// A file system of 64 MiB for a state directory.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        run("sh", &["-ec", MOUNT, "-", &dir.to_string_lossy()])?;
        Ok(Self(dir))
    }

    /// Like `mount`, for the state directory of a node in namespaces. It lasts as long as these.
    pub(crate) fn mount_on(node: &Node) -> Result<Self> {
        let dir = node.state_dir().to_string_lossy();
        let command = node.command(&["sh", "-ec", MOUNT, "-", &dir]);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        run(words[0], &words[1..])?;
        Ok(Self(node.root()?.join(dir.trim_start_matches('/'))))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Leaves less than a tenth of it free.
    pub(crate) fn fill_nearly(&self) -> Result<()> {
        Ok(std::fs::write(self.ballast(), vec![1; 59 << 20])?)
    }

    /// Leaves no byte free.
    fn fill(&self) -> Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(self.ballast())?;
        loop {
            match file.write(&[1; 4096]) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => return Ok(()),
                Err(error) => bail!("cannot fill {}: {error}", self.0.display()),
            }
        }
    }

    pub(crate) fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the daemons still run.
        let _ = run("umount", &["--lazy", &self.0.to_string_lossy()]);
    }
}

#[test]
fn a_full_disk_stops_no_pod_and_no_start_of_a_daemon() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.run_story(|cluster| {
        let node = cluster.node().name.clone();
        let disks = [
            SmallDisk::mount(cluster.dir("state-r0"))?,
            SmallDisk::mount(cluster.node().state_dir().to_owned())?,
        ];
        cluster.start_all()?;
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let before = cluster.serving("shop", "hello from shop")?;
        disks.iter().try_for_each(SmallDisk::fill)?;

        // Incompressible, so that the mirror needs room for it.
        let seal: String = (0..20_000_u32).map(|n| format!("{:x}", n.wrapping_mul(2_654_435_761))).collect();
        let files = [Change::write("blog.yaml", web("blog").to_string()), Change::write("seal.txt", seal)];
        let commit = cluster.repo.push(&files, "More")?;
        eventually("status names the disks and the source's error", secs(40), || {
            let page = cluster.cli(&["status"])?.ok()?;
            for owner in ["reconciler r0".to_owned(), format!("node {node}")] {
                ensure!(page.contains(&format!("{owner}: the disk of its state directory has ")), "{page}");
            }
            ensure!(page.contains("is not fetched") && page.contains("free some"), "{page}");
            Ok(())
        })?;
        ensure!(cluster.pod("shop")?.lives() == before.lives(), "a pod was touched");

        cluster.node().docker.run(&["kill", &before.container("web")?.id])?;
        let restarted = cluster.serving("shop", "hello from shop")?;
        ensure!(restarted.container("web")?.id != before.container("web")?.id, "{restarted:?}");

        cluster.reconcilers[0].kill()?;
        cluster.node_mut().agent.kill()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        cluster.start_agent()?;
        let after = cluster.serving("shop", "hello from shop")?;
        ensure!(after.lives() == restarted.lives(), "{after:?} is not {restarted:?}");

        let pids = (cluster.reconcilers[0].pid()?, cluster.node().agent.pid()?);
        disks.iter().try_for_each(SmallDisk::empty)?;
        cluster.applied(&commit)?;
        cluster.serving("blog", "hello from blog")?;
        ensure!(
            pids == (cluster.reconcilers[0].pid()?, cluster.node().agent.pid()?),
            "a daemon was restarted"
        );
        ensure!(cluster.pod("shop")?.lives() == restarted.lives(), "a pod was touched");
        Ok(())
    })
}
