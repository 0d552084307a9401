//! Status word of a pod by the rules of kubectl's `printPod`, and the reason that the pod is not ready.

use schema::condition::{Condition, ConditionStatus};
use schema::kinds::pod::{ContainerState, ContainerStatus, OOM_KILLED, PodPhase, PodSpec, PodStatus};

/// Status word and, if the pod is not well, the reason as a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StatusWord {
    pub(super) word: String,
    pub(super) why: String,
}

/// Status as reported by the pod's own node.
pub(super) fn reported_status(status: &PodStatus, spec: &PodSpec) -> StatusWord {
    let word = reported_word(status, spec);
    let why = why(status, &word);
    StatusWord { word, why }
}

/// Status word as reported by the pod's own node.
pub(in crate::view) fn reported_word(status: &PodStatus, spec: &PodSpec) -> String {
    let whole = if status.reason.is_empty() { phase(status.phase) } else { status.reason.as_str() };
    if status.is_terminating() {
        return whole.to_owned();
    }
    initializing(status, spec).unwrap_or_else(|| containers(status, whole))
}

/// Error that keeps a node from removing a pod; `None` without one.
pub(super) fn removal_error(status: &PodStatus) -> Option<&str> {
    let condition = status.conditions.iter().find(|c| c.kind == "Ready" && c.reason == "FailedKillPod")?;
    Some(condition.message.as_str())
}

/// `Init:…` while init containers run, or a sidecar has not started. Ignores the remains of init containers once all
/// are done.
fn initializing(status: &PodStatus, spec: &PodSpec) -> Option<String> {
    if is_initialized(status) {
        return None;
    }
    let total = status.init_container_statuses.len();
    let is_sidecar =
        |name: &str| spec.init_containers.iter().any(|init| init.name == name && init.is_sidecar());
    for (done, container) in status.init_container_statuses.iter().enumerate() {
        return Some(match &container.state {
            ContainerState::Terminated(ended) if ended.completes_init() => continue,
            ContainerState::Running(_) if container.started && is_sidecar(&container.name) => continue,
            ContainerState::Terminated(ended) if ended.reason.is_empty() => {
                format!("Init:ExitCode:{}", ended.exit_code)
            }
            ContainerState::Terminated(ended) => format!("Init:{}", ended.reason),
            ContainerState::Waiting(waiting)
                if !matches!(waiting.reason.as_str(), "" | "PodInitializing" | "ContainerCreating") =>
            {
                format!("Init:{}", waiting.reason)
            }
            ContainerState::Waiting(_) | ContainerState::Running(_) => format!("Init:{done}/{total}"),
        });
    }
    None
}

fn is_initialized(status: &PodStatus) -> bool {
    let done = |c: &Condition| c.kind == "Initialized" && c.status == ConditionStatus::True;
    status.conditions.iter().any(done)
}

fn containers(status: &PodStatus, whole: &str) -> String {
    let mut word = whole.to_owned();
    let mut one_runs = false;
    // From the last to the first, so that the first container's reason wins.
    for container in status.container_statuses.iter().rev() {
        match &container.state {
            ContainerState::Waiting(waiting) if !waiting.reason.is_empty() => {
                word.clone_from(&waiting.reason);
            }
            ContainerState::Terminated(ended) if ended.reason.is_empty() => {
                word = format!("ExitCode:{}", ended.exit_code);
            }
            ContainerState::Terminated(ended) => word.clone_from(&ended.reason),
            ContainerState::Running(_) if container.ready => one_runs = true,
            ContainerState::Waiting(_) | ContainerState::Running(_) => {}
        }
    }
    if word == "Completed" && one_runs {
        word = if status.is_ready() { "Running" } else { "NotReady" }.to_owned();
    }
    word
}

/// First reason that the pod is not ready; empty if it is ready or done.
fn why(status: &PodStatus, word: &str) -> String {
    if status.is_ready() || (status.phase == PodPhase::Succeeded && !status.is_terminating()) {
        return String::new();
    }
    if !status.message.is_empty() {
        return status.message.clone();
    }
    let condition = status.conditions.iter().find(|c| c.kind == "Ready" && !c.message.is_empty());
    let said = condition.map_or("", |c| c.message.as_str());
    // How an init container ended no longer matters once all are done.
    let is_over = |c: &ContainerStatus| is_initialized(status) && c.state.is_terminated();
    let mut init = status.init_container_statuses.iter().filter(|c| !is_over(c));
    if let Some(text) = init.find_map(|c| container_problem(c, said)) {
        return format!("init {text}");
    }
    if let Some(text) = status.container_statuses.iter().find_map(|c| container_problem(c, said)) {
        return text;
    }
    condition.map_or_else(|| format!("the pod is {word}, not ready"), |c| c.message.clone())
}

/// Problem of a container. `said` is the message of the condition Ready, which contains the output of failing probes.
fn container_problem(container: &ContainerStatus, said: &str) -> Option<String> {
    let name = &container.name;
    match &container.state {
        ContainerState::Waiting(waiting) => {
            let last = container.last_state.as_ref().filter(|_| waiting.message.is_empty());
            Some(match (waiting.message.as_str(), last) {
                ("", Some(last)) => {
                    format!("container {name} ended with code {} ({})", last.exit_code, last.reason)
                }
                ("", None) if waiting.reason.is_empty() => format!("container {name} is not started yet"),
                ("", None) => format!("container {name}: {}", waiting.reason),
                (message, _) => format!("container {name}: {message}"),
            })
        }
        ContainerState::Terminated(ended) if ended.exit_code != 0 || ended.reason == OOM_KILLED => {
            let reason = if ended.message.is_empty() { &ended.reason } else { &ended.message };
            Some(format!("container {name} ended with code {}: {reason}", ended.exit_code))
        }
        ContainerState::Running(_) if !container.ready => {
            let probe = said.split_once(&format!("; {name}: ")).map(|(_, probe)| format!(": {probe}"));
            Some(format!("container {name} is running but not ready{}", probe.unwrap_or_default()))
        }
        ContainerState::Terminated(_) | ContainerState::Running(_) => None,
    }
}

