//! Commands on login hosts, over SSH.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use schema::kinds::job::SlurmLogin;

#[cfg(test)]
mod fake;
mod real;
mod settings;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use fake::FakeLoginHost;
pub use real::{RealSsh, end_all};

/// How a user proves who they are. Has no `Debug`, so that none is ever logged.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A private key, as ssh-keygen writes it.
    Key(Vec<u8>),
    Password(Vec<u8>),
}

/// A login host, and as whom.
#[derive(Clone)]
pub struct LoginHost {
    /// With a host and a user.
    pub login: SlurmLogin,
    pub credential: Credential,
}

/// One command of a POSIX shell.
#[derive(Debug, Clone)]
pub struct RemoteCommand {
    pub text: String,
    /// What it reads.
    pub stdin: Bytes,
    /// Longest time for all of it, without the time to log in.
    pub timeout: Duration,
    /// Most of its standard output that is kept.
    pub stdout_max: u64,
}

/// What a command said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteOutput {
    pub code: i32,
    pub stdout: Vec<u8>,
    /// At most a few KiB.
    pub stderr: String,
}

/// A command could not be run to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// It was not begun.
    #[error("cannot log in: {0}")]
    Unreachable(String),
    /// Whether it was carried out is not known.
    #[error("the connection broke off: {0}")]
    BrokenOff(String),
    /// The same, after its time limit.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// Login hosts.
#[async_trait]
pub trait Ssh: Send + Sync + 'static {
    /// Runs a command in the user's home folder.
    async fn run(&self, host: &LoginHost, command: RemoteCommand) -> Result<RemoteOutput, SshError>;
}
