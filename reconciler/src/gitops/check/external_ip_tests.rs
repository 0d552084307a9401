//! External IPs of services: the cluster's own, forbidden ones, and ports that two services take.

use schema::snapshot::Table;

use super::link_tests::{found, found_within, pod};
use super::{CommitLimits, ReservedAddresses};

/// Would fail without `reserved`: each is programmed, so the service gets the node's connections.
#[test]
fn an_external_address_is_none_of_the_clusters_own() {
    let with = |address: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec:\n  externalIPs: [198.51.100.7, {address}]\n  addresses: [192.0.2.9]\n  ports: [{{port: 22}}]\n"
        );
        let limits = CommitLimits {
            reserved: ReservedAddresses {
                nodes: [([192, 0, 2, 1].into(), "n1".to_owned())].into(),
                ranges: vec![
                    ("10.244.0.0/16".parse().unwrap(), "pods"),
                    ("10.96.0.0/16".parse().unwrap(), "services"),
                ],
            },
            ..CommitLimits::default()
        };
        found_within(&[("s.yaml", &text)], &Table::new(), &limits)
    };
    for (address, why) in [
        ("192.0.2.1", "is an address of node n1"),
        ("10.244.3.2", "is in 10.244.0.0/16, the range of pods"),
        ("10.96.0.10", "is in 10.96.0.0/16, the range of services"),
    ] {
        let message = format!("spec.externalIPs[1]: Forbidden: {address} {why}");
        let rule = "reserved-address";
        assert_eq!(with(address), [format!("s.yaml: {rule}: {message}")]);
    }
    assert_eq!(with("192.0.2.2"), [""; 0]);
}

/// Would fail with pods alone checked.
#[test]
fn external_addresses_can_be_forbidden() {
    let cluster = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {podSecurity: {forbidExternalIPs: true}}\n";
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec:\n  externalIPs: [198.51.100.7]\n  addresses: [192.0.2.9]\n  ports: [{port: 22}]\n";
    let all = found(&[("c.yaml", cluster), ("s.yaml", service)], &Table::new());
    let message = "spec.externalIPs: Forbidden: the Cluster object sets podSecurity.forbidExternalIPs";
    assert_eq!(all, [format!("s.yaml: forbidden-by-cluster: {message}")]);
}

/// Would fail without external addresses among the exclusive uses of a service.
#[test]
fn a_port_of_an_external_address_has_one_owner() {
    let none = Table::new();
    let w = pod("w", "  labels: {app: web}\n");
    let at = |name: &str, addresses: &str, port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  externalIPs: [{addresses}]\n  selector: {{app: web}}\n  ports: [{{port: {port}}}]\n"
        )
    };
    let one = at("s", "192.0.2.1, 192.0.2.2", 80);
    let with = |other: &str| found(&[("a.yaml", &one), ("b.yaml", other), ("w.yaml", &w)], &none);
    assert_eq!(
        with(&at("t", "192.0.2.3, 192.0.2.2", 80)),
        [
            "b.yaml: address-clash: spec.externalIPs[1]: the port 80/TCP of external IP 192.0.2.2 belongs to Service/default/s (a.yaml:1)"
        ]
    );
    assert_eq!(with(&at("t", "192.0.2.2", 81)), [""; 0]);
    assert_eq!(with(&at("t", "192.0.2.3", 80)), [""; 0]);
}
