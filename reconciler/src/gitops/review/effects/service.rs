//! Effects of services and host names: reachable ports, and the names for them.

use std::collections::{BTreeMap, BTreeSet};

use schema::kinds::dns::DnsSpec;
use schema::kinds::pod::{PortReference, Protocol};
use schema::kinds::service::{ServicePort, ServiceSpec, ServiceType};
use schema::kinds::{Kind, Resource};
use schema::meta::{ObjectRef, StringMap};
use schema::object::Object;

use super::case::{EffectCase, PlannedObjects};
use super::effect::{Effect, Port, appear_and_go};
use crate::gitops::plan::Step;

/// Limit on ports of external addresses that are reported one by one.
const EXTERNAL_MAX: usize = 50;

pub(crate) fn service(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::Service(spec) => Some(&**spec),
        _ => None,
    });
    let name = format!("{}.{}.svc.{}", case.object.name, case.object.namespace, case.planned.zone());
    let names = |service: Option<&ServiceSpec>| service.map(|_| name.clone());
    let mut effects = appear_and_go(names(before), names(after), Effect::NameVanishes, Effect::NameAppears);
    effects.extend(appear_and_go(ports(before), ports(after), Effect::PortCloses, Effect::PortOpens));
    effects.extend(external(before, after));
    if let (Some(before), Some(after)) = (before, after) {
        if before.selector != after.selector {
            effects.push(Effect::Selects);
        }
        if before.alias_target() != after.alias_target() {
            effects.push(Effect::Sentence(match after.alias_target() {
                Some(target) => format!("its name becomes an alias of {target}"),
                None => "its name is no longer an alias".to_owned(),
            }));
        }
        if before.cluster_ip != after.cluster_ip {
            effects.push(Effect::Sentence("its address changes: connections break".to_owned()));
        }
        if before.addresses != after.addresses {
            effects.push(Effect::Sentence("the addresses it forwards to change".to_owned()));
        }
        effects.extend(targets(before, after));
    }
    effects
}

fn ports(service: Option<&ServiceSpec>) -> Vec<Port> {
    let Some(service) = service.filter(|service| service.alias_target().is_none()) else { return Vec::new() };
    let mut all = Vec::new();
    for port in &service.ports {
        let (number, protocol) = (port.port, port.protocol);
        all.push(Port { place: "service port".into(), number, protocol });
        if service.kind == ServiceType::NodePort {
            let number = port.node_port.unwrap_or_default();
            all.push(Port { place: "node port".into(), number, protocol });
        }
    }
    all
}

/// Reports the ports of external addresses, open to everyone who can reach these: the first few that close and open.
fn external(before: Option<&ServiceSpec>, after: Option<&ServiceSpec>) -> Vec<Effect> {
    fn split(service: Option<&ServiceSpec>) -> (BTreeSet<&str>, BTreeSet<(u16, Protocol)>) {
        let Some(service) = service.filter(|service| service.alias_target().is_none()) else {
            return Default::default();
        };
        let addresses = service.external_ips.iter().map(String::as_str);
        (addresses.collect(), service.ports.iter().map(|port| (port.port, port.protocol)).collect())
    }
    let (before, after) = (split(before), split(after));
    let mut effects = Vec::new();
    for (one, other, effect, verb) in [
        (&before, &after, Effect::PortCloses as fn(Port) -> Effect, "closes"),
        (&after, &before, Effect::PortOpens, "opens"),
    ] {
        // Counted without a list of all pairs: there may be thousands of both.
        let shared = one.0.intersection(&other.0).count() * one.1.intersection(&other.1).count();
        let count = one.0.len() * one.1.len() - shared;
        let own: BTreeSet<(u16, Protocol)> = one.1.difference(&other.1).copied().collect();
        let of = |at: &str| if other.0.contains(at) { &own } else { &one.1 };
        let ports = one.0.iter().flat_map(|at| {
            of(at).iter().map(move |(number, protocol)| Port {
                place: format!("{at} port").into(),
                number: *number,
                protocol: *protocol,
            })
        });
        effects.extend(ports.take(EXTERNAL_MAX).map(effect));
        if count > EXTERNAL_MAX {
            let more = count - EXTERNAL_MAX;
            effects.push(Effect::Sentence(format!("{verb} {more} more ports of external addresses")));
        }
    }
    effects
}

