//! Parts of Kubernetes that Minik8s lacks: tables for messages that know what the author meant.

const REMOVE: &str = "remove it";
const BY_SERVER: &str = "a Kubernetes server sets it; remove it";
const BY_NODE: &str = "choose nodes with nodeName, nodeSelector and tolerations; pods of a workload are spread over the nodes anyway";
const SPREAD: &str = "pods of a workload are spread over the nodes anyway; remove it";
const NO_ACCOUNTS: &str = "Minik8s has no service accounts; remove it";
const VOLUMES: &str =
    "volumes can be emptyDir, hostPath, repo (files of this repository), configMap or secret";
const BATCH_JOB: &str =
    "this is a Slurm job: for containers that run to completion, write a Pod with restartPolicy: OnFailure";
const PROBES: &str = "use exec, httpGet or tcpSocket";
const ONE_ADDRESS: &str = "a service has one IPv4 address; remove it";
const NO_BALANCER: &str = "use type NodePort, which answers on every node, or externalIPs";
const METRICS: &str = "metrics are of type Resource: cpu and memory";
const SECCOMP: &str =
    "containers have Docker's default profile: use RuntimeDefault, or remove seccompProfile";
const RESOURCES: &str = "resources are cpu and memory";

/// Type, unsupported fields of its Kubernetes counterpart, advice.
const FIELDS: &[(&str, &[&str], &str)] = &[
    (
        "ObjectMeta",
        &[
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generation",
            "managedFields",
            "resourceVersion",
            "selfLink",
            "uid",
        ],
        BY_SERVER,
    ),
    ("ObjectMeta", &["generateName"], "objects of a repository have fixed names: write name"),
    ("ObjectMeta", &["finalizers", "ownerReferences", "clusterName"], REMOVE),
    ("PodSpec", &["serviceAccount", "serviceAccountName", "automountServiceAccountToken"], NO_ACCOUNTS),
    ("PodSpec", &["affinity", "schedulerName", "schedulingGates"], BY_NODE),
    ("PodSpec", &["topologySpreadConstraints"], SPREAD),
    (
        "PodSpec",
        &["priority", "priorityClassName", "preemptionPolicy", "overhead", "runtimeClassName"],
        REMOVE,
    ),
    ("PodSpec", &["hostPID", "hostIPC", "hostUsers", "hostAliases", "os", "readinessGates"], REMOVE),
    ("PodSpec", &["setHostnameAsFQDN", "enableServiceLinks", "resourceClaims", "resources"], REMOVE),
    ("PodSpec", &["activeDeadlineSeconds"], REMOVE),
    ("PodSpec", &["ephemeralContainers"], "list it under containers or initContainers"),
    ("Container", &["volumeDevices"], "mount a hostPath volume with volumeMounts"),
    (
        "Container",
        &["terminationMessagePath", "terminationMessagePolicy", "stdinOnce", "resizePolicy"],
        REMOVE,
    ),
    (
        "Container",
        &["restartPolicy"],
        "restartPolicy is a field of the pod; sidecar init containers are not supported",
    ),
    ("EnvVarSource", &["resourceFieldRef", "fileKeyRef"], "write the value"),
    ("FieldRef", &["apiVersion"], REMOVE),
    ("SecretKeyRef", &["optional"], REMOVE),
    ("ContainerPort", &["hostIP"], "the port is opened on all addresses of the node"),
    ("ResourceRequirements", &["claims"], RESOURCES),
    ("ResourceList", &["ephemeral-storage", "storage", "pods", "nvidia.com/gpu", "amd.com/gpu"], RESOURCES),
    ("ResourceList", &["hugepages-2Mi", "hugepages-1Gi"], RESOURCES),
    (
        "Volume",
        &["persistentVolumeClaim", "nfs", "csi", "local", "iscsi", "ephemeral"],
        "use hostPath with nodeName",
    ),
    (
        "Volume",
        &["projected", "downwardAPI", "image", "gitRepo", "flexVolume", "rbd", "cephfs", "fc"],
        VOLUMES,
    ),
    (
        "Volume",
        &["awsElasticBlockStore", "azureDisk", "azureFile", "gcePersistentDisk", "glusterfs"],
        VOLUMES,
    ),
    ("SecretVolume", &["items", "defaultMode", "optional"], "all keys of the secret become files; remove it"),
    ("VolumeMount", &["mountPropagation", "recursiveReadOnly"], REMOVE),
    ("VolumeMount", &["subPathExpr"], "use subPath"),
    ("Probe", &["grpc"], PROBES),
    ("Lifecycle", &["postStart", "stopSignal"], REMOVE),
    ("LifecycleHandler", &["tcpSocket"], "use exec or httpGet"),
    ("LifecycleHandler", &["sleep"], "use exec with the command `sleep`"),
    ("SecurityContext", &["seLinuxOptions", "appArmorProfile", "procMount", "windowsOptions"], REMOVE),
    ("PodSecurityContext", &["seLinuxOptions", "appArmorProfile", "windowsOptions"], REMOVE),
    ("PodSecurityContext", &["sysctls", "fsGroupChangePolicy", "seLinuxChangePolicy"], REMOVE),
    ("PodSecurityContext", &["supplementalGroupsPolicy"], REMOVE),
    ("SeccompProfile", &["localhostProfile"], SECCOMP),
    ("NodeSpec", &["podCIDR", "podCIDRs"], "the cluster gives each node its range; remove it"),
    ("NodeSpec", &["providerID", "externalID", "configSource"], REMOVE),
    ("Taint", &["timeAdded"], BY_SERVER),
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
    ("ServiceSpec", &["clusterIPs", "ipFamilies", "ipFamilyPolicy"], ONE_ADDRESS),
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
    ("ServicePort", &["appProtocol"], "it has no effect; remove it"),
    ("ReplicaSetSpec", &["revisionHistoryLimit"], "the history is in Git; remove it"),
    ("ReplicaSetSpec", &["serviceName", "volumeClaimTemplates", "podManagementPolicy"], REMOVE),
    ("ReplicaSetSpec", &["updateStrategy"], "write it as strategy"),
    ("DaemonSetSpec", &["replicas"], "a DaemonSet has one pod on each node that fits; remove it"),
    ("DaemonSetSpec", &["strategy"], "write it as updateStrategy"),
    ("DaemonSetSpec", &["paused", "templateGeneration"], REMOVE),
    (
        "TemplateMeta",
        &["creationTimestamp", "deletionTimestamp", "generation", "managedFields", "resourceVersion", "uid"],
        BY_SERVER,
    ),
    ("TemplateMeta", &["generateName", "finalizers", "ownerReferences"], REMOVE),
    ("Metric", &["pods", "object", "external", "containerResource"], METRICS),
    ("MetricTarget", &["value"], "use averageValue: it is per pod"),
    ("ScalingRules", &["tolerance"], "the tolerance is 0.1, as Kubernetes' default; remove it"),
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
    ("ReplicaSet", "StatefulSet", "autoscalers scale a ReplicaSet or a Pod"),
    ("ReplicaSet", "ReplicationController", "use a ReplicaSet"),
    ("ReplicaSet", "DaemonSet", "a DaemonSet has one pod on each node that fits; use a ReplicaSet"),
    ("RollingUpdate", "OnDelete", "use RollingUpdate: a push replaces at most maxUnavailable pods at a time"),
];

