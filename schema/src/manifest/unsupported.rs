//! Parts of Kubernetes that Minik8s lacks: tables for messages that know what the author meant.

use crate::document::nearest::nearest;
use crate::document::node::{Entry, Node, Value};
use crate::kinds::Kind;
use crate::kinds::pod::SPREAD;

const REMOVE: &str = "remove it";
const BY_SERVER: &str = "a Kubernetes server sets it";
const BY_NODE: &str = "choose nodes with nodeName, nodeSelector, affinity and tolerations";
const PREFERENCE: &str = "a preference keeps no pod from any node";
const PREFERRED: &[&str] = &["preferredDuringSchedulingIgnoredDuringExecution"];
const NO_ACCOUNTS: &str = "there is no API of Kubernetes that pods could log in to";
const NO_PREEMPTION: &str = "no pod gives way to another one";
const LOGS_TELL: &str = "the end of the container's log says why it ended";
const VOLUMES: &str = "volumes can be emptyDir, hostPath, repo (files of this repository), configMap, secret, downwardAPI or projected";
const BATCH_JOB: &str =
    "this is a Slurm job: for containers that run to completion, write a Pod with restartPolicy: OnFailure";
const ONE_ADDRESS: &str = "a service has one address, of IPv4, and its name leads to that";
const NO_BALANCER: &str = "use type NodePort, which answers on every node, or externalIPs";
const HISTORY: &str = "the last good template is kept, and Git has all others";
const TEMPLATE_NAME: &str = "pods get the namespace of their workload, and names derived from its name";
const OWNER: &str = "use fsGroup and a mode";
const METRICS: &str = "metrics are of type Resource: cpu and memory";
const SECCOMP: &str =
    "containers have Docker's default profile: use RuntimeDefault, or remove seccompProfile";
const RESOURCES: &str = "resources are cpu, memory and nvidia.com/gpu";
const NO_RIGHTS: &str = "there is no API of Kubernetes that pods could have rights on, so a pod that needs them cannot work here; remove it with that pod";
const NO_POLICY: &str = "pods reach each other, whatever their namespace, and nothing would enforce the policy: remove it if that may be";
const NO_SHARES: &str = "namespaces have no shares of the nodes: set requests and limits of each container";
const GATEWAY: &str = "the gateway of each node serves all Dns objects; remove it";
const NO_ENDPOINTS: &str = "list the addresses under spec.addresses of the Service";
const NO_SERVER: &str = "there is no API server to extend; remove it";
const NO_ADMISSION: &str =
    "manifests are checked by `minik8s validate`, and podSecurity of the Cluster object restricts pods";
const NO_CLASSES: &str = "volumes are folders of a node; remove it";
const HOSTS: &str = "use a Dns object for each host";
const SEALED: &str = "use an age-encrypted file";
const RENDERED: &str = "put the rendered manifests into the repository";
const FOLLOWED: &str = "name the repository and its folder in --sources";

/// Values with which a field has no effect.
#[derive(Debug, Clone, Copy)]
enum Harmless {
    /// Whatever the value is.
    Any,
    /// A text of these, or a list that has one.
    Texts(&'static [&'static str]),
}

