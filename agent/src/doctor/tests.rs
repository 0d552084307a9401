//! The doctor's findings about the machine.

use super::judge::judge;
use super::probe::{DockerFacts, EtcdFacts, HostFacts, TrustFacts};
use super::{Level, Ranges, network_tests};
use crate::args::{Arguments, Command};
use crate::config::Config;
use clap::Parser as _;
use jiff::SignedDuration;
use schema::records::{DiskSpace, EtcdMember, EtcdUpkeep, NO_SPACE};
use schema::testing::at;

pub(super) fn config() -> Config {
    let arguments = Arguments::try_parse_from(["minik8s-agent", "run", "--node", "n1"]).unwrap();
    let Command::Run(run) = arguments.command else { panic!("run was given") };
    run.check().unwrap()
}

fn disk(free_bytes: u64) -> DiskSpace {
    DiskSpace { total_bytes: 20 << 30, free_bytes }
}

fn etcd(size_mib: u64, alarms: &[&str], is_on: bool) -> Result<EtcdFacts, String> {
    let member = EtcdMember {
        endpoint: "http://10.0.0.1:2379".into(),
        size_bytes: size_mib << 20,
        in_use_bytes: size_mib << 20,
        quota_bytes: Some(2 << 30),
        revision: 7,
        alarms: alarms.iter().map(|alarm| (*alarm).to_owned()).collect(),
        ..EtcdMember::default()
    };
    let upkeep = Some(EtcdUpkeep { is_on, ..EtcdUpkeep::default() });
    Ok(EtcdFacts { members: vec![member], upkeep, ..EtcdFacts::default() })
}

fn trust() -> TrustFacts {
    let day = |days: i64| at(days * 86_400);
    TrustFacts {
        identity: "node-n1".parse().unwrap(),
        renew_at: day(6),
        not_after: day(9),
        now: day(1),
        ahead: Some(Ok(SignedDuration::from_secs(-2))),
    }
}

fn healthy() -> HostFacts {
    HostFacts {
        is_root: true,
        kernel: "5.10.0-28-amd64".into(),
        has_openat2: true,
        state_dir: Ok(()),
        agent_runs: false,
        disk: Some(disk(10 << 30)),
        docker: Ok(DockerFacts { version: "20.10.24".into(), live_restore: true, ..DockerFacts::default() }),
        trust: Ok(Some(trust())),
        etcd: Ok(EtcdFacts::default()),
        port: Ok(()),
        features: vec![("veth", Ok(())), ("bridge", Ok(())), ("vxlan", Ok(()))],
        iptables_version: Ok("iptables v1.8.9 (nf_tables)".into()),
        forward_policy: Ok("DROP".into()),
        missing_jumps: Ok(vec!["filter/FORWARD -j MK8S-FORWARD".into()]),
        firewalld: false,
        ip_forward: Some("1".into()),
        bridge_nf: Some("1".into()),
        has_conntrack: true,
        network: network_tests::healthy(),
    }
}

fn levels(seen: &HostFacts) -> Vec<(&'static str, Level)> {
    let ranges =
        Ranges { cluster: "10.244.0.0/16".parse().unwrap(), service: "10.96.0.0/16".parse().unwrap() };
    let checks = judge(&config(), ranges, seen);
    for check in &checks {
        let text = check.to_string();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(check.level == Level::Ok, check.remedy.is_empty(), "{text}");
    }
    checks.iter().filter(|c| c.level != Level::Ok).map(|c| (c.name, c.level)).collect()
}

#[test]
fn a_healthy_machine_has_nothing_to_repair() {
    assert_eq!(levels(&healthy()), []);
}

#[test]
fn the_size_of_etcd_is_shown_and_how_to_make_room_where_nobody_does() {
    let ranges =
        Ranges { cluster: "10.244.0.0/16".parse().unwrap(), service: "10.96.0.0/16".parse().unwrap() };
    let line = |etcd| {
        let checks = judge(&config(), ranges, &HostFacts { etcd, ..healthy() });
        checks.iter().find(|check| check.name == "etcd size").unwrap().to_string()
    };
    assert_eq!(
        line(etcd(20, &[], true)),
        "ok    etcd size        http://10.0.0.1:2379: 20 MiB of its quota of 2048 MiB (0 %)"
    );
    let full = line(etcd(2048, &[NO_SPACE], false));
    assert!(full.starts_with("FAIL  etcd size"), "{full}");
    assert!(full.contains("compact 7 && etcdctl") && full.contains("alarm disarm"), "{full}");
}

