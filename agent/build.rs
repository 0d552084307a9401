//! Builds the pause program (`pause/pause.rs`) for the agent's own target; `src/worlds/pause.rs`
//! embeds it. It needs nothing but the compiler and its linker.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

const SOURCE: &str = "pause/pause.rs";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=build.rs");
    if let Err(why) = build() {
        println!("cargo:warning=the pause program did not build: {why}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let variable = |name: &str| env::var(name).map_err(|_| format!("cargo did not set {name}"));
    let target = variable("TARGET")?;
    if !target.contains("linux") || !(target.starts_with("x86_64") || target.starts_with("aarch64")) {
        return Err(format!("{target} is not supported; the agent runs on x86_64 and aarch64 Linux"));
    }
    let binary = PathBuf::from(variable("OUT_DIR")?).join("pause");
    let mut command = Command::new(variable("RUSTC")?);
    command.args(["--crate-name", "pause", "--crate-type", "bin", "--edition", "2024", "--target", &target]);
    for option in [
        "panic=abort",
        "opt-level=s",
        "strip=symbols",
        "relocation-model=static",
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
        "link-arg=-static",
        // Equal sources give equal bytes, so that the image keeps its name.
        "link-arg=-Wl,--build-id=none",
        "link-arg=-Wl,-z,noexecstack",
    ] {
        command.args(["-C", option]);
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        command.arg("-C").arg(format!("linker={linker}"));
    }
    command.arg("-o").arg(&binary).arg(SOURCE);
    let output = command.output().map_err(|error| format!("cannot run the compiler: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().filter(|line| !line.trim().is_empty()).take(10).collect::<Vec<_>>().join("; "))
}
