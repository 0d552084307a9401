//! `minik8s secrets check`: verifies the recipients, and that each secret matches its path.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use age::x25519::Identity;
use anyhow::Context as _;
use schema::content_refs::{is_ciphertext, is_sops};
use schema::secrets::format;
use schema::secrets::format::ANY;
use schema::violation::plural;

use super::folder::{ListedRecipient, SecretsFolder, is_for_reconcilers, keys_file};
use crate::cli::client::Client;
use crate::cli::output::write_lines;
use crate::crypt;
use crate::text_file::read_text;
use crate::view::{List, NodeView};

/// Recipients that a node reports.
pub(super) struct NodeRecipients {
    pub(super) name: String,
    /// Recipient of the node's own identity; `None` if it has none.
    pub(super) recipient: Option<String>,
    /// Recipient of the cluster's identity that the node has.
    pub(super) cluster: Option<String>,
}

/// Exit code: 0 without problems.
pub(super) async fn run(folder: &SecretsFolder, server: Option<Option<&str>>) -> anyhow::Result<ExitCode> {
    let FileCheck { mut problems, notes, secrets } = check_files(folder)?;
    let listed = folder.listed()?;
    let mut said = format!("{}, {}", plural(secrets, "secret"), plural(listed.len(), "recipient"));
    if let Some(server) = server {
        let List { items: nodes } = Client::new(server)?.get::<List<NodeView>>(&["nodes"], &[]).await?;
        let nodes: Vec<NodeRecipients> = nodes
            .into_iter()
            .map(|node| NodeRecipients {
                name: node.name,
                recipient: node.age_recipient,
                cluster: node.cluster_recipient,
            })
            .collect();
        let _ = write!(said, ", {}", plural(nodes.len(), "node"));
        // Without an identity of the cluster, which is reported where it is needed, there is nothing for nodes to read.
        if folder.identity_file().exists() {
            let cluster = folder.cluster().ok().map(|cluster| cluster.to_string());
            problems.extend(node_problems(&listed, cluster.as_deref(), &nodes));
        }
    }
    let lines: String = notes.iter().chain(&problems).map(|line| format!("{line}\n")).collect();
    if problems.is_empty() {
        write_lines(&format!("{lines}{said}: all well\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    write_lines(&format!("{lines}{said}: {}\n", plural(problems.len(), "problem")))?;
    Ok(ExitCode::FAILURE)
}

/// Problems of nodes that can't read secrets encrypted to the cluster. Pure.
pub(super) fn node_problems(
    listed: &[ListedRecipient],
    cluster: Option<&str>,
    nodes: &[NodeRecipients],
) -> Vec<String> {
    let mut problems = Vec::new();
    for NodeRecipients { name, recipient, cluster: has } in nodes {
        let Some(recipient) = recipient else {
            problems
                .push(format!("node {name} has no identity and can't read any secret; see its agent's log"));
            continue;
        };
        if !listed.iter().any(|one| !one.is_reconciler && one.recipient == *recipient) {
            problems.push(format!(
                "node {name} can't read the cluster's secrets: 'minik8s secrets recipients add {name} {recipient}'"
            ));
        } else if cluster.is_some() && has.as_deref() != cluster {
            problems.push(format!(
                "node {name} does not have the newest cluster identity and can't read secrets encrypted to it; push \
                 it, and see the log of the node's agent"
            ));
        }
        let stale =
            listed.iter().find(|one| !one.is_reconciler && one.name == *name && one.recipient != *recipient);
        problems.extend(stale.map(|one| {
            format!(
                "the list has {} for {name}, but the node reports {recipient}; one of them is wrong",
                one.recipient
            )
        }));
    }
    problems
}

/// Result of checking the files.
#[derive(Debug, Default)]
pub(super) struct FileCheck {
    pub(super) problems: Vec<String>,
    /// Notes on secrets that can't be checked.
    pub(super) notes: Vec<String>,
    pub(super) secrets: usize,
}

/// Checks the files of the folder.
pub(super) fn check_files(folder: &SecretsFolder) -> anyhow::Result<FileCheck> {
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let (listed, secrets) = (folder.listed()?, folder.secrets()?);
    // The cluster's identity is for nodes and people.
    let is_needed = secrets.iter().any(|(namespace, ..)| !is_for_reconcilers(namespace.as_deref()))
        || listed.iter().any(|one| !one.is_reconciler)
        || secrets.is_empty();
    let identities = match is_needed || folder.identity_file().exists() {
        true => check_identity(folder, &listed, &mut problems)?,
        false => None,
    };
    let own = folder.own().ok().flatten();
    let known: Vec<Identity> = identities.iter().chain(&own).flatten().cloned().collect();
    for (namespace, name, path) in &secrets {
        let shown = path.display();
        let ciphertext = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        if !is_ciphertext(&ciphertext) && !is_sops(&shown.to_string()) {
            problems
                .push(format!("{shown} is not encrypted: seal it, and change its values before you push it"));
            continue;
        }
        if is_for_reconcilers(namespace.as_deref()) {
            match reconciler_problem(&ciphertext, &listed, &known) {
                Some(why) => problems.push(format!(
                    "{shown} {why}: seal it again, which encrypts it to the reconcilers on the list"
                )),
                None => notes.push(format!(
                    "{shown} has as many recipients as the list has reconcilers: whether they are the same is unknown"
                )),
            }
            continue;
        }
        let Some(identities) = &identities else { continue };
        match crypt::open_secret(path, &ciphertext, identities) {
            Ok(Some(plain)) => problems.extend(content_problems(namespace.as_deref(), name, path, &plain)),
            // Only its recipients can check its content.
            Ok(None) => notes.push(format!(
                "{shown} is encrypted to single recipients: whether they can read it is unknown"
            )),
            Err(error) => problems.push(format!("{shown} can't be decrypted: {error}")),
        }
    }
    Ok(FileCheck { problems, notes, secrets: secrets.len() })
}

/// Reason why reconcilers can't read a secret that is for them, or others can. Of its recipients, a file shows only the
/// number; `known` are identities of which none should decrypt it, unless it is a reconciler's.
fn reconciler_problem(ciphertext: &[u8], listed: &[ListedRecipient], known: &[Identity]) -> Option<String> {
    let reconcilers: Vec<&str> =
        listed.iter().filter(|one| one.is_reconciler).map(|one| one.recipient.as_str()).collect();
    let is_other = |one: &&Identity| !reconcilers.contains(&one.to_public().to_string().as_str());
    let others: Vec<Identity> = known.iter().filter(is_other).cloned().collect();
    match (crypt::recipients_of(ciphertext), crypt::decrypt(ciphertext, &others)) {
        (Err(why), _) | (_, Err(why)) => Some(format!("can't be decrypted: {why:#}")),
        (_, Ok(Some(_))) => {
            Some("is encrypted to the cluster or to you, not to reconcilers alone".to_owned())
        }
        (Ok(count), Ok(None)) => (count != reconcilers.len()).then(|| {
            let wanted = plural(reconcilers.len(), "reconciler");
            format!("is encrypted to {}, but the list has {wanted}", plural(count, "recipient"))
        }),
    }
}

/// Checks what was decrypted.
fn content_problems(namespace: Option<&str>, name: &str, path: &Path, plain: &[u8]) -> Vec<String> {
    let shown = path.display();
    let (header, values) = match format::split(plain) {
        Ok(split) => split,
        Err(why) => {
            let place = namespace.map_or("--shared".to_owned(), |namespace| format!("-n {namespace}"));
            return vec![format!("{shown} {why}: 'minik8s secrets seal {name} {place}' adds it")];
        }
    };
    let mut problems = Vec::new();
    let place = namespace.unwrap_or(ANY);
    // `secrets/NAME.age` may be for one namespace as well as for all.
    let is_here = namespace.is_none() || header.namespace == place || header.namespace == ANY;
    if header.name != name || !is_here {
        problems
            .push(format!("{shown} is for {}/{}: nothing can use it here", header.namespace, header.name));
    }
    match format::entries(header.format, values) {
        Err(why) => problems.push(format!("{shown} {why}")),
        Ok(entries) => {
            let text = read_text(&keys_file(path)).unwrap_or_default();
            let listed: BTreeSet<&str> =
                text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            if !text.is_empty() && listed != entries.keys().map(String::as_str).collect() {
                problems.push(format!(
                    "{} lists different keys than {shown}; 'minik8s secrets seal' writes both",
                    keys_file(path).display()
                ));
            }
        }
    }
    problems
}

/// Checks the cluster's identity; returns the identities that decrypt secrets, if this person can decrypt them.
fn check_identity(
    folder: &SecretsFolder,
    listed: &[ListedRecipient],
    problems: &mut Vec<String>,
) -> anyhow::Result<Option<Vec<Identity>>> {
    let path = folder.identity_file();
    if !path.exists() {
        problems.push(format!("{} does not exist; 'minik8s secrets init' creates it", path.display()));
        return Ok(None);
    }
    let count = match crypt::recipients_of(&fs::read(&path)?) {
        Ok(count) => count,
        Err(why) => {
            problems
                .push(format!("{} is damaged: {why}; restore the previous version from Git", path.display()));
            return Ok(None);
        }
    };
    let wanted = listed.iter().filter(|one| !one.is_reconciler).count();
    if count != wanted {
        problems.push(format!(
            "{} is encrypted to {}, but the list has {wanted}: run 'minik8s secrets recipients add' again for any node \
             on the list to encrypt it to all of them",
            path.display(),
            plural(count, "recipient"),
        ));
    }
    match folder.cluster_identities() {
        Ok(identities) => {
            let newest = identities.first().map(|identity| identity.to_public().to_string());
            let written = folder.cluster().ok().map(|cluster| cluster.to_string());
            if newest != written {
                problems.push(
                    "the recipient stored with the cluster's identity does not match it; 'minik8s secrets \
                     rotate' repairs both"
                        .to_owned(),
                );
            }
            Ok(Some(identities))
        }
        Err(error) => {
            problems.push(format!("the content of the secrets was not checked: {error:#}"));
            Ok(None)
        }
    }
}
