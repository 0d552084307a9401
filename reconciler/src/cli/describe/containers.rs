//! Containers and volumes on the page of a pod.

use jiff::Timestamp;
use schema::kinds::pod::keyed::{FileSource, TextsSource, Variable};
use schema::kinds::pod::{
    Container, ContainerState, ContainerStatus, EnvVar, EnvVarSource, ExecAction, HttpGetAction, HttpScheme,
    LifecycleHandler, PortReference, Probe, ResourceList, TerminatedState, Volume,
};

use schema::secrets::{holds_secret, is_plain_text, is_plain_value, is_secret_flag};

use super::page::Page;
use crate::view::{PodDetail, ResourceUsage, age};

const HIDDEN: &str = "(hidden)";

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
            add_spec(page, container);
            uses(page, pod.usage.containers.get(&container.name));
            if let Some(status) = status {
                add_status(page, status, now);
            }
        }
        for status in statuses.iter().filter(|s| !specs.iter().any(|c| c.name == s.name)) {
            page.line(&format!("  {}:", status.name));
            page.field(4, "Image", &status.image);
            add_status(page, status, now);
        }
    }
}

fn add_spec(page: &mut Page, container: &Container) {
    page.field(4, "Image", &container.image);
    page.fields(4, "Command", words(&container.command).lines().map(str::to_owned));
    page.fields(4, "Args", words(&container.args).lines().map(str::to_owned));
    page.field(4, "Dir", container.working_dir.as_deref().unwrap_or_default());
    let ports = container.ports.iter().map(|port| {
        let protocol = format!("{:?}", port.protocol).to_uppercase();
        format!("{}/{protocol}", port.container_port)
    });
    page.field(4, "Ports", &ports.collect::<Vec<_>>().join(", "));
    page.field(4, "Restart", if container.is_sidecar() { "Always (sidecar)" } else { "" });
    page.field(4, "Requests", &resources(&container.resources.requests));
    page.field(4, "Limits", &resources(&container.resources.limits));
    for (name, of) in [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ] {
        page.field(4, name, &of.as_deref().map(probe).unwrap_or_default());
    }
    if let Some(lifecycle) = &container.lifecycle {
        for (name, of) in [("PostStart", &lifecycle.post_start), ("PreStop", &lifecycle.pre_stop)] {
            page.field(4, name, &of.as_ref().map(hook).unwrap_or_default());
        }
    }
    let variables = container.variables().map(|variable| match variable {
        Variable::One(one) => env(one),
        Variable::All(TextsSource { of, prefix: "", .. }) => format!("all keys of {of}"),
        Variable::All(TextsSource { of, prefix, .. }) => format!("all keys of {of}, each after {prefix}"),
    });
    page.fields(4, "Env", variables);
    let mounts = container.volume_mounts.iter().map(|mount| {
        let sub = mount.sub_path.as_ref().or(mount.sub_path_expr.as_ref());
        let sub = sub.map(|path| format!("/{path}")).unwrap_or_default();
        let mode = if mount.read_only { " (read-only)" } else { "" };
        let spread = mount.mount_propagation.map(|spread| format!(" ({spread:?})")).unwrap_or_default();
        format!("{} from {}{sub}{mode}{spread}", mount.mount_path, mount.name)
    });
    page.fields(4, "Mounts", mounts);
}

fn resources(list: &ResourceList) -> String {
    let cpu = list.cpu.map(|cpu| format!("cpu {cpu}"));
    let memory = list.memory.map(|memory| format!("memory {memory}"));
    let gpus = list.gpus.map(|gpus| format!("nvidia.com/gpu {gpus}"));
    cpu.into_iter().chain(memory).chain(gpus).collect::<Vec<_>>().join(", ")
}

fn env(variable: &EnvVar) -> String {
    let name = &variable.name;
    let from = variable.value_from.as_ref();
    if let Some(field) = from.and_then(|from| from.field_ref.as_ref()) {
        return format!("{name} from {}", field.field_path);
    }
    if let Some(amount) = from.and_then(|from| from.resource_field_ref.as_ref()) {
        let of = amount.container_name.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        return format!("{name} from {}{of}", amount.resource.as_str());
    }
    if let Some(value) = from.and_then(EnvVarSource::keyed) {
        return format!("{name} from key {} of {}", value.key, value.owner);
    }
    let value = variable.value.as_deref().unwrap_or_default();
    // Show only values that are clearly not secret, as in plans.
    let secret = holds_secret(name, value) || !is_plain_value(value);
    format!("{name}={}", if secret { HIDDEN } else { value })
}

