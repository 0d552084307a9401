//! The containers and volumes of a pod, as the middle of its page.

use jiff::Timestamp;
use schema::kinds::pod::{
    Container, ContainerState, ContainerStatus, EnvVar, ResourceList, TerminatedState, Volume,
};

use super::Page;
use crate::view::{PodDetail, age};

/// What should run, with what does.
pub(super) fn containers(page: &mut Page, pod: &PodDetail, now: Timestamp) {
    let spec = pod.spec.as_ref();
    let groups = [
        ("Init containers:", spec.map(|s| &s.init_containers), &pod.init_container_statuses),
        ("Containers:", spec.map(|s| &s.containers), &pod.container_statuses),
    ];
    for (title, specs, statuses) in groups {
        let specs = specs.map_or(&[][..], Vec::as_slice);
        if specs.is_empty() && statuses.is_empty() {
            continue;
        }
        page.line(title);
        for container in specs {
            let status = statuses.iter().find(|status| status.name == container.name);
            page.line(&format!("  {}:", container.name));
            wanted(page, container);
            if let Some(status) = status {
                reported(page, status, now);
            }
        }
        // What runs on although nobody wants it any more.
        for status in statuses.iter().filter(|s| !specs.iter().any(|c| c.name == s.name)) {
            page.line(&format!("  {}:", status.name));
            page.field(4, "Image", &status.image);
            reported(page, status, now);
        }
    }
}

fn wanted(page: &mut Page, container: &Container) {
    page.field(4, "Image", &container.image);
    page.fields(4, "Command", container.command.join(" ").lines().map(str::to_owned));
    page.fields(4, "Args", container.args.join(" ").lines().map(str::to_owned));
    page.field(4, "Dir", container.working_dir.as_deref().unwrap_or_default());
    let ports = container.ports.iter().map(|port| {
        let protocol = format!("{:?}", port.protocol).to_uppercase();
        format!("{}/{protocol}", port.container_port)
    });
    page.field(4, "Ports", &ports.collect::<Vec<_>>().join(", "));
    page.field(4, "Requests", &resources(&container.resources.requests));
    page.field(4, "Limits", &resources(&container.resources.limits));
    page.fields(4, "Env", container.env.iter().map(env));
    let mounts = container.volume_mounts.iter().map(|mount| {
        let sub = mount.sub_path.as_ref().map(|path| format!("/{path}")).unwrap_or_default();
        let mode = if mount.read_only { " (read-only)" } else { "" };
        format!("{} from {}{sub}{mode}", mount.mount_path, mount.name)
    });
    page.fields(4, "Mounts", mounts);
}

fn resources(list: &ResourceList) -> String {
    let cpu = list.cpu.map(|cpu| format!("cpu {cpu}"));
    let memory = list.memory.map(|memory| format!("memory {memory}"));
    cpu.into_iter().chain(memory).collect::<Vec<_>>().join(", ")
}

fn env(variable: &EnvVar) -> String {
    let name = &variable.name;
    let from = variable.value_from.as_ref();
    if let Some(field) = from.and_then(|from| from.field_ref.as_ref()) {
        return format!("{name} from {}", field.field_path);
    }
    if let Some(secret) = from.and_then(|from| from.secret_key_ref.as_ref()) {
        return format!("{name} from key {} of secret {}", secret.key, secret.name);
    }
    format!("{name}={}", variable.value.as_deref().unwrap_or_default())
}

fn reported(page: &mut Page, status: &ContainerStatus, now: Timestamp) {
    page.field(4, "Image ID", &status.image_id);
    page.field(4, "Container", &status.container_id);
    let state = match &status.state {
        ContainerState::Waiting(waiting) if waiting.message.is_empty() => {
            format!("Waiting: {}", waiting.reason)
        }
        ContainerState::Waiting(waiting) => format!("Waiting: {}: {}", waiting.reason, waiting.message),
        ContainerState::Running(running) => format!("Running for {}", age(running.started_at, now)),
        ContainerState::Terminated(ended) => self::ended(ended, now),
    };
    page.field(4, "State", &state);
    page.field(4, "Last state", &status.last_state.as_ref().map(|last| ended(last, now)).unwrap_or_default());
    page.field(4, "Ready", if status.ready { "yes" } else { "no" });
    page.field(4, "Restarts", &status.restart_count.to_string());
}

fn ended(ended: &TerminatedState, now: Timestamp) -> String {
    let ago = ended.finished_at.map(|then| format!(", {} ago", age(then, now))).unwrap_or_default();
    let message = if ended.message.is_empty() { String::new() } else { format!(": {}", ended.message) };
    format!("Terminated: {} with code {}{ago}{message}", ended.reason, ended.exit_code)
}

/// Where the volumes come from.
pub(super) fn volumes(page: &mut Page, pod: &PodDetail) {
    let volumes = pod.spec.as_ref().map_or(&[][..], |spec| spec.volumes.as_slice());
    if !volumes.is_empty() {
        page.line("Volumes:");
        volumes.iter().for_each(|volume| page.field(2, &volume.name, &origin(volume)));
    }
}

fn origin(volume: &Volume) -> String {
    if let Some(path) = &volume.host_path {
        return format!("hostPath {}", path.path);
    }
    if let Some(repo) = &volume.repo {
        return format!("repo {}", repo.path);
    }
    if let Some(secret) = &volume.secret {
        return format!("secret {}", secret.secret_name);
    }
    match volume.empty_dir.as_ref().and_then(|dir| dir.medium) {
        Some(schema::kinds::pod::StorageMedium::Memory) => "emptyDir in memory".to_owned(),
        _ => "emptyDir".to_owned(),
    }
}
