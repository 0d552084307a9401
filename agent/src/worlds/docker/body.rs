//! Translates a [`NewContainer`] into the engine's create request.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};

use super::image::pull_reference;
use super::spec::{BindMount, Limits, Namespaces, NewContainer, Propagation};

/// Period of the CPU quota, as Kubernetes sets it.
const CPU_PERIOD_US: i64 = 100_000;

/// The search domain that makes Docker write no search line.
const NO_SEARCH: &str = ".";

/// An option that states the default.
const DEFAULT_OPTION: &str = "ndots:1";

/// Disables IPv6 on the links that a pod gets: no packet rule covers link-local addresses. Its loopback keeps `::1`.
const NO_IPV6: (&str, &str) = ("net.ipv6.conf.default.disable_ipv6", "1");

/// Body of a create request. `has_ipv6`: the engine's machine has IPv6.
pub(super) fn create_body(new: &NewContainer, has_ipv6: bool) -> ContainerCreateBody {
    // Docker keeps the image's CMD when only ENTRYPOINT is absent; Kubernetes drops CMD with `command`.
    let entrypoint = some(&new.command);
    let cmd = some(&new.args);
    ContainerCreateBody {
        image: Some(pull_reference(&new.image)),
        labels: Some(new.labels.clone().into_iter().collect()),
        entrypoint,
        cmd,
        env: some(&new.env),
        working_dir: new.working_dir.clone(),
        hostname: new.hostname.clone(),
        // Docker runs dockerd once more for each sandbox, even an empty one: 40 % of a pod's CPU time.
        network_disabled: (new.namespaces == Namespaces::Own).then_some(true),
        user: new.user.clone(),
        open_stdin: Some(new.stdin),
        tty: Some(new.tty),
        // Kubernetes never runs the image's own check.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
        host_config: Some(host_config(new, has_ipv6)),
        ..Default::default()
    }
}

fn host_config(new: &NewContainer, has_ipv6: bool) -> HostConfig {
    let (network, ipc, pid) = match &new.namespaces {
        Namespaces::Own => ("none".to_owned(), "shareable".to_owned(), None),
        Namespaces::HostNetwork => ("host".to_owned(), "shareable".to_owned(), None),
        Namespaces::Join { pause, pid, host_network } => {
            let join = format!("container:{pause}");
            let network = if *host_network { "host".to_owned() } else { join.clone() };
            (network, join.clone(), pid.then_some(join))
        }
    };
    let of_host = |is_set: bool| is_set.then(|| "host".to_owned());
    let (ipc, pid) = (of_host(new.host_ipc).unwrap_or(ipc), of_host(new.host_pid).or(pid));
    let Limits { cpu_shares, cpu_quota_us, memory_bytes, pids, open_files } = new.limits;
    let log = HashMap::from([
        // In bytes: Docker's `10m` is a decimal 10,000,000.
        ("max-size".to_owned(), new.log.max_bytes.to_string()),
        ("max-file".to_owned(), new.log.max_files.to_string()),
    ]);
    HostConfig {
        network_mode: Some(network),
        ipc_mode: Some(ipc),
        pid_mode: pid,
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(log) }),
        mounts: (!new.mounts.is_empty()).then(|| new.mounts.iter().map(mount).collect()),
        cpu_shares: non_zero(cpu_shares),
        cpu_period: non_zero(cpu_quota_us).map(|_| CPU_PERIOD_US),
        cpu_quota: non_zero(cpu_quota_us),
        memory: non_zero(memory_bytes),
        // Equal to `memory`: this limit includes swap, so a pod can't escape into it.
        memory_swap: non_zero(memory_bytes),
        // The engine gives its own -500 to no container: without a value it is 0.
        oom_score_adj: Some(new.oom_score_adj),
        pids_limit: non_zero(pids),
        device_requests: (new.gpus > 0).then(|| vec![gpus(new.gpus)]),
        ulimits: non_zero(open_files).map(|most| {
            let (soft, hard) = (Some(most), Some(most));
            vec![ResourcesUlimits { name: Some("nofile".to_owned()), soft, hard }]
        }),
        readonly_rootfs: Some(new.read_only_root),
        privileged: Some(new.privileged),
        security_opt: new.no_new_privileges.then(|| vec!["no-new-privileges".to_owned()]),
        cap_add: some(&new.capabilities_add),
        cap_drop: some(&new.capabilities_drop),
        group_add: some(&new.groups),
        sysctls: (new.namespaces == Namespaces::Own && has_ipv6).then(|| {
            let (name, value) = NO_IPV6;
            HashMap::from([(name.to_owned(), value.to_owned())])
        }),
        dns: new.resolver.as_ref().map(|resolver| resolver.nameservers.clone()),
        // The engine replaces an empty list by the machine's.
        dns_search: new.resolver.as_ref().map(|resolver| or(&resolver.searches, NO_SEARCH)),
        dns_options: new.resolver.as_ref().map(|resolver| or(&resolver.options, DEFAULT_OPTION)),
        ..Default::default()
    }
}

