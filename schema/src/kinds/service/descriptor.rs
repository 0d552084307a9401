//! The `Service` kind: names, exclusive resources, defaults.

use std::collections::BTreeMap;

use super::super::exclusive::{Exclusive, ExclusiveUse};
use super::super::{Descriptor, Fields, KindSpec, Links, NameForm, Older};
use super::{ServiceSpec, ServiceType, defaults, dialect, validate};
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
        fields: Fields::InSpec,
        is_namespaced: true,
        fails_commits: true,
        fails_for_good: false,
        pods_bear_its_name: false,
        labels_are_of_replicas: false,
        names: NameForm::Label,
        older: Older {
            words: &[],
            api_versions: &[],
            may_lack_api_version: false,
            rewrite: dialect::rewrite,
        },
    };

    const LINKS: Links<Self> =
        Links { exclusives: Self::exclusives, further_places: Self::further_places, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        defaults::fill(self);
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl ServiceSpec {
    fn exclusives(&self, _: &ObjectMeta) -> Vec<ExclusiveUse> {
        let mut found = Vec::new();
        if let Some(address) = self.cluster_ip.as_deref().filter(|a| !a.is_empty() && *a != "None") {
            found.push(ExclusiveUse::alone(
                Exclusive::ClusterIp(address.to_owned()),
                field_path(&["spec", "clusterIP"]),
            ));
        }
        for (index, port) in self.ports.iter().enumerate() {
            if let (ServiceType::NodePort, Some(node_port @ 1..)) = (self.kind, port.node_port) {
                let path = indexed(&["spec", "ports"], index, &["nodePort"]);
                found.push(ExclusiveUse::alone(Exclusive::NodePort(node_port, port.protocol), path));
            }
        }
        let addresses: BTreeMap<&String, usize> =
            self.external_ips.iter().enumerate().map(|(index, address)| (address, index)).collect();
        let pairs = addresses.iter().flat_map(|(address, index)| {
            self.ports.iter().map(move |port| (*address, *index, (port.port, port.protocol)))
        });
        found.extend(pairs.take(EXTERNAL_MAX).map(|(address, index, (port, protocol))| {
            let what = Exclusive::External(address.clone(), port, protocol);
            ExclusiveUse::alone(what, indexed(&["spec", "externalIPs"], index, &[]))
        }));
        found
    }

    fn further_places(&self) -> Vec<Vec<OwnedStep>> {
        vec![field_path(&["spec", "selector"])]
    }
}
