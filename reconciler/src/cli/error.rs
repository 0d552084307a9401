//! What can go wrong in a reading command; each as one line that says what to do.

use std::io;
use std::process::ExitCode;

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Nobody answers at the address.
    #[error(
        "cannot reach the reconciler at {server}: {why}; start it with 'minik8s up', or name it with --server or MINIK8S_SERVER"
    )]
    Reach {
        /// The address.
        server: String,
        /// What the connection said.
        why: String,
    },
    /// The reconciler answered with an error.
    #[error("{}", with_help(.error, .help))]
    Refused {
        /// HTTP status.
        status: u16,
        /// What is wrong.
        error: String,
        /// What to do.
        help: String,
    },
    /// What answered is not a reconciler, or one of another version.
    #[error(
        "cannot read the answer of {url}: {why}; see whether --server names a reconciler of this version"
    )]
    ReadAnswer {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no plan.
    #[error("{0}")]
    Plan(String),
    /// The command line can't be meant so.
    #[error("{0}")]
    Usage(String),
    /// What was waited for did not come.
    #[error("{0}")]
    NotReached(String),
    /// The thing asked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// The output can't be written.
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

    /// The same, which ends with 1.
    pub(super) fn without_usage(self) -> Self {
        match self {
            Self::Usage(why) => Self::Plan(why),
            other => other,
        }
    }

    /// The reader of our output went away.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The reconciler knows no such thing.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Trying again may help: nobody answers, or the reconciler itself waits for something.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Reach { .. } | Self::Refused { status: 500.., .. })
    }
}

fn with_help(error: &str, help: &str) -> String {
    if help.is_empty() { error.to_owned() } else { format!("{error}; {help}") }
}
