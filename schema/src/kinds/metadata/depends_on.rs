//! `metadata.dependsOn`: references as text. Cross-object checks verify that the objects exist.

use std::collections::BTreeSet;

use super::super::Kind;
use super::super::names::{is_dns_label, is_name, is_subdomain_name};
use crate::meta::{DEFAULT_NAMESPACE, ObjectMeta, ObjectRef};
use crate::violation::{Findings, Path, rules};

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
    #[error("`{0}` is not a namespace")]
    Namespace(String),
    /// The name is malformed.
    #[error("`{0}` is not a name")]
    Name(String),
}

/// Parses `Kind/namespace/name`, or `Kind/name` in `namespace`, that of the object that holds the reference.
pub fn parse_reference(text: &str, namespace: &str) -> Result<ObjectRef, ReferenceError> {
    let (kind, namespace, name) = match text.split('/').collect::<Vec<_>>()[..] {
        [kind, name] => (kind, namespace, name),
        [kind, namespace, name] => (kind, namespace, name),
        _ => return Err(ReferenceError::Form),
    };
    let kind = Kind::of_word(kind).ok_or_else(|| ReferenceError::Kind(kind.to_owned()))?;
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
pub(super) fn validate(kind: Kind, metadata: &ObjectMeta, at: &Path<'_>, findings: &mut Findings) {
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
