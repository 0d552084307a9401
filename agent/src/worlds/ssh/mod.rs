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

/// Credential of a user. Has no `Debug`, so that it is never logged.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A private key as written by ssh-keygen.
    Key(Vec<u8>),
    Password(Vec<u8>),
}

/// A login host and the credential for it.
#[derive(Clone)]
pub struct LoginHost {
    /// Login with a host and a user.
    pub login: SlurmLogin,
    pub credential: Credential,
}

/// A command for a POSIX shell.
#[derive(Debug, Clone)]
pub struct RemoteCommand {
    pub text: String,
    /// Standard input.
    pub stdin: Bytes,
    /// Longest time for the whole command, without the login.
    pub timeout: Duration,
    /// Maximum bytes kept of standard output.
    pub stdout_max: u64,
}

/// Result of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteOutput {
    pub code: i32,
    pub stdout: Vec<u8>,
    /// At most a few KiB.
    pub stderr: String,
}

/// Failure to run a command to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// The command was not started.
    #[error("cannot log in: {0}")]
    Unreachable(String),
    /// The connection broke off; the command may have been carried out.
    #[error("the connection broke off: {0}")]
    BrokenOff(String),
    /// The time limit passed; the command may have been carried out.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// Access to login hosts.
#[async_trait]
pub trait Ssh: Send + Sync + 'static {
    /// Runs a command in the user's home folder.
    async fn run(&self, host: &LoginHost, command: RemoteCommand) -> Result<RemoteOutput, SshError>;
}
