//! Checks of environment variables.

use std::collections::BTreeSet;

use super::super::container::EnvFromSource;
use super::super::keyed::TextsSource;
use super::super::{Container, ContainerResource, EnvVar, EnvVarSource, FieldRef, PodSpec, ResourceFieldRef};
use super::shared::exactly_one;
use crate::content_refs::ContentRef;
use crate::document::nearest;
use crate::names::{check_qualified_name, is_env_name, is_key, is_name, is_subdomain_name};
use crate::quantity::Divisor;
use crate::secrets::{is_clear_key, is_clear_secret};
use crate::violation::{Findings, Path, rules};

/// Supported values of `fieldPath`; the first two in volumes only, the last two stand for any label or annotation.
const FIELD_PATHS: [&str; 10] = [
    "metadata.labels",
    "metadata.annotations",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "status.podIP",
    "status.hostIP",
    "metadata.labels['KEY']",
    "metadata.annotations['KEY']",
];

/// Message for a secret in clear text.
const IN_CLEAR: &str =
    "a password or private key in clear text: anyone who can read the repository has it, even after removal";

/// Checks the variables of a container. `pod` is `None` for a function, whose pod has this container alone.
pub(crate) fn validate(env: &[EnvVar], pod: Option<&PodSpec>, at: &Path<'_>, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (index, variable) in env.iter().enumerate() {
        let here = at.index(index);
        let name = &variable.name;
        if !is_env_name(name) {
            let message = format!(
                "Invalid value: `{name}`: a valid environment variable name must consist of alphabetic characters, \
digits, '_', '-', or '.', and must not start with a digit"
            );
            findings.add(&rules::INVALID_ENV_NAME, &here.field("name"), message);
        } else if !seen.insert(name) {
            let message = format!("`{name}` is set twice; the later value wins");
            findings.add(&rules::DUPLICATE_ENV, &here.field("name"), message).help("keep one of them");
        }
        if let Some(value) = &variable.value
            && is_clear_secret(name, value)
        {
            let help = "'minik8s secrets seal --from-env {file}:{line}' seals it and makes this line refer to it; if it was \
                        ever pushed, change it where it is used";
            findings.add(&rules::LITERAL_SECRET, &here.field("value"), IN_CLEAR).on_key().help(help);
        }
        let Some(source) = &variable.value_from else { continue };
        let from = here.field("valueFrom");
        // Kubernetes treats an empty value like a missing one.
        if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
            let message = "Invalid value: may not be specified when `value` is not empty";
            findings.add(&rules::EXCLUSIVE, &from, message).on_key();
        }
        value_from(source, pod, &from, findings);
    }
}

fn value_from(source: &EnvVarSource, pod: Option<&PodSpec>, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(source.field_ref.as_ref().map(|_| "fieldRef"));
    set.extend(source.resource_field_ref.as_ref().map(|_| "resourceFieldRef"));
    set.extend(source.all_keyed().map(|value| value.at[1]));
    exactly_one(&set, EnvVarSource::FIELDS, "a source", at, findings);
    if let Some(reference) = &source.field_ref {
        field(reference, false, &at.field("fieldRef"), findings);
    }
    if let Some(reference) = &source.resource_field_ref {
        resource(reference, pod, &at.field("resourceFieldRef"), findings);
    }
    for value in source.all_keyed() {
        let here = at.field(value.at[1]);
        name_of(&value.owner, &here.field("name"), findings);
        key(value.key, &here.field("key"), findings);
    }
}

/// Checks a field of the pod; a volume may have maps of them.
pub(super) fn field(reference: &FieldRef, in_volume: bool, at: &Path<'_>, findings: &mut Findings) {
    let known = if in_volume { &FIELD_PATHS[..] } else { &FIELD_PATHS[2..] };
    if !is_field_path(&reference.field_path, known) {
        let message = format!("Unsupported value: `{}`", reference.field_path);
        findings
            .add(&rules::FIELD_PATH, &at.field("fieldPath"), message)
            .help(format!("supported values: {}", known.join(", ")));
    }
}

