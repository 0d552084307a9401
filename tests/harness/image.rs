//! The two images of the tests, built from Debian's static busybox: there is no registry.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::binaries::agent_binary;
use crate::docker_world::DockerWorld;
use crate::process::run;
use crate::slot;

const BUSYBOX: &str = "/bin/busybox";
/// Image of busybox whose `/version` is 1.
pub const IMAGE: &str = "minik8s-e2e/busybox:1";
/// Same image with 2 as `/version`.
pub const IMAGE_TWO: &str = "minik8s-e2e/busybox:2";

/// Shared lock held for the lifetime of this process: run.sh removes the images only while no process
/// holds it, so never from under another run.
static IN_USE: OnceLock<Flock<File>> = OnceLock::new();

/// Builds both images on a daemon that lacks them.
pub fn ensure_images(docker: &DockerWorld) -> Result<()> {
    let root = slot::root()?;
    if IN_USE.get().is_none() {
        let _ = IN_USE.set(lock(&root.join("images.lock"), FlockArg::LockShared)?);
    }
    let _one = one_at_a_time(docker, &root)?;
    for (image, version) in [(IMAGE, "1"), (IMAGE_TWO, "2")] {
        if !docker.has_image(image)? {
            docker.run(&["import", &made(&root, version)?.to_string_lossy(), image])?;
        }
    }
    Ok(())
}

/// Serializes stories that share the machine's own Docker: building an image twice leaves one without a name.
fn one_at_a_time(docker: &DockerWorld, root: &Path) -> Result<Option<Flock<File>>> {
    let is_shared = docker.host() == DockerWorld::of_machine().host();
    is_shared.then(|| lock(&root.join("images.machine.lock"), FlockArg::LockExclusive)).transpose()
}

/// Tar of an image, created on first use, and again when busybox changes.
fn made(root: &Path, version: &str) -> Result<PathBuf> {
    let _making = lock(&root.join("images.making.lock"), FlockArg::LockExclusive)?;
    let tar = root.join(format!("busybox-{version}.tar"));
    let changed = |path: &Path| fs::metadata(path).and_then(|about| about.modified());
    match changed(&tar) {
        Ok(made) if made > changed(Path::new(BUSYBOX))? => Ok(tar),
        _ => archive(root, version, 0),
    }
}

/// Copies the base images of Python functions to a daemon that lacks them. Nodes in namespaces can't download
/// packages: the machine's own Docker builds the images and provides them.
pub fn ensure_python(docker: &DockerWorld) -> Result<()> {
    let root = slot::root()?;
    let own = DockerWorld::of_machine();
    let (images, tar) = python(&root, &own)?;
    let there = || images.iter().all(|image| docker.has_image(image).unwrap_or(false));
    if docker.host() == own.host() || there() {
        return Ok(());
    }
    docker.run(&["load", "-i", &tar.to_string_lossy()]).map(|_| ())
}

/// Builds the images on the machine's Docker if needed; returns their names and a tar of them.
fn python(root: &Path, own: &DockerWorld) -> Result<(Vec<String>, PathBuf)> {
    let _making = lock(&root.join("python.making.lock"), FlockArg::LockExclusive)?;
    let (agent, scratch) = (agent_binary(), root.to_string_lossy().into_owned());
    let args = ["python-base", "--docker", own.host(), "--state-dir", &scratch];
    let was_there =
        own.run(&["images", "-q", "minik8s.local/python"]).is_ok_and(|ids| !ids.trim().is_empty());
    let made = run(&agent.to_string_lossy(), &args)?;
    let images: Vec<String> = made.lines().map(str::to_owned).collect();
    if !was_there {
        // For run.sh, which removes them with the others.
        fs::write(root.join("python.made"), images.join("\n"))?;
    }
    let tar = root.join(format!("{}.tar", images.join("-").replace(['/', ':'], "_")));
    if !tar.exists() {
        let names = images.iter().map(String::as_str);
        whole(&tar, |draft| own.run(&["save", "-o", draft].into_iter().chain(names).collect::<Vec<_>>()))?;
    }
    Ok((images, tar))
}

fn lock(path: &Path, how: FlockArg) -> Result<Flock<File>> {
    Flock::lock(File::create(path)?, how)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {}", path.display()))
}

/// Writes busybox as a tar below `root`, with `noise_mib` MiB of noise that no other image has.
pub(crate) fn archive(root: &Path, version: &str, noise_mib: u64) -> Result<PathBuf> {
    let tar = root.join(format!("busybox-{version}.tar"));
    let tree = root.join(format!("busybox-{version}"));
    let _ = fs::remove_dir_all(&tree);
    for folder in ["bin", "tmp", "etc", "www", "data"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    fs::copy(BUSYBOX, tree.join("bin/busybox")).context("no /bin/busybox: apt-get install busybox-static")?;
    for applet in run(BUSYBOX, &["--list"])?.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", tree.join("bin").join(applet))?;
    }
    fs::write(tree.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    fs::write(tree.join("version"), format!("{version}\n"))?;
    if noise_mib > 0 {
        let noise = File::open("/dev/urandom")?.take(noise_mib << 20);
        std::io::copy(&mut { noise }, &mut File::create(tree.join("data/noise"))?)?;
    }
    whole(&tar, |draft| run("tar", &["-C", &tree.to_string_lossy(), "-cf", draft, "."]))?;
    fs::remove_dir_all(&tree)?;
    Ok(tar)
}

/// Writes a file so that it exists only once complete: later runs keep it, and this run may be killed.
fn whole(path: &Path, write: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let draft = path.with_extension("draft");
    write(&draft.to_string_lossy())?;
    Ok(fs::rename(&draft, path)?)
}
