//! On the real kernel, in network namespaces of the tests' own.

use super::real::{lines_of, version_of};
use super::*;
use crate::testing::TestNamespace;

#[test]
fn versions_are_read_from_what_iptables_prints() {
    assert_eq!(version_of("iptables v1.8.9 (nf_tables)\n"), Some((1, 8, 9)));
    assert_eq!(version_of("iptables v1.6"), Some((1, 6, 0)));
    assert_eq!(version_of("ip6tables"), None);
}

// Seen red with the first line alone.
#[test]
fn the_refused_lines_are_read_from_what_iptables_restore_prints() {
    let parsed = "iptables-restore v1.8.9 (nf_tables): recent: bad value for option \"--seconds\"\n\n\
        Error occurred at line: 4\nTry `iptables-restore -h' for more information.\n";
    assert_eq!(lines_of(parsed), [4]);
    let kernel = "iptables-restore v1.8.9 (nf_tables): \n\
        line 12: RULE_APPEND failed (Invalid argument): rule in chain X\n\
        line 14: RULE_APPEND failed (Invalid argument): rule in chain Y\n";
    assert_eq!(lines_of(kernel), [12, 14]);
    assert_eq!(lines_of("iptables-restore: line 7 failed\n"), [7]);
    assert!(lines_of("another line of text").is_empty());
}

#[tokio::test]
async fn what_is_restored_is_saved_and_others_rules_stay() {
    let node = TestNamespace::new();
    let iptables = RealIptables::behind(node.prefix());
    node.run("iptables", &["-A", "FORWARD", "-s", "192.0.2.1/32", "-j", "DROP"]);
    iptables.restore("*filter\n:MINE - [0:0]\n-A MINE -j ACCEPT\nCOMMIT\n").await.unwrap();
    let text = iptables.save().await.unwrap();
    assert!(text.contains("-A MINE -j ACCEPT"), "{text}");
    assert!(text.contains("-A FORWARD -s 192.0.2.1/32 -j DROP"), "{text}");
    assert!(iptables.has_random_fully().await.unwrap());
}

#[tokio::test]
async fn a_wrong_rule_changes_nothing_and_says_why() {
    let node = TestNamespace::new();
    let iptables = RealIptables::behind(node.prefix());
    let input = "*filter\n:MINE - [0:0]\n-A MINE -j NOWHERE\nCOMMIT\n";
    let error = iptables.restore(input).await.unwrap_err();
    assert!(
        matches!(&error, IptablesError::Refused { message, lines, .. } if !message.contains('\n') && *lines == [4]),
        "{error}"
    );
    // The kernel's own refusals come all at once: a rewrite of addresses is nothing for filter.
    let input = "*filter\n:MINE - [0:0]\n-A MINE -j DNAT --to-destination 192.0.2.1\n-A MINE -j ACCEPT\n\
        -A MINE -j DNAT --to-destination 192.0.2.2\nCOMMIT\n";
    let error = iptables.restore(input).await.unwrap_err();
    assert!(matches!(&error, IptablesError::Refused { lines, .. } if *lines == [3, 5]), "{error}");
    assert!(!iptables.save().await.unwrap().contains("MINE"));
}

#[tokio::test]
async fn a_missing_program_is_named_with_its_package() {
    let iptables = RealIptables::behind(vec!["/nonexistent/nsenter".into()]);
    let error = iptables.save().await.unwrap_err();
    assert_eq!(error.to_string(), "iptables-save is not installed; install the package `iptables`");
}

#[tokio::test]
async fn forgetting_what_is_not_there_is_no_error() {
    let node = TestNamespace::new();
    let iptables = RealIptables::behind(node.prefix());
    iptables.forget_udp(&StaleUdp { port: 53, former_target: None }).await.unwrap();
    let target = Some(Ipv4Addr::new(10, 244, 0, 9));
    iptables.forget_udp(&StaleUdp { port: 53, former_target: target }).await.unwrap();
}
