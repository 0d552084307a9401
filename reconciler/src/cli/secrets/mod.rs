//! `minik8s secrets`: creates and maintains `secrets/` of a repository. Offline, except for `check --server`.
//!
//! Reads and writes the work tree; commits nothing. Plain `age` can do everything here as well:
//! docs/security.md has both.

use std::fs;
use std::process::ExitCode;

use age::x25519::Identity;
use anyhow::{Context as _, bail};
use schema::content_refs::{NOTIFICATIONS_NAMESPACE, SOURCES_NAMESPACE, is_sops};
use schema::violation::plural;

use super::output::write_lines;
use crate::args::{RecipientsChange, SecretsArgs, SecretsCommand};
use crate::crypt;

mod folder;
mod inspect;
mod manifests;
mod seal;
#[cfg(test)]
mod tests;

use folder::{ListedRecipient, SecretsFolder};

/// Runs a subcommand of `secrets`.
pub(super) async fn run(args: &SecretsArgs) -> anyhow::Result<ExitCode> {
    let folder = SecretsFolder::from_args(args)?;
    let said = match &args.command {
        SecretsCommand::Init { nodes } => init(&folder, nodes)?,
        SecretsCommand::Seal(args) => manifests::seal(&folder, args)?,
        SecretsCommand::Edit(which) => seal::edit(&folder, which).await?,
        SecretsCommand::Rotate => rotate(&folder)?,
        SecretsCommand::Check { server } => {
            return inspect::run(&folder, server.as_ref().map(Option::as_deref)).await;
        }
        SecretsCommand::Recipients { change } => recipients(&folder, change.as_ref())?,
    };
    write_lines(&said)?;
    Ok(ExitCode::SUCCESS)
}

fn init(folder: &SecretsFolder, nodes: &[String]) -> anyhow::Result<String> {
    if folder.identity_file().exists() {
        bail!(
            "{} exists already; 'minik8s secrets recipients add' lets another node read it, 'rotate' \
             creates a new one",
            folder.identity_file().display()
        );
    }
    let mut listed = folder.listed()?;
    for node in nodes {
        let (name, recipient) =
            node.split_once('=').with_context(|| format!("{node:?} is not written as NAME=RECIPIENT"))?;
        add(&mut listed, name, recipient, false)?;
    }
    let mut said = String::new();
    let own = if let Some(own) = folder.own()? {
        own.first().context("no identity")?.to_public()
    } else {
        let (made, path) = folder.make_own()?;
        said += &format!("created your identity {}: keep a copy in a safe place\n", path.display());
        made.to_public()
    };
    if !listed.iter().any(|one| one.recipient == own.to_string()) {
        let name = std::env::var("USER").unwrap_or_else(|_| "me".to_owned());
        let (name, recipient) = (format!("operator {name}"), own.to_string());
        listed.push(ListedRecipient { name, recipient, is_reconciler: false });
    }
    let cluster = Identity::generate();
    folder.list(&listed)?;
    folder.write_cluster(std::slice::from_ref(&cluster), &listed)?;
    said += &format!(
        "created the cluster's identity {}, which {} can decrypt; its recipient is {}\n",
        folder.identity_file().display(),
        names(&listed),
        cluster.to_public()
    );
    said += "commit secrets/ in the source of the Cluster object; without a Cluster object nodes do not look for it\n";
    Ok(said)
}

