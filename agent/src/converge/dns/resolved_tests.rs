//! Queries and settings of systemd-resolved, through a program that prints like `resolvectl` 252.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::host::{link_config, set_link_config};
use super::plan::{HOSTS_MAX, LinkConfig, NodeStep, ResolvedState, plan};
use super::tests::seen;

const PRINTS: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
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

fn split(switches: &[&'static str]) -> LinkConfig {
    let domains = ["~cluster.local", "~shop.example.com"].map(str::to_owned);
    LinkConfig {
        servers: vec!["10.96.0.10".to_owned()],
        domains: BTreeSet::from(domains),
        switches: switches.iter().copied().collect(),
    }
}

// Seen red with the switches ignored.
#[tokio::test]
async fn what_is_printed_of_a_link_is_read() {
    let (_folder, program) = resolvectl();
    let said = link_config(&program, "mk8s.1").await;
    assert_eq!(said, ResolvedState::Configured(split(&["default-route", "dnsovertls"])));
}

// Seen red with the server set first: until its domains follow, it receives every query.
#[tokio::test]
async fn the_server_is_set_last() {
    let (folder, program) = resolvectl();
    set_link_config(&program, "mk8s.1", &LinkConfig::default(), &split(&[])).await.unwrap();
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
    let wanted = [
        "default-route mk8s.1 no",
        "dnsovertls mk8s.1 no",
        "dnssec mk8s.1 no",
        "domain mk8s.1 ~cluster.local ~shop.example.com",
        "dns mk8s.1 10.96.0.10",
    ];
    assert_eq!(calls.lines().collect::<Vec<_>>(), wanted);
}

/// A stand-in for systemd-resolved: old domains count until the new ones are set, and of too many none stays.
const COUNTS: &str = r#"#!/bin/sh
cd "$(dirname "$0")" && touch there
[ "$1" = domain ] || exit 0
shift 2
printf '%s\n' "$@" | grep . | sort -u > wanted
if [ "$(sort -u there wanted | wc -l)" -gt 256 ]; then
    : > there
    echo "Failed to set domain configuration: Argument list too long" >&2
    exit 1
fi
grep -qx '~cluster.local' wanted || : > gap
mv wanted there
"#;

// Seen red with the new domains set immediately.
#[tokio::test]
async fn hosts_that_come_while_others_go_leave_no_moment_without_the_zone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resolvectl");
    fs::write(&path, COUNTS).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = path.to_string_lossy().into_owned();
    let of = |hosts: std::ops::Range<usize>| {
        let hosts = hosts.map(|number| format!("~h{number:03}.example.com"));
        LinkConfig { domains: hosts.chain(["~cluster.local".to_owned()]).collect(), ..LinkConfig::default() }
    };
    let steps = [LinkConfig::default(), of(0..255), of(1..256), of(100..300), of(0..1)];
    for pair in steps.windows(2) {
        set_link_config(&program, "mk8s.1", &pair[0], &pair[1]).await.unwrap();
        let there = fs::read_to_string(folder.path().join("there")).unwrap();
        assert_eq!(there.lines().map(str::to_owned).collect::<BTreeSet<_>>(), pair[1].domains);
    }
    assert!(!folder.path().join("gap").exists(), "the zone was away");
}

// Seen red with all of them: systemd-resolved then accepts none, not even the zone.
#[test]
fn of_too_many_hosts_the_first_are_reported_and_the_zone_always() {
    let mut observed = seen(true);
    observed.hosts = (0..400).map(|number| format!("h{number:03}.example.com")).collect();
    observed.resolved = ResolvedState::Configured(LinkConfig::default());
    let NodeStep::Split(split) = plan(&observed).node else { panic!("it is set") };
    assert_eq!(split.domains.len(), HOSTS_MAX + 1);
    let names = |name: &str| split.domains.contains(name);
    assert!(names("~cluster.local") && names("~h254.example.com") && !names("~h255.example.com"));
}
