//! Checks of probes, and of the handlers that they share with hooks.

use super::super::{Container, ExecAction, HttpGetAction, PROBE_SECONDS_MAX, PortReference, Probe};
use super::scheduling::GRACE_MAX_SECONDS;
use super::shared::exactly_one;
use crate::document::nearest;
use crate::violation::{Findings, Path, rules};

/// Checks the three probes of the container at `at`.
pub(super) fn validate(container: &Container, at: &Path<'_>, findings: &mut Findings) {
    // Only readiness may require several successes: the other two are done after one. Readiness ends nothing.
    let probes = [
        ("livenessProbe", &container.liveness_probe, true),
        ("readinessProbe", &container.readiness_probe, false),
        ("startupProbe", &container.startup_probe, true),
    ];
    for (field, probe, one_success) in probes {
        let Some(probe) = probe else { continue };
        let here = at.field(field);
        handlers(container, probe, &here, findings);
        numbers(probe, one_success, &here, findings);
        grace(probe, one_success, &here, findings);
    }
}

fn handlers(container: &Container, probe: &Probe, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(probe.exec.as_ref().map(|_| "exec"));
    set.extend(probe.http_get.as_ref().map(|_| "httpGet"));
    set.extend(probe.tcp_socket.as_ref().map(|_| "tcpSocket"));
    set.extend(probe.grpc.as_ref().map(|_| "grpc"));
    exactly_one(&set, &["exec", "httpGet", "tcpSocket", "grpc"], "a handler type", at, findings);
    if let Some(action) = &probe.exec {
        exec(action, &at.field("exec"), findings);
    }
    if let Some(action) = &probe.http_get {
        http_get(container, action, &at.field("httpGet"), findings);
    }
    if let Some(action) = &probe.tcp_socket {
        let here = at.field("tcpSocket");
        port(container, &action.port, &here.field("port"), findings);
    }
}

fn numbers(probe: &Probe, one_success: bool, at: &Path<'_>, findings: &mut Findings) {
    let times = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("periodSeconds", probe.period_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
    ];
    for (field, seconds) in times.into_iter().filter(|(_, seconds)| *seconds > PROBE_SECONDS_MAX) {
        let message =
            format!("Invalid value: {seconds}: must be less than or equal to {PROBE_SECONDS_MAX} (a day)");
        findings.add(&rules::OUT_OF_RANGE, &at.field(field), message);
    }
    if one_success && probe.success_threshold > 1 {
        let message = format!("Invalid value: {}: must be 1", probe.success_threshold);
        findings.add(&rules::PROBE, &at.field("successThreshold"), message);
    }
}

fn grace(probe: &Probe, ends: bool, at: &Path<'_>, findings: &mut Findings) {
    let Some(seconds) = probe.termination_grace_period_seconds else { return };
    let here = at.field("terminationGracePeriodSeconds");
    if !ends {
        let message = "Forbidden: a readiness probe never stops a container";
        findings.add(&rules::PROBE, &here, message).help("set it on livenessProbe or startupProbe");
    } else if !(1..=GRACE_MAX_SECONDS).contains(&seconds) {
        let message =
            format!("Invalid value: {seconds}: must be between 1 and {GRACE_MAX_SECONDS}, inclusive");
        findings.add(&rules::OUT_OF_RANGE, &here, message);
    }
}

/// Checks that a command is not empty.
pub(super) fn exec(action: &ExecAction, at: &Path<'_>, findings: &mut Findings) {
    if action.command.is_empty() {
        findings.add(&rules::REQUIRED, &at.field("command"), "Required value: the command is empty");
    }
}

/// Checks a request: its port must exist, and its headers must be valid.
pub(super) fn http_get(
    container: &Container,
    action: &HttpGetAction,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    port(container, &action.port, &at.field("port"), findings);
    if action.path.chars().any(|c| c.is_ascii_control() || c == ' ') {
        let message = "Invalid value: must not have spaces or control characters";
        findings.add(&rules::INVALID_PATH, &at.field("path"), message);
    }
    let headers = at.field("httpHeaders");
    for (index, header) in action.http_headers.iter().enumerate() {
        let here = headers.index(index);
        // RFC 9110, section 5.6.2: token.
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if header.name.is_empty() || !header.name.bytes().all(is_token) {
            let message = format!("Invalid value: `{}`: not a header name", header.name);
            findings.add(&rules::PROBE, &here.field("name"), message);
        }
        if header.value.chars().any(|c| c.is_ascii_control() && c != '\t') {
            findings.add(
                &rules::PROBE,
                &here.field("value"),
                "Invalid value: must not have control characters",
            );
        }
    }
}

fn port(container: &Container, port: &PortReference, at: &Path<'_>, findings: &mut Findings) {
    match port {
        PortReference::Number(0) => {
            let message = "Invalid value: 0: must be between 1 and 65535, inclusive";
            findings.add(&rules::INVALID_PORT, at, message);
        }
        PortReference::Number(_) => {}
        PortReference::Name(name) => {
            let names = || container.ports.iter().filter_map(|port| port.name.as_deref());
            if names().any(|known| known == name) {
                return;
            }
            let known: Vec<&str> = names().collect();
            let help = match known.as_slice() {
                [] => "the container has no named port; write the port's number".to_owned(),
                known => format!("its named ports: {}", nearest::list(known.iter().copied())),
            };
            findings.add(&rules::NOT_FOUND, at, format!("Not found: `{name}`")).help(help);
        }
    }
}
