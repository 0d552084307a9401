//! `minik8s user`: people and programs that view the cluster from elsewhere, each with a certificate.

use jiff::Timestamp;
use schema::control::DiskRecord;
use schema::trust::{Identity, JoinAnswer, KeyPair, Role, TrustError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::{Format, UserAddArgs, UserArgs, UserCommand, UserListArgs, UserRemoveArgs};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{
    Row, TableItem, TableOptions, json as pretty, note, print_list, write_lines, write_out,
};
use crate::cli::server::UserFile;
use crate::cli::trust::warn_if_local;
use crate::view::List;

pub(in crate::cli) async fn run(args: &UserArgs) -> Result<(), CliError> {
    match &args.command {
        UserCommand::Add(args) => add(args).await,
        UserCommand::Remove(args) => remove(args).await,
        UserCommand::List(args) => list(args).await,
    }
}

fn identity(name: &str) -> Result<Identity, CliError> {
    Identity::new(Role::User, name).map_err(|error| CliError::Usage(error.to_string()))
}

async fn add(args: &UserAddArgs) -> Result<(), CliError> {
    let identity = identity(&args.name)?;
    let client = Client::new(args.server.given())?;
    let failed = |error: TrustError| CliError::NotReached(error.to_string());
    let key = KeyPair::generate().map_err(failed)?;
    let wanted = json!({
        "name": identity.name(),
        "signingRequest": key.signing_request(&identity).map_err(failed)?,
        "lifetimeSeconds": args.lifetime.as_secs(),
    });
    let signed: JoinAnswer = client.post_json(&["users"], &wanted).await?;
    if signed.reconcilers.is_empty() {
        return Err(CliError::not_advertised());
    }
    warn_if_local(&signed.reconcilers);
    let file = UserFile {
        servers: signed.reconcilers,
        authorities: signed.authorities,
        certificate: signed.certificate,
        key: key.to_pem().map_err(failed)?,
    };
    let text = pretty(&file)?;
    let how = "holds a private key: hand it over where nobody else can read it. Its user saves it as \
               ~/.config/minik8s/user.json with mode 0600, or names it in MINIK8S_CONFIG";
    match &args.output {
        // Only its owner can read what this writes.
        Some(path) => {
            let written = DiskRecord::new(path).write_bytes(text.as_bytes());
            written
                .map_err(|error| CliError::NotReached(format!("cannot write {}: {error}", path.display())))?;
            write_lines(&format!("{} {how}\n", path.display()))
        }
        None => {
            write_out(&text)?;
            note(&format!("this {how}"));
            Ok(())
        }
    }
}

async fn remove(args: &UserRemoveArgs) -> Result<(), CliError> {
    let identity = identity(&args.name)?;
    let client = Client::new(args.server.given())?;
    let _: Value = client.post(&["identities", &identity.to_string(), "remove"], &[]).await?;
    write_lines(&format!(
        "removed {}: reconcilers refuse the file now, and nodes within 15 s\n",
        identity.name()
    ))
}

/// An item of `GET /v1/identities`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IdentityRow {
    pub(super) identity: Identity,
    pub(super) key: String,
    not_after: Timestamp,
    joined_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recipient: Option<String>,
}

impl TableItem for IdentityRow {
    fn id(&self) -> String {
        format!("{}/{}", self.identity.role(), self.identity.name())
    }

    fn row(&self, row: Row) -> Row {
        row.col("NAME", self.identity.name())
            .col("ADDED", format!("{:.0}", self.joined_at))
            .col("CERTIFICATE-ENDS", format!("{:.0}", self.not_after))
            .wide("KEY", &self.key)
    }
}

async fn list(args: &UserListArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let List { items } = client.get::<List<IdentityRow>>(&["identities"], &[]).await?;
    let users: Vec<IdentityRow> =
        items.into_iter().filter(|item| item.identity.role() == Role::User).collect();
    let format = args.output.output;
    if users.is_empty() && matches!(format, Format::Table | Format::Wide) {
        note("no users; 'minik8s user add NAME' adds one");
        return Ok(());
    }
    print_list(&users, format, TableOptions { wide: format == Format::Wide, ..TableOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::list_text;

    #[test]
    fn users_are_listed_with_the_ends_of_their_certificates() {
        let users: Vec<IdentityRow> = serde_json::from_value(json!([{
            "identity": "user-ada",
            "key": "sha256:0a",
            "notAfter": "2030-01-31T12:00:00.5Z",
            "joinedAt": "2030-01-01T12:00:00Z",
        }]))
        .unwrap();
        let wide = TableOptions { wide: true, ..TableOptions::default() };
        insta::assert_snapshot!(list_text(&users, Format::Wide, wide).unwrap(), @r"
        NAME   ADDED                  CERTIFICATE-ENDS       KEY
        ada    2030-01-01T12:00:00Z   2030-01-31T12:00:00Z   sha256:0a
        ");
        assert_eq!(list_text(&users, Format::Name, TableOptions::default()).unwrap(), "user/ada\n");
    }
}