/// Checks an amount of a container's resources.
pub(super) fn resource(
    reference: &ResourceFieldRef,
    pod: Option<&PodSpec>,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    if let Some(name) = reference.container_name.as_deref().filter(|name| !name.is_empty()) {
        let containers = || pod.into_iter().flat_map(|pod| pod.init_containers.iter().chain(&pod.containers));
        if !containers().any(|container| container.name == name) {
            let known = nearest::list(containers().map(|container| container.name.as_str()));
            let help = match pod {
                Some(_) => format!("the pod's containers: {known}"),
                None => "a function has one container: remove it".to_owned(),
            };
            let place = at.field("containerName");
            findings.add(&rules::NOT_FOUND, &place, format!("Not found: `{name}`")).help(help);
        }
    }
    let (units, kind) = match reference.resource {
        ContainerResource::LimitsCpu | ContainerResource::RequestsCpu => (&Divisor::UNITS[..2], "cpu"),
        ContainerResource::LimitsMemory | ContainerResource::RequestsMemory => {
            (&Divisor::UNITS[1..], "memory")
        }
    };
    // Kubernetes treats 0 like a missing divisor.
    if let Some(divisor) = reference.divisor.filter(|divisor| divisor.thousandths != 0)
        && !units.iter().any(|unit| unit.parse() == Ok(divisor))
    {
        let message = format!(
            "Invalid value: `{divisor}`: only divisor's values {} are supported with the {kind} resource",
            units.join(", ")
        );
        findings.add(&rules::UNKNOWN_VALUE, &at.field("divisor"), message);
    }
}

/// Checks that no word of a command is a private key or a token.
pub(super) fn validate_words(words: &[String], at: &Path<'_>, findings: &mut Findings) {
    let has_key = |text: &str| is_clear_key(text) || text.split(['=', '"', '\'', ' ']).any(is_clear_key);
    for (index, _) in words.iter().enumerate().filter(|(_, text)| has_key(text)) {
        let help = "change it where it is used; write the new one with 'minik8s secrets seal NAME --from -', take it as \
                    a variable (env: [{name: VAR, valueFrom: {secretKeyRef: {name: NAME, key: KEY}}}]), and write \
                    $(VAR) here";
        findings.add(&rules::LITERAL_SECRET, &at.index(index), IN_CLEAR).on_key().help(help);
    }
}

/// Checks the `envFrom` entries of a container.
pub(super) fn validate_from(container: &Container, at: &Path<'_>, findings: &mut Findings) {
    let list = at.field("envFrom");
    for (index, from) in container.env_from.iter().enumerate() {
        let (here, prefix) = (list.index(index), &from.prefix);
        let set: Vec<_> = from.all_texts().map(|all| all.at).collect();
        exactly_one(&set, EnvFromSource::FIELDS, "a source", &here, findings);
        for TextsSource { of, at: field, .. } in from.all_texts() {
            name_of(&of, &here.field(field).field("name"), findings);
        }
        if !prefix.is_empty() && !is_env_name(prefix) {
            let message =
                format!("Invalid value: `{prefix}`: no environment variable name can begin with it");
            findings.add(&rules::INVALID_ENV_NAME, &here.field("prefix"), message);
        }
    }
}

/// Checks the name of a secret or object that has values by key.
pub(super) fn name_of(of: &ContentRef, at: &Path<'_>, findings: &mut Findings) {
    let name = of.name();
    if !is_name(name) && !is_subdomain_name(name) {
        let message =
            format!("Invalid value: `{name}`: a name consists of letters, digits, '-', '_' and '.'");
        findings.add(&rules::INVALID_NAME, at, message);
    }
}

/// Checks a key of a secret or object.
pub(super) fn key(key: &str, at: &Path<'_>, findings: &mut Findings) {
    if !is_key(key) {
        let message = format!("Invalid value: `{key}`: a key consists of letters, digits, '-', '_' and '.'");
        findings.add(&rules::INVALID_NAME, at, message);
    }
}

fn is_field_path(path: &str, known: &[&str]) -> bool {
    let subscript = ["metadata.labels['", "metadata.annotations['"]
        .into_iter()
        .find_map(|prefix| path.strip_prefix(prefix)?.strip_suffix("']"));
    match subscript {
        Some(key) => check_qualified_name(&key.to_lowercase()).is_ok(),
        None => known.contains(&path),
    }
}
