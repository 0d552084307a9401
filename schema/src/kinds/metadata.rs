//! Checks of metadata shared by all kinds: names, labels, annotations and `dependsOn`.

use std::collections::BTreeSet;

use super::{Kind, NameForm};
use crate::meta::{DEFAULT_NAMESPACE, ObjectMeta, ObjectRef, StringMap};
use crate::names::{
    DNS_LABEL, NAME_MAX_CHARS, SUBDOMAIN_MAX_CHARS, WORKLOAD_NAME_MAX_CHARS, check_qualified_name,
    is_dns_label, is_label_value, is_name, is_subdomain_name,
};
use crate::violation::{Findings, Path, rules};

/// Maximum total size of an object's annotations in bytes. Kubernetes accepts 256 KiB, but here the whole object is
/// a single value in etcd: see [`crate::manifest::limits::OBJECT_MAX_BYTES`].
const ANNOTATIONS_MAX_BYTES: usize = 32 * 1024;

/// Checks an object's metadata at `at`.
pub fn validate(kind: Kind, metadata: &ObjectMeta, at: &Path<'_>, findings: &mut Findings) {
    name(kind, &metadata.name, &at.field("name"), findings);
    namespace(kind, &metadata.namespace, &at.field("namespace"), findings);
    labels(&metadata.labels, &at.field("labels"), findings);
    annotations(Some(kind), &metadata.annotations, &at.field("annotations"), findings);
    validate_depends_on(kind, metadata, &at.field("dependsOn"), findings);
}

/// Checks for a DNS label; for cluster-scoped objects only `default`, which is also the value if none is written.
fn namespace(kind: Kind, namespace: &str, at: &Path<'_>, findings: &mut Findings) {
    if !is_dns_label(namespace) {
        let message = format!("Invalid value: `{namespace}`: {DNS_LABEL}");
        findings.add(&rules::INVALID_NAME, at, message);
    } else if kind.is_cluster_scoped() && namespace != DEFAULT_NAMESPACE {
        let message = format!(
            "Invalid value: `{namespace}`: a {kind} belongs to the whole cluster, not to a namespace"
        );
        findings.add(&rules::CLUSTER_SCOPED, at, message).help("remove it");
    }
}

/// Checks an object's name: a DNS label if it becomes a DNS name. Otherwise a name that Kubernetes accepts, up to
/// the length that the kind allows, or with a warning one with upper case and `_`, up to the length of a label.
fn name(kind: Kind, name: &str, at: &Path<'_>, findings: &mut Findings) {
    let form = kind.descriptor().names;
    let longest = match form {
        NameForm::Long => SUBDOMAIN_MAX_CHARS,
        NameForm::Workload => WORKLOAD_NAME_MAX_CHARS,
        NameForm::Label | NameForm::Short | NameForm::Only(_) => NAME_MAX_CHARS,
    };
    let must_be_dns = form == NameForm::Label;
    if name.is_empty() {
        findings.add(&rules::INVALID_NAME, at, "Required value: the name is empty");
    } else if name.chars().count() > longest {
        too_long(longest, form == NameForm::Workload, at, findings);
    } else if let NameForm::Only(only) = form
        && name != only
    {
        let message = format!("Invalid value: `{name}`: the only {kind} object is named `{only}`");
        findings.add(&rules::INVALID_NAME, at, message).help(format!("write `name: {only}`"));
    } else if is_dns_label(name) || (!must_be_dns && is_subdomain_name(name)) {
    } else if must_be_dns || !is_name(name) {
        findings.add(&rules::INVALID_NAME, at, format!("Invalid value: `{name}`: {DNS_LABEL}"));
    } else {
        findings
            .add(&rules::NAME_STYLE, at, format!("`{name}` is not a DNS name; Kubernetes would refuse it"))
            .help("use lower case letters, digits, `-` and `.`");
    }
}

fn too_long(longest: usize, makes_pods: bool, at: &Path<'_>, findings: &mut Findings) {
    let message = format!("Invalid value: must be no more than {longest} characters");
    let finding = findings.add(&rules::INVALID_NAME, at, message);
    if makes_pods {
        let room = "its pods are named `<name>-<8 digits>-<number>`, with at most";
        finding.help(format!("shorten it: {room} {SUBDOMAIN_MAX_CHARS} characters"));
    }
}

/// Checks the name of a workload, or of a pod that gets further pods.
pub(super) fn workload_name(name: &str, at: &Path<'_>, findings: &mut Findings) {
    if name.chars().count() > WORKLOAD_NAME_MAX_CHARS {
        too_long(WORKLOAD_NAME_MAX_CHARS, true, at, findings);
    }
}

/// Checks keys and values of labels, also in selectors.
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

/// Checks labels and annotations of a workload's pods, at the template's metadata.
pub fn template(labels: &StringMap, annotations: &StringMap, at: &Path<'_>, findings: &mut Findings) {
    self::labels(labels, &at.field("labels"), findings);
    self::annotations(None, annotations, &at.field("annotations"), findings);
}

/// Annotation that protects an object from pruning if `"false"`; `"true"` has no effect.
pub const PRUNE_ANNOTATION: &str = "minik8s.io/prune";
/// Annotation of a Node whose machine will not come back if `"true"`; `"false"` has no effect.
pub const GONE_ANNOTATION: &str = "minik8s.io/gone";
/// Prefix of Minik8s' own annotations: an unknown one is a misspelling.
const OWN_PREFIX: &str = "minik8s.io/";

