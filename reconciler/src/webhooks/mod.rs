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

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

pub use answers::AnswersLoop;
pub use intake::{IncomingRequest, Intake, Outcome, Receipt, SourceTarget};
pub(crate) use server::serve;
pub use server::{Counts, Hooks};
use verify::{SECRET_FILE_BYTES_MAX, SecretError, Secrets};

#[derive(Debug, Clone, Default, Args)]
pub struct WebhookArgs {
    /// Address for webhooks and calls of triggers; the rest of the API is not served there
    #[arg(long, env = "MINIK8S_WEBHOOK_LISTEN", value_name = "ADDR:PORT", requires = "webhook_secret_file")]
    pub webhook_listen: Option<SocketAddr>,
    /// File with the secret that webhooks are signed with; a second line is valid, too
    #[arg(long, env = "MINIK8S_WEBHOOK_SECRET_FILE", value_name = "FILE", requires = "webhook_listen")]
    pub webhook_secret_file: Option<PathBuf>,
    /// File with the certificate chain and key (PEM) for https:// at that address, read again for each connection; or
    /// `cluster` for this reconciler's own certificate
    #[arg(long, env = "MINIK8S_WEBHOOK_TLS", value_name = "FILE", requires = "webhook_listen")]
    pub webhook_tls: Option<PathBuf>,
}

/// Address and secret of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    pub listen: SocketAddr,
    /// File with the secret; read again for every request, so it can be changed in place.
    pub secret_file: PathBuf,
    /// Certificate to show; `None` for plain HTTP.
    pub tls: Option<WebhookTls>,
}

/// Certificate shown to senders of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookTls {
    /// That of this reconciler, signed by the cluster's authority.
    Cluster,
    /// One in a file with its chain and its key.
    File(PathBuf),
}

/// Value of `--webhook-tls` for [`WebhookTls::Cluster`].
const CLUSTER: &str = "cluster";

impl WebhookArgs {
    /// Returns `--webhook-tls` with an absolute path.
    ///
    /// # Errors
    /// There is no working directory.
    pub(crate) fn absolute_tls(&self) -> io::Result<Option<PathBuf>> {
        let path = self.webhook_tls.as_deref().filter(|file| *file != Path::new(CLUSTER));
        match path {
            Some(file) => std::path::absolute(file).map(Some),
            None => Ok(self.webhook_tls.clone()),
        }
    }

    /// Settings of webhooks; `None` if they are off.
    pub fn config(self) -> Option<WebhookConfig> {
        let tls = self.webhook_tls.map(|file| match file == Path::new(CLUSTER) {
            true => WebhookTls::Cluster,
            false => WebhookTls::File(file),
        });
        Some(WebhookConfig { listen: self.webhook_listen?, secret_file: self.webhook_secret_file?, tls })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadSecretError {
    #[error(
        "cannot read the webhook secret in {path}: {why}; give --webhook-secret-file a file with 16 bytes or more"
    )]
    Read { path: String, why: io::Error },
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
