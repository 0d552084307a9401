//! Checks of environment variables.

use std::collections::BTreeSet;

use super::super::container::EnvFromSource;
use super::super::keyed::TextsSource;
use super::super::{Container, EnvVar, EnvVarSource};
use super::shared::exactly_one;
use crate::content_refs::ContentRef;
use crate::names::{check_qualified_name, is_env_name, is_key, is_name, is_subdomain_name};
use crate::secrets::{is_clear_key, is_clear_secret};
use crate::violation::{Findings, Path, rules};

/// Supported values of `fieldPath`; the last two stand for any label or annotation.
const FIELD_PATHS: [&str; 8] = [
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

/// Checks the variables of a container.
pub(crate) fn validate(env: &[EnvVar], at: &Path<'_>, findings: &mut Findings) {
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
        value_from(source, &from, findings);
    }
}

fn value_from(source: &EnvVarSource, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(source.field_ref.as_ref().map(|_| "fieldRef"));
    set.extend(source.all_keyed().map(|value| value.at[1]));
    exactly_one(&set, EnvVarSource::FIELDS, "a source", at, findings);
    if let Some(reference) = &source.field_ref
        && !is_field_path(&reference.field_path)
    {
        let here = at.field("fieldRef");
        let message = format!("Unsupported value: `{}`", reference.field_path);
        findings
            .add(&rules::FIELD_PATH, &here.field("fieldPath"), message)
            .help(format!("supported values: {}", FIELD_PATHS.join(", ")));
    }
    for value in source.all_keyed() {
        let here = at.field(value.at[1]);
        name_of(&value.owner, &here.field("name"), findings);
        key(value.key, &here.field("key"), findings);
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

fn is_field_path(path: &str) -> bool {
    let subscript = ["metadata.labels['", "metadata.annotations['"]
        .into_iter()
        .find_map(|prefix| path.strip_prefix(prefix)?.strip_suffix("']"));
    match subscript {
        Some(key) => check_qualified_name(&key.to_lowercase()).is_ok(),
        None => FIELD_PATHS[..6].contains(&path),
    }
}
