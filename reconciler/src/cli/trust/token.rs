//! `minik8s token create`: prints the command by which a machine joins.

use std::time::Duration;

use jiff::Timestamp;
use schema::trust::{Identity, Role};
use serde::Deserialize;
use serde_json::json;

use crate::args::{TokenArgs, TokenCommand, TokenCreateArgs};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{note, write_lines};
use crate::cli::trust::warn_if_local;

/// Answer of `POST /v1/tokens`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewToken {
    pub(super) token: String,
    expires_at: Timestamp,
    /// URLs of the reconcilers' APIs.
    pub(super) reconcilers: Vec<String>,
}

pub(in crate::cli) async fn run(args: &TokenArgs) -> Result<(), CliError> {
    let TokenCommand::Create(args) = &args.command;
    let identity = identity(args)?;
    let made = create(&Client::new(args.server.given())?, &identity, args.ttl).await?;
    write_lines(&(command(&identity, &made) + "\n"))?;
    warn_if_local(&made.reconcilers);
    note(&format!("run this on the new machine, as root; it is valid once, until {:.0}", made.expires_at));
    Ok(())
}

/// Creates a token for a machine that joins under this name.
///
/// # Errors
/// The reconciler refuses, or other machines have no way to it.
pub(super) async fn create(
    client: &Client,
    identity: &Identity,
    ttl: Duration,
) -> Result<NewToken, CliError> {
    let wanted = json!({"identity": identity, "ttlSeconds": ttl.as_secs()});
    let made: NewToken = client.post_json(&["tokens"], &wanted).await?;
    if made.reconcilers.is_empty() { Err(CliError::not_advertised()) } else { Ok(made) }
}

fn identity(args: &TokenCreateArgs) -> Result<Identity, CliError> {
    let (role, name) = match (&args.node, &args.reconciler) {
        (Some(node), _) => (Role::Node, node),
        (None, Some(reconciler)) => (Role::Reconciler, reconciler),
        (None, None) => return Err(CliError::Usage("name a --node or a --reconciler".to_owned())),
    };
    Identity::new(role, name).map_err(|error| CliError::Usage(error.to_string()))
}

/// Command for the machine that joins. The token is a variable: all users of a machine may read its command lines.
fn command(identity: &Identity, made: &NewToken) -> String {
    let (name, servers, token) = (identity.name(), made.reconcilers.join(","), &made.token);
    match identity.role() {
        Role::Node => format!("MINIK8S_JOIN_TOKEN={token} minik8s-agent join {servers} --node {name}"),
        _ => format!("MINIK8S_JOIN_TOKEN={token} minik8s join {servers} --name {name}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn typed(flags: &[&str]) -> Result<Identity, String> {
        let line = ["minik8s", "token", "create"].iter().chain(flags);
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Token(TokenArgs { command: TokenCommand::Create(args) }) => {
                identity(&args).map_err(|error| error.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_token_is_for_one_node_or_one_reconciler_with_a_name_that_a_certificate_can_have() {
        assert_eq!(typed(&["--node", "web-2"]).unwrap().to_string(), "node-web-2");
        assert_eq!(typed(&["--reconciler", "r2"]).unwrap().to_string(), "reconciler-r2");
        assert!(typed(&[]).is_err());
        assert!(typed(&["--node", "web-2", "--reconciler", "r2"]).is_err());
        let error = typed(&["--node", "Web_2"]).unwrap_err();
        assert!(error.contains("`Web_2` is no name for a certificate"), "{error}");
    }

    #[test]
    fn the_command_can_be_run_as_it_is_printed() {
        let made = NewToken {
            token: "0a.s.0b".to_owned(),
            expires_at: Timestamp::UNIX_EPOCH,
            reconcilers: vec!["https://10.0.0.5:7070".to_owned(), "https://10.0.0.6:7070".to_owned()],
        };
        assert_eq!(
            command(&"node-web-2".parse().unwrap(), &made),
            "MINIK8S_JOIN_TOKEN=0a.s.0b minik8s-agent join https://10.0.0.5:7070,https://10.0.0.6:7070 --node web-2"
        );
        let own = command(&"reconciler-r2".parse().unwrap(), &made);
        let (variable, line) = own.split_once(' ').unwrap();
        assert_eq!(variable, "MINIK8S_JOIN_TOKEN=0a.s.0b");
        let words = line.split(' ').chain(["--token", "0a.s.0b"]);
        let Command::Join(join) = Cli::try_parse_from(words).unwrap().command else { panic!("{own}") };
        assert_eq!(join.servers, made.reconcilers);
        assert_eq!((join.name.as_deref(), join.token), (Some("r2"), made.token));
    }
}