/// Kinds of Kubernetes that people try, and their replacements.
const KINDS: &[(&str, &str)] = &[
    ("CronJob", "use a Workflow with spec.triggers"),
    ("Ingress", "use a Dns object"),
    ("List", "list the objects under `items`, or separate them with `---`"),
    ("Namespace", "namespaces need no object: write metadata.namespace"),
    ("PersistentVolume", "use a hostPath volume"),
    ("PersistentVolumeClaim", "use a hostPath volume"),
    ("Secret", "use an age-encrypted file"),
    ("ServiceAccount", "Minik8s has no service accounts"),
    ("StatefulSet", "write one Pod with a hostPath volume for each member"),
    ("Kustomization", "put the rendered manifests into the repository, or list the file in `.minik8signore`"),
];

/// Returns advice for the field `name` of the type `record`, if Kubernetes has it and Minik8s does not.
pub(crate) fn field_advice(record: &str, name: &str) -> Option<&'static str> {
    let (_, _, help) = FIELDS.iter().find(|(owner, names, _)| *owner == record && names.contains(&name))?;
    Some(*help)
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
        name == kind || name.strip_prefix(&kind).is_some_and(|rest| rest == "s" || rest == "es")
    };
    KINDS.iter().find(|(kind, _)| *kind != "List" && is_it(kind)).copied()
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
        for (record, names, _) in FIELDS {
            let Some(properties) = types[record]["properties"].as_object() else {
                assert!(!types[record].is_null(), "there is no {record}");
                continue;
            };
            for name in *names {
                assert!(!properties.contains_key(*name), "{record} has {name}");
            }
        }
        let kinds = KINDS.iter().filter(|(kind, _)| *kind != "List");
        assert!(kinds.into_iter().all(|(kind, _)| kind.parse::<crate::kinds::Kind>().is_err()));
    }
}
