//! Performs probe checks and hooks.

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Action, ProbeKind};
use crate::worlds::docker::{Docker, DockerError, ExecEnd};
use crate::worlds::prober::Prober;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckResult {
    Success,
    Warning(String),
    Failure(String),
    /// The check could not be performed, which says nothing about the container.
    Unknown(String),
}

impl CheckResult {
    /// Returns the event message of a check that did not succeed, in Kubernetes' words.
    pub fn failure_message(&self, kind: ProbeKind) -> Option<String> {
        match self {
            CheckResult::Success | CheckResult::Warning(_) => None,
            CheckResult::Failure(why) if kind == ProbeKind::PostStart => {
                Some(format!("PostStartHook failed: {why}"))
            }
            CheckResult::Unknown(why) if kind == ProbeKind::PostStart => {
                Some(format!("PostStartHook could not be run and is tried again: {why}"))
            }
            CheckResult::Failure(why) => Some(format!("{kind} probe failed: {why}")),
            CheckResult::Unknown(why) => {
                Some(format!("{kind} probe errored and resulted in unknown state: {why}"))
            }
        }
    }
}

/// Performs checks and hooks.
#[derive(Clone)]
pub struct ActionRunner {
    pub docker: Arc<dyn Docker>,
    pub prober: Arc<dyn Prober>,
}

impl ActionRunner {
    /// Performs a probe's action on the container with this Docker id.
    pub async fn check(&self, id: &str, action: &Action, timeout: Duration) -> CheckResult {
        match action {
            Action::Exec(command) => match self.docker.exec(id, command, timeout).await {
                Ok(outcome) => match outcome.end {
                    ExecEnd::Exited(0) => CheckResult::Success,
                    ExecEnd::Exited(code) if outcome.output.is_empty() => CheckResult::Failure(format!(
                        "command \"{}\" ended with code {code}",
                        command.join(" ")
                    )),
                    ExecEnd::Exited(_) => CheckResult::Failure(outcome.output),
                    ExecEnd::TimedOut => CheckResult::Failure(timed_out(command, timeout)),
                },
                Err(error) => CheckResult::Unknown(error.to_string()),
            },
            Action::HttpGet(request) => match self.prober.http_get(request, timeout).await {
                Ok(status) if (200..300).contains(&status) => CheckResult::Success,
                Ok(status) if (300..400).contains(&status) => {
                    CheckResult::Warning(format!("Probe terminated redirects, statuscode: {status}"))
                }
                Ok(status) => CheckResult::Failure(format!("HTTP probe failed with statuscode: {status}")),
                Err(why) => CheckResult::Failure(why),
            },
            Action::TcpSocket { host, port } => match self.prober.tcp_connect(host, *port, timeout).await {
                Ok(()) => CheckResult::Success,
                Err(why) => CheckResult::Failure(why),
            },
            Action::Grpc { address, service } => {
                match self.prober.grpc_check(*address, service, timeout).await {
                    Ok(()) => CheckResult::Success,
                    Err(why) => CheckResult::Failure(why),
                }
            }
            Action::Sleep { seconds } => {
                sleep_for(*seconds).await;
                CheckResult::Success
            }
        }
    }

    /// Performs a postStart hook. Unlike for a probe, any response of a server will do, as in Kubernetes.
    pub async fn post_start(&self, id: &str, action: &Action, timeout: Duration) -> CheckResult {
        match action {
            Action::HttpGet(_) => match self.hook(id, action, timeout).await {
                Ok(()) => CheckResult::Success,
                Err(why) => CheckResult::Failure(why),
            },
            _ => self.check(id, action, timeout).await,
        }
    }

    /// Performs a preStop hook's action. Any response of a server will do, as in Kubernetes; a container that ended
    /// meanwhile needs no hook.
    pub async fn hook(&self, id: &str, action: &Action, timeout: Duration) -> Result<(), String> {
        match action {
            Action::Exec(command) => match self.docker.exec(id, command, timeout).await {
                Ok(outcome) => match outcome.end {
                    ExecEnd::Exited(0) => Ok(()),
                    ExecEnd::Exited(code) => {
                        let said = outcome.output.trim_end();
                        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                        Err(format!("command \"{}\" ended with code {code}{said}", command.join(" ")))
                    }
                    ExecEnd::TimedOut => Err(timed_out(command, timeout)),
                },
                Err(DockerError::NotFound { .. } | DockerError::Refused { status: 409, .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            Action::HttpGet(request) => self.prober.http_get(request, timeout).await.map(drop),
            Action::TcpSocket { host, port } => self.prober.tcp_connect(host, *port, timeout).await,
            Action::Grpc { address, service } => self.prober.grpc_check(*address, service, timeout).await,
            Action::Sleep { seconds } => {
                sleep_for(*seconds).await;
                Ok(())
            }
        }
    }
}

async fn sleep_for(seconds: u32) {
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
}

fn timed_out(command: &[String], timeout: Duration) -> String {
    format!("command timed out: \"{}\" timed out after {timeout:?}", command.join(" "))
}
