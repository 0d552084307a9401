//! Names and labels of containers: an agent rebuilds all its knowledge from them alone.
//!
//! Containers inherit the labels of their image, and those of a build's steps carry whatever its Dockerfile sets. So
//! every container gets all of these labels, and one whose name does not follow from them is not ours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::codec::content_hash;
use schema::meta::NamespacedName;

/// Instance; listings filter by this label.
pub const INSTANCE: &str = "minik8s.io/instance";
/// Node.
pub const NODE: &str = "minik8s.io/node";
/// Namespace of the pod.
pub const NAMESPACE: &str = "minik8s.io/namespace";
/// Name of the pod.
pub const POD: &str = "minik8s.io/pod";
/// Uid of the pod.
pub const UID: &str = "minik8s.io/uid";
/// Template hash of the pod.
pub const HASH: &str = "minik8s.io/hash";
/// Name of the container in the pod; [`PAUSE`] for the pause container.
pub const CONTAINER: &str = "minik8s.io/container";
/// Number of times the container was created before.
pub const ATTEMPT: &str = "minik8s.io/attempt";
/// Commit that set the pod.
pub const COMMIT: &str = "minik8s.io/commit";
/// `Kind/name` of the object that requested the pod.
pub const OWNER: &str = "minik8s.io/owner";
/// Address with prefix length, on the pause container.
pub const IP: &str = "minik8s.io/ip";
/// Seconds between SIGTERM and SIGKILL.
pub const GRACE: &str = "minik8s.io/grace";
/// Crash level, which determines the delay of the next start.
pub const BACKOFF: &str = "minik8s.io/backoff";
/// Host ports as JSON, on the pause container.
pub const PORTS: &str = "minik8s.io/ports";
/// The preStop hook, as JSON; empty without one.
pub const PRE_STOP: &str = "minik8s.io/pre-stop";
/// Place of a sidecar among the init containers; empty for other containers.
pub const SIDECAR: &str = "minik8s.io/sidecar";
/// Docker id of the pause container whose namespaces it joined.
pub const SANDBOX: &str = "minik8s.io/sandbox";

/// Digests of the files that the pod has mounted, comma-separated, on the pause container.
pub const FILES: &str = "minik8s.io/files";

/// Hash of the spec with which this node created the pod, on the pause container. Computed here: [`HASH`] is whatever etcd
/// says.
pub const SPEC: &str = "minik8s.io/spec";

/// All labels above. Each is set on every container, empty where it has no value.
pub const LABELS: [&str; 19] = [
    INSTANCE, NODE, NAMESPACE, POD, UID, HASH, CONTAINER, ATTEMPT, COMMIT, OWNER, IP, GRACE, BACKOFF, PORTS,
    PRE_STOP, SIDECAR, SANDBOX, FILES, SPEC,
];

/// The container label of a pause container; upper case, which no container of a pod has.
pub const PAUSE: &str = "POD";

/// Maximum length of a container name written in full.
const NAME_MAX: usize = 200;

/// Returns `<instance>_<container>_<pod>_<namespace>_<uid[..8]>_<attempt>`. The name is the same for the same
/// start, so that Docker rejects a second create instead of making a second container.
pub fn container_name(
    instance: &str,
    container: &str,
    pod: &NamespacedName,
    uid: &str,
    attempt: u32,
) -> String {
    let short: String = uid.chars().take(8).collect();
    let full = format!("{instance}_{container}_{}_{}_{short}_{attempt}", pod.name, pod.namespace);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if full.len() <= NAME_MAX && full.chars().all(allowed) {
        return full;
    }
    let hash = content_hash(&(container, pod));
    let head: String = container.chars().filter(|c| allowed(*c)).take(40).collect();
    format!("{instance}_{head}_{}_{short}_{attempt}", &hash[..32])
}

/// True for a container of ours: its name is the one that follows from its labels. Labels alone prove nothing.
pub fn is_own(name: &str, labels: &BTreeMap<String, String>) -> bool {
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    let pod = NamespacedName::new(label(NAMESPACE), label(POD));
    let named = |attempt| container_name(label(INSTANCE), label(CONTAINER), &pod, label(UID), attempt);
    !label(UID).is_empty() && label(ATTEMPT).parse().is_ok_and(|attempt| named(attempt) == name)
}

/// `<state>/agent/pods`: a folder per pod uid.
pub fn pods_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("agent").join("pods")
}

/// File with the final status of a pod that ended for good.
pub fn finished_file(state_dir: &Path, uid: &str) -> PathBuf {
    pods_dir(state_dir).join(uid).join("finished.json")
}

/// Folder of a pod's own volumes.
pub fn volume_dir(state_dir: &Path, uid: &str, volume: &str) -> PathBuf {
    pods_dir(state_dir).join(uid).join("volumes").join(volume)
}

/// Folder of a pod's `hosts` and `resolv.conf`.
pub fn name_files_dir(state_dir: &Path, uid: &str) -> PathBuf {
    pods_dir(state_dir).join(uid).join("names")
}

/// Folder of a secret's files: not among the volumes, whose sizes are reported.
pub fn secret_dir(state_dir: &Path, uid: &str, volume: &str) -> PathBuf {
    pods_dir(state_dir).join(uid).join("secrets").join(volume)
}

/// Mount point of a `subPath`, or of a hostPath with bounds, for one start of one container.
pub fn sub_path_dir(state_dir: &Path, uid: &str, container: &str, attempt: u32, index: usize) -> PathBuf {
    pods_dir(state_dir).join(uid).join("subpaths").join(format!("{container}_{attempt}_{index}"))
}

/// `<state>/agent/blobs`: files of the repository, by digest.
pub fn blobs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("agent").join("blobs")
}

/// Name of the bridge of an instance.
pub fn bridge_name(instance: &str) -> String {
    format!("{instance}0")
}

/// Name of the cgroup that bounds the builds of an instance. A hyphen would be a level of systemd's slices.
pub fn build_cgroup(instance: &str) -> String {
    format!("{}_builds", instance.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_start_of_what_they_are() {
        let name =
            container_name("mk8s", "web", &NamespacedName::new("default", "front"), "0123456789abcdef", 3);
        assert_eq!(name, "mk8s_web_front_default_01234567_3");
    }

    #[test]
    fn long_and_strange_names_stay_distinct_and_legal() {
        let long = NamespacedName::new("default", "x".repeat(250));
        let longer = NamespacedName::new("default", "x".repeat(251));
        let a = container_name("mk8s", "web", &long, "0123456789", 0);
        let b = container_name("mk8s", "web", &longer, "0123456789", 0);
        assert_ne!(a, b);
        assert!(a.len() <= NAME_MAX && a.is_ascii());
        let odd = container_name("mk8s", "web", &NamespacedName::new("d", "Grüße"), "0123456789", 0);
        assert!(odd.is_ascii(), "{odd}");
    }
}
