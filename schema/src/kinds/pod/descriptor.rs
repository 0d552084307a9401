//! The `Pod` kind: names, links, defaults.

use super::super::{Descriptor, KindSpec, Links, NameForm, ObjectPod, Pods};
use super::container::ten;
use super::{
    Container, DownwardApiFile, EmptyDirVolume, HostPathType, HttpGetAction, HttpScheme, MountPropagation,
    PodSpec, Probe, ResourceFieldRef, StorageMedium, Volume,
};
use crate::codec::{one, three};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path};

impl KindSpec for PodSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "pods",
        short_names: &["po"],
        api_version: "v1",
        pods: Pods::Single,
        shows_rollout: true,
        names: NameForm::Long,
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        extra_position_paths: |pod| pod.node_name.iter().map(|_| field_path(&["spec", "nodeName"])).collect(),
        pod: Self::pod,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        Self::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        Self::fill_defaults(self);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}

impl PodSpec {
    fn pod<'a>(&'a self, metadata: &'a ObjectMeta) -> Option<ObjectPod<'a>> {
        Some(ObjectPod { spec: self, at: &["spec"], labels: &metadata.labels, count: 1, is_per_node: false })
    }
}

// Effective spec: the defaults of Kubernetes' API server, and one spelling for equal meanings, so that the hash
// changes only when the meaning does.

impl PodSpec {
    /// Fills in the defaults that follow from other fields. Idempotent.
    pub fn fill_defaults(&mut self) {
        let host_network = self.host_network;
        for container in self.init_containers.iter_mut().chain(&mut self.containers) {
            container.fill_defaults();
            if host_network {
                // On the host network every port is a port of the node.
                for port in &mut container.ports {
                    port.host_port = Some(port.container_port);
                }
            }
        }
        for volume in &mut self.volumes {
            if !volume.has_source() {
                volume.empty_dir = Some(EmptyDirVolume::default());
            }
            if let Some(empty_dir) = &mut volume.empty_dir {
                empty_dir.medium = empty_dir.medium.filter(|medium| *medium != StorageMedium::Disk);
            }
            if let Some(host_path) = &mut volume.host_path {
                host_path.kind = host_path.kind.filter(|kind| *kind != HostPathType::Unset);
            }
            for file in volume.downward_files() {
                file.resource_field_ref.iter_mut().for_each(ResourceFieldRef::fill_defaults);
            }
        }
        if let Some(affinity) = &mut self.affinity {
            affinity.normalize();
        }
        drop_if_default(&mut self.affinity);
        // The scheduler's own spread stands in for them.
        self.topology_spread_constraints = Vec::new();
        drop_if_default(&mut self.hostname);
        drop_if_default(&mut self.subdomain);
        drop_if_default(&mut self.dns_config);
        drop_if_default(&mut self.security_context);
        for toleration in &mut self.tolerations {
            drop_if_default(&mut toleration.key);
            drop_if_default(&mut toleration.value);
        }
    }
}

impl Container {
    fn fill_defaults(&mut self) {
        self.image_pull_policy = Some(self.effective_pull_policy());
        let resources = &mut self.resources;
        resources.requests.cpu = resources.requests.cpu.or(resources.limits.cpu);
        resources.requests.memory = resources.requests.memory.or(resources.limits.memory);
        resources.requests.gpus = resources.requests.gpus.or(resources.limits.gpus);
        for port in &mut self.ports {
            port.host_ip = port.host_address().map(|address| address.to_string());
        }
        for variable in &mut self.env {
            match &mut variable.value_from {
                // A missing value means the empty value.
                None => _ = variable.value.get_or_insert_default(),
                Some(source) => {
                    variable.value = None;
                    source.resource_field_ref.iter_mut().for_each(ResourceFieldRef::fill_defaults);
                }
            }
        }
        for mount in &mut self.volume_mounts {
            drop_if_default(&mut mount.sub_path);
            drop_if_default(&mut mount.sub_path_expr);
            mount.mount_propagation =
                mount.mount_propagation.filter(|propagation| *propagation != MountPropagation::None);
        }
        if let Some(context) = &mut self.security_context {
            drop_if_default(&mut context.capabilities);
        }
        drop_if_default(&mut self.security_context);
        let probes = [&mut self.liveness_probe, &mut self.readiness_probe, &mut self.startup_probe];
        for probe in probes.into_iter().flatten() {
            probe.fill_defaults();
        }
        drop_if_default(&mut self.lifecycle);
        let hooks = self.lifecycle.iter_mut().flat_map(|of| [&mut of.post_start, &mut of.pre_stop]);
        for action in hooks.flatten().filter_map(|handler| handler.http_get.as_mut()) {
            action.fill_defaults();
        }
    }
}

impl Volume {
    fn downward_files(&mut self) -> impl Iterator<Item = &mut DownwardApiFile> {
        let sources = self.projected.iter_mut().flat_map(|projected| &mut projected.sources);
        let projected =
            sources.flat_map(|source| &mut source.downward_api).flat_map(|fields| &mut fields.items);
        self.downward_api.iter_mut().flat_map(|fields| &mut fields.items).chain(projected)
    }
}

impl ResourceFieldRef {
    fn fill_defaults(&mut self) {
        drop_if_default(&mut self.container_name);
        // 1 is the default, and Kubernetes treats 0 like a missing field.
        self.divisor = self.divisor.filter(|divisor| ![0, 1000].contains(&divisor.thousandths));
    }
}

impl Probe {
    fn fill_defaults(&mut self) {
        // Kubernetes treats 0 like a missing field.
        let default_of_zero = [
            (&mut self.period_seconds, ten()),
            (&mut self.timeout_seconds, one()),
            (&mut self.success_threshold, one()),
            (&mut self.failure_threshold, three()),
        ];
        for (number, default) in default_of_zero {
            if *number == 0 {
                *number = default;
            }
        }
        if let Some(action) = &mut self.http_get {
            action.fill_defaults();
        }
        if let Some(action) = &mut self.grpc {
            drop_if_default(&mut action.service);
        }
    }
}

impl HttpGetAction {
    fn fill_defaults(&mut self) {
        self.scheme.get_or_insert(HttpScheme::Http);
        if !self.path.starts_with('/') {
            self.path.insert(0, '/');
        }
    }
}

/// Removes an empty value, which means the same as a missing one.
fn drop_if_default<T: Default + PartialEq>(value: &mut Option<T>) {
    if value.as_ref().is_some_and(|value| *value == T::default()) {
        *value = None;
    }
}
