//! The word in the STATUS column of a pod, by the rules of kubectl's `printPod`, and why it waits.

use schema::kinds::pod::{ContainerState, ContainerStatus, PodPhase, PodStatus};

/// The word and, if the pod is not well, the sentence behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) word: String,
    pub(super) why: String,
}

/// What the pod's own node says of it.
pub(super) fn reported(status: &PodStatus) -> Word {
    let whole = if status.reason.is_empty() { phase(status.phase).to_owned() } else { status.reason.clone() };
    let word = initializing(status).unwrap_or_else(|| containers(status, &whole));
    let why = why(status, &word);
    Word { word, why }
}

/// `Init:…` while init containers run; none when they are done.
fn initializing(status: &PodStatus) -> Option<String> {
    let total = status.init_container_statuses.len();
    for (done, container) in status.init_container_statuses.iter().enumerate() {
        return Some(match &container.state {
            ContainerState::Terminated(ended) if ended.exit_code == 0 => continue,
            ContainerState::Terminated(ended) if ended.reason.is_empty() => {
                format!("Init:ExitCode:{}", ended.exit_code)
            }
            ContainerState::Terminated(ended) => format!("Init:{}", ended.reason),
            ContainerState::Waiting(waiting)
                if !waiting.reason.is_empty() && waiting.reason != "PodInitializing" =>
            {
                format!("Init:{}", waiting.reason)
            }
            ContainerState::Waiting(_) | ContainerState::Running(_) => format!("Init:{done}/{total}"),
        });
    }
    None
}

fn containers(status: &PodStatus, whole: &str) -> String {
    let mut word = whole.to_owned();
    let mut one_runs = false;
    // From the last to the first, so that the first container's reason stands at the end.
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

/// The first thing that keeps the pod from being ready; empty when it is ready or done.
fn why(status: &PodStatus, word: &str) -> String {
    if status.is_ready() || status.phase == PodPhase::Succeeded {
        return String::new();
    }
    if !status.message.is_empty() {
        return status.message.clone();
    }
    let mut all = status.init_container_statuses.iter().chain(&status.container_statuses);
    if let Some(text) = all.find_map(container_problem) {
        return text;
    }
    let condition = status.conditions.iter().find(|c| c.kind == "Ready" && !c.message.is_empty());
    condition.map_or_else(|| format!("the pod is {word}, not ready"), |c| c.message.clone())
}

fn container_problem(container: &ContainerStatus) -> Option<String> {
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
        ContainerState::Terminated(ended) if ended.exit_code != 0 || ended.reason == "OOMKilled" => {
            let reason = if ended.message.is_empty() { &ended.reason } else { &ended.message };
            Some(format!("container {name} ended with code {}: {reason}", ended.exit_code))
        }
        ContainerState::Running(_) if !container.ready => {
            Some(format!("container {name} runs but is not ready"))
        }
        ContainerState::Terminated(_) | ContainerState::Running(_) => None,
    }
}

fn phase(phase: PodPhase) -> &'static str {
    match phase {
        PodPhase::Pending => "Pending",
        PodPhase::Running => "Running",
        PodPhase::Succeeded => "Succeeded",
        PodPhase::Failed => "Failed",
        PodPhase::Unknown => "Unknown",
    }
}
