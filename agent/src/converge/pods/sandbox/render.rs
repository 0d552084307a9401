//! Renders the pause container of a bound pod. Pure.

use schema::codec::content_hash;
use schema::records::PodInstance;

use crate::converge::pods::facts::Placement;
use crate::names;
use crate::worlds::docker::{Namespaces, NewContainer};

/// The kubelet's value for pause containers, `PodInfraOOMAdj`: the network of a pod ends with it.
const OOM_SCORE_ADJ: i64 = -998;

/// Renders the pause container.
pub fn pause(at: Placement<'_>) -> NewContainer {
    let pod = &at.binding.pod;
    let mut labels = at.labels(names::PAUSE, 0, 0);
    labels.insert(names::SPEC.to_owned(), content_hash(&*pod.spec));
    if let Some(address) = at.address {
        labels.insert(names::IP.to_owned(), address.to_string());
    }
    if !at.ports.is_empty() {
        let ports = serde_json::to_string(at.ports).unwrap_or_default();
        labels.insert(names::PORTS.to_owned(), ports);
    }
    if !pod.files.is_empty() {
        let digests: Vec<&str> = pod.files.values().map(|blob| blob.digest.as_str()).collect();
        labels.insert(names::FILES.to_owned(), digests.join(","));
    }
    NewContainer {
        name: names::container_name(&at.node.instance, names::PAUSE, &pod.reference(), &pod.uid, 0),
        image: at.node.pause_image.clone(),
        labels,
        // A pod on the host's network has the host's name.
        hostname: (!pod.spec.host_network).then(|| host_name(pod)),
        namespaces: if pod.spec.host_network { Namespaces::HostNetwork } else { Namespaces::Own },
        oom_score_adj: OOM_SCORE_ADJ.max(at.node.memory.oom_score_min),
        log: at.node.container_limits.log,
        ..NewContainer::default()
    }
}

/// Returns the pod's host name, at most 63 characters.
pub(super) fn host_name(pod: &PodInstance) -> String {
    let name = pod.spec.hostname.as_deref().unwrap_or(&pod.name);
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '-' })
        .take(63)
        .collect();
    name.trim_matches(['-', '.']).to_owned()
}
