//! Errors of commands, each as one line that says what to do.

use std::io;
use std::process::ExitCode;

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(
        "cannot reach the reconciler at {server}: {why}; start it with 'minik8s up', or name it with --server or MINIK8S_SERVER"
    )]
    Reach { server: String, why: String },
    #[error("{}", with_help(.error, .help))]
    Refused { status: u16, error: String, help: String },
    #[error("cannot read the answer of {url}: {why}; check that --server names a reconciler of this version")]
    ReadAnswer { url: String, why: String },
    /// Failure of `minik8s plan`. Its exit code is 1, because 2 means that something changes.
    #[error("{0}")]
    Plan(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotReached(String),
    #[error("{0}")]
    NotFound(String),
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
}

impl CliError {
    /// 2 for wrong usage, else 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }

    /// No reconciler that other machines can reach.
    pub(super) fn not_advertised() -> Self {
        Self::NotReached(
            "no reconciler has an address for other machines; give 'minik8s serve' or 'minik8s up' one with --advertise"
                .to_owned(),
        )
    }

    /// Converts a usage error to a plan error, which exits with 1.
    pub(super) fn into_plan_error(self) -> Self {
        match self {
            Self::Usage(why) => Self::Plan(why),
            other => other,
        }
    }

    /// True if the reader of the output went away.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// True if a retry may help: no answer, or the reconciler itself waits for something.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Reach { .. } | Self::Refused { status: 500.., .. })
    }
}

fn with_help(error: &str, help: &str) -> String {
    if help.is_empty() { error.to_owned() } else { format!("{error}; {help}") }
}
