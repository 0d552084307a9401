//! Renders the containers of a bound pod. Pure: the same pod, address and attempt give the same result.

use std::collections::BTreeMap;

use schema::kinds::pod::{Container, PodSpec, PullPolicy, ResourceRequirements, SecurityContext};
use schema::records::PodInstance;

use super::env::{FieldContext, INPUTS_MAX, SecretKeys, expand, variables};
use super::rendered::{ContainerInputs, FieldValues, RenderedContainer};
use crate::converge::pods::facts::{NodeMemory, Placement};
use crate::converge::pods::probe;
use crate::converge::pods::sandbox::name_files;
use crate::converge::pods::volume::render::mounts;
use crate::names;
use crate::worlds::docker::{Limits, Namespaces, NewContainer};

/// Renders one container of the pod; the error names the part of the manifest that can't be fulfilled.
pub fn container(
    at: Placement<'_>,
    spec: &Container,
    attempt: u32,
    backoff: u32,
) -> Result<RenderedContainer, String> {
    let pod = &at.binding.pod;
    let place = FieldValues::of(at);
    let inputs = inputs(spec, pod, &place, &SecretKeys::new())?;
    let takes_all = spec.env_from.iter().any(|from| from.secret_ref.is_some());
    let mut keys = spec.env.iter().filter_map(|one| one.value_from.as_ref()?.secret_key_ref.as_ref());
    let depends_on_keys = takes_all || keys.any(|key| key.optional);
    let (mounts, sub_paths) = mounts(at, spec, attempt)?;
    let mut new = NewContainer {
        name: names::container_name(&at.node.instance, &spec.name, &pod.reference(), &pod.uid, attempt),
        image: spec.image.clone(),
        labels: at.labels(&spec.name, attempt, backoff),
        command: inputs.command,
        args: inputs.args,
        env: inputs.env,
        working_dir: spec.working_dir.clone(),
        mounts,
        namespaces: Namespaces::Join {
            pause: String::new(),
            pid: pod.spec.share_process_namespace,
            host_network: pod.spec.host_network,
        },
        host_pid: pod.spec.host_pid,
        host_ipc: pod.spec.host_ipc,
        gpus: spec.resources.gpus(),
        limits: Limits { pids: at.node.container_limits.pids, ..limits(spec) },
        oom_score_adj: oom_score_adj(&pod.spec, spec, at.node.memory),
        log: at.node.container_limits.log,
        stdin: spec.stdin,
        tty: spec.tty,
        // On the host's network a container shares nothing with its pause container.
        resolver: pod.spec.host_network.then(|| name_files::resolver(pod, &at.node.dns)),
        ..NewContainer::default()
    };
    let host = at.address.map_or(at.node.node_ip, |address| address.addr().into());
    if let Some(hook) = probe::render::pre_stop(spec, host) {
        let hook = serde_json::to_string(&hook).map_err(|e| format!("its preStop hook: {e}"))?;
        new.labels.insert(names::PRE_STOP.to_owned(), hook);
    }
    let position = pod.spec.init_containers.iter().position(|init| init.name == spec.name);
    if let Some(position) = position.filter(|_| spec.is_sidecar()) {
        new.labels.insert(names::SIDECAR.to_owned(), position.to_string());
    }
    let user = user(&pod.spec, spec)?;
    new.user = user.text;
    secure(&mut new, &pod.spec, spec.security_context.as_deref());
    name_files::add_mounts(at, new.read_only_root, &mut new.mounts);
    Ok(RenderedContainer {
        new,
        sub_paths,
        check_non_root: user.check_non_root,
        group_of_image_user: user.group_only,
        never_pull: spec.effective_pull_policy() == PullPolicy::Never,
        values: inputs.values,
        secret_inputs: depends_on_keys.then(|| Box::new((spec.clone(), place))),
    })
}

/// Returns a container's variables, and its command with their values.
pub(crate) fn inputs(
    spec: &Container,
    pod: &PodInstance,
    place: &FieldValues,
    secret_keys: &SecretKeys,
) -> Result<ContainerInputs, String> {
    let mut room = INPUTS_MAX;
    let (env, values) = variables(spec, &FieldContext { pod, place, secret_keys }, &mut room)?;
    let known: BTreeMap<String, String> = env.iter().cloned().collect();
    let mut expanded = |list: &[String]| -> Result<Vec<String>, String> {
        list.iter().map(|text| expand(text, &known, &mut room)).collect()
    };
    let (command, args) = (expanded(&spec.command)?, expanded(&spec.args)?);
    let env = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    Ok(ContainerInputs { env, command, args, values })
}

/// Turns requests into shares (1024 a core), and limits into quota and memory, by the kubelet's arithmetic
/// (`MilliCPUToShares` and `MilliCPUToQuota` in pkg/kubelet/cm/helpers_linux.go). A container that requests nothing
/// gets the minimum: with the engine's 1024 it would take from those that requested less than a core.
fn limits(spec: &Container) -> Limits {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let requested = spec.resources.requested_cpu().millis;
    let limit = &spec.resources.limits;
    Limits {
        cpu_shares: number((requested.saturating_mul(1024) / 1000).clamp(2, 262_144)),
        // Thousandths of 100 ms; the kernel accepts no less than 1 ms, and a limit of 0 means none.
        cpu_quota_us: match limit.cpu.map_or(0, |cpu| cpu.millis) {
            0 => 0,
            millis => number(millis.saturating_mul(100).max(1000)),
        },
        memory_bytes: limit.memory.map(|memory| number(memory.bytes)).unwrap_or_default(),
        pids: 0,
        open_files: 0,
    }
}

