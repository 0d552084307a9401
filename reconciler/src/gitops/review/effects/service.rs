//! Services and host names: what can be reached, under which name.

use schema::kinds::Resource;
use schema::kinds::dns::DnsSpec;
use schema::kinds::pod::PortReference;
use schema::kinds::service::{ServiceSpec, ServiceType};

use super::{Case, Effect, Port, appear_and_go};

pub(super) fn service(case: &Case<'_>) -> Vec<Effect> {
    fn spec(resource: Option<&Resource>) -> Option<&ServiceSpec> {
        match resource? {
            Resource::Service(spec) => Some(spec),
            _ => None,
        }
    }
    let (before, after) = (spec(case.before), spec(case.after));
    let name = format!("{}.{}.svc.{}", case.object.name, case.object.namespace, case.zone);
    let names = |service: Option<&ServiceSpec>| service.map(|_| name.clone());
    let mut effects = appear_and_go(names(before), names(after), Effect::NameVanishes, Effect::NameAppears);
    effects.extend(appear_and_go(ports(before), ports(after), Effect::PortCloses, Effect::PortOpens));
    if let (Some(before), Some(after)) = (before, after) {
        if before.selector != after.selector {
            effects.push(Effect::Selects);
        }
        if before.alias_of() != after.alias_of() {
            effects.push(Effect::Says(match after.alias_of() {
                Some(target) => format!("its name becomes an alias of {target}"),
                None => "its name is no alias any more".to_owned(),
            }));
        }
        if before.cluster_ip != after.cluster_ip {
            effects.push(Effect::Says("its address changes: connections break".to_owned()));
        }
    }
    effects
}

fn ports(service: Option<&ServiceSpec>) -> Vec<Port> {
    let Some(service) = service.filter(|service| service.alias_of().is_none()) else { return Vec::new() };
    let mut all = Vec::new();
    for port in &service.ports {
        all.push(Port { place: "service port", number: port.port, protocol: port.protocol });
        if service.kind == ServiceType::NodePort {
            let number = port.node_port.unwrap_or_default();
            all.push(Port { place: "node port", number, protocol: port.protocol });
        }
    }
    all
}

pub(super) fn dns(case: &Case<'_>) -> Vec<Effect> {
    fn spec(resource: Option<&Resource>) -> Option<&DnsSpec> {
        match resource? {
            Resource::Dns(spec) => Some(spec),
            _ => None,
        }
    }
    let (before, after) = (spec(case.before), spec(case.after));
    let names = |dns: Option<&DnsSpec>| -> Vec<String> {
        let paths =
            dns.into_iter().flat_map(|dns| dns.paths.iter().map(|path| format!("{}{}", dns.host, path.path)));
        paths.collect()
    };
    let mut effects = appear_and_go(names(before), names(after), Effect::NameVanishes, Effect::NameAppears);
    for path in after.into_iter().flat_map(|dns| &dns.paths) {
        let of_before = before.filter(|before| after.is_some_and(|after| before.host == after.host));
        let mut same = of_before.into_iter().flat_map(|dns| &dns.paths).filter(|old| old.path == path.path);
        if let Some(old) = same.next().filter(|old| old.service != path.service) {
            let (from, to) = (target(&old.service), target(&path.service));
            let host = after.map(|dns| dns.host.as_str()).unwrap_or_default();
            effects.push(Effect::Says(format!("{host}{} leads to {to} instead of {from}", path.path)));
        }
    }
    effects
}

fn target(service: &schema::kinds::dns::ServiceReference) -> String {
    match &service.port {
        PortReference::Number(number) => format!("service {}:{number}", service.name),
        PortReference::Name(name) => format!("service {}:{name}", service.name),
    }
}