/// Reports ports that stay but lead to other ports of the pods.
fn targets(before: &ServiceSpec, after: &ServiceSpec) -> Vec<Effect> {
    let led = |port: &ServicePort| match &port.target_port {
        None => port.port.to_string(),
        Some(PortReference::Number(number)) => number.to_string(),
        Some(PortReference::Name(name)) => name.clone(),
    };
    let mut effects = Vec::new();
    for port in &after.ports {
        let is_same = |old: &&ServicePort| (old.port, old.protocol) == (port.port, port.protocol);
        let Some(old) = before.ports.iter().find(is_same) else { continue };
        let (from, to) = (led(old), led(port));
        if from != to {
            let number = port.port;
            effects.push(Effect::Sentence(format!(
                "service port {number} forwards to port {to} of its pods instead of {from}"
            )));
        }
    }
    effects
}

pub(crate) fn dns(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::Dns(spec) => Some(&**spec),
        _ => None,
    });
    let names = |dns: Option<&DnsSpec>| -> Vec<String> {
        let paths =
            dns.into_iter().flat_map(|dns| dns.paths.iter().map(|path| format!("{}{}", dns.host, path.path)));
        paths.collect()
    };
    let mut effects = appear_and_go(names(before), names(after), Effect::NameVanishes, Effect::NameAppears);
    for path in after.into_iter().flat_map(|dns| &dns.paths) {
        let of_before = before.filter(|before| after.is_some_and(|after| before.host == after.host));
        let Some(old) = of_before.into_iter().flat_map(|dns| &dns.paths).find(|old| old.path == path.path)
        else {
            continue;
        };
        let host = after.map(|dns| dns.host.as_str()).unwrap_or_default();
        let (from, to) = (old.in_words(), path.in_words());
        if from != to {
            effects.push(Effect::Sentence(format!("{host}{} routes to {to} instead of {from}", path.path)));
        }
        if old.rewrite != path.rewrite {
            let to = path.rewrite.as_deref().unwrap_or("it is");
            effects.push(Effect::Sentence(format!("{host}{} is forwarded as {to}", path.path)));
        }
    }
    effects
}

// Services that lose their last pod: the one effect that depends on more than one step.

/// Returns the lost endpoints by the step that causes the loss.
pub(crate) fn lost_endpoints(
    planned: &PlannedObjects<'_>,
    steps: &[Step],
) -> BTreeMap<ObjectRef, Vec<Effect>> {
    let mut found: BTreeMap<ObjectRef, Vec<Effect>> = BTreeMap::new();
    let gone: Vec<&Step> =
        steps.iter().filter(|step| labels(planned.before(&step.object)).is_some()).collect();
    let changed = |service: &ObjectRef| planned.changed.contains_key(service);
    let services = planned.live.iter().filter(|(object, _)| object.kind == Kind::Service);
    for (service, live) in services {
        let selector_before = selector(Some(&live.value));
        let Some(selector_after) = selector(planned.now(service)) else { continue };
        let Some(selector_before) = selector_before else { continue };
        let same_namespace = |object: &ObjectRef| object.namespace == service.namespace;
        let causes: Vec<&ObjectRef> = gone
            .iter()
            .map(|step| &step.object)
            .filter(|object| {
                same_namespace(object) && matches(selector_before, labels(planned.before(object)))
            })
            .filter(|object| !matches(selector_after, labels(planned.now(object))))
            .collect();
        if causes.is_empty() && !changed(service) {
            continue;
        }
        let had = planned.live.iter().any(|(object, live)| {
            same_namespace(object) && matches(selector_before, labels(Some(&live.value)))
        });
        let has = planned.after().any(|(object, _)| {
            same_namespace(object) && matches(selector_after, labels(planned.now(object)))
        });
        if !had || has {
            continue;
        }
        let effect = Effect::EndpointsLost { service: format!("{}/{}", service.namespace, service.name) };
        if changed(service) {
            found.entry(service.clone()).or_default().push(effect.clone());
        }
        for cause in causes {
            found.entry(cause.clone()).or_default().push(effect.clone());
        }
    }
    found
}

/// Returns the selector of a service, if it has one.
fn selector(object: Option<&Object>) -> Option<&StringMap> {
    match &object?.resource {
        Resource::Service(service) if !service.selector.is_empty() => Some(&service.selector),
        _ => None,
    }
}

/// Returns the labels of the pods that an object creates, if it creates any.
fn labels(object: Option<&Object>) -> Option<&StringMap> {
    let object = object?;
    object.resource.pod(&object.metadata).filter(|pod| pod.count > 0).map(|pod| pod.labels)
}

fn matches(selector: &StringMap, labels: Option<&StringMap>) -> bool {
    labels.is_some_and(|labels| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
}
