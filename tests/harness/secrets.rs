//! Secrets as a person would make them: with the program `age`, for a node's recipient.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use schema::keys::Key;
use schema::records::NodeRecord;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};

/// The text, encrypted for the recipient.
pub fn encrypted(recipient: &str, plain: &str) -> Result<String> {
    let mut age = Command::new("age")
        .args(["-a", "-r", recipient])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run age; install it (Debian: 'apt-get install age')")?;
    age.stdin.take().context("a pipe")?.write_all(plain.as_bytes())?;
    Ok(String::from_utf8(age.wait_with_output()?.stdout)?)
}

/// For whom to encrypt what the cluster's first node reads.
pub fn recipient(cluster: &Cluster) -> Result<String> {
    let node: NodeRecord = eventually("the node has a recipient", secs(20), || {
        cluster.etcd.value(Key::Node(cluster.node().name.clone()))
    })?;
    node.age_recipient.context("the node's record names no recipient")
}
