//! Every rule that a manifest can break: a stable id, how bad, and one line for the docs.

use super::Severity;

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Stable id, for example `unknown-field`.
    pub id: &'static str,
    /// How bad breaking it is.
    pub severity: Severity,
    /// What it is about, in one line.
    pub summary: &'static str,
}

macro_rules! rules {
    ($($name:ident $id:literal $severity:ident $summary:literal)*) => {
        $(
            #[doc = $summary]
            pub static $name: Rule = Rule { id: $id, severity: Severity::$severity, summary: $summary };
        )*
        /// All rules, in the order of this file.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    // The file.
    TOO_LARGE "too-large" Error "A file, a document or its object is larger than the limit."
    TOO_DEEP "too-deep" Error "Values are nested deeper than the limit."
    TOO_MANY_NODES "too-many-nodes" Error "A file holds, after its aliases are expanded, more values than the limit."
    TOO_MANY_DOCUMENTS "too-many-documents" Error "A file holds more documents than the limit."
    NOT_UTF8 "not-utf8" Error "A manifest file is not UTF-8 text."
    CONTROL_CHARACTER "control-character" Error "A manifest file holds a character that YAML and JSON do not allow."
    LFS_POINTER "lfs-pointer" Error "The file is a Git LFS pointer, not the manifest itself."
    YAML_SYNTAX "yaml-syntax" Error "The file is not YAML."
    JSON_SYNTAX "json-syntax" Error "The file is not JSON."
    YAML_TAG "yaml-tag" Error "A manifest uses a YAML tag; tags have no meaning in manifests."
    DUPLICATE_KEY "duplicate-key" Error "A key is written twice in one mapping."
    COMMENTED_MANIFEST "commented-manifest" Error "A line reads like a whole manifest, but is a comment or directive."
    // The document.
    NOT_A_MAPPING "not-a-mapping" Error "A document is a list or text where an object is wanted."
    MISSING_KIND "missing-kind" Error "A document looks like a manifest but names no kind."
    UNKNOWN_KIND "unknown-kind" Error "No kind has this name."
    UNSUPPORTED_KIND "unsupported-kind" Error "The kind is known, but this version does not run it yet."
    API_VERSION "api-version" Error "The apiVersion is missing or not the kind's."
    // The shape.
    UNKNOWN_FIELD "unknown-field" Error "No such field."
    UNSUPPORTED_FIELD "unsupported-field" Error "A field of Kubernetes that Minik8s does not support."
    WRONG_TYPE "wrong-type" Error "A value is of another type than the field's."
    MISSING_FIELD "missing-field" Error "A required field is absent."
    UNKNOWN_VALUE "unknown-value" Error "A value is none of those the field takes."
    OUT_OF_RANGE "out-of-range" Error "A number is below the least or above the greatest that the field takes."
    QUANTITY "quantity" Error "An amount of CPU or memory can't be read."
    AMBIGUOUS_SCALAR "ambiguous-scalar" Warning "A plain word that older YAML reads as a boolean is taken as text."
    NANO_CPU "nano-cpu" Warning "A plain CPU number of 1,000,000 or more is taken as billionths of a core."
    // Metadata.
    INVALID_NAME "invalid-name" Error "A name can't be used as one."
    NAME_STYLE "name-style" Warning "A name works here but not as a DNS name."
    INVALID_LABEL "invalid-label" Error "A label's key or value, or an annotation's key, is malformed."
    ANNOTATIONS_SIZE "annotations-size" Error "The annotations are too large."
    // Lists.
    REQUIRED "required" Error "Something is needed that is empty or absent."
    DUPLICATE_NAME "duplicate-name" Error "Two things of a kind have the same name in one object."
    DUPLICATE_ENV "duplicate-env" Warning "An environment variable is set twice; the later one wins."
    EXCLUSIVE "exclusive" Error "Fields that exclude each other are both set, or none of them is."
    NOT_FOUND "not-found" Error "A reference leads nowhere within the object."
    // Values.
    INVALID_IMAGE "invalid-image" Error "An image reference is malformed."
    INVALID_ENV_NAME "invalid-env-name" Error "An environment variable's name is malformed."
    FIELD_PATH "field-path" Error "A fieldPath is none that the downward API knows."
    INVALID_PORT "invalid-port" Error "A port is out of range or does not fit the others."
    HOST_PORT "host-port" Error "A host port is taken twice, or does not fit host networking."
    RESOURCES "resources" Error "Requests and limits do not fit each other or the engine."
    INVALID_PATH "invalid-path" Error "A path is malformed, or leads out of where it may."
    PROBE "probe" Error "A probe's numbers make no sense."
    SECURITY "security" Error "Security settings contradict each other."
    CAPABILITY "capability" Error "No Linux capability has this name."
    TOLERATION "toleration" Error "A toleration's fields do not fit each other."
    DNS_CONFIG "dns-config" Error "Resolver settings are malformed or too many."
    NOT_EXECUTED_YET "not-executed-yet" Note "The field is stored but has no effect in this version."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_ids_are_unique() {
        let mut ids: Vec<_> = ALL.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
