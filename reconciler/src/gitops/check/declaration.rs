//! Documents that name objects, and violations in one of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use schema::kinds::Resource;
use schema::manifest::Document;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{default_service_cidr, dns_address, gateway_address};
use schema::snapshot::VersionedValue;
use schema::violation::{Rule, Violation, field_path, rules};

use crate::gitops::load::Manifests;

/// A document that names an object.
#[derive(Debug, Clone, Copy)]
pub struct Declaration<'a> {
    pub file: &'a Arc<str>,
    pub document: &'a Document,
    /// The live object, of any source.
    pub live: Option<&'a VersionedValue<Object>>,
}

/// A live object with its reference.
pub type LiveObject<'a> = (&'a ObjectRef, &'a VersionedValue<Object>);

/// Builds a violation of `rule` in the document of `declared`, at line and column.
pub(super) fn problem(
    declared: &Declaration<'_>,
    rule: &'static Rule,
    (line, column): (u32, u32),
    message: String,
    help: impl Into<String>,
) -> Violation {
    Violation {
        file: declared.file.to_string(),
        line,
        column,
        severity: rule.severity,
        rule: rule.id.to_owned(),
        message,
        help: help.into(),
        object: Some(declared.document.reference.to_string()),
    }
}

// Services with a cluster IP that no service can have. Pure.
//
// A warning, not an error: offline the range of services is unknown, and in a cluster the services controller has
// the last word.

/// Warns of cluster IPs outside the service range, and of reserved ones. `range` is the cluster's, if known.
pub(crate) fn warn(manifests: &Manifests, range: Option<Ipv4Net>) -> Vec<Violation> {
    let all = manifests.iter().flat_map(|(file, manifest)| {
        manifest.documents.iter().map(move |document| Declaration { file, document, live: None })
    });
    all.filter_map(|declared| {
        let Resource::Service(service) = &declared.document.object.resource else { return None };
        let address: Ipv4Addr = service.cluster_ip.as_deref()?.parse().ok()?;
        let why = refused(address, range)?;
        let place = declared.document.place(&field_path(&["spec", "clusterIP"]));
        let message = format!("spec.clusterIP: {address} {why}");
        let help = match range {
            Some(_) => "choose another one, or leave it out to get a free one",
            None => {
                "choose another one, or leave it out; `minik8s serve --service-cidr` may set another range"
            }
        };
        Some(problem(&declared, &rules::CLUSTER_IP_RANGE, place, message, help))
    })
    .collect()
}

/// Explains why no service gets the address; `None` if one can.
fn refused(address: Ipv4Addr, known: Option<Ipv4Net>) -> Option<String> {
    let range = known.unwrap_or(default_service_cidr()).trunc();
    let which = if known.is_some() { "the range" } else { "the default range" };
    let offset = address.to_bits().wrapping_sub(range.network().to_bits());
    let kept = match address {
        _ if !range.contains(&address) => {
            return Some(format!("is outside of {range}, {which} of services"));
        }
        _ if address == dns_address(range) => "DNS",
        _ if address == gateway_address(range) => "the gateway",
        // Kubernetes reserves the first address for its own API, too.
        _ if offset <= 1 || address == range.broadcast() => "the cluster",
        _ => return None,
    };
    Some(format!("is reserved for {kept} in {range}, {which} of services"))
}

// Services with an external IP that belongs to the cluster itself. Pure.

/// Addresses of the cluster itself, as far as they are known: a service that takes one captures connections to it.
#[derive(Debug, Clone, Default)]
pub struct ReservedAddresses {
    /// Nodes by address.
    pub nodes: BTreeMap<Ipv4Addr, String>,
    /// Ranges, each with its use. Name server and gateway have addresses in that of services.
    pub ranges: Vec<(Ipv4Net, &'static str)>,
}

impl ReservedAddresses {
    /// Explains to what an address belongs; `None` if a service may take it.
    pub(super) fn owner(&self, address: Ipv4Addr) -> Option<String> {
        if let Some(node) = self.nodes.get(&address) {
            return Some(format!("is an address of node {node}"));
        }
        let (range, what) = self.ranges.iter().find(|(range, _)| range.contains(&address))?;
        Some(format!("is in {}, the range of {what}", range.trunc()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schema::records::{DNS_ADDRESS_OFFSET, GATEWAY_ADDRESS_OFFSET};

    use super::*;
    use schema::manifest::load_file as parse;

    fn warned(address: &str, range: Option<&str>) -> Vec<String> {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{clusterIP: {address}, selector: {{a: b}}, ports: [{{port: 80}}]}}\n"
        );
        let manifests = [(Arc::from("s.yaml"), Arc::new(parse("s.yaml", text.as_bytes())))];
        let range = range.map(|range| range.parse().unwrap());
        warn(&manifests.into_iter().collect(), range).into_iter().map(|one| one.message).collect()
    }

    /// Seen red with the default range whatever is known, and without what is kept.
    #[test]
    fn an_address_that_no_service_gets_is_warned_of() {
        for (address, range, message) in [
            ("10.96.0.20", None, ""),
            ("None", None, ""),
            ("10.97.0.20", None, "is outside of 10.96.0.0/16, the default range of services"),
            ("10.96.0.10", None, "is reserved for DNS in 10.96.0.0/16, the default range of services"),
            (
                "10.96.0.11",
                None,
                "is reserved for the gateway in 10.96.0.0/16, the default range of services",
            ),
            ("10.97.0.20", Some("10.97.0.0/16"), ""),
            ("10.96.0.20", Some("10.97.0.0/16"), "is outside of 10.97.0.0/16, the range of services"),
            (
                "10.97.0.10",
                Some("10.97.0.0/16"),
                "is reserved for DNS in 10.97.0.0/16, the range of services",
            ),
            (
                "10.97.255.255",
                Some("10.97.0.0/16"),
                "is reserved for the cluster in 10.97.0.0/16, the range of services",
            ),
        ] {
            let wanted = if message.is_empty() {
                vec![]
            } else {
                vec![format!("spec.clusterIP: {address} {message}")]
            };
            assert_eq!(warned(address, range), wanted);
        }
        // Exactly the addresses that the services controller reserves.
        let kept = [0, 1, DNS_ADDRESS_OFFSET, GATEWAY_ADDRESS_OFFSET];
        for offset in 0..300 {
            let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + offset);
            assert_eq!(refused(address, None).is_some(), kept.contains(&offset), "{address}");
        }
    }
}
