//! The `Cluster` kind: names, links, validation.

use std::net::IpAddr;

use super::super::pod::content_uses::content_use;
use super::super::{Descriptor, KindSpec, Links, NameForm, OlderSpellings};
use super::{CLUSTER_NAME, ClusterSpec, FunctionDefaults, Registry, notifications};
use crate::content_refs::{ContentRef, ContentUse};
use crate::image::{self, ImageReference};
use crate::kinds::pod;
use crate::kinds::pod::LocalReference;
use crate::names::{is_dns_subdomain, is_name};
use crate::violation::{Findings, OwnedStep, Path, field_path, indexed, rules};

impl KindSpec for ClusterSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "clusters",
        is_namespaced: false,
        names: NameForm::Only(CLUSTER_NAME),
        older: OlderSpellings::for_own_kind(crate::kinds::job::descriptor::rewrite_cluster),
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        files: |cluster| {
            [identity()]
                .into_iter()
                .chain(login(
                    &["registry", "loginSecret"],
                    cluster.registry.as_ref().and_then(|registry| registry.login_secret.as_ref()),
                ))
                .chain(login(
                    &["functions", "packageIndexLogin"],
                    cluster.functions.package_index_login.as_ref(),
                ))
                .chain(cluster.slurm.login.content_uses(&["spec", "slurm", "login"]))
                .collect()
        },
        extra_position_paths: |cluster| cluster.notification_secrets().map(|(at, _)| at).collect(),
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {}

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl ClusterSpec {
    /// Returns the secrets with logins for the registry and for the Python package index. Only the next push, pull
    /// or build needs them.
    pub fn logins(&self) -> impl Iterator<Item = &LocalReference> {
        let registry = self.registry.iter().filter_map(|registry| registry.login_secret.as_ref());
        registry.chain(&self.functions.package_index_login)
    }

    /// Returns the names of the secrets of targets of notifications, each with its field. Only reconcilers read them.
    pub fn notification_secrets(&self) -> impl Iterator<Item = (Vec<OwnedStep>, &str)> {
        self.notifications.iter().enumerate().filter_map(|(index, target)| {
            Some((
                indexed(&["spec", "notifications"], index, &["secretName"]),
                target.secret_name.as_deref()?,
            ))
        })
    }
}

fn login(field: &[&'static str], secret: Option<&LocalReference>) -> Option<ContentUse> {
    let at = field_path(&[&["spec"], field, &["name"]].concat());
    Some(ContentUse { is_login: true, ..content_use(at, ContentRef::Secret(secret?.name.clone())) })
}

/// Returns the use of the cluster identity. Every source has it at the same place, so no field names it; problems
/// with it are reported for the object.
fn identity() -> ContentUse {
    ContentUse {
        is_optional: true,
        ..content_use(field_path(&["metadata", "name"]), ContentRef::ClusterIdentity)
    }
}

// Checks of the Cluster object beyond the schema.

/// Maximum number of servers that resolvers query (resolv.conf(5)).
const UPSTREAMS_MAX: usize = 3;

/// Maximum length of the zone, because names of services, ports and hosts precede it.
const ZONE_MAX: usize = 100;

/// Checks a spec as written.
pub(super) fn validate(cluster: &ClusterSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(registry) = &cluster.registry {
        validate_registry(registry, &at.field("registry"), findings);
    }
    dns(cluster, &at.field("dns"), findings);
    let defaults = at.field("defaults");
    pod::check_resources(&cluster.defaults.resources, &defaults.field("resources"), findings);
    let functions = at.field("functions");
    pod::check_resources(&cluster.functions.resources, &functions.field("resources"), findings);
    package_index(&cluster.functions, &functions, findings);
    for (index, address) in cluster.functions.registries.iter().enumerate() {
        registry_address(address, &functions.field("registries").index(index), findings);
    }
    cluster.pod_security.validate(&at.field("podSecurity"), findings);
    let slurm = at.field("slurm");
    cluster.slurm.login.validate(&slurm.field("login"), findings);
    notifications::validate(&cluster.notifications, at, findings);
}

/// Checks the package index. Credentials in its URL would end up in the repository, in image layers and in build
/// logs.
fn package_index(functions: &FunctionDefaults, at: &Path<'_>, findings: &mut Findings) {
    let index = functions.package_index.as_deref().unwrap_or_default();
    let authority = index.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
    if authority.contains('@') {
        let message = "Forbidden: contains a user or password";
        let help =
            "put them into a secret as `username` and `password`, and its name into `packageIndexLogin`";
        findings.add(&rules::LITERAL_SECRET, &at.field("packageIndex"), message).help(help);
    }
    let Some(login) = &functions.package_index_login else { return };
    let login_at = at.field("packageIndexLogin");
    if index.is_empty() {
        let message = "Forbidden: may be set only together with `packageIndex`";
        findings.add(&rules::EXCLUSIVE, &login_at, message).on_key();
    }
    if !is_name(&login.name) {
        let message = format!("Invalid value: `{}`: not a valid secret name", login.name);
        findings.add(&rules::INVALID_NAME, &login_at.field("name"), message);
    }
}

/// Checks the address of a registry: it is valid if it can precede an image name.
fn registry_address(address: &str, at: &Path<'_>, findings: &mut Findings) {
    let image = format!("{address}/image");
    if ImageReference::split(&image).registry.is_none() || image::check(&image).is_err() {
        let message = format!("Invalid value: `{address}`: not a valid registry address");
        findings
            .add(&rules::INVALID_IMAGE, at, message)
            .help("write `host:port`, for example `registry.lan:5000`, without `https://`");
    }
}

fn validate_registry(registry: &Registry, at: &Path<'_>, findings: &mut Findings) {
    registry_address(&registry.address, &at.field("address"), findings);
    if let Some(secret) = registry.login_secret.as_ref().filter(|secret| !is_name(&secret.name)) {
        let here = at.field("loginSecret");
        let message = format!("Invalid value: `{}`: not a valid secret name", secret.name);
        findings.add(&rules::INVALID_NAME, &here.field("name"), message);
    }
}

fn dns(cluster: &ClusterSpec, at: &Path<'_>, findings: &mut Findings) {
    let zone = &cluster.dns.zone;
    if !is_dns_subdomain(zone) || zone.len() > ZONE_MAX {
        let why = format!("must be a lower case DNS domain of at most {ZONE_MAX} characters");
        let message = format!("Invalid value: `{zone}`: {why}");
        findings.add(&rules::DNS_CONFIG, &at.field("zone"), message);
    }
    let upstreams = at.field("upstreams");
    if cluster.dns.upstreams.len() > UPSTREAMS_MAX {
        let message = format!("Invalid value: must not have more than {UPSTREAMS_MAX} servers");
        findings.add(&rules::DNS_CONFIG, &upstreams, message);
    }
    for (index, address) in cluster.dns.upstreams.iter().enumerate() {
        if address.parse::<IpAddr>().is_err() {
            let message = format!("Invalid value: `{address}`: must be an IP address");
            findings.add(&rules::DNS_CONFIG, &upstreams.index(index), message);
        }
    }
}
