//! The pause image on the real engine: loads, runs, ends immediately, reaps.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agent::worlds::pause::{image_reference, image_tar};

mod support;

/// Containers of the test; removed when it ends, panic or not.
struct Containers(Vec<String>);

impl Drop for Containers {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "-f"]).args(&self.0).output();
    }
}

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn load() {
    let mut child =
        Command::new("docker").arg("load").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&image_tar()).unwrap();
    assert!(child.wait().unwrap().success(), "docker load takes the archive");
}

/// Children of a process, with their states as `/proc` has them.
fn children(parent: &str) -> Vec<String> {
    let mut states = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if value("PPid:") == Some(parent) {
            states.push(value("State:").unwrap_or_default().to_owned());
        }
    }
    states
}

#[test]
fn the_pause_container_reaps_orphans_and_ends_at_once() {
    support::ensure_image();
    load();
    let pause = format!("pausetest-{}", std::process::id());
    let app = format!("{pause}-app");
    let _containers = Containers(vec![app.clone(), pause.clone()]);
    docker(&["run", "-d", "--name", &pause, "--network", "none", &image_reference()]);
    let pid = docker(&["inspect", "-f", "{{.State.Pid}}", &pause]);
    let namespace = format!("container:{pause}");
    // Ten orphans that end at different times; the shell that started them keeps running.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 5.$i & ); done; touch /tmp/made; exec sleep 60";
    docker(&[
        "run",
        "-d",
        "--name",
        &app,
        "--pid",
        &namespace,
        "--network",
        &namespace,
        support::IMAGE,
        "/bin/sh",
        "-c",
        script,
    ]);
    let mut adopted = false;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let states = children(&pid);
        adopted |= !states.is_empty();
        if adopted && states.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "orphans adopted: {adopted}; left: {states:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    docker(&["rm", "-f", &app]);
    // After 10 s Docker kills a process that has not ended by itself, with code 137.
    docker(&["stop", &pause]);
    assert_eq!(docker(&["inspect", "-f", "{{.State.ExitCode}}", &pause]), "0");
}
