//! Secrets as a person would make them: encrypted with the program `age` to a node's recipient.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use schema::keys::Key;
use schema::records::NodeRecord;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};

/// A secret of a namespace (`*` for all), encrypted to the recipient.
pub fn sealed(recipient: &str, namespace: &str, name: &str, values: &str) -> Result<String> {
    encrypted(recipient, &format!("namespace: \"{namespace}\"\nname: {name}\n---\n{values}"))
}

/// Encrypts a text to the recipient.
pub fn encrypted(recipient: &str, plain: &str) -> Result<String> {
    encrypted_to(&[recipient.to_owned()], plain)
}

/// Encrypts a text to several recipients.
pub fn encrypted_to(recipients: &[String], plain: &str) -> Result<String> {
    let mut age = Command::new("age")
        .arg("-a")
        .args(recipients.iter().flat_map(|recipient| ["-r", recipient]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run age; install it (Debian: 'apt-get install age')")?;
    let (mut stdin, plain) = (age.stdin.take().context("a pipe")?, plain.to_owned());
    // age writes before it has read everything.
    let writer = std::thread::spawn(move || stdin.write_all(plain.as_bytes()));
    let written = age.wait_with_output()?.stdout;
    writer.join().ok().context("the thread that writes panicked")??;
    Ok(String::from_utf8(written)?)
}

/// Recipient for secrets of the cluster's first node.
pub fn recipient(cluster: &Cluster) -> Result<String> {
    recipient_of(cluster, 1)
}

/// Recipient for secrets of the node of that number.
pub fn recipient_of(cluster: &Cluster, number: usize) -> Result<String> {
    let name = &cluster.numbered(number)?.name;
    let node: NodeRecord =
        eventually("the node has a recipient", secs(40), || cluster.etcd.value(Key::Node(name.clone())))?;
    node.age_recipient.context("the node's record names no recipient")
}
