//! Webhooks: a push at the Git server immediately wakes the loop of its source.
//!
//! `verify provider payload limit decide` are pure; `server` reads requests from the network and decides status
//! codes; `intake` nudges and writes the sync request; `answers` is the loop that answers it. `calls` starts runs
//! for callers of triggers.

mod answers;
pub mod calls;
mod decide;
mod intake;
pub mod limit;
pub mod payload;
pub mod provider;
mod server;
#[cfg(test)]
mod tests;
pub mod verify;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

pub use answers::AnswersLoop;
pub use intake::{IncomingRequest, Intake, Outcome, Receipt, SourceTarget};
pub use server::{Counts, Hooks, serve};
use verify::{SECRET_FILE_BYTES_MAX, SecretError, Secrets};

#[derive(Debug, Clone, Default, Args)]
pub struct WebhookArgs {
    /// Address for webhooks and calls of triggers; the rest of the API is not served there
    #[arg(long, env = "MINIK8S_WEBHOOK_LISTEN", value_name = "ADDR:PORT", requires = "webhook_secret_file")]
    pub webhook_listen: Option<SocketAddr>,
    /// File with the secret that webhooks are signed with; a second line is valid, too
    #[arg(long, env = "MINIK8S_WEBHOOK_SECRET_FILE", value_name = "FILE", requires = "webhook_listen")]
    pub webhook_secret_file: Option<PathBuf>,
}

/// Address and secret of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    pub listen: SocketAddr,
    /// File with the secret; read again for every request, so it can be changed in place.
    pub secret_file: PathBuf,
}

impl WebhookArgs {
    /// Settings of webhooks; `None` if they are off.
    pub fn config(self) -> Option<WebhookConfig> {
        Some(WebhookConfig { listen: self.webhook_listen?, secret_file: self.webhook_secret_file? })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadSecretError {
    #[error(
        "cannot read the webhook secret in {path}: {why}; give --webhook-secret-file a file with 16 bytes or more"
    )]
    Read { path: String, why: std::io::Error },
    #[error(
        "cannot use the webhook secret in {path}: {why}; write a line of 16 bytes or more, for example with \
         'openssl rand -hex 32'"
    )]
    Use { path: String, why: SecretError },
}

/// Reads the current content of the secret file.
pub fn read_secrets(file: &Path) -> Result<Secrets, ReadSecretError> {
    use std::io::Read as _;
    let path = || file.display().to_string();
    let mut content = Vec::new();
    let limit = SECRET_FILE_BYTES_MAX as u64 + 1;
    std::fs::File::open(file)
        .and_then(|opened| opened.take(limit).read_to_end(&mut content))
        .map_err(|why| ReadSecretError::Read { path: path(), why })?;
    Secrets::parse(&content).map_err(|why| ReadSecretError::Use { path: path(), why })
}
