//! Checks of node choice, host names, namespaces of the node, DNS and grace period.

use std::net::IpAddr;

use super::super::{DnsConfig, DnsPolicy, PodSpec, TaintEffect, Toleration, TolerationOperator};
use crate::kinds::metadata;
use crate::names::{
    DNS_LABEL, check_qualified_name, is_dns_label, is_dns_subdomain, is_label_value, is_name,
    is_subdomain_name,
};
use crate::violation::{Findings, Path, rules};

/// Limits of the C library's resolver and of Kubernetes.
const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCHES_MAX_CHARS: usize = 2048;

/// Maximum grace period, a day: a longer stop exceeds a person's patience.
pub(super) const GRACE_MAX_SECONDS: u32 = 24 * 60 * 60;

/// Checks node choice, host name, DNS and grace period.
pub(super) fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(node) = pod.node_name.as_deref().filter(|node| !is_name(node) && !is_subdomain_name(node)) {
        let message = format!("Invalid value: `{node}`: not a valid node name");
        findings.add(&rules::INVALID_NAME, &at.field("nodeName"), message);
    }
    metadata::labels(&pod.node_selector, &at.field("nodeSelector"), findings);
    if let Some(affinity) = &pod.affinity {
        affinity.validate(&at.field("affinity"), findings);
    }
    let tolerations = at.field("tolerations");
    for (index, one) in pod.tolerations.iter().enumerate() {
        toleration(one, &tolerations.index(index), findings);
    }
    for (field, label) in [("hostname", &pod.hostname), ("subdomain", &pod.subdomain)] {
        // An empty name means the same as a missing one.
        if let Some(label) = label.as_deref().filter(|label| !label.is_empty() && !is_dns_label(label)) {
            let message = format!("Invalid value: `{label}`: {DNS_LABEL}");
            findings.add(&rules::INVALID_NAME, &at.field(field), message);
        }
    }
    if pod.host_pid && pod.share_process_namespace {
        let message = "Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled";
        findings.add(&rules::EXCLUSIVE, &at.field("shareProcessNamespace"), message);
    }
    let aliases = at.field("hostAliases");
    for (index, alias) in pod.host_aliases.iter().enumerate() {
        let here = aliases.index(index);
        if alias.ip.parse::<IpAddr>().is_err() {
            let message =
                format!("Invalid value: `{}`: must be a valid IP address, (e.g. 10.9.8.7)", alias.ip);
            findings.add(&rules::INVALID_ADDRESS, &here.field("ip"), message);
        }
        let names = here.field("hostnames");
        for (index, name) in alias.hostnames.iter().enumerate().filter(|(_, name)| !is_dns_subdomain(name)) {
            let message = format!("Invalid value: `{name}`: must be a lower case DNS name");
            findings.add(&rules::INVALID_NAME, &names.index(index), message);
        }
    }
    if pod.termination_grace_period_seconds > GRACE_MAX_SECONDS {
        let message = format!("Invalid value: must be less than or equal to {GRACE_MAX_SECONDS}");
        findings.add(&rules::OUT_OF_RANGE, &at.field("terminationGracePeriodSeconds"), message);
    }
    let secrets = at.field("imagePullSecrets");
    for (index, secret) in
        pod.image_pull_secrets.iter().enumerate().filter(|(_, secret)| !is_name(&secret.name))
    {
        let here = secrets.index(index);
        let message = format!("Invalid value: `{}`: not a valid secret name", secret.name);
        findings.add(&rules::INVALID_NAME, &here.field("name"), message);
    }
    if let Some(config) = &pod.dns_config {
        dns_config(config, &at.field("dnsConfig"), findings);
    }
    let has_nameserver = pod.dns_config.as_ref().is_some_and(|config| !config.nameservers.is_empty());
    if pod.dns_policy == DnsPolicy::None && !has_nameserver {
        let message = "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None";
        findings.add(&rules::DNS_CONFIG, &at.field("dnsPolicy"), message).help("set dnsConfig.nameservers");
    }
}

fn toleration(toleration: &Toleration, at: &Path<'_>, findings: &mut Findings) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    if key.is_empty() && toleration.operator == TolerationOperator::Equal {
        let message = "Invalid value: operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        findings.add(&rules::TOLERATION, &at.field("operator"), message);
    } else if let Err(why) = check_qualified_name(key)
        && !key.is_empty()
    {
        findings.add(&rules::TOLERATION, &at.field("key"), format!("Invalid value: `{key}`: {why}"));
    }
    if toleration.operator == TolerationOperator::Exists && !value.is_empty() {
        let message = "Invalid value: value must be empty when `operator` is 'Exists'";
        findings.add(&rules::TOLERATION, &at.field("value"), message);
    } else if !is_label_value(value) {
        findings.add(
            &rules::TOLERATION,
            &at.field("value"),
            format!("Invalid value: `{value}`: not a valid taint value"),
        );
    }
    if toleration.toleration_seconds.is_some() && toleration.effect != Some(TaintEffect::NoExecute) {
        let message = "Invalid value: effect must be 'NoExecute' when `tolerationSeconds` is set";
        findings.add(&rules::TOLERATION, &at.field("tolerationSeconds"), message);
    }
}

fn dns_config(config: &DnsConfig, at: &Path<'_>, findings: &mut Findings) {
    let nameservers = at.field("nameservers");
    if config.nameservers.len() > NAMESERVERS_MAX {
        let message = format!("Invalid value: must not have more than {NAMESERVERS_MAX} nameservers");
        findings.add(&rules::DNS_CONFIG, &nameservers, message);
    }
    for (index, address) in config.nameservers.iter().enumerate() {
        if address.parse::<IpAddr>().is_err() {
            let message = format!("Invalid value: `{address}`: must be an IP address");
            findings.add(&rules::DNS_CONFIG, &nameservers.index(index), message);
        }
    }
    let searches = at.field("searches");
    let chars: usize = config.searches.iter().map(|domain| domain.chars().count() + 1).sum();
    if config.searches.len() > SEARCHES_MAX || chars > SEARCHES_MAX_CHARS {
        let message = format!(
            "Invalid value: must not have more than {SEARCHES_MAX} search paths or {SEARCHES_MAX_CHARS} characters in all"
        );
        findings.add(&rules::DNS_CONFIG, &searches, message);
    }
    for (index, domain) in config.searches.iter().enumerate() {
        // Kubernetes accepts a final dot, and the dot alone for the root.
        let is_domain = domain == "." || is_dns_subdomain(domain.strip_suffix('.').unwrap_or(domain));
        if !is_domain {
            let message = format!("Invalid value: `{domain}`: must be a lower case DNS domain");
            findings.add(&rules::DNS_CONFIG, &searches.index(index), message);
        }
    }
    let options = at.field("options");
    for (index, option) in config.options.iter().enumerate() {
        if option.name.is_empty() || option.name.contains(char::is_whitespace) {
            let here = options.index(index);
            findings.add(
                &rules::DNS_CONFIG,
                &here.field("name"),
                "Required value: an option's name must be one word",
            );
        }
    }
}
