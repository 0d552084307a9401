//! Rules on the real kernel, in the tests' own network namespaces.

use super::real::{lines_of, version_of};
use super::*;
use crate::testing::TestNamespace;

#[test]
fn versions_are_read_from_what_iptables_prints() {
    assert_eq!(version_of("iptables v1.8.9 (nf_tables)\n"), Some((1, 8, 9)));
    assert_eq!(version_of("iptables v1.6"), Some((1, 6, 0)));
    assert_eq!(version_of("ip6tables"), None);
}

// Seen red with only the first line.
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
    let iptables = RealIptables::at(node.path());
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
    let iptables = RealIptables::at(node.path());
    let input = "*filter\n:MINE - [0:0]\n-A MINE -j NOWHERE\nCOMMIT\n";
    let error = iptables.restore(input).await.unwrap_err();
    assert!(
        matches!(&error, IptablesError::Refused { message, lines, .. } if !message.contains('\n') && *lines == [4]),
        "{error}"
    );
    // The kernel reports all its own rejections together: the filter table has no address rewrite.
    let input = "*filter\n:MINE - [0:0]\n-A MINE -j DNAT --to-destination 192.0.2.1\n-A MINE -j ACCEPT\n\
        -A MINE -j DNAT --to-destination 192.0.2.2\nCOMMIT\n";
    let error = iptables.restore(input).await.unwrap_err();
    assert!(matches!(&error, IptablesError::Refused { lines, .. } if *lines == [3, 5]), "{error}");
    assert!(!iptables.save().await.unwrap().contains("MINE"));
}

// Seen red with a ledger that records nothing, and with the kernel's count returned unchanged.
#[tokio::test]
async fn what_this_process_does_in_its_own_chains_is_nobody_elses_change() {
    let node = TestNamespace::new();
    let iptables = RealIptables::at(node.path());
    iptables.restore("*nat\n:MINE - [0:0]\nCOMMIT\n").await.unwrap();
    let count = iptables.generation().await.unwrap();
    let quiet = "*nat\n:MINE - [0:0]\n-A MINE -j ACCEPT\nCOMMIT\n*filter\n:MINE - [0:0]\nCOMMIT\n";
    iptables.restore(quiet).await.unwrap();
    assert_eq!(iptables.generation().await, Some(count));
    let loud = "*nat\n-I OUTPUT 1 -j MINE\nCOMMIT\n";
    assert_eq!(loud_steps(loud), 1);
    iptables.restore(loud).await.unwrap();
    assert_eq!(iptables.generation().await, Some(count + 1), "in a chain of the kernel");
    node.run("iptables", &["-t", "nat", "-A", "MINE", "-j", "RETURN"]);
    assert_eq!(iptables.generation().await, Some(count + 2), "by somebody else");
    let broken = "*nat\n:MINE - [0:0]\nCOMMIT\n*filter\n-A MINE -j NOWHERE\nCOMMIT\n";
    iptables.restore(broken).await.unwrap_err();
    assert_eq!(iptables.generation().await, Some(count + 3), "what was written of it is looked at");
}

// Seen red with a finished read kept and returned to a later caller.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_read_is_given_it_only_if_nothing_changed_meanwhile() {
    let node = TestNamespace::new();
    let iptables = RealIptables::at(node.path());
    // Enough rules to make each read take a while.
    let rules = "-A MANY -s 192.0.2.1/32 -j ACCEPT\n".repeat(20_000);
    iptables.restore(&format!("*filter\n:MANY - [0:0]\n{rules}COMMIT\n")).await.unwrap();
    for number in 0..5 {
        let first = tokio::spawn({
            let iptables = iptables.clone();
            async move { iptables.save().await.unwrap() }
        });
        while !iptables.is_read() && !first.is_finished() {
            tokio::task::yield_now().await;
        }
        node.run("iptables", &["-N", &format!("NEW{number}")]);
        let (second, third) = tokio::join!(iptables.save(), iptables.save());
        for text in [second, third] {
            assert!(text.unwrap().contains(&format!(":NEW{number} - [0:0]")), "NEW{number}");
        }
        first.await.unwrap();
    }
}

// Seen red with no result left for the waiting callers.
#[tokio::test]
async fn those_who_read_at_once_run_the_program_once() {
    let node = TestNamespace::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let count = format!("echo >> {}; exec \"$@\"", file.path().display());
    let iptables = RealIptables::at(node.path()).through(&["sh", "-c", &count, "sh"].map(str::to_owned));
    iptables.generation().await.unwrap();
    let runs = || std::fs::read_to_string(file.path()).unwrap().lines().count();
    let before = runs();
    let (first, second, third) = tokio::join!(iptables.save(), iptables.save(), iptables.save());
    let first = first.unwrap();
    assert!(first.contains("*filter") || first.is_empty(), "{first}");
    assert_eq!((second.unwrap(), third.unwrap()), (first.clone(), first));
    assert_eq!(runs(), before + 1);
    iptables.save().await.unwrap();
    assert_eq!(runs(), before + 2, "nothing is kept for later");
}

#[tokio::test]
async fn a_missing_program_is_named_with_its_package() {
    let iptables = RealIptables::new().through(&["/nonexistent/nsenter".to_owned()]);
    let error = iptables.save().await.unwrap_err();
    assert_eq!(error.to_string(), "iptables-save is not installed; install the package `iptables`");
}

#[tokio::test]
async fn forgetting_what_is_not_there_is_no_error() {
    let node = TestNamespace::new();
    let iptables = RealIptables::at(node.path());
    iptables.forget_udp(&StaleUdp { port: 53, former_target: None }).await.unwrap();
    let target = Some(Ipv4Addr::new(10, 244, 0, 9));
    iptables.forget_udp(&StaleUdp { port: 53, former_target: target }).await.unwrap();
}

#[tokio::test]
async fn one_rule_of_the_kernels_chains_is_found_and_deleted_and_its_policy_read() {
    let node = TestNamespace::new();
    let iptables = RealIptables::at(node.path());
    node.run("iptables", &["-P", "FORWARD", "DROP"]);
    node.run("iptables", &["-N", "MINE"]);
    node.run("iptables", &["-A", "FORWARD", "-s", "192.0.2.1/32", "-j", "MINE"]);
    node.run("iptables", &["-A", "FORWARD", "-m", "comment", "--comment", "two words", "-j", "MINE"]);
    assert_eq!(iptables.policy("filter", "FORWARD").await.unwrap(), "DROP");
    let words = |rule: &str| ("filter".to_owned(), "FORWARD".to_owned(), rule.to_owned());
    let (table, chain, commented) = words("-m comment --comment \"two words\" -j MINE");
    assert!(iptables.exists(table.clone(), chain.clone(), commented.clone()).await.unwrap());
    iptables.delete(table.clone(), chain.clone(), commented.clone()).await.unwrap();
    assert!(!iptables.exists(table.clone(), chain.clone(), commented.clone()).await.unwrap());
    assert!(node.run("iptables", &["-S", "FORWARD"]).contains("192.0.2.1/32 -j MINE"), "others stay");
    let error = iptables.delete(table, chain, commented).await.unwrap_err();
    assert!(matches!(&error, IptablesError::Refused { message, .. } if !message.contains('\n')), "{error}");
}