/// `oom_score_adj` of containers of the classes Guaranteed and BestEffort.
const OOM_GUARANTEED: i64 = -997;
const OOM_BEST_EFFORT: i64 = 1000;

/// Returns the container's precedence when memory is short, by the kubelet's arithmetic (`GetContainerOOMScoreAdjust`
/// in pkg/kubelet/qos/policy.go): a container that uses more than it requested goes before one that does not.
fn oom_score_adj(pod: &PodSpec, spec: &Container, memory: NodeMemory) -> i64 {
    let all = || pod.init_containers.iter().chain(&pod.containers).map(|container| &container.resources);
    let requests = |of: &ResourceRequirements| (of.requested_cpu().millis, of.requested_memory().bytes);
    let limits = |of: &ResourceRequirements| {
        (of.limits.cpu.map_or(0, |cpu| cpu.millis), of.limits.memory.map_or(0, |memory| memory.bytes))
    };
    let is_guaranteed =
        |of: &ResourceRequirements| limits(of).0 > 0 && limits(of).1 > 0 && requests(of) == limits(of);
    let is_best_effort = |of: &ResourceRequirements| requests(of) == (0, 0) && limits(of) == (0, 0);
    let score = if all().all(is_guaranteed) {
        OOM_GUARANTEED
    } else if all().all(is_best_effort) {
        OOM_BEST_EFFORT
    } else {
        let requested_by = |container: &Container| container.resources.requested_memory().bytes;
        let mut requested = requested_by(spec);
        // A sidecar goes no sooner than the containers that it serves.
        if spec.is_sidecar() {
            requested = requested.max(pod.containers.iter().map(requested_by).min().unwrap_or_default());
        }
        let requested = u128::from(requested) * 1000;
        let share = requested.checked_div(memory.bytes.into()).unwrap_or_default();
        let score = OOM_BEST_EFFORT - i64::try_from(share).unwrap_or(OOM_BEST_EFFORT);
        score.clamp(OOM_BEST_EFFORT + OOM_GUARANTEED, OOM_BEST_EFFORT - 1)
    };
    score.max(memory.oom_score_min)
}

struct User {
    text: Option<String>,
    check_non_root: bool,
    group_only: Option<i64>,
}

fn user(pod: &PodSpec, spec: &Container) -> Result<User, String> {
    let own = spec.security_context.as_ref();
    let all = pod.security_context.as_ref();
    let user = own.and_then(|s| s.run_as_user).or_else(|| all.and_then(|s| s.run_as_user));
    let group = own.and_then(|s| s.run_as_group).or_else(|| all.and_then(|s| s.run_as_group));
    let non_root = own.and_then(|s| s.run_as_non_root).or_else(|| all.and_then(|s| s.run_as_non_root));
    let non_root = non_root.unwrap_or(false);
    if non_root && user == Some(0) {
        return Err("runAsNonRoot is set and runAsUser is 0; change one of them".to_owned());
    }
    let text = user.map(|user| group.map_or_else(|| user.to_string(), |group| format!("{user}:{group}")));
    Ok(User {
        check_non_root: non_root && user.is_none(),
        group_only: group.filter(|_| user.is_none()),
        text,
    })
}

/// Checks that an image's `user`, without its group, may run with `runAsNonRoot`; the error says why not.
pub(crate) fn is_no_root(image: &str, user: &str) -> Result<(), String> {
    // The engine accepts `00` and `+0` as the number, too.
    match user.parse::<u32>() {
        Err(_) if !matches!(user, "" | "root") => Err(format!(
            "runAsNonRoot is set and image {image} names its user ({user}), which may be root; set runAsUser to a number"
        )),
        Ok(0) | Err(_) => Err(format!("runAsNonRoot is set and image {image} runs as root; set runAsUser")),
        Ok(_) => Ok(()),
    }
}

/// Capability to send frames and packets of any form. The engine gives it to every container by default; here only a
/// container that asks for it has it.
const NET_RAW: &str = "NET_RAW";

fn secure(new: &mut NewContainer, pod: &PodSpec, own: Option<&SecurityContext>) {
    if let Some(all) = &pod.security_context {
        new.groups = all.supplemental_groups.iter().chain(&all.fs_group).map(i64::to_string).collect();
    }
    let capabilities = own.and_then(|own| own.capabilities.as_ref());
    if let Some(capabilities) = capabilities {
        new.capabilities_add.clone_from(&capabilities.add);
        new.capabilities_drop.clone_from(&capabilities.drop);
    }
    let names_raw = |list: &[String]| list.iter().any(|name| ["ALL", NET_RAW].contains(&name.as_str()));
    if !names_raw(&new.capabilities_add) && !names_raw(&new.capabilities_drop) {
        new.capabilities_drop.push(NET_RAW.to_owned());
    }
    let Some(own) = own else { return };
    new.read_only_root = own.read_only_root_filesystem.unwrap_or(false);
    new.privileged = own.privileged.unwrap_or(false);
    if let Some(most) = own.pids_limit {
        new.limits.pids = most.into();
    }
    new.limits.open_files = own.open_files_limit.unwrap_or_default().into();
    new.no_new_privileges = own.allow_privilege_escalation == Some(false);
}