/// Checks an annotation of Minik8s. A misspelled one would protect nothing, and its author would not notice until
/// the object is gone. `kind`: kind of the object; `None` for the pods of a workload.
fn own_annotation(kind: Option<Kind>, key: &str, value: &str, at: &Path<'_>, findings: &mut Findings) {
    let help = match key {
        PRUNE_ANNOTATION => {
            "write \"false\" to keep the object even if Git removes it, otherwise leave it out"
        }
        GONE_ANNOTATION if kind == Some(Kind::Node) => {
            "write \"true\" if the machine will not come back, otherwise leave it out"
        }
        _ => {
            let message = format!("unknown annotation `{key}`; {OWN_PREFIX} is reserved for Minik8s");
            let known = if key == GONE_ANNOTATION {
                format!("`{GONE_ANNOTATION}` is for Node objects only")
            } else {
                format!("did you mean `{PRUNE_ANNOTATION}`?")
            };
            findings.add(&rules::UNKNOWN_VALUE, &at.field(key), message).on_key().help(known);
            return;
        }
    };
    if !matches!(value, "true" | "false") {
        let message = format!("Invalid value: `{value}`: must be `true` or `false`");
        findings.add(&rules::UNKNOWN_VALUE, &at.field(key), message).help(help);
    }
}

fn annotations(kind: Option<Kind>, annotations: &StringMap, at: &Path<'_>, findings: &mut Findings) {
    for (key, value) in annotations.iter().filter(|(key, _)| key.to_lowercase().starts_with(OWN_PREFIX)) {
        own_annotation(kind, key, value, at, findings);
    }
    for key in annotations.keys() {
        // Kubernetes accepts keys of annotations in any case.
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

// `metadata.dependsOn`: references as text. Cross-object checks verify that the objects exist.

/// Maximum number of dependencies per object: enough for a whole application, few enough to print.
const DEPENDENCIES_MAX: usize = 64;

/// Error for text that is not a reference to an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text has neither two nor three parts.
    #[error("must be `Kind/name` or `Kind/namespace/name`")]
    Form,
    /// No kind has this name.
    #[error("unknown kind `{0}`")]
    Kind(String),
    /// The namespace is malformed.
    #[error("`{0}` is not a valid namespace")]
    Namespace(String),
    /// The name is malformed.
    #[error("`{0}` is not a valid name")]
    Name(String),
}

/// Parses `Kind/namespace/name`, or `Kind/name` in `namespace`, that of the object that holds the reference.
pub fn parse_reference(text: &str, namespace: &str) -> Result<ObjectRef, ReferenceError> {
    let (kind, namespace, name) = match text.split('/').collect::<Vec<_>>()[..] {
        [kind, name] => (kind, namespace, name),
        [kind, namespace, name] => (kind, namespace, name),
        _ => return Err(ReferenceError::Form),
    };
    let kind = Kind::from_manifest_word(kind).ok_or_else(|| ReferenceError::Kind(kind.to_owned()))?;
    if !is_dns_label(namespace) {
        return Err(ReferenceError::Namespace(namespace.to_owned()));
    }
    if !is_name(name) && !is_subdomain_name(name) {
        return Err(ReferenceError::Name(name.to_owned()));
    }
    let namespace = if kind.is_cluster_scoped() { DEFAULT_NAMESPACE } else { namespace };
    Ok(ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Checks the `dependsOn` list of one object.
fn validate_depends_on(kind: Kind, metadata: &ObjectMeta, at: &Path<'_>, findings: &mut Findings) {
    let own = ObjectRef { kind, namespace: metadata.namespace.clone(), name: metadata.name.clone() };
    let mut seen = BTreeSet::new();
    for (index, text) in metadata.depends_on.iter().enumerate() {
        let here = at.index(index);
        match parse_reference(text, &metadata.namespace) {
            Err(why) => {
                let help = match &why {
                    ReferenceError::Kind(word) => Kind::suggestion(word),
                    _ => "for example `ReplicaSet/database`".to_owned(),
                };
                let message = format!("Invalid value: `{text}`: {why}");
                findings.add(&rules::DEPENDS_ON, &here, message).help(help);
            }
            Ok(reference) if reference == own => {
                let message = format!("Invalid value: `{text}`: the object would wait for itself");
                findings.add(&rules::DEPENDS_ON, &here, message).help("remove it");
            }
            Ok(reference) => {
                if !seen.insert(reference) {
                    let message = format!("Duplicate value: `{text}`");
                    findings.add(&rules::DEPENDS_ON, &here, message).help("remove it");
                }
            }
        }
    }
    if metadata.depends_on.len() > DEPENDENCIES_MAX {
        let message = format!("Too many: {}; at most {DEPENDENCIES_MAX}", metadata.depends_on.len());
        findings.add(&rules::DEPENDS_ON, at, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_in_the_namespace_of_who_names_them() {
        let read = |text| parse_reference(text, "shop").map(|reference| reference.to_string());
        assert_eq!(read("Pod/web"), Ok("Pod/shop/web".to_owned()));
        assert_eq!(read("Pod/other/web"), Ok("Pod/other/web".to_owned()));
        assert_eq!(read("Node/one"), Ok("Node/one".to_owned()));
        for bad in ["", "web", "Pod/", "/web", "Pod//web", "pod/web", "Pod/a/b/c", "Pod/A/b", "Pod/a b"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
