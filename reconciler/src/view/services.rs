//! What a service is on the nodes: its address, what is behind it, what is not and why, and which nodes'
//! rules are that far.

use std::net::Ipv4Addr;

use schema::kinds::pod::Protocol;
use schema::meta::PodRef;
use schema::records::{Endpoint, LeftOut, ServicePortRecord, ServiceRecord};
use schema::world::World;
use serde::{Deserialize, Serialize};

/// A service as the nodes program it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDetail {
    /// Its address; none for a headless service.
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<Ipv4Addr>,
    /// Further addresses at which nodes answer for it.
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<Ipv4Addr>,
    /// Its ports.
    pub ports: Vec<ServicePortRecord>,
    /// What is behind it.
    pub endpoints: Vec<Endpoint>,
    /// Pods that its selector matches and that are not behind it, 20 at most.
    pub left_out: Vec<LeftOut>,
    /// How many there are of them.
    pub left_out_count: u32,
    /// Revision at which all this was written.
    pub revision: i64,
    /// How far each node is.
    pub nodes: Vec<NodeRules>,
}

/// How far the rules of a node are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRules {
    /// Its name.
    pub node: String,
    /// Newest revision of services that it has programmed; 0 if it has told of none.
    pub revision: i64,
    /// The service is programmed there as it is now.
    pub programmed: bool,
    /// What the node could not program, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// The service as the controller wrote it; none before it did.
pub(super) fn service(world: &World, id: &PodRef) -> Option<ServiceDetail> {
    let stored = world.services.get(id)?;
    let ServiceRecord { cluster_ip, external_ips, ports, endpoints, left_out, left_out_count, .. } =
        stored.value.clone();
    let revision = stored.mod_revision;
    let nodes = world.nodes.keys().map(|node| {
        let told = world.rules.get(node).map(|rules| rules.value.clone()).unwrap_or_default();
        let programmed = told.revision >= revision;
        NodeRules { node: node.clone(), revision: told.revision, programmed, error: told.error }
    });
    let nodes = nodes.collect();
    Some(ServiceDetail {
        cluster_ip,
        external_ips,
        ports,
        endpoints,
        left_out,
        left_out_count,
        revision,
        nodes,
    })
}

impl ServiceDetail {
    /// `http 80/TCP, port 30080 of every node` each.
    pub fn port_lines(&self) -> Vec<String> {
        let line = |port: &ServicePortRecord| {
            let name = port.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
            let node = port.node_port.map(|port| format!(", port {port} of every node")).unwrap_or_default();
            format!("{name}{}/{}{node}", port.port, word_of(port.protocol))
        };
        self.ports.iter().map(line).collect()
    }

    /// `10.244.3.5:8080 pod web on n1` each.
    pub fn endpoint_lines(&self) -> Vec<String> {
        let line = |endpoint: &Endpoint| {
            let ports = endpoint.ports.iter().filter(|port| **port != 0).map(u16::to_string);
            let ports = ports.collect::<Vec<_>>().join(",");
            let pod = endpoint.pod.as_ref().map(|pod| format!(" pod {pod}")).unwrap_or_default();
            let node = endpoint.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            format!("{}:{ports}{pod}{node}", endpoint.address)
        };
        self.endpoints.iter().map(line).collect()
    }

    /// `web-2: it is not ready` each.
    pub fn left_out_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.left_out.iter().map(|left| format!("{}: {}", left.pod, left.why)).collect();
        let shown = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        if self.left_out_count > shown {
            lines.push(format!("and {} more", self.left_out_count - shown));
        }
        lines
    }

    /// `n1 at revision 57` each, and why not.
    pub fn node_lines(&self) -> Vec<String> {
        let line = |rules: &NodeRules| {
            let NodeRules { node, revision, programmed, error } = rules;
            let far = match (programmed, revision) {
                (true, revision) => format!("{node} at revision {revision}"),
                (false, 0) => format!("{node} not yet: it has not told how far it is"),
                (false, revision) => {
                    format!("{node} not yet: it is at revision {revision}, this is of {}", self.revision)
                }
            };
            if error.is_empty() { far } else { format!("{far}; {error}") }
        };
        self.nodes.iter().map(line).collect()
    }
}

fn word_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schema::records::RulesStatus;
    use schema::world::Versioned;

    use super::super::testing::{put_node, stored, world};
    use super::*;

    #[test]
    fn a_service_says_what_is_behind_it_what_is_not_and_how_far_each_node_is() {
        let mut world = world();
        let id = PodRef::new("default", "web");
        assert_eq!(service(&world, &id), None, "the controller has not written it");
        let endpoint = Endpoint {
            address: "10.244.3.5".parse().unwrap(),
            ports: vec![8080, 0],
            node: Some("n1".to_owned()),
            pod: Some("web-1".to_owned()),
            hostname: None,
        };
        let port = |name: &str, protocol, port, node_port| ServicePortRecord {
            name: Some(name.to_owned()),
            protocol,
            port,
            node_port,
        };
        let value = ServiceRecord {
            cluster_ip: Some("10.96.0.20".parse().unwrap()),
            ports: vec![port("http", Protocol::Tcp, 80, Some(30_080)), port("dns", Protocol::Udp, 53, None)],
            endpoints: vec![endpoint],
            left_out: vec![LeftOut { pod: "web-2".to_owned(), why: "it is not ready".to_owned() }],
            left_out_count: 3,
            ..ServiceRecord::default()
        };
        let record = Versioned { value, create_revision: 5, mod_revision: 57 };
        world.services.insert(id.clone(), Arc::new(record));
        put_node(&mut world, "n2");
        put_node(&mut world, "n3");
        let told = |revision, error: &str| stored(RulesStatus { revision, error: error.to_owned() });
        world.rules.insert("n1".to_owned(), told(60, ""));
        world.rules.insert("n2".to_owned(), told(41, "iptables-restore failed: no room"));
        let detail = service(&world, &id).unwrap();
        assert_eq!(detail.port_lines(), ["http 80/TCP, port 30080 of every node", "dns 53/UDP"]);
        assert_eq!(detail.endpoint_lines(), ["10.244.3.5:8080 pod web-1 on n1"]);
        assert_eq!(detail.left_out_lines(), ["web-2: it is not ready", "and 2 more"]);
        assert_eq!(
            detail.node_lines(),
            [
                "n1 at revision 60",
                "n2 not yet: it is at revision 41, this is of 57; iptables-restore failed: no room",
                "n3 not yet: it has not told how far it is",
            ]
        );
    }
}
