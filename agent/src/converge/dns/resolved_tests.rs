//! What systemd-resolved is asked and told, by a program that prints as `resolvectl` 252 does.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::host::{set_split_by, split_by};
use super::plan::{HOSTS_MAX, NodeStep, Resolved, Split, plan};
use super::tests::seen;

const PRINTS: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/told"
case "$1 $#" in
"dns 2") echo "Link 12 (mk8s.1): 10.96.0.10" ;;
"domain 2") echo "Link 12 (mk8s.1): ~cluster.local ~shop.example.com" ;;
"default-route 2") echo "Link 12 (mk8s.1): yes" ;;
"dnsovertls 2") echo "Link 12 (mk8s.1): opportunistic" ;;
"dnssec 2") echo "Link 12 (mk8s.1): no" ;;
esac
"#;

fn resolvectl() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("resolvectl");
    fs::write(&path, PRINTS).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = path.to_string_lossy().into_owned();
    (folder, program)
}

fn split(switches: &[&'static str]) -> Split {
    let domains = ["~cluster.local", "~shop.example.com"].map(str::to_owned);
    Split {
        servers: vec!["10.96.0.10".to_owned()],
        domains: BTreeSet::from(domains),
        switches: switches.iter().copied().collect(),
    }
}

// Seen red with the switches not read.
#[tokio::test]
async fn what_is_printed_of_a_link_is_read() {
    let (_folder, program) = resolvectl();
    let said = split_by(&program, "mk8s.1").await;
    assert_eq!(said, Resolved::Says(split(&["default-route", "dnsovertls"])));
}

// Seen red with the server first: until its domains come, it is asked for everything.
#[tokio::test]
async fn the_server_is_told_last() {
    let (folder, program) = resolvectl();
    set_split_by(&program, "mk8s.1", &split(&[])).await.unwrap();
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    let wanted = [
        "default-route mk8s.1 no",
        "dnsovertls mk8s.1 no",
        "dnssec mk8s.1 no",
        "domain mk8s.1 ~cluster.local ~shop.example.com",
        "dns mk8s.1 10.96.0.10",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), wanted);
}

// Seen red with all of them: systemd-resolved takes none then, the zone neither.
#[test]
fn of_too_many_hosts_the_first_are_told_and_the_zone_always() {
    let mut observed = seen(true);
    observed.hosts = (0..400).map(|number| format!("h{number:03}.example.com")).collect();
    observed.resolved = Resolved::Says(Split::default());
    let NodeStep::Split(told) = plan(&observed).node else { panic!("it is told") };
    assert_eq!(told.domains.len(), HOSTS_MAX + 1);
    let names = |name: &str| told.domains.contains(name);
    assert!(names("~cluster.local") && names("~h254.example.com") && !names("~h255.example.com"));
}