fn names(listed: &[ListedRecipient]) -> String {
    listed.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn add(
    listed: &mut Vec<ListedRecipient>,
    name: &str,
    recipient: &str,
    is_reconciler: bool,
) -> anyhow::Result<()> {
    let recipient = crypt::recipient(recipient)?.to_string();
    if name.trim().is_empty() || name.contains(['\n', '#', ':']) || name == seal::CLUSTER {
        bail!("{name:?} can't name a recipient");
    }
    if let Some(known) = listed.iter().find(|one| one.recipient == recipient) {
        bail!("{recipient} is already on the list, as {}", known.name);
    }
    if listed.iter().any(|one| one.name == name) {
        bail!(
            "{name} is already on the list; 'minik8s secrets recipients remove {name}' removes its old \
             recipient"
        );
    }
    listed.push(ListedRecipient { name: name.to_owned(), recipient, is_reconciler });
    Ok(())
}

fn recipients(folder: &SecretsFolder, change: Option<&RecipientsChange>) -> anyhow::Result<String> {
    let mut listed = folder.listed()?;
    let said = match change {
        None => {
            let kind = |one: &ListedRecipient| if one.is_reconciler { "reconciler " } else { "" };
            let lines = listed.iter().map(|one| format!("{}  {}{}\n", one.recipient, kind(one), one.name));
            return Ok(lines.collect());
        }
        Some(RecipientsChange::Add { name, recipient, reconciler: true }) => {
            add(&mut listed, name, recipient, true)?;
            folder.list(&listed)?;
            return Ok(format!(
                "'minik8s secrets seal SOURCE -n {SOURCES_NAMESPACE} --from FILE' encrypts to {name}, too, and so \
                 does '-n {NOTIFICATIONS_NAMESPACE}'\n"
            ));
        }
        Some(RecipientsChange::Add { name, recipient, reconciler: false }) => {
            // A recipient already listed, by hand or by a merge, only needs the identity to be encrypted to it.
            let is_same = |one: &ListedRecipient| {
                one.name == *name && one.recipient == *recipient && !one.is_reconciler
            };
            if !listed.iter().any(is_same) {
                add(&mut listed, name, recipient, false)?;
            }
            format!("{name} can decrypt the cluster's identity once this is pushed; no secret changes\n")
        }
        Some(RecipientsChange::Remove { name }) => {
            let before = listed.len();
            listed.retain(|one| one.name != *name);
            if listed.len() == before {
                bail!("{name} is not on the list, which has {}", names(&listed));
            }
            format!(
                "removed {name} from the list; it may have kept what it could read: see 'minik8s secrets \
                 rotate'\n"
            )
        }
    };
    let identities = folder.cluster_identities()?;
    if let Some(own) = folder.own()?
        && !own.iter().any(|own| {
            listed.iter().any(|one| !one.is_reconciler && one.recipient == own.to_public().to_string())
        })
    {
        bail!("you could no longer read it yourself; have someone else remove you from the list");
    }
    folder.list(&listed)?;
    folder.write_cluster(&identities, &listed)?;
    Ok(said)
}

fn rotate(folder: &SecretsFolder) -> anyhow::Result<String> {
    let listed = folder.listed()?;
    let former = folder.cluster_identities()?;
    let (newest, _) = former.split_first().context("there is no identity")?;
    let (mut opened, mut others, mut sops, mut is_unfinished) = (Vec::new(), Vec::new(), Vec::new(), false);
    let mut said = String::new();
    for (_, _, path) in folder.secrets()? {
        let file = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let here = || path.display().to_string();
        if is_sops(&path.to_string_lossy()) {
            sops.push((String::from_utf8_lossy(&file).into_owned(), path));
        } else if let Some(plain) = crypt::decrypt(&file, &former).with_context(here)? {
            is_unfinished |=
                crypt::decrypt(&file, std::slice::from_ref(newest)).with_context(here)?.is_none();
            if crypt::recipients_of(&file).with_context(here)? > 1 {
                said += &format!(
                    "{} had recipients other than the cluster, which can no longer read it: 'minik8s \
                     secrets seal' with --to cluster and --to for each of them adds them again\n",
                    path.display()
                );
            }
            opened.push((plain, path));
        } else {
            others.push(path);
        }
    }
    let new = Identity::generate();
    // Keep the previous identity, for pods that start before their new secret arrives, and every identity that a SOPS
    // file or a secret left by an interrupted rotation needs. Written first, so that an interruption leaves only
    // secrets that the identities decrypt.
    let is_kept = |(index, one): &(usize, &Identity)| {
        let recipient = one.to_public().to_string();
        is_unfinished || *index == 0 || sops.iter().any(|(text, _)| text.contains(&recipient))
    };
    let kept = former.iter().enumerate().filter(is_kept).map(|(_, one)| one.clone());
    let identities: Vec<Identity> = std::iter::once(new.clone()).chain(kept).collect();
    folder.write_cluster(&identities, &listed)?;
    let to = [new.to_public()];
    for (plain, path) in &opened {
        folder.replace(path, &crypt::encrypt(plain, &to)?)?;
    }
    said += &format!(
        "encrypted {} below {} to a new identity of the cluster; those in other folders or repositories stay as they \
         are\n",
        plural(opened.len(), "secret"),
        folder.root.display()
    );
    for (_, path) in &sops {
        said += &format!(
            "{} stays as it is: run 'sops rotate -i --add-age {}' with --rm-age for the previous recipient\n",
            path.display(),
            to[0]
        );
    }
    for path in others {
        said += &format!("{} is encrypted to single recipients and stays as it is\n", path.display());
    }
    said += "a node or person that could read the old one may know the values: change those, too\n";
    Ok(said)
}
