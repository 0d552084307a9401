//! Requests and limits by the kubelet's arithmetic, and the settings that every container gets in addition.

use schema::kinds::pod::{HostPortStatus, ResourceFieldRef};
use schema::quantity::Memory;
use schema::testing::pod_spec;

use super::env::resource_value;
use super::render::{container, is_no_root};
use super::rendered::FieldValues;
use crate::converge::pods::facts::{ContainerLimits, Placement};
use crate::converge::pods::sandbox::render::pause;
use crate::converge::pods::tests::{binding, node};
use crate::worlds::docker::LogLimits;

/// Red without the `clamp` and the `max` in `limits`. Seen red with `max` for a limit of 0, and with `*`. Seen red
/// with 0 shares, the engine's own weight, for no request.
#[test]
fn requests_and_limits_become_shares_quota_and_bytes() {
    let (mut node, ports) = (node(), Vec::<HostPortStatus>::new());
    node.container_limits = ContainerLimits { pids: 7, log: LogLimits { max_bytes: 1 << 20, max_files: 3 } };
    for (resources, shares, quota, memory) in [
        (
            r#"{"requests": {"cpu": "100m"}, "limits": {"cpu": "250m", "memory": "32Mi"}}"#,
            102,
            25_000,
            32 << 20,
        ),
        (r#"{"requests": {"cpu": "1"}}"#, 1024, 0, 0),
        // A limit alone is the request too.
        (r#"{"limits": {"cpu": "500m"}}"#, 512, 50_000, 0),
        // At least 2 shares and 1 ms, and at most the shares that the kernel accepts.
        (r#"{"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}"#, 2, 1000, 0),
        (r#"{"requests": {"cpu": "300"}}"#, 262_144, 0, 0),
        // No limit, as in Kubernetes.
        (r#"{"limits": {"cpu": "0"}}"#, 2, 0, 0),
        (r#"{"limits": {"cpu": "18446744073709551"}}"#, 262_144, i64::MAX, 0),
        // Not the engine's 1024, which exceeds many a request.
        ("{}", 2, 0, 0),
    ] {
        let mut pod = pod_spec(&["a"]);
        pod.containers[0].resources = serde_json::from_str(resources).unwrap();
        let binding = binding("web", pod);
        let at = Placement { node: &node, binding: &binding, address: None, ports: &ports };
        let new = container(at, &binding.pod.spec.containers[0], 0, 0).unwrap().new;
        let limits = new.limits;
        let got = (limits.cpu_shares, limits.cpu_quota_us, limits.memory_bytes);
        assert_eq!(got, (shares, quota, memory), "{resources}");
        assert_eq!((limits.pids, new.log), (7, node.container_limits.log));
    }
}

// Seen red without the least value that may be set.
#[test]
fn what_requests_little_is_killed_first_when_memory_is_short() {
    let (mut node, ports) = (node(), Vec::<HostPortStatus>::new());
    // Of the node's 1 GiB.
    let whole = r#"{"limits": {"cpu": "1", "memory": "64Mi"}}"#;
    for (a, b, scores) in [
        ("{}", "{}", [1000, 1000]),
        (r#"{"limits": {"cpu": "0"}}"#, "{}", [1000, 1000]),
        (whole, whole, [-997, -997]),
        // Burstable: 1000 less a thousandth for each thousandth of the node's memory.
        (whole, "{}", [938, 999]),
        (whole, r#"{"requests": {"cpu": "1m"}, "limits": {"cpu": "1", "memory": "512Mi"}}"#, [938, 500]),
        (r#"{"limits": {"memory": "64Mi"}}"#, r#"{"requests": {"memory": "2Gi"}}"#, [938, 3]),
        (r#"{"requests": {"memory": "1"}}"#, r#"{"requests": {"memory": "8388607Ti"}}"#, [999, 3]),
    ] {
        let mut pod = pod_spec(&["a", "b"]);
        for (container, resources) in pod.containers.iter_mut().zip([a, b]) {
            container.resources = serde_json::from_str(resources).unwrap();
        }
        let binding = binding("web", pod);
        for least in [-1000, 0, 200] {
            node.memory.oom_score_min = least;
            let at = Placement { node: &node, binding: &binding, address: None, ports: &ports };
            let new = |spec| container(at, spec, 0, 0).unwrap().new.oom_score_adj;
            let got: Vec<i64> = binding.pod.spec.containers.iter().map(new).collect();
            assert_eq!(got, scores.map(|score: i64| score.max(least)), "{a} {b}");
            assert_eq!(pause(at).oom_score_adj, least.max(-998));
        }
    }
    node.memory.bytes = 0;
    let mut pod = pod_spec(&["a"]);
    pod.containers[0].resources = serde_json::from_str(r#"{"requests": {"memory": "1Gi"}}"#).unwrap();
    let binding = binding("web", pod);
    let at = Placement { node: &node, binding: &binding, address: None, ports: &ports };
    assert_eq!(container(at, &binding.pod.spec.containers[0], 0, 0).unwrap().new.oom_score_adj, 999);
}

// Seen red without the capability in `capabilities_drop`.
#[test]
fn only_a_container_that_asks_for_it_sends_raw_packets() {
    let (node, ports) = (node(), Vec::<HostPortStatus>::new());
    for (context, add, drop) in [
        (None, "", "NET_RAW"),
        (Some("{}"), "", "NET_RAW"),
        (Some(r#"{"capabilities": {"add": ["SYS_TIME"], "drop": ["MKNOD"]}}"#), "SYS_TIME", "MKNOD NET_RAW"),
        (Some(r#"{"capabilities": {"add": ["NET_RAW"]}}"#), "NET_RAW", ""),
        (Some(r#"{"capabilities": {"add": ["NET_RAW"], "drop": ["ALL"]}}"#), "NET_RAW", "ALL"),
        (Some(r#"{"capabilities": {"add": ["ALL"]}}"#), "ALL", ""),
        (Some(r#"{"capabilities": {"drop": ["ALL"]}}"#), "", "ALL"),
        (Some(r#"{"capabilities": {"drop": ["NET_RAW"]}}"#), "", "NET_RAW"),
    ] {
        let mut pod = pod_spec(&["a"]);
        pod.containers[0].security_context = context.map(|text| serde_json::from_str(text).unwrap());
        let binding = binding("web", pod);
        let at = Placement { node: &node, binding: &binding, address: None, ports: &ports };
        let new = container(at, &binding.pod.spec.containers[0], 0, 0).unwrap().new;
        assert_eq!(
            (new.capabilities_add.join(" "), new.capabilities_drop.join(" ")),
            (add.into(), drop.into())
        );
    }
}

// Seen red with the texts `0` and `root` alone.
#[test]
fn an_image_whose_user_is_root_by_any_spelling_does_not_run_as_non_root() {
    for user in ["", "root", "0", "00", "+0", "000"] {
        let refused = is_no_root("app:1", user).unwrap_err();
        assert!(refused.ends_with("runs as root; set runAsUser"), "{user}: {refused}");
    }
    for user in ["-0", "app", "0x0", "4294967296"] {
        assert!(is_no_root("app:1", user).unwrap_err().contains("names its user"), "{user}");
    }
    assert_eq!(is_no_root("app:1", "1000"), Ok(()));
}

/// The table of `TestExtractResourceValue` in pkg/api/v1/resource/helpers_test.go of Kubernetes, and limits that default
/// to what the node has (`MergeContainerResourceLimits` in pkg/api/v1/resource/helpers.go).
#[test]
fn amounts_of_resources_are_whole_units_rounded_up() {
    let node = node();
    for (resources, amount, value) in [
        (r#"{"limits": {"cpu": "9"}}"#, r#"{"resource": "limits.cpu"}"#, "9"),
        ("{}", r#"{"resource": "requests.cpu"}"#, "0"),
        (r#"{"requests": {"cpu": "8"}}"#, r#"{"resource": "requests.cpu"}"#, "8"),
        (r#"{"requests": {"cpu": "100m"}}"#, r#"{"resource": "requests.cpu"}"#, "1"),
        (r#"{"requests": {"cpu": "1200m"}}"#, r#"{"resource": "requests.cpu", "divisor": "100m"}"#, "12"),
        (r#"{"requests": {"cpu": "1200m"}}"#, r#"{"resource": "requests.cpu", "divisor": "1m"}"#, "1200"),
        (r#"{"requests": {"memory": "100Mi"}}"#, r#"{"resource": "requests.memory"}"#, "104857600"),
        (
            r#"{"requests": {"memory": "100Mi"}, "limits": {"memory": "1Gi"}}"#,
            r#"{"resource": "requests.memory", "divisor": "1Mi"}"#,
            "100",
        ),
        (
            r#"{"requests": {"memory": "10Mi"}, "limits": {"memory": "100Mi"}}"#,
            r#"{"resource": "limits.memory"}"#,
            "104857600",
        ),
        (r#"{"limits": {"memory": "100Mi"}}"#, r#"{"resource": "limits.memory", "divisor": "1G"}"#, "1"),
        (r#"{"limits": {"memory": "100Mi"}}"#, r#"{"resource": "limits.memory", "divisor": 0}"#, "104857600"),
        // The node's.
        ("{}", r#"{"resource": "limits.cpu", "divisor": "1m"}"#, "8000"),
        (r#"{"limits": {"cpu": 0}}"#, r#"{"resource": "limits.cpu"}"#, "8"),
        ("{}", r#"{"resource": "limits.memory", "divisor": "1Mi"}"#, "1024"),
        ("{}", r#"{"resource": "requests.memory"}"#, "0"),
    ] {
        for name in ["a", "init"] {
            let mut pod = pod_spec(&["a", "b"]);
            pod.init_containers = pod_spec(&["init"]).containers;
            pod.containers[0].resources = serde_json::from_str(resources).unwrap();
            pod.init_containers[0].resources = pod.containers[0].resources.clone();
            let own: ResourceFieldRef = serde_json::from_str(amount).unwrap();
            let named = ResourceFieldRef { container_name: Some(name.to_owned()), ..own.clone() };
            let binding = binding("web", pod);
            let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
            let place = FieldValues::of(at);
            let found = resource_value(&named, None, &binding.pod, &place);
            assert_eq!(found.as_deref(), Ok(value), "{resources} {amount}");
            let found = resource_value(&own, Some(&binding.pod.spec.containers[0]), &binding.pod, &place);
            assert_eq!(found.as_deref(), Ok(value), "{resources} {amount}");
            let unknown = FieldValues { memory: Memory::default(), ..place.clone() };
            let found = resource_value(&named, None, &binding.pod, &unknown);
            let is_refused = amount.contains("limits.memory") && !resources.contains("memory");
            assert_eq!(found.is_err(), is_refused, "nothing is made up: {found:?}");
            let none = ResourceFieldRef { container_name: Some("none".to_owned()), ..own };
            let refused = resource_value(&none, None, &binding.pod, &place).unwrap_err();
            assert_eq!(refused, "container none not found");
        }
    }
}
