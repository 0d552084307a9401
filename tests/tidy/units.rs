//! The units in deploy/systemd, as systemd itself judges them: what it does not know in them, and what they expose.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// Most exposure, from 0 to 10, that `systemd-analyze security` may find in a unit.
const EXPOSURE_MAX: [(&str, f64); 3] =
    [("minik8s-etcd.service", 2.5), ("minik8s.service", 2.5), ("minik8s-agent.service", 7.0)];

/// Output of `systemd-analyze`; `None`, and a line that says so, where it is missing or too old.
fn analyze(args: &[&str]) -> Option<(bool, String)> {
    let help = Command::new("systemd-analyze").arg("--help").output();
    if !help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--offline")) {
        // Not by `eprintln!`, which the test program swallows.
        let _ = writeln!(
            std::io::stderr(),
            "units not analyzed: there is no systemd-analyze with --offline here"
        );
        return None;
    }
    let output = Command::new("systemd-analyze").args(args).output().expect("systemd-analyze runs");
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Some((output.status.success(), text))
}

/// Copies of the units whose programs exist on every machine.
fn copies(dir: &Path) -> Vec<PathBuf> {
    let copy = |(name, _): &(&str, f64)| {
        let text = fs::read_to_string(root().join("deploy/systemd").join(name)).expect("the unit is there");
        let line =
            text.lines().find(|line| line.starts_with("ExecStart=/usr/bin/")).expect("it starts a program");
        let path = dir.join(name);
        fs::write(&path, text.replace(line, "ExecStart=/bin/true")).expect("a copy");
        path
    };
    EXPOSURE_MAX.iter().map(copy).collect()
}

fn texts(paths: &[PathBuf]) -> Vec<&str> {
    paths.iter().map(|path| path.to_str().expect("a path in UTF-8")).collect()
}

#[test]
fn systemd_knows_all_that_is_in_the_units() {
    let dir = tempfile::tempdir().expect("a directory");
    let units = copies(dir.path());
    let Some((success, text)) = analyze(&[&["verify"][..], &texts(&units)[..]].concat()) else { return };
    assert!(success && text.is_empty(), "{text}");
}

#[test]
fn the_units_expose_no_more_than_they_must() {
    let dir = tempfile::tempdir().expect("a directory");
    for (unit, (name, most)) in copies(dir.path()).iter().zip(EXPOSURE_MAX) {
        let unit = unit.to_str().expect("a path in UTF-8");
        let Some((_, text)) = analyze(&["security", "--offline=true", "--no-pager", unit]) else { return };
        let overall = text
            .lines()
            .find_map(|line| line.split_once("Overall exposure level for "))
            .expect("a verdict")
            .1;
        let score = overall.split(": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        let score = score.expect("a number");
        let _ = writeln!(std::io::stderr(), "exposure of {name}: {score}, at most {most}");
        assert!(score <= most, "{text}");
    }
}