/// Returns the word for a phase.
pub(in crate::view) fn phase(phase: PodPhase) -> &'static str {
    match phase {
        PodPhase::Pending => "Pending",
        PodPhase::Running => "Running",
        PodPhase::Succeeded => "Succeeded",
        PodPhase::Failed => "Failed",
        PodPhase::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use schema::condition::set_condition;
    use schema::kinds::pod::{RunningState, TerminatedState, WaitingState};

    use super::*;
    use crate::view::testing::{self, at, condition};

    /// `!Reason`, `ended:Reason:code`, `runs`, or `up` for one that runs and is ready.
    fn container(text: &str) -> ContainerStatus {
        let state = match text.split(':').collect::<Vec<_>>()[..] {
            ["runs" | "up"] => ContainerState::Running(RunningState { started_at: at(0) }),
            ["ended", reason, code] => ContainerState::Terminated(TerminatedState {
                exit_code: code.parse().unwrap(),
                reason: reason.into(),
                message: String::new(),
                started_at: None,
                finished_at: None,
            }),
            _ => {
                let reason = text.trim_start_matches('!').into();
                ContainerState::Waiting(WaitingState { reason, message: String::new() })
            }
        };
        ContainerStatus { ready: text == "up", ..testing::container("c", state) }
    }

    fn word(phase: PodPhase, init: &[&str], apps: &[&str], conditions: &[&str]) -> String {
        let list = |texts: &[&str]| texts.iter().map(|text| container(text)).collect();
        let mut status = PodStatus {
            phase,
            init_container_statuses: list(init),
            container_statuses: list(apps),
            ..PodStatus::default()
        };
        for kind in conditions {
            set_condition(&mut status.conditions, condition(kind, true, at(0)));
        }
        reported_status(&status, &PodSpec::default()).word
    }

    /// kubectl's `printPod`, row by row.
    #[test]
    fn the_word_is_kubectls() {
        use PodPhase::{Failed, Pending, Running, Succeeded};
        let wait = &["!PodInitializing"][..];
        for (wanted, got) in [
            ("Init:0/2", word(Pending, &["runs", "!PodInitializing"], wait, &[])),
            ("Init:1/2", word(Pending, &["ended:Completed:0", "!ContainerCreating"], wait, &[])),
            ("Init:Error", word(Pending, &["ended:Error:1", "!PodInitializing"], wait, &[])),
            ("Init:OOMKilled", word(Pending, &["ended:OOMKilled:137"], wait, &[])),
            ("Init:OOMKilled", word(Pending, &["ended:OOMKilled:0"], wait, &[])),
            ("Init:ExitCode:3", word(Pending, &["ended::3"], wait, &[])),
            ("Init:CrashLoopBackOff", word(Pending, &["!CrashLoopBackOff"], wait, &[])),
            ("Init:ImagePullBackOff", word(Pending, &["!ImagePullBackOff"], wait, &[])),
            ("PodInitializing", word(Pending, &["ended:Completed:0"], wait, &["Initialized"])),
            // The remains of the init container were removed by hand: it no longer counts.
            ("Running", word(Running, &["!PodInitializing"], &["up"], &["Initialized", "Ready"])),
            ("Pending", word(Pending, &[], &[], &[])),
            ("ContainerCreating", word(Pending, &[], &["!ContainerCreating"], &[])),
            ("Running", word(Running, &[], &["runs"], &[])),
            ("CrashLoopBackOff", word(Running, &[], &["!CrashLoopBackOff", "up"], &[])),
            ("Error", word(Failed, &[], &["ended:Error:1", "ended:Completed:0"], &[])),
            ("OOMKilled", word(Failed, &[], &["ended:OOMKilled:137"], &[])),
            ("ExitCode:3", word(Failed, &[], &["ended::3"], &[])),
            ("Completed", word(Succeeded, &[], &["ended:Completed:0"], &[])),
            ("NotReady", word(Running, &[], &["ended:Completed:0", "up"], &[])),
            ("Running", word(Running, &[], &["ended:Completed:0", "up"], &["Ready"])),
        ] {
            assert_eq!(wanted, got);
        }
        let mut failed = PodStatus {
            phase: Failed,
            init_container_statuses: vec![container("ended:OOMKilled:137")],
            container_statuses: vec![container("ended:Error:1")],
            ..PodStatus::default()
        };
        let of_init = "init container c ended with code 137: OOMKilled";
        assert_eq!(reported_status(&failed, &PodSpec::default()).why, of_init);
        set_condition(&mut failed.conditions, condition("Initialized", true, at(0)));
        assert_eq!(reported_status(&failed, &PodSpec::default()).why, "container c ended with code 1: Error");
        // For a pod that is desired again, the node reports the end until it has read the new desired state.
        for phase in [Running, Succeeded, Failed] {
            let leaving = PodStatus {
                phase,
                reason: PodStatus::TERMINATING.into(),
                message: "its containers have ended".into(),
                container_statuses: vec![container("ended:Error:137")],
                ..PodStatus::default()
            };
            let StatusWord { word, why } = reported_status(&leaving, &PodSpec::default());
            assert_eq!((word.as_str(), why.as_str()), ("Terminating", "its containers have ended"));
        }
    }
}
