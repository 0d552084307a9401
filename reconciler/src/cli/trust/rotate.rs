//! `minik8s trust rotate`: begins a rotation of the authority; and `minik8s trust etcd-restarted`, for an etcd of the
//! user's.

use serde::Deserialize;
use serde_json::Value;

use crate::args::TrustRequestArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{note, write_lines};

/// Answer of `POST /v1/trust/rotate`.
#[derive(Debug, Deserialize)]
struct NewRotation {
    /// Digest of the next authority.
    authority: String,
    /// Names of the people whose files know only the present one.
    users: Vec<String>,
}

pub(in crate::cli) async fn run(args: &TrustRequestArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let begun: NewRotation = client.post(&["trust", "rotate"], &[]).await?;
    write_lines(&format!("rotation to the authority {} begun\n", begun.authority))?;
    note("'minik8s status' says what it waits for");
    if !begun.users.is_empty() {
        let users = begun.users.join(", ");
        note(&format!(
            "{users}: their files know only the former authority; give them new ones with 'minik8s user add'"
        ));
    }
    Ok(())
}

pub(in crate::cli) async fn confirm_etcd_restart(args: &TrustRequestArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let _: Value = client.post(&["trust", "etcd-restarted"], &[]).await?;
    write_lines("confirmed: all members of etcd have been restarted\n")
}