/// Type, fields of its Kubernetes counterpart that would change nothing here, with which values, and why.
const NO_EFFECT: &[(&str, &[&str], Harmless, &str)] = &[
    ("ObjectMeta", BY_SERVER_FIELDS, Harmless::Any, BY_SERVER),
    ("TemplateMeta", BY_SERVER_FIELDS, Harmless::Any, BY_SERVER),
    ("TemplateMeta", &["name", "namespace"], Harmless::Any, TEMPLATE_NAME),
    ("Taint", &["timeAdded"], Harmless::Any, BY_SERVER),
    (
        "PodSpec",
        &["serviceAccount", "serviceAccountName", "automountServiceAccountToken"],
        Harmless::Any,
        NO_ACCOUNTS,
    ),
    ("PodSpec", &["priority", "priorityClassName", "preemptionPolicy"], Harmless::Any, NO_PREEMPTION),
    ("NodeSpec", &["podPreemptionPolicy"], Harmless::Any, NO_PREEMPTION),
    ("PodSpec", &["schedulerName"], Harmless::Any, "there is one scheduler"),
    ("NodeAffinity", PREFERRED, Harmless::Any, PREFERENCE),
    ("PodAffinity", PREFERRED, Harmless::Any, PREFERENCE),
    ("PodAntiAffinity", PREFERRED, Harmless::Any, PREFERENCE),
    (
        "TopologySpreadConstraint",
        &["matchLabelKeys", "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy"],
        Harmless::Any,
        SPREAD,
    ),
    (
        "PodSpec",
        &["enableServiceLinks"],
        Harmless::Any,
        "services are found by their names, and no variables are set for them",
    ),
    ("Container", &["terminationMessagePath", "terminationMessagePolicy"], Harmless::Any, LOGS_TELL),
    ("Container", &["resizePolicy"], Harmless::Any, "a changed pod is replaced"),
    ("FieldRef", &["apiVersion"], Harmless::Texts(&["v1"]), "it is the only version"),
    ("ResourceList", &["ephemeral-storage"], Harmless::Any, "the disk of a node is not divided"),
    (
        "PodSecurityContext",
        &["fsGroupChangePolicy"],
        Harmless::Any,
        "files get their group when the pod is made",
    ),
    ("ServiceSpec", &["ipFamilies"], Harmless::Texts(&["IPv4"]), ONE_ADDRESS),
    ("ServiceSpec", &["ipFamilyPolicy"], Harmless::Any, ONE_ADDRESS),
    ("ServicePort", &["appProtocol"], Harmless::Any, "connections are passed on as they are"),
    ("ReplicaSetSpec", &["revisionHistoryLimit"], Harmless::Any, HISTORY),
    ("DaemonSetSpec", &["revisionHistoryLimit"], Harmless::Any, HISTORY),
    ("DaemonSetSpec", &["templateGeneration"], Harmless::Any, BY_SERVER),
];

