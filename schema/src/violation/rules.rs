//! Every rule that a manifest can break: a stable id, severity, and one line for the docs.

use super::Severity;

/// A rule for manifests.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Stable id, for example `unknown-field`.
    pub id: &'static str,
    /// Severity of breaking it.
    pub severity: Severity,
    /// Summary in one line.
    pub summary: &'static str,
}

macro_rules! rules {
    ($($name:ident $id:literal $severity:ident $summary:literal)*) => {
        $(
            #[doc = $summary]
            pub static $name: Rule = Rule { id: $id, severity: Severity::$severity, summary: $summary };
        )*
        /// Every rule, in the order of this file.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    // The file.
    TOO_LARGE "too-large" Error "A file, a document or its object is larger than the limit."
    TOO_DEEP "too-deep" Error "Values are nested deeper than the limit."
    TOO_MANY_NODES "too-many-nodes" Error "A file holds, after its aliases are expanded, more values or more text than the limit."
    TOO_MANY_DOCUMENTS "too-many-documents" Error "A file holds more documents than the limit."
    NOT_UTF8 "not-utf8" Error "A manifest file is not UTF-8 text."
    CONTROL_CHARACTER "control-character" Error "A manifest file holds a character that YAML and JSON do not allow."
    LFS_POINTER "lfs-pointer" Error "The file is a Git LFS pointer, not the manifest itself."
    YAML_SYNTAX "yaml-syntax" Error "The file is not YAML."
    JSON_SYNTAX "json-syntax" Error "The file is not JSON."
    YAML_TAG "yaml-tag" Error "A manifest uses a YAML tag; tags have no meaning in manifests."
    DUPLICATE_KEY "duplicate-key" Error "A key is written twice in one mapping."
    COMMENTED_MANIFEST "commented-manifest" Error "A line reads like a whole manifest, but is a comment or directive."
    FILE_TRUNCATED "file-truncated" Error "A file was truncated within a document, and objects that it held are missing."
    FILE_TOO_LARGE "file-too-large" Error "A file is far too large to be a manifest and was not read at all."
    FOREIGN_FILE "foreign-file" Warning "A file that is not JSON, or that can't be read and has a dot before its name or its folder's, has no field of a manifest and is treated as another program's."
    KUSTOMIZATION "kustomization" Error "A kustomization would change the manifests that it lists, and kustomizations are not rendered."
    // The document.
    NOT_A_MAPPING "not-a-mapping" Error "A document is a list or text where an object is expected."
    MISSING_KIND "missing-kind" Error "A document looks like a manifest but names no kind."
    UNKNOWN_KIND "unknown-kind" Error "No kind has this name."
    API_VERSION "api-version" Error "The apiVersion is missing or not the kind's."
    // The shape.
    UNKNOWN_FIELD "unknown-field" Error "No such field."
    UNSUPPORTED_FIELD "unsupported-field" Error "A field of Kubernetes that Minik8s does not support."
    WRONG_TYPE "wrong-type" Error "A value has the wrong type for its field."
    MISSING_FIELD "missing-field" Error "A required field is absent."
    UNKNOWN_VALUE "unknown-value" Error "A value is not one that the field accepts."
    OUT_OF_RANGE "out-of-range" Error "A number is below the field's minimum or above its maximum."
    QUANTITY "quantity" Error "An amount of CPU or memory can't be read."
    AMBIGUOUS_SCALAR "ambiguous-scalar" Warning "A plain word is a boolean in older YAML and text in newer; it is read as the field's type."
    NANO_CPU "nano-cpu" Warning "A plain CPU number of 1,000,000 or more is read as billionths of a core."
    // Metadata.
    INVALID_NAME "invalid-name" Error "A name is invalid."
    NAME_STYLE "name-style" Warning "A name works here but not as a DNS name."
    INVALID_LABEL "invalid-label" Error "A label's key or value, or an annotation's key, is malformed."
    ANNOTATIONS_SIZE "annotations-size" Error "The annotations are too large."
    CLUSTER_SCOPED "cluster-scoped" Error "A cluster-scoped object has a namespace."
    DEPENDS_ON "depends-on" Error "A dependency is malformed, written twice, or the object itself."
    // Lists.
    REQUIRED "required" Error "Something required is empty or absent."
    DUPLICATE_NAME "duplicate-name" Error "Two items of the same type have the same name in one object."
    DUPLICATE_ENV "duplicate-env" Warning "An environment variable is set twice; the later one wins."
    EXCLUSIVE "exclusive" Error "Mutually exclusive fields are both set, or neither is."
    NOT_FOUND "not-found" Error "A reference has no target within the object."
    // Values.
    INVALID_HEADER "invalid-header" Error "The name or value of an HTTP header is invalid."
    INVALID_IMAGE "invalid-image" Error "An image reference is malformed."
    INVALID_ENV_NAME "invalid-env-name" Error "An environment variable's name is malformed."
    FIELD_PATH "field-path" Error "A fieldPath is not one that the downward API supports."
    INVALID_PORT "invalid-port" Error "A port is out of range or does not fit the others."
    HOST_PORT "host-port" Error "A host port is taken twice, or does not fit host networking."
    RESOURCES "resources" Error "Requests and limits do not fit each other or the engine."
    INVALID_PATH "invalid-path" Error "A path is malformed, or points outside its allowed root."
    PROBE "probe" Error "A probe's numbers make no sense."
    SECURITY "security" Error "Security settings contradict each other."
    CAPABILITY "capability" Error "No Linux capability has this name."
    TOLERATION "toleration" Error "A toleration's fields do not fit each other."
    TAINT "taint" Error "A taint is malformed, or written twice."
    NODE_IDENTITY "node-identity" Error "A node's identity is not the fingerprint of a key."
    LITERAL_SECRET "literal-secret" Error "A password or key is written in clear text."
    SLURM_OPTION "slurm-option" Error "An sbatch option can't be used as written."
    SLURM_LAYOUT "slurm-layout" Warning "Slurm will change or ignore numbers that do not fit each other."
    FORBIDDEN_BY_CLUSTER "forbidden-by-cluster" Error "The Cluster object forbids what the pod or service asks for."
    DNS_CONFIG "dns-config" Error "Resolver settings are malformed or too many."
    // Services and Dns.
    CLUSTER_IP "cluster-ip" Error "A service's own address is malformed or does not fit its type."
    CLUSTER_IP_RANGE "cluster-ip-range" Warning "A service has an address outside the service range, or one reserved for DNS or the gateway."
    EXTERNAL_NAME "external-name" Error "An external name is not a DNS name, or does not fit the service's type."
    NODE_PORT "node-port" Error "A node port is out of range, taken twice, or does not fit the service's type."
    INVALID_ADDRESS "invalid-address" Error "An address is not a usable unicast address."
    RESERVED_ADDRESS "reserved-address" Error "An external IP of a service is an address of a node, or in a range of the cluster."
    SESSION_AFFINITY "session-affinity" Error "Session affinity is out of range or not enabled."
    TRAFFIC_POLICY "traffic-policy" Error "A traffic policy does not fit how the service is reached."
    NO_ENDPOINTS "no-endpoints" Warning "A service has neither a selector nor addresses."
    HOST "host" Error "A host is not a DNS name, or is a reserved one."
    // Workloads and their autoscalers.
    SELECTOR "selector" Error "A label selector is empty, malformed, or does not match its own template."
    RESTART_POLICY "restart-policy" Error "A restart policy does not fit the workload."
    ROLLOUT "rollout" Error "The numbers of a rollout or a disruption budget make no sense."
    SCALING "scaling" Error "Bounds, metrics or behaviour of an autoscaler make no sense."
    // Workflows.
    WORKFLOW_UNSUPPORTED "workflow-unsupported" Error "A part of the Amazon States Language that Minik8s does not support."
    TASK_RESOURCE "task-resource" Error "The resource of a task names no function."
    NO_END "no-end" Error "A state machine has no reachable state that ends it."
    UNREACHABLE_STATE "unreachable-state" Warning "A state can't be reached."
    JSON_PATH "json-path" Error "A path is not a JSONPath, or not of the kind that the field accepts."
    INTRINSIC "intrinsic" Error "An intrinsic function does not exist, or is called incorrectly."
    PAYLOAD "payload" Error "A field of a payload that ends in `.$` has no path, or occurs next to one of the same name."
    TIMESTAMP "timestamp" Error "A timestamp is not in RFC 3339 format."
    RETRY "retry" Error "The errors or numbers of a retrier or catcher make no sense."
    TIMEOUT "timeout" Error "The time limits of a state contradict each other."
    SCHEDULE "schedule" Error "A cron expression or time zone can't be used as written."
    WORKFLOW_TEST "workflow-test" Error "A test case of a workflow, in `<workflow>.tests.yaml` next to it, fails."
    WORKFLOW_TEST_UNUSED "workflow-test-unused" Warning "Test cases that are not run, because no workflow next to their file has its name; or a mock that no Task uses."
    PYTHON_SYNTAX "python-syntax" Error "Code of a Python function that Python can't parse."
    DOCKERFILE "dockerfile" Error "A function's Dockerfile has something that builds refuse, such as `ADD` of a URL."
    FUNCTION_SOURCE "function-source" Error "A function's folder lacks what its runtime or its handler names."
    PYTHON_UNCHECKED "python-unchecked" Note "Code of Python functions that was not checked, because this machine has no Python."
    // The disk.
    UNREADABLE "unreadable" Error "A file or folder can't be read."
    REPOSITORY_UNREADABLE "repository-unreadable" Warning "The Git repository around a folder can't be read, so what Git ignores is checked as well."
    FILE_NAME "file-name" Error "The path of a manifest is not UTF-8, so it can't be read."
    // The repository's other files.
    REPO_FILE "repo-file" Error "A file or folder that a volume names is not in the repository, or can't be mounted."
    SECRET_FILE "secret-file" Error "The encrypted file of a secret is missing, or is not encrypted."
    SECRET_KEY "secret-key" Error "A secret has no such key, according to the list next to its file."
    // Across files and sources.
    DUPLICATE_OBJECT "duplicate-object" Error "Two documents define the same object."
    OWNED_BY_OTHER_SOURCE "owned-by-other-source" Error "An object belongs to another source of the cluster."
    NOT_ALLOWED "not-allowed" Error "An object is of a kind or namespace that the reconciler does not allow to its source."
    OWNER_UNREADABLE "owner-unreadable" Error "The file that an object belongs to can't be read, so no other may take it."
    MANIFEST_VANISHED "manifest-vanished" Error "A file that held live objects is no longer a manifest."
    DANGLING_TARGET "dangling-target" Error "A field names an object, or a port of one, that does not exist."
    DEPENDS_ON_QUARANTINED "depends-on-quarantined" Error "A field names an object whose own file can't be applied."
    IMMUTABLE "immutable" Error "Immutable content changes while it is in use."
    SKIPPED_KEY "skipped-key" Warning "A key can't be the name of an environment variable and is left out."
    DEPENDENCY_CYCLE "dependency-cycle" Error "Objects wait for each other in a cycle."
    PORT_CLASH "port-clash" Error "Two objects claim the same port of the same nodes."
    ADDRESS_CLASH "address-clash" Error "Two services claim the same cluster IP, or the same port of an external IP."
    ROUTE_CLASH "route-clash" Error "Two objects claim the same host and path."
    AUTOSCALER_CLASH "autoscaler-clash" Error "Two autoscalers scale the same object."
    SELECTOR_MATCHES_NOTHING "selector-matches-nothing" Warning "A service selects no pod and no template."
    // Notes.
    SYMLINK "symlink" Note "A symbolic link is not followed: what it points to may not be in the commit."
    SUBMODULE "submodule" Note "A Git repository within the repository is not read."
    FOLDER_TOO_DEEP "folder-too-deep" Note "A folder is nested deeper than the limit and is not read."
    MORE_VIOLATIONS "more-violations" Note "A file has more violations than are shown; the errors come first."
    OLDER_SPELLING "older-spelling" Note "An older spelling is read as the current one."
    NO_EFFECT "no-effect" Note "A field or kind of Kubernetes, or a file of another program, has no effect here and is left out."
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
