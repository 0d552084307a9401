//! The `Service` kind: names, exclusive resources, defaults.

use std::collections::BTreeMap;

use super::super::exclusive::{ExclusiveResource, ExclusiveUse};
use super::super::{Descriptor, KindSpec, Links, NameForm, OlderSpellings};
use super::{
    ClientIpConfig, DEFAULT_AFFINITY_SECONDS, ServicePort, ServiceSpec, ServiceType, SessionAffinity,
    SessionAffinityConfig, validate,
};
use crate::document::edit::{below, items_mut};
use crate::kinds::pod::PortReference;
use crate::manifest::dialects::{Node, Notes, Value};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path, field_path, indexed};

/// Maximum number of ports of external addresses that are checked: far more than a service has, and few enough if
/// it has thousands of both.
const EXTERNAL_MAX: usize = 1000;

impl KindSpec for ServiceSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "services",
        short_names: &["svc"],
        api_version: "v1",
        names: NameForm::Label,
        older: OlderSpellings { rewrite, ..OlderSpellings::NONE },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        exclusives: Self::exclusives,
        extra_position_paths: Self::extra_position_paths,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        fill(self);
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl ServiceSpec {
    fn exclusives(&self, _: &ObjectMeta) -> Vec<ExclusiveUse> {
        let mut found = Vec::new();
        if let Some(address) = self.cluster_ip.as_deref().filter(|a| !a.is_empty() && *a != "None") {
            found.push(ExclusiveUse::unshared(
                ExclusiveResource::ClusterIp(address.to_owned()),
                field_path(&["spec", "clusterIP"]),
            ));
        }
        for (index, port) in self.ports.iter().enumerate() {
            if let (ServiceType::NodePort, Some(node_port @ 1..)) = (self.kind, port.node_port) {
                let path = indexed(&["spec", "ports"], index, &["nodePort"]);
                found.push(ExclusiveUse::unshared(
                    ExclusiveResource::NodePort(node_port, port.protocol),
                    path,
                ));
            }
        }
        let addresses: BTreeMap<&String, usize> =
            self.external_ips.iter().enumerate().map(|(index, address)| (address, index)).collect();
        let pairs = addresses.iter().flat_map(|(address, index)| {
            self.ports.iter().map(move |port| (*address, *index, (port.port, port.protocol)))
        });
        found.extend(pairs.take(EXTERNAL_MAX).map(|(address, index, (port, protocol))| {
            let what = ExclusiveResource::ExternalPort(address.clone(), port, protocol);
            ExclusiveUse::unshared(what, indexed(&["spec", "externalIPs"], index, &[]))
        }));
        found
    }

    fn extra_position_paths(&self) -> Vec<Vec<OwnedStep>> {
        vec![field_path(&["spec", "selector"])]
    }
}

// Effective spec: the defaults of Kubernetes' API server, and one spelling for equal meanings.

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

// Older Service manifests with words in another case, such as `protocol: tcp`.

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(document, &["spec"]) else { return };
    any_case(spec, "type", &["ClusterIP", "NodePort", "ExternalName"], notes);
    let ports = below(spec, &["ports"]).and_then(items_mut);
    for port in ports.into_iter().flatten() {
        any_case(port, "protocol", &["TCP", "UDP"], notes);
    }
}

/// Accepts the value of `key` in any case.
fn any_case(node: &mut Node, key: &str, words: &[&str], notes: &mut Notes<'_>) {
    let Some(Node { mark, value: Value::Scalar { text, .. } }) = below(node, &[key]) else { return };
    let today = words.iter().find(|word| word.eq_ignore_ascii_case(text) && *word != text);
    if let Some(today) = today {
        notes.older(*mark, &format!("{key}: {text}"), &format!("{key}: {today}"));
        *text = (*today).to_owned();
    }
}