/// Metadata that only a Kubernetes server writes.
pub(super) const BY_SERVER_FIELDS: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Type, unsupported fields of its Kubernetes counterpart, advice.
const FIELDS: &[(&str, &[&str], &str)] = &[
    ("ObjectMeta", &["generateName"], "objects of a repository have fixed names: write name"),
    ("ObjectMeta", &["finalizers", "ownerReferences", "clusterName"], REMOVE),
    ("PodSpec", &["schedulingGates"], BY_NODE),
    (
        "PodAffinityTerm",
        &["namespaceSelector"],
        "it can't be kept: namespaces have no labels; list them under namespaces",
    ),
    (
        "PodAffinityTerm",
        &["matchLabelKeys", "mismatchLabelKeys"],
        "it can't be kept: write the labels in labelSelector",
    ),
    ("PodSpec", &["overhead", "runtimeClassName"], REMOVE),
    ("PodSpec", &["hostUsers", "os", "readinessGates"], REMOVE),
    ("PodSpec", &["setHostnameAsFQDN", "resourceClaims", "resources"], REMOVE),
    ("PodSpec", &["activeDeadlineSeconds", "evictionResponders", "schedulingGroup"], REMOVE),
    ("PodSpec", &["hostnameOverride"], "use hostname"),
    ("PodSpec", &["ephemeralContainers"], "list it under containers or initContainers"),
    ("Container", &["volumeDevices"], "mount a hostPath volume with volumeMounts"),
    ("Container", &["stdinOnce", "restartPolicyRules"], REMOVE),
    ("EnvVarSource", &["fileKeyRef"], "write the value"),
    ("FieldRef", &["apiVersion"], "write `v1`, or remove it"),
    ("ResourceRequirements", &["claims"], RESOURCES),
    ("ResourceList", &["storage", "pods", "amd.com/gpu"], RESOURCES),
    ("ResourceList", &["hugepages-2Mi", "hugepages-1Gi"], RESOURCES),
    (
        "Volume",
        &["persistentVolumeClaim", "nfs", "csi", "local", "iscsi", "ephemeral"],
        "use hostPath with nodeName",
    ),
    ("Volume", &["image", "gitRepo", "flexVolume", "rbd", "cephfs", "fc"], VOLUMES),
    (
        "Volume",
        &["awsElasticBlockStore", "azureDisk", "azureFile", "gcePersistentDisk", "glusterfs"],
        VOLUMES,
    ),
    (
        "Volume",
        &[
            "cinder",
            "flocker",
            "photonPersistentDisk",
            "portworxVolume",
            "quobyte",
            "scaleIO",
            "storageos",
            "vsphereVolume",
        ],
        VOLUMES,
    ),
    ("ProjectedSource", &["serviceAccountToken", "podCertificate"], NO_ACCOUNTS),
    (
        "ProjectedSource",
        &["clusterTrustBundle"],
        "there is no API of Kubernetes that has bundles: put the certificates into a ConfigMap",
    ),
    ("VolumeMount", &["recursiveReadOnly"], REMOVE),
    ("VolumeMount", &["bindMountOptions"], REMOVE),
    ("EmptyDirVolume", &["mode"], "any user of the pod may write to it; remove it"),
    ("ConfigMapVolume", &["defaultUser"], OWNER),
    ("SecretVolume", &["defaultUser"], OWNER),
    ("KeyToPath", &["user"], OWNER),
    ("DownwardApiVolume", &["defaultUser"], OWNER),
    ("DownwardApiFile", &["user"], OWNER),
    ("ProjectedVolume", &["defaultUser"], OWNER),
    ("GrpcAction", &["mode"], "requests are without TLS; remove it"),
    ("HttpGetAction", &["protocol"], "requests are HTTP/1.1; remove it"),
    ("Lifecycle", &["stopSignal"], REMOVE),
    ("LifecycleHandler", &["tcpSocket"], "use exec, httpGet or sleep"),
    ("SecurityContext", &["seLinuxOptions", "appArmorProfile", "procMount", "windowsOptions"], REMOVE),
    ("PodSecurityContext", &["seLinuxOptions", "appArmorProfile", "windowsOptions"], REMOVE),
    ("PodSecurityContext", &["sysctls", "seLinuxChangePolicy"], REMOVE),
    ("PodSecurityContext", &["supplementalGroupsPolicy"], REMOVE),
    ("SeccompProfile", &["localhostProfile"], SECCOMP),
    ("NodeSpec", &["podCIDR", "podCIDRs"], "the cluster gives each node its range; remove it"),
    ("NodeSpec", &["providerID", "externalID", "configSource"], REMOVE),
    (
        "JobSpec",
        &["template", "selector", "manualSelector", "podFailurePolicy", "podReplacementPolicy"],
        BATCH_JOB,
    ),
    (
        "JobSpec",
        &["parallelism", "completions", "completionMode", "successPolicy"],
        "this is a Slurm job: use nTasks or array",
    ),
    ("JobSpec", &["activeDeadlineSeconds"], "this is a Slurm job: use timeLimit"),
    (
        "JobSpec",
        &["backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "suspend", "managedBy"],
        REMOVE,
    ),
    ("ServiceSpec", &["clusterIPs"], "a service has one IPv4 address: write clusterIP"),
    ("ServiceSpec", &["ipFamilies"], "a service has one IPv4 address; remove it"),
    (
        "ServiceSpec",
        &[
            "allocateLoadBalancerNodePorts",
            "healthCheckNodePort",
            "loadBalancerClass",
            "loadBalancerIP",
            "loadBalancerSourceRanges",
        ],
        NO_BALANCER,
    ),
    ("ServiceSpec", &["trafficDistribution", "topologyKeys"], "use internalTrafficPolicy: Local"),
    ("ReplicaSetSpec", &["serviceName", "volumeClaimTemplates", "podManagementPolicy"], REMOVE),
    ("ReplicaSetSpec", &["updateStrategy"], "write it as strategy"),
    ("ReplicaSetSpec", &["rollbackTo"], "the history is in Git: revert the commit"),
    ("DaemonSetSpec", &["replicas"], "a DaemonSet has one pod on each node that fits; remove it"),
    ("DaemonSetSpec", &["strategy"], "write it as updateStrategy"),
    ("DaemonSetSpec", &["paused"], REMOVE),
    ("TemplateMeta", &["generateName", "finalizers", "ownerReferences"], REMOVE),
    ("Metric", &["pods", "object", "external", "containerResource"], METRICS),
    ("MetricTarget", &["value"], "use averageValue: it is per pod"),
    ("DnsSpec", &["rules", "defaultBackend"], "write host and paths; one Dns object per host"),
    ("DnsSpec", &["tls", "ingressClassName"], REMOVE),
    ("DnsPath", &["pathType"], "a path matches itself and everything below it; remove it"),
    ("DnsPath", &["backend"], "write service with name and port"),
    (
        "DnsBackend",
        &["namespace", "filters", "kind"],
        "a backend is a service or function in the same namespace; remove it",
    ),
    ("ServiceReference", &["namespace"], "the service is in the same namespace; remove it"),
];

/// A value that Minik8s takes in a field, a value that only Kubernetes takes there, advice.
const VALUES: &[(&str, &str, &str)] = &[
    ("ClusterIP", "LoadBalancer", NO_BALANCER),
    ("TCP", "SCTP", "use TCP or UDP"),
    ("RuntimeDefault", "Localhost", SECCOMP),
    ("RuntimeDefault", "Unconfined", SECCOMP),
    ("Resource", "Pods", METRICS),
    ("Resource", "Object", METRICS),
    ("Resource", "External", METRICS),
    ("Resource", "ContainerResource", METRICS),
    ("AverageValue", "Value", "use AverageValue: it is per pod"),
    ("limits.cpu", "limits.ephemeral-storage", "the disk of a node is not divided"),
    ("limits.cpu", "requests.ephemeral-storage", "the disk of a node is not divided"),
    ("ReplicaSet", "StatefulSet", "autoscalers scale a ReplicaSet or a Pod"),
    ("ReplicaSet", "DaemonSet", "a DaemonSet has one pod on each node that fits; use a ReplicaSet"),
    ("RollingUpdate", "OnDelete", "use RollingUpdate: a push replaces at most maxUnavailable pods at a time"),
];

/// Kinds of Kubernetes without which everything is the same here: API group, kind, why.
const NO_EFFECT_KINDS: &[(&str, &str, &str)] = &[
    (
        "",
        "Namespace",
        "a namespace begins with its first object, and podSecurity of the Cluster object restricts its pods",
    ),
    ("", "ServiceAccount", NO_ACCOUNTS),
    ("scheduling.k8s.io", "PriorityClass", NO_PREEMPTION),
];

/// Kinds of Kubernetes that people try, and their replacements.
const KINDS: &[(&str, &str)] = &[
    ("CronJob", "use a Workflow with spec.triggers"),
    ("Ingress", "use a Dns object"),
    ("List", "list the objects under `items`, or separate them with `---`"),
    ("PersistentVolume", "use a hostPath volume"),
    ("PersistentVolumeClaim", "use a hostPath volume"),
    ("Secret", "seal it: 'minik8s secrets seal --from FILE --remove'"),
    ("StatefulSet", "write one Pod with a hostPath volume for each member"),
    ("Kustomization", "put the rendered manifests into the repository, or list the file in `.minik8signore`"),
    ("APIService", NO_SERVER),
    ("ClusterRole", NO_RIGHTS),
    ("ClusterRoleBinding", NO_RIGHTS),
    ("CustomResourceDefinition", "objects of further kinds would do nothing here; remove it"),
    ("Endpoints", NO_ENDPOINTS),
    ("EndpointSlice", NO_ENDPOINTS),
    ("IngressClass", GATEWAY),
    ("LimitRange", NO_SHARES),
    ("MutatingAdmissionPolicy", NO_ADMISSION),
    ("MutatingWebhookConfiguration", NO_ADMISSION),
    ("NetworkPolicy", NO_POLICY),
    ("PodSecurityPolicy", "use podSecurity of the Cluster object"),
    ("ResourceQuota", NO_SHARES),
    ("Role", NO_RIGHTS),
    ("RoleBinding", NO_RIGHTS),
    ("RuntimeClass", "containers run with Docker's own runtime; remove it"),
    ("StorageClass", NO_CLASSES),
    ("CSIDriver", NO_CLASSES),
    ("ValidatingAdmissionPolicy", NO_ADMISSION),
    ("ValidatingAdmissionPolicyBinding", NO_ADMISSION),
    ("ValidatingWebhookConfiguration", NO_ADMISSION),
];

/// API groups of Kubernetes itself whose names have a dot.
const OWN_GROUPS: &[&str] = &[
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Kinds of other systems that people bring along, and their replacements: API group, kind, replacement.
const FOREIGN_KINDS: &[(&str, &str, &str)] = &[
    ("argoproj.io", "Application", FOLLOWED),
    ("argoproj.io", "CronWorkflow", "write a Workflow of minik8s.io/v1 with spec.triggers"),
    ("argoproj.io", "Workflow", "write a Workflow of minik8s.io/v1"),
    ("bitnami.com", "SealedSecret", SEALED),
    ("external-secrets.io", "ExternalSecret", SEALED),
    ("gateway.networking.k8s.io", "Gateway", GATEWAY),
    ("gateway.networking.k8s.io", "GatewayClass", GATEWAY),
    ("gateway.networking.k8s.io", "GRPCRoute", HOSTS),
    ("gateway.networking.k8s.io", "HTTPRoute", HOSTS),
    ("helm.toolkit.fluxcd.io", "HelmRelease", RENDERED),
    ("keda.sh", "ScaledObject", "use a HorizontalPodAutoscaler"),
    ("kustomize.config.k8s.io", "Component", RENDERED),
    ("kustomize.config.k8s.io", "Kustomization", RENDERED),
    ("kustomize.toolkit.fluxcd.io", "Kustomization", FOLLOWED),
    ("networking.istio.io", "VirtualService", HOSTS),
    ("serving.knative.dev", "Service", "use a Function"),
    ("traefik.io", "IngressRoute", HOSTS),
];

/// Returns why the field of the type `record` would change nothing here, if it would not.
pub(crate) fn without_effect(record: &str, field: &Entry) -> Option<&'static str> {
    let rows =
        NO_EFFECT.iter().filter(|(owner, names, ..)| *owner == record && names.contains(&field.key.as_str()));
    let written = match &field.value.value {
        Value::Sequence(items) => items.as_slice(),
        _ => std::slice::from_ref(&field.value),
    };
    let is_harmless = |values: Harmless| match values {
        Harmless::Any => true,
        Harmless::Texts(texts) => written.iter().filter_map(Node::text).any(|text| texts.contains(&text)),
    };
    rows.into_iter().find(|(_, _, values, _)| is_harmless(*values)).map(|(.., why)| *why)
}

/// Fields of a type that share a reason or advice, that text, and the values for which it holds, if not for all.
type FieldRow = (&'static [&'static str], &'static str, &'static [&'static str]);

/// Returns the fields of the type `record` that change nothing here, at least with some values.
pub(crate) fn fields_without_effect(record: &str) -> impl Iterator<Item = FieldRow> {
    let rows = NO_EFFECT.iter().filter(move |(owner, ..)| *owner == record);
    let values = |values: Harmless| match values {
        Harmless::Any => &[][..],
        Harmless::Texts(texts) => texts,
    };
    rows.map(move |(_, names, harmless, why)| (*names, *why, values(*harmless)))
}

/// Returns the fields of Kubernetes' counterpart of the type `record` that are refused.
pub(crate) fn refused_fields(record: &str) -> impl Iterator<Item = FieldRow> {
    let rows = FIELDS.iter().filter(move |(owner, ..)| *owner == record);
    rows.map(|(_, names, help)| (*names, *help, &[][..]))
}

/// Returns the values of Kubernetes that are refused, each with advice.
pub(crate) fn refused_values() -> impl Iterator<Item = (&'static str, &'static str)> {
    VALUES.iter().map(|(_, value, help)| (*value, *help))
}

/// Returns the kinds that change nothing here: API group, kind, why.
pub(crate) fn kinds_without_effect() -> &'static [(&'static str, &'static str, &'static str)] {
    NO_EFFECT_KINDS
}

