//! Paths of the two programs under test: in `MINIK8S_BIN_DIR`, or freshly built next to the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

static DIR: OnceLock<PathBuf> = OnceLock::new();

/// Path of `minik8s`.
pub fn minik8s_binary() -> PathBuf {
    dir().join("minik8s")
}

/// Path of `minik8s-agent`.
pub fn agent_binary() -> PathBuf {
    dir().join("minik8s-agent")
}

/// Root of the repository.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

fn dir() -> &'static Path {
    DIR.get_or_init(|| match std::env::var_os("MINIK8S_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => build(),
    })
}

/// Builds both in the profile of the test itself, so that a test never runs stale code.
fn build() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    let target = exe.parent().and_then(Path::parent).expect("tests lie in target/<profile>/deps");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "-q", "-p", "minik8s-reconciler", "-p", "minik8s-agent"]);
    if target.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the programs under test do not build");
    target.to_owned()
}