/// Request for this many GPUs, as `docker run --gpus COUNT` makes it.
fn gpus(count: u64) -> DeviceRequest {
    DeviceRequest {
        driver: Some("nvidia".to_owned()),
        count: Some(i64::try_from(count).unwrap_or(i64::MAX)),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..Default::default()
    }
}

fn mount(bind: &BindMount) -> Mount {
    let propagation = match bind.propagation {
        Propagation::None => MountBindOptionsPropagationEnum::RPRIVATE,
        Propagation::FromHost => MountBindOptionsPropagationEnum::RSLAVE,
        Propagation::Both => MountBindOptionsPropagationEnum::RSHARED,
    };
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.source.to_string_lossy().into_owned()),
        target: Some(bind.target.clone()),
        read_only: Some(bind.read_only),
        bind_options: Some(MountBindOptions { propagation: Some(propagation), ..Default::default() }),
        ..Default::default()
    }
}

fn some(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn or(list: &[String], instead: &str) -> Vec<String> {
    if list.is_empty() { vec![instead.to_owned()] } else { list.to_vec() }
}

fn non_zero(number: i64) -> Option<i64> {
    (number != 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would fail with a pause container's namespaces preferred to the host's.
    #[test]
    fn namespaces_of_the_host_replace_those_of_the_pod() {
        let join = || Namespaces::Join { pause: "p".to_owned(), pid: false, host_network: false };
        let modes = |host_pid, host_ipc| {
            let new = NewContainer { namespaces: join(), host_pid, host_ipc, ..NewContainer::default() };
            let config = host_config(&new, false);
            (config.pid_mode, config.ipc_mode.unwrap(), config.network_mode.unwrap())
        };
        let (host, pod) = ("host".to_owned(), "container:p".to_owned());
        assert_eq!(modes(false, false), (None, pod.clone(), pod.clone()));
        assert_eq!(modes(true, false), (Some(host.clone()), pod.clone(), pod.clone()));
        assert_eq!(modes(false, true), (None, host, pod));
    }

    #[test]
    fn gpus_are_requested_as_docker_run_does() {
        let of = |gpus| host_config(&NewContainer { gpus, ..NewContainer::default() }, false).device_requests;
        assert_eq!(of(0), None);
        let text = serde_json::to_value(of(2)).unwrap();
        let wanted = serde_json::json!([{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]);
        assert_eq!(text, wanted);
    }

    #[test]
    fn mounts_spread_as_far_as_they_should() {
        use MountBindOptionsPropagationEnum::{RPRIVATE, RSHARED, RSLAVE};
        for (propagation, wanted) in
            [(Propagation::None, RPRIVATE), (Propagation::FromHost, RSLAVE), (Propagation::Both, RSHARED)]
        {
            let made = mount(&BindMount { propagation, ..BindMount::default() });
            assert_eq!(made.bind_options.unwrap().propagation, Some(wanted));
        }
    }
}