/// Returns the kinds of Kubernetes that are refused, each with its replacement.
pub(crate) fn refused_kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().copied().filter(|(kind, _)| *kind != "List")
}

/// Returns advice for the field `name` of the type `record`, if Kubernetes has it and Minik8s does not.
pub(crate) fn field_advice(record: &str, name: &str) -> Option<&'static str> {
    let (_, _, help) = FIELDS.iter().find(|(owner, names, _)| *owner == record && names.contains(&name))?;
    Some(*help)
}

/// True if `other`, which is reported as unsupported, stands for the missing field `name`.
pub(crate) fn stands_for(record: &str, name: &str, other: &Entry) -> bool {
    (record, name, other.key.as_str()) == ("ObjectMeta", "name", "generateName") && !other.value.is_null()
}

/// Returns advice for Kubernetes' value `value`, where Minik8s takes `words`.
pub(crate) fn value_advice(words: &[String], value: &str) -> Option<&'static str> {
    let takes = |known: &str| words.iter().any(|word| word == known);
    VALUES.iter().find(|(known, foreign, _)| *foreign == value && takes(known)).map(|(.., help)| *help)
}

/// Returns a kind of Kubernetes and its replacement, by its name as on a command line: in any case, also plural.
pub fn kind_help(name: &str) -> Option<(&'static str, &'static str)> {
    let (name, short) = (name.to_ascii_lowercase(), [("sts", "statefulset"), ("ing", "ingress")]);
    let name = short.iter().find(|(short, _)| *short == name).map_or(name.as_str(), |(_, long)| long);
    let is_it = |kind: &str| {
        let kind = kind.to_ascii_lowercase();
        let is_plural =
            |stem: &str, ends: &[&str]| name.strip_prefix(stem).is_some_and(|rest| ends.contains(&rest));
        name == kind
            || is_plural(&kind, &["s", "es"])
            || kind.strip_suffix('y').is_some_and(|stem| is_plural(stem, &["ies"]))
    };
    KINDS.iter().find(|(kind, _)| *kind != "List" && is_it(kind)).copied()
}

