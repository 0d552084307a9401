//! Names, labels and annotations: what every kind checks alike.

use super::Kind;
use super::names::{DNS_LABEL, NAME_MAX_CHARS, check_qualified_name, is_dns_label, is_label_value, is_name};
use crate::meta::{ObjectMeta, StringMap};
use crate::violation::{Findings, Path, rules};

/// Most bytes of annotations on one object. Kubernetes takes 256 KiB, but here the whole object lies
/// under one key of etcd: see [`crate::manifest::limits::OBJECT_MAX_BYTES`].
const ANNOTATIONS_MAX_BYTES: usize = 32 * 1024;

/// Checks an object's metadata at `at`.
pub fn validate(kind: Kind, metadata: &ObjectMeta, at: &Path<'_>, findings: &mut Findings) {
    name(kind, &metadata.name, &at.field("name"), findings);
    if !is_dns_label(&metadata.namespace) {
        let message = format!("Invalid value: `{}`: {DNS_LABEL}", metadata.namespace);
        findings.add(&rules::INVALID_NAME, &at.field("namespace"), message);
    }
    labels(&metadata.labels, &at.field("labels"), findings);
    annotations(&metadata.annotations, &at.field("annotations"), findings);
}

/// An object's name: a DNS label where it becomes a DNS name, else also upper case, `_` and `.`.
fn name(kind: Kind, name: &str, at: &Path<'_>, findings: &mut Findings) {
    let must_be_dns = matches!(kind, Kind::Service | Kind::Dns);
    if name.is_empty() {
        findings.add(&rules::INVALID_NAME, at, "Required value: the name is empty");
    } else if name.chars().count() > NAME_MAX_CHARS {
        let message = format!("Invalid value: must be no more than {NAME_MAX_CHARS} characters");
        findings.add(&rules::INVALID_NAME, at, message);
    } else if is_dns_label(name) {
    } else if must_be_dns || !is_name(name) {
        findings.add(&rules::INVALID_NAME, at, format!("Invalid value: `{name}`: {DNS_LABEL}"));
    } else {
        findings
            .add(&rules::NAME_STYLE, at, format!("`{name}` is no DNS label; Kubernetes would refuse it"))
            .help("use lower case letters, digits and `-`");
    }
}

/// Keys and values of labels, also of selectors.
pub fn labels(labels: &StringMap, at: &Path<'_>, findings: &mut Findings) {
    for (key, value) in labels {
        let here = at.field(key);
        if let Err(why) = check_qualified_name(key) {
            findings.add(&rules::INVALID_LABEL, &here, format!("Invalid value: `{key}`: {why}")).on_key();
        }
        if !is_label_value(value) {
            let why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
and must start and end with an alphanumeric character, at most 63 characters";
            findings.add(&rules::INVALID_LABEL, &here, format!("Invalid value: `{value}`: {why}"));
        }
    }
}

fn annotations(annotations: &StringMap, at: &Path<'_>, findings: &mut Findings) {
    for key in annotations.keys() {
        // As Kubernetes: keys of annotations may be written in any case.
        if let Err(why) = check_qualified_name(&key.to_lowercase()) {
            let message = format!("Invalid value: `{key}`: {why}");
            findings.add(&rules::INVALID_LABEL, &at.field(key), message).on_key();
        }
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS_MAX_BYTES {
        let message = format!("Too long: {bytes} bytes; may not be more than {ANNOTATIONS_MAX_BYTES} bytes");
        findings.add(&rules::ANNOTATIONS_SIZE, at, message);
    }
}
