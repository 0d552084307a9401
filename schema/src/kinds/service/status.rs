//! What a service is, as the services controller finds it.

use serde::{Deserialize, Serialize};

use super::{Protocol, ServiceSpec, ServiceType};
use crate::kinds::Health;

/// What a service is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// Its address, once it has one.
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// Ports of every node that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ports: Vec<ServicePortStatus>,
    /// Pods or addresses that serve it.
    #[serde(default)]
    pub ready_endpoints: u32,
    /// Pods that its selector matches and that are not ready.
    #[serde(default)]
    pub unready_endpoints: u32,
}

/// A port of every node that leads to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortStatus {
    /// Port of the service.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Port of the nodes.
    pub node_port: u16,
}

impl ServiceSpec {
    /// How well a service with this spec is. One that selects nothing is well: its pods may come with
    /// another commit.
    pub fn health(&self, status: &ServiceStatus) -> Health {
        let ServiceStatus { cluster_ip, node_ports, ready_endpoints, unready_endpoints } = status;
        let progressing = |why: String| Health::Progressing { why };
        if self.has_cluster_ip() && cluster_ip.is_none() {
            return progressing("no cluster IP yet".to_owned());
        }
        if self.kind == ServiceType::NodePort && node_ports.len() < self.ports.len() {
            return progressing(format!("{} of {} node ports", node_ports.len(), self.ports.len()));
        }
        if *ready_endpoints == 0 && *unready_endpoints > 0 && !self.publish_not_ready_addresses {
            return progressing(format!("none of {unready_endpoints} pods is ready"));
        }
        Health::Healthy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_healthy_with_an_address_and_no_pod_that_is_not_ready() {
        let mut spec = ServiceSpec::default();
        let mut status = ServiceStatus::default();
        assert_eq!(spec.health(&status).to_string(), "Progressing");
        status.cluster_ip = Some("10.96.0.20".to_owned());
        assert_eq!(spec.health(&status), Health::Healthy);
        status.unready_endpoints = 2;
        assert_eq!(spec.health(&status), Health::Progressing { why: "none of 2 pods is ready".to_owned() });
        status.ready_endpoints = 1;
        assert_eq!(spec.health(&status), Health::Healthy);
        spec.cluster_ip = Some(super::super::HEADLESS.to_owned());
        assert_eq!(spec.health(&ServiceStatus::default()), Health::Healthy);
        let alias = ServiceSpec { kind: ServiceType::ExternalName, ..ServiceSpec::default() };
        assert_eq!(alias.health(&ServiceStatus::default()), Health::Healthy);
    }
}
