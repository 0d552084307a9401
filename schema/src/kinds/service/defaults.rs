//! Effective spec: the defaults of Kubernetes' API server, and one spelling for equal meanings.

use super::super::pod::PortReference;
use super::{
    ClientIpConfig, DEFAULT_AFFINITY_SECONDS, ServicePort, ServiceSpec, SessionAffinity,
    SessionAffinityConfig,
};

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut ServiceSpec) {
    spec.cluster_ip = spec.cluster_ip.take().filter(|address| !address.is_empty());
    for port in &mut spec.ports {
        fill_port(port);
    }
    spec.session_affinity_config = match spec.session_affinity {
        SessionAffinity::None => None,
        SessionAffinity::ClientIP => {
            let written = spec.session_affinity_config.take().and_then(|config| config.client_ip);
            let seconds = written.and_then(|config| config.timeout_seconds);
            let timeout_seconds = Some(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS));
            Some(SessionAffinityConfig { client_ip: Some(ClientIpConfig { timeout_seconds }) })
        }
    };
}

/// Normalizes a port: 0 and the empty name mean the same as a missing field, as in Kubernetes.
fn fill_port(port: &mut ServicePort) {
    port.name = port.name.take().filter(|name| !name.is_empty());
    port.node_port = port.node_port.filter(|node_port| *node_port != 0);
    port.target_port = match port.target_port.take() {
        None | Some(PortReference::Number(0)) => Some(PortReference::Number(port.port)),
        Some(PortReference::Name(name)) if name.is_empty() => Some(PortReference::Number(port.port)),
        written => written,
    };
}
