//! Pod of a function's replica.

use std::collections::BTreeMap;

use super::FunctionSpec;
use crate::kinds::pod::{
    Capabilities, Container, ContainerPort, EmptyDirVolume, EnvVar, PodSpec, PortReference, Probe,
    PullPolicy, SecurityContext, StorageMedium, TcpSocketAction, Volume, VolumeMount,
};

/// Label of a function's pods with the function's name.
pub const FUNCTION_LABEL: &str = "minik8s.io/function";
/// Port at which a replica accepts calls.
pub const PORT: u16 = 8080;
/// Names of the replica's container and of its volume at `/tmp`.
const CONTAINER: &str = "function";
const TMP: &str = "tmp";
/// Seconds that a replica has to stop, in addition to its longest call.
const GRACE_SECONDS: u32 = 5;

impl FunctionSpec {
    /// Returns the pod of a replica that runs `image`, for the function `name` (`namespace/name`). Expects a spec
    /// after [`Self::with_defaults`].
    pub fn pod(&self, image: &str, name: &str) -> PodSpec {
        let timeout = self.timeout_seconds.unwrap_or_default();
        let own = [
            ("MINIK8S_FUNCTION", name.to_owned()),
            ("MINIK8S_HANDLER", self.handler.clone().unwrap_or_default()),
            ("MINIK8S_CONCURRENCY", self.concurrency.to_string()),
            ("MINIK8S_TIMEOUT_SECONDS", timeout.to_string()),
            ("MINIK8S_BODY_LIMIT_BYTES", self.request_body_limit.bytes.to_string()),
            ("MINIK8S_RESULT_LIMIT_BYTES", self.response_body_limit.bytes.to_string()),
            ("PORT", PORT.to_string()),
        ];
        let own =
            own.map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
        let sandbox = &self.sandbox;
        let container = Container {
            name: CONTAINER.to_owned(),
            image: image.to_owned(),
            env: self.env.iter().cloned().chain(own).collect(),
            ports: vec![ContainerPort { container_port: PORT, ..ContainerPort::default() }],
            resources: self.resources.clone(),
            volume_mounts: vec![VolumeMount {
                name: TMP.to_owned(),
                mount_path: "/tmp".to_owned(),
                ..VolumeMount::default()
            }],
            image_pull_policy: super::image_hash(image).map(|_| PullPolicy::IfNotPresent),
            readiness_probe: Some(Box::new(readiness_probe())),
            security_context: Some(Box::new(SecurityContext {
                run_as_user: Some(sandbox.run_as_user.into()),
                run_as_non_root: Some(true),
                read_only_root_filesystem: Some(sandbox.read_only_root_filesystem),
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities { add: Vec::new(), drop: vec!["ALL".to_owned()] }),
                pids_limit: Some(sandbox.pids_limit),
                open_files_limit: Some(sandbox.open_files_limit),
                ..SecurityContext::default()
            })),
            ..Container::default()
        };
        let tmp =
            EmptyDirVolume { medium: Some(StorageMedium::Memory), size_limit: Some(sandbox.tmp_size_limit) };
        let mut pod = PodSpec {
            containers: vec![container],
            volumes: vec![Volume { name: TMP.to_owned(), empty_dir: Some(tmp), ..Volume::default() }],
            termination_grace_period_seconds: timeout + GRACE_SECONDS,
            node_selector: BTreeMap::new(),
            ..PodSpec::default()
        };
        pod.fill_defaults();
        pod
    }
}

/// Readiness probe: a replica listens once the function's code is loaded.
fn readiness_probe() -> Probe {
    Probe {
        exec: None,
        http_get: None,
        tcp_socket: Some(TcpSocketAction { port: PortReference::Number(PORT), host: None }),
        grpc: None,
        initial_delay_seconds: 0,
        period_seconds: 1,
        timeout_seconds: 1,
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace_period_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_functions_pod_is_strict_and_ours_wins_over_the_users_variables() {
        let env = vec![EnvVar { name: "PORT".to_owned(), value: Some("1".to_owned()), value_from: None }];
        let function = FunctionSpec { env, timeout_seconds: Some(60), ..FunctionSpec::default() };
        let pod = function.pod("minik8s.local/function:0", "default/hello");
        let container = &pod.containers[0];
        let security = container.security_context.as_ref().unwrap();
        assert_eq!((security.run_as_user, security.read_only_root_filesystem), (Some(65532), Some(true)));
        assert_eq!((security.pids_limit, security.open_files_limit), (Some(256), Some(1024)));
        let port = container.env.iter().rev().find(|one| one.name == "PORT").unwrap();
        assert_eq!(port.value.as_deref(), Some("8080"));
        assert_eq!(pod.termination_grace_period_seconds, 65);
        assert_eq!(container.image_pull_policy, Some(PullPolicy::IfNotPresent), "never asked of a registry");
    }
}
