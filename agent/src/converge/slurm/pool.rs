//! Check that the login hosts of a pool share the parent of the jobs' folders: otherwise a job submitted by one of
//! them would be lost to the others.

use jiff::{SignedDuration, Timestamp};
use schema::codec::content_hash;
use schema::control::lock;

use super::act::{ASK_MAX, Failed, SeenPool, Trust, Worker};
use super::commands;
use super::machine::JobRecord;
use crate::worlds::ssh::{LoginHost, RemoteCommand, RemoteOutput, SshError};

/// Time after which a pool with an unresponsive host is checked again.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);

impl Worker {
    /// Creates a marker through one host and looks for it from the others. True if all of them answered; an error
    /// if one can't find it.
    pub(super) async fn check_pool(&self, record: &JobRecord, trust: Trust) -> Result<bool, Failed> {
        let spec = &record.order.spec;
        if spec.login.login_pool.is_empty() {
            return Ok(true);
        }
        let (login, now) = (&spec.login, Timestamp::now());
        let pool = (login.clone(), spec.work_dir.clone().unwrap_or_default());
        let seen = lock(&self.pools).get(&pool).copied().filter(|_| trust == Trust::WhatWasSeen);
        if let Some(seen) = seen.filter(|seen| seen.is_whole || now.duration_since(seen.at) < AGAIN) {
            return Ok(seen.is_whole);
        }
        let host = self.host(record).await?;
        let marker = format!(".minik8s-{}", &content_hash(&(&record.order.uid, now))[..16]);
        let first = lock(&self.answering).get(login).copied().unwrap_or_default();
        let hosts: Vec<&String> = spec.login.hosts().collect();
        let mut writer = None;
        let (mut is_whole, mut blind) = (true, Vec::new());
        for name in (0..hosts.len()).map(|offset| hosts[(first + offset) % hosts.len()]) {
            let text = match writer {
                None => commands::leave_marker(spec, &marker),
                Some(_) => commands::find_marker(spec, &marker),
            };
            match (self.at(&host, name, text).await, writer) {
                (Err(SshError::Unreachable(_)), _) => is_whole = false,
                (Err(error), _) => return Err(error.into()),
                (Ok(output), None) if output.code == 0 => writer = Some(name),
                (Ok(output), None) => {
                    return Err(Failed::of("cannot write to the folder of the jobs", &output));
                }
                (Ok(output), Some(_)) if output.code == 0 => {}
                (Ok(_), Some(_)) => blind.push(name.as_str()),
            }
        }
        let Some(writer) = writer else { return Ok(false) };
        let _ = self.at(&host, writer, commands::remove_marker(spec, &marker)).await;
        if blind.is_empty() {
            lock(&self.pools).insert(pool, SeenPool { at: now, is_whole });
            return Ok(is_whole);
        }
        let folder = commands::folder(spec, "");
        Err(Failed::from(format!(
            "the hosts of loginPool do not share the folder {folder}: what {writer} writes there is not seen from {}; name a \
             shared one in workDir, or take hosts off loginPool",
            blind.join(", ")
        )))
    }

    async fn at(&self, host: &LoginHost, name: &str, text: String) -> Result<RemoteOutput, SshError> {
        let mut host = host.clone();
        host.login.host = Some(name.to_owned());
        let stdin = bytes::Bytes::new();
        self.ssh.run(&host, RemoteCommand { text, stdin, timeout: ASK_MAX, stdout_max: 0 }).await
    }
}