#[test]
fn each_trouble_is_reported_with_a_remedy() {
    let bad = || Err::<(), _>("no".to_owned());
    let cases: Vec<(HostFacts, &str, Level)> = vec![
        (HostFacts { is_root: false, ..healthy() }, "root", Level::Fail),
        // Seen red with a judge that accepts every kernel.
        (HostFacts { has_openat2: false, ..healthy() }, "kernel", Level::Fail),
        (HostFacts { state_dir: bad(), ..healthy() }, "state directory", Level::Fail),
        (HostFacts { disk: Some(disk(1)), ..healthy() }, "disk", Level::Fail),
        (HostFacts { disk: Some(disk(1 << 30)), ..healthy() }, "disk", Level::Warn),
        (
            HostFacts { disk: Some(DiskSpace { total_bytes: 101 << 30, ..disk(10 << 30) }), ..healthy() },
            "disk",
            Level::Warn,
        ),
        (HostFacts { etcd: etcd(2048, &[NO_SPACE], true), ..healthy() }, "etcd size", Level::Fail),
        (HostFacts { etcd: etcd(1, &["CORRUPT"], true), ..healthy() }, "etcd size", Level::Fail),
        (HostFacts { etcd: etcd(1700, &[], true), ..healthy() }, "etcd size", Level::Warn),
        (HostFacts { etcd: etcd(1, &[], false), ..healthy() }, "etcd size", Level::Warn),
        (HostFacts { docker: Err("no".into()), ..healthy() }, "docker", Level::Fail),
        (HostFacts { docker: Ok(DockerFacts::default()), ..healthy() }, "live-restore", Level::Warn),
        (HostFacts { etcd: Err("no".to_owned()), ..healthy() }, "etcd", Level::Warn),
        (HostFacts { port: bad(), ..healthy() }, "port", Level::Fail),
        (HostFacts { features: vec![("veth", bad())], ..healthy() }, "veth", Level::Fail),
        (HostFacts { features: vec![("vxlan", bad())], ..healthy() }, "vxlan", Level::Warn),
        (HostFacts { forward_policy: Err("no".into()), ..healthy() }, "iptables", Level::Fail),
        (HostFacts { agent_runs: true, ..healthy() }, "jumps", Level::Warn),
        (HostFacts { agent_runs: true, missing_jumps: Err("no".into()), ..healthy() }, "jumps", Level::Warn),
        (HostFacts { firewalld: true, ..healthy() }, "forward policy", Level::Warn),
        (HostFacts { ip_forward: Some("0".into()), ..healthy() }, "ip_forward", Level::Warn),
        (HostFacts { has_conntrack: false, ..healthy() }, "conntrack", Level::Warn),
    ];
    for (seen, name, level) in cases {
        assert_eq!(levels(&seen), [(name, level)]);
    }
}

#[test]
fn a_certificate_is_reported_when_its_renewal_is_late_and_a_clock_when_it_is_off() {
    let hour = |hours: i64| at(hours * 3_600);
    let with = |trust| HostFacts { trust, ..healthy() };
    let seen_at = |hours| with(Ok(Some(TrustFacts { now: hour(hours), ..trust() })));
    let ahead = |ahead| with(Ok(Some(TrustFacts { ahead, ..trust() })));
    let seconds = |seconds| ahead(Some(Ok(SignedDuration::from_secs(seconds))));
    // Short-lived: of one day, 8 hours are left at two thirds.
    let short = TrustFacts { renew_at: hour(16), not_after: hour(24), now: hour(15), ..trust() };
    let other = TrustFacts { identity: "node-n2".parse().unwrap(), ..trust() };
    let (certificate, clock) = ("certificate", "clock");
    for (seen, found) in [
        (seen_at(6 * 24), None),
        (seen_at(7 * 24), None),
        (seen_at(7 * 24 + 1), Some((certificate, Level::Warn))),
        (seen_at(20 * 24), Some((certificate, Level::Warn))),
        (with(Ok(Some(short.clone()))), None),
        (with(Ok(Some(TrustFacts { now: hour(17), ..short }))), Some((certificate, Level::Warn))),
        (with(Ok(Some(other))), Some((certificate, Level::Fail))),
        (with(Ok(None)), Some((certificate, Level::Warn))),
        (with(Err("damaged".to_owned())), Some((certificate, Level::Fail))),
        (seconds(300), None),
        (seconds(-301), Some((clock, Level::Warn))),
        (ahead(Some(Err("no answer".to_owned()))), Some((clock, Level::Warn))),
        (ahead(None), None),
    ] {
        assert_eq!(levels(&seen), found.into_iter().collect::<Vec<_>>(), "{:?}", seen.trust);
    }
}

#[test]
fn an_etcd_is_reported_whose_logins_fail_or_that_answers_others_in_clear() {
    let urls = |url: &str| vec!["https://10.0.0.1:2379".to_owned(), url.to_owned()];
    let with = |facts| HostFacts { etcd: Ok(facts), ..healthy() };
    let version = |version: &str| {
        let member = EtcdMember { version: version.into(), ..EtcdMember::default() };
        with(EtcdFacts { members: vec![member], ..EtcdFacts::default() })
    };
    let clients = |url| with(EtcdFacts { client_urls: urls(url), ..EtcdFacts::default() });
    let peers = |url| with(EtcdFacts { peer_urls: urls(url), ..EtcdFacts::default() });
    for (seen, found) in [
        (version("3.4.23"), None),
        (version("3.5.5"), Some(("etcd version", Level::Warn))),
        (clients("http://127.0.0.1:2379"), None),
        (clients("http://10.0.0.2:2379"), Some(("etcd port", Level::Warn))),
        (peers("http://localhost:2380"), None),
        (peers("http://10.0.0.2:2380"), Some(("etcd port", Level::Warn))),
    ] {
        assert_eq!(levels(&seen), found.into_iter().collect::<Vec<_>>(), "{:?}", seen.etcd);
    }
}

// Seen red with the bridge named twice.
#[test]
fn firewalld_learns_of_both_links_and_the_tunnels_port() {
    let ranges =
        Ranges { cluster: "10.244.0.0/16".parse().unwrap(), service: "10.96.0.0/16".parse().unwrap() };
    let checks = judge(&config(), ranges, &HostFacts { firewalld: true, ..healthy() });
    let check = checks.iter().find(|check| check.name == "forward policy").unwrap();
    for word in ["mk8s0", "mk8s.1", "8472/udp"] {
        assert!(check.remedy.contains(word), "{}", check.remedy);
    }
}

#[test]
fn what_a_running_agent_uses_is_no_trouble() {
    let busy = Err("Address already in use".to_owned());
    let missing_jumps = Ok(Vec::new());
    let state_dir = Err("busy".into());
    let seen = HostFacts { agent_runs: true, port: busy, state_dir, missing_jumps, ..healthy() };
    assert_eq!(levels(&seen), []);
}
