//! Renders the probes and hooks of a manifest into actions, with addresses and ports filled in. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schema::kinds::pod::{
    Container as ContainerSpec, HttpGetAction, HttpScheme, LifecycleHandler, PortReference, Probe,
};
use schema::records::Binding;

use super::machine::{Action, Check, ProbeKind, ProbeTarget, Timing};
use crate::converge::pods::facts::{Container, NodeFacts, PodFacts};
use crate::worlds::prober::HttpRequest;

/// Returns the containers of a pod to probe now, by Docker id.
pub fn targets(node: &NodeFacts, binding: &Binding, facts: &PodFacts) -> BTreeMap<String, ProbeTarget> {
    let mut targets = BTreeMap::new();
    let Some(pause) = facts.live_pause() else { return targets };
    let host = address(node, pause);
    for spec in binding.pod.spec.side_by_side() {
        let Some(current) = facts.containers.get(&spec.name).and_then(|starts| starts.last()) else {
            continue;
        };
        if !current.is_running() {
            continue;
        }
        let checks = checks(spec, host);
        if current.sandbox == pause.id && current.failed_probe().is_none() && !checks.is_empty() {
            let target = ProbeTarget {
                pod: binding.pod.reference(),
                container: spec.name.clone(),
                started_at: current.started_at,
                checks,
                former: current.health,
            };
            targets.insert(current.id.clone(), target);
        }
    }
    targets
}

fn address(node: &NodeFacts, pause: &Container) -> IpAddr {
    pause.address.map_or(node.node_ip, |address| address.addr().into())
}

fn checks(spec: &ContainerSpec, host: IpAddr) -> BTreeMap<ProbeKind, Check> {
    let probes = [
        (ProbeKind::Startup, &spec.startup_probe),
        (ProbeKind::Readiness, &spec.readiness_probe),
        (ProbeKind::Liveness, &spec.liveness_probe),
    ];
    let check = |probe: &Probe| {
        let action = action(spec, probe, host)?;
        Some(Check { action, timing: Timing::from_probe(probe) })
    };
    let some = |(kind, probe): (ProbeKind, &Option<Box<Probe>>)| Some((kind, check(probe.as_deref()?)?));
    let hook = post_start(spec).and_then(|handler| hook(spec, handler, host));
    let hook = hook.map(|action| (ProbeKind::PostStart, Check { action, timing: Timing::HOOK }));
    probes.into_iter().filter_map(some).chain(hook).collect()
}

/// True if the container has a probe of this kind, or a postStart hook.
pub fn has(spec: &ContainerSpec, kind: ProbeKind) -> bool {
    match kind {
        ProbeKind::PostStart => post_start(spec).is_some(),
        ProbeKind::Startup => spec.startup_probe.is_some(),
        ProbeKind::Readiness => spec.readiness_probe.is_some(),
        ProbeKind::Liveness => spec.liveness_probe.is_some(),
    }
}

fn post_start(spec: &ContainerSpec) -> Option<&LifecycleHandler> {
    spec.lifecycle.as_ref()?.post_start.as_ref()
}

fn action(spec: &ContainerSpec, probe: &Probe, host: IpAddr) -> Option<Action> {
    if let Some(exec) = &probe.exec {
        return Some(Action::Exec(exec.command.clone()));
    }
    if let Some(http) = &probe.http_get {
        return Some(http_get(spec, http, host));
    }
    if let Some(grpc) = &probe.grpc {
        let service = grpc.service.clone().unwrap_or_default();
        return Some(Action::Grpc { address: SocketAddr::new(host, grpc.port), service });
    }
    let tcp = probe.tcp_socket.as_ref()?;
    let host = tcp.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| host.to_string());
    Some(Action::TcpSocket { host, port: port(spec, &tcp.port) })
}

/// Returns the preStop hook of a container; `host` is the pod's address.
pub fn pre_stop(spec: &ContainerSpec, host: IpAddr) -> Option<Action> {
    hook(spec, spec.lifecycle.as_ref()?.pre_stop.as_ref()?, host)
}

fn hook(spec: &ContainerSpec, hook: &LifecycleHandler, host: IpAddr) -> Option<Action> {
    match (&hook.exec, &hook.http_get, &hook.sleep) {
        (Some(exec), ..) => Some(Action::Exec(exec.command.clone())),
        (None, Some(http), _) => Some(http_get(spec, http, host)),
        (None, None, Some(sleep)) => Some(Action::Sleep { seconds: sleep.seconds }),
        (None, None, None) => None,
    }
}

fn http_get(spec: &ContainerSpec, http: &HttpGetAction, host: IpAddr) -> Action {
    let scheme = match http.scheme {
        Some(HttpScheme::Https) => "https",
        Some(HttpScheme::Http) | None => "http",
    };
    let host = http.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| host.to_string());
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    let slash = if http.path.starts_with('/') { "" } else { "/" };
    let url = format!("{scheme}://{host}:{}{slash}{}", port(spec, &http.port), http.path);
    let headers = http.http_headers.iter().map(|h| (h.name.clone(), h.value.clone())).collect();
    Action::HttpGet(HttpRequest { url, headers })
}

/// Resolves a port. An unknown name becomes 0, which never answers; validation rejects such names.
fn port(spec: &ContainerSpec, port: &PortReference) -> u16 {
    match port {
        PortReference::Number(number) => *number,
        PortReference::Name(name) => spec
            .ports
            .iter()
            .find(|port| port.name.as_ref() == Some(name))
            .map_or(0, |port| port.container_port),
    }
}