/// Returns why an object of this kind would change nothing here, if it would not.
pub(crate) fn kind_without_effect(api_version: &str, kind: &str) -> Option<&'static str> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    NO_EFFECT_KINDS.iter().find(|(own, name, _)| *own == group && *name == kind).map(|(.., why)| *why)
}

/// Returns the API group of an object of another system. A misspelt group of ours is none: custom kinds are in groups
/// with a dot, and `k8s.io` belongs to Kubernetes' own and is added to these by mistake.
pub(crate) fn foreign_group<'a>(api_version: &'a str, kind: &str) -> Option<&'a str> {
    let (group, _) = api_version.split_once('/').filter(|(group, _)| group.contains('.'))?;
    let ours = Kind::ALL.iter().filter_map(|kind| Some(kind.api_version().split_once('/')?.0));
    let is_ours = Kind::from_manifest_word(kind).or_else(|| Kind::from_older_word(kind)).is_some();
    let is_of_kubernetes = OWN_GROUPS.contains(&group);
    let is_misspelt =
        nearest(group, ours).is_some() || is_ours && (group == "k8s.io" || group.ends_with(".k8s.io"));
    (!is_of_kubernetes && !is_misspelt).then_some(group)
}

/// Returns advice for an object of another system.
pub(crate) fn foreign_advice(group: &str, kind: &str) -> String {
    let replacement = FOREIGN_KINDS.iter().find(|(of, name, _)| *of == group && *name == kind);
    let ignore = "list the file in `.minik8signore`";
    replacement.map_or_else(|| ignore.to_owned(), |(.., help)| format!("{help}, or {ignore}"))
}