/// Words of a command; hides every word that could be a secret, as in plans.
fn words(words: &[String]) -> String {
    let mut flag = false;
    let shown = words.iter().map(|word| {
        let secret = std::mem::take(&mut flag) || !is_plain_text(word);
        flag = is_secret_flag(word);
        if secret { HIDDEN } else { word.as_str() }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Formats an action that probes and hooks share.
fn action(exec: Option<&ExecAction>, http_get: Option<&HttpGetAction>) -> Option<String> {
    if let Some(exec) = exec {
        return Some(format!("exec {}", words(&exec.command)));
    }
    let get = http_get?;
    let scheme = if get.scheme == Some(HttpScheme::Https) { "https" } else { "http" };
    let host = get.host.as_deref().unwrap_or_default();
    Some(format!("http-get {scheme}://{host}:{}{}", port(&get.port), get.path))
}

fn port(port: &PortReference) -> String {
    match port {
        PortReference::Number(number) => number.to_string(),
        PortReference::Name(name) => name.clone(),
    }
}

fn hook(hook: &LifecycleHandler) -> String {
    let sleep = hook.sleep.as_ref().map(|sleep| format!("sleep {}s", sleep.seconds));
    action(hook.exec.as_ref(), hook.http_get.as_ref()).or(sleep).unwrap_or_default()
}

/// Formats a probe like kubectl: the action, then its timing.
fn probe(probe: &Probe) -> String {
    let tcp = probe.tcp_socket.as_ref().map(|tcp| format!("tcp-socket :{}", port(&tcp.port)));
    let grpc = probe.grpc.as_ref().map(|grpc| {
        let service = grpc.service.as_ref().map(|service| format!(" {service}")).unwrap_or_default();
        format!("grpc <pod>:{}{service}", grpc.port)
    });
    let what = action(probe.exec.as_ref(), probe.http_get.as_ref()).or(tcp).or(grpc);
    let what = what.unwrap_or_else(|| "nothing".to_owned());
    format!(
        "{what} delay={}s timeout={}s period={}s #success={} #failure={}",
        probe.initial_delay_seconds,
        probe.timeout_seconds,
        probe.period_seconds,
        probe.success_threshold,
        probe.failure_threshold,
    )
}

fn uses(page: &mut Page, used: Option<&ResourceUsage>) {
    let Some(ResourceUsage { cpu: Some(cpu), memory: Some(bytes), cpu_percent, memory_percent, .. }) = used
    else {
        return;
    };
    let share = |percent: &Option<u64>| percent.map(|p| format!(" ({p}%)")).unwrap_or_default();
    let (cpu_share, memory_share) = (share(cpu_percent), share(memory_percent));
    page.field(
        4,
        "Uses",
        &format!("cpu {}m{cpu_share}, memory {}{memory_share}", cpu.millis, bytes.readable()),
    );
}

fn add_status(page: &mut Page, status: &ContainerStatus, now: Timestamp) {
    page.field(4, "Image ID", &status.image_id);
    page.field(4, "Container", &status.container_id);
    let state = match &status.state {
        ContainerState::Waiting(waiting) if waiting.message.is_empty() => {
            format!("Waiting: {}", waiting.reason)
        }
        ContainerState::Waiting(waiting) => format!("Waiting: {}: {}", waiting.reason, waiting.message),
        ContainerState::Running(running) => {
            format!("Running for {}, since {}", age(running.started_at, now), seconds(running.started_at))
        }
        ContainerState::Terminated(ended) => termination_text(ended, now),
    };
    page.field(4, "State", &state);
    page.field(
        4,
        "Last state",
        &status.last_state.as_ref().map(|last| termination_text(last, now)).unwrap_or_default(),
    );
    page.field(4, "Ready", if status.ready { "yes" } else { "no" });
    page.field(4, "Restarts", &status.restart_count.to_string());
}

fn termination_text(ended: &TerminatedState, now: Timestamp) -> String {
    let ago = ended.finished_at.map(|then| format!(", {} ago", age(then, now))).unwrap_or_default();
    let ran = match (ended.started_at, ended.finished_at) {
        (Some(from), Some(to)) => format!(" (ran {} to {})", seconds(from), seconds(to)),
        (None, Some(at)) => format!(" (never started, {})", seconds(at)),
        _ => String::new(),
    };
    let message = if ended.message.is_empty() { String::new() } else { format!(": {}", ended.message) };
    format!("Terminated: {} with code {}{ago}{ran}{message}", ended.reason, ended.exit_code)
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(super) fn volumes(page: &mut Page, pod: &PodDetail) {
    let volumes = pod.spec.as_ref().map_or(&[][..], |spec| spec.volumes.as_slice());
    if !volumes.is_empty() {
        page.line("Volumes:");
        for volume in volumes {
            let used = pod.usage.volumes.get(&volume.name).map(|bytes| {
                let more = if pod.usage.at_least.contains(&volume.name) { "at least " } else { "" };
                format!(", {more}{} in use", bytes.readable())
            });
            let limit = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit);
            let limit = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
            let used = used.unwrap_or_default();
            page.field(2, &volume.name, &format!("{}{used}{limit}", origin(volume)));
        }
    }
}

fn origin(volume: &Volume) -> String {
    if let Some(path) = &volume.host_path {
        return format!("hostPath {}", path.path);
    }
    if let Some(repo) = &volume.repo {
        return format!("repo {}", repo.path);
    }
    if let Some(files) = volume.files() {
        let sources = files.sources.into_iter().map(|(_, source)| match source {
            FileSource::Values(content) => content.of.to_string(),
            FileSource::Fields(_) => "fields of the pod".to_owned(),
        });
        return sources.collect::<Vec<_>>().join(", ");
    }
    match volume.empty_dir.as_ref().and_then(|dir| dir.medium) {
        Some(schema::kinds::pod::StorageMedium::Memory) => "emptyDir in memory".to_owned(),
        _ => "emptyDir".to_owned(),
    }
}
