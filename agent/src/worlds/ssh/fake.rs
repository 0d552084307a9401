//! A login host that is a folder of this machine: commands run in its shell, and its `bin` holds the Slurm programs
//! that a test wrote.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use async_trait::async_trait;
use schema::control::lock;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::{LoginHost, RemoteCommand, RemoteOutput, Ssh, SshError};

/// A fake login host.
pub struct FakeLoginHost {
    home: PathBuf,
    /// Faults of the next commands; unless the fault is `Unreachable`, the command is still carried out.
    pub faults: Mutex<Vec<Option<SshError>>>,
    /// Hosts with their own home folder.
    pub homes: Mutex<std::collections::BTreeMap<String, PathBuf>>,
    /// Names of the hosts that commands ran on.
    pub asked: Mutex<Vec<String>>,
}

impl FakeLoginHost {
    pub fn new(home: &Path) -> Self {
        std::fs::create_dir_all(home.join("bin")).unwrap();
        Self {
            home: home.to_owned(),
            faults: Mutex::default(),
            homes: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Adds a program to the host.
    pub fn program(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.home.join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[async_trait]
impl Ssh for FakeLoginHost {
    async fn run(&self, host: &LoginHost, command: RemoteCommand) -> Result<RemoteOutput, SshError> {
        lock(&self.asked).push(host.login.host.clone().unwrap_or_default());
        let fault = lock(&self.faults).pop().flatten();
        if let Some(error @ SshError::Unreachable(_)) = fault {
            return Err(error);
        }
        let name = host.login.host.clone().unwrap_or_default();
        let home = lock(&self.homes).get(&name).cloned().unwrap_or_else(|| self.home.clone());
        let path = format!("{}:{}", self.home.join("bin").display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("sh")
            .args(["-c", &command.text])
            .current_dir(&home)
            .env("PATH", path)
            .env("HOME", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(&command.stdin).await;
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        if let Some(error) = fault {
            return Err(error);
        }
        let mut stdout = output.stdout;
        stdout.truncate(usize::try_from(command.stdout_max).unwrap());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(RemoteOutput { code: output.status.code().unwrap_or(-1), stdout, stderr })
    }
}