/// Returns the replacement for Kubernetes' kind `name`.
pub(crate) fn kind_advice(name: &str) -> Option<&'static str> {
    KINDS.iter().find(|(kind, _)| *kind == name).map(|(_, help)| *help)
}

#[cfg(test)]
mod tests {
    use super::super::json_schema;
    use super::*;

    #[test]
    fn every_row_is_of_a_type_that_is_there_and_has_no_such_field() {
        let types = &json_schema::for_any_kind()["$defs"];
        let without_effect = NO_EFFECT.iter().map(|(record, names, ..)| (record, names));
        for (record, names) in FIELDS.iter().map(|(record, names, _)| (record, names)).chain(without_effect) {
            let Some(properties) = types[record]["properties"].as_object() else {
                assert!(!types[record].is_null(), "there is no {record}");
                continue;
            };
            for name in *names {
                assert!(!properties.contains_key(*name), "{record} has {name}");
            }
        }
        let kinds = KINDS.iter().map(|(kind, _)| *kind).filter(|kind| *kind != "List");
        let kinds = kinds.chain(NO_EFFECT_KINDS.iter().map(|(_, kind, _)| *kind));
        assert!(kinds.into_iter().all(|kind| kind.parse::<Kind>().is_err()));
    }

    #[test]
    fn a_group_is_foreign_unless_it_is_kubernetes_own_or_a_misspelling_of_ours() {
        for (group, kind, _) in FOREIGN_KINDS {
            assert_eq!(foreign_group(&format!("{group}/v1"), kind), Some(*group));
        }
        for (api_version, kind, foreign) in [
            ("postgresql.cnpg.io/v1", "Cluster", true),
            ("cluster.x-k8s.io/v1beta1", "Cluster", true),
            ("autoscaling.k8s.io/v1", "VerticalPodAutoscaler", true),
            ("minio.min.io/v2", "Tenant", true),
            ("networking.k8s.io/v1", "Ingress", false),
            ("rbac.authorization.k8s.io/v1", "Role", false),
            ("extensions/v1beta1", "Deployment", false),
            ("v1", "Pod", false),
            ("/api/v1", "Function", false),
            ("", "Pod", false),
            ("app/v1", "Deployment", false),
            ("apps/v2", "Deployment", false),
            ("apps.k8s.io/v1", "Deployment", false),
            ("k8s.io/v1", "Pod", false),
            ("apps./v1", "ReplicaSet", false),
            ("minik8s.io/v2", "Cluster", false),
            ("mini8s.io/v1", "Cluster", false),
            ("minik8s.oi/v1", "Function", false),
            ("minik8s/v1", "Function", false),
        ] {
            assert_eq!(foreign_group(api_version, kind).is_some(), foreign, "{api_version} {kind}");
        }
    }

    #[test]
    fn kinds_of_a_command_line_may_be_plural() {
        for (name, kind) in
            [("roles", "Role"), ("networkpolicies", "NetworkPolicy"), ("storageclasses", "StorageClass")]
        {
            assert_eq!(kind_help(name).map(|(kind, _)| kind), Some(kind));
        }
    }
}
