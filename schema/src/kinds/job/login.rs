//! Login for submitting jobs, of a single job or of the Cluster object for all jobs.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::kinds::pod::SecretKeyRef;
use crate::names::is_name;
use crate::violation::{Findings, Path, rules};

/// Default port of sshd, if neither the job nor the Cluster object sets one.
pub const DEFAULT_SSH_PORT: u16 = 22;

/// A login host of a Slurm cluster. Keys and passwords are named, never written: they are stored age-encrypted in
/// the repository.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct SlurmLogin {
    /// Host name or IP address.
    pub host: Option<String>,
    /// Port of the SSH server; defaults to 22.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// User who submits jobs.
    pub username: Option<String>,
    /// Secret with the private key.
    pub ssh_key: Option<SecretKeyRef>,
    /// Secret with the password, for hosts that accept no key.
    pub password: Option<SecretKeyRef>,
    /// Public keys of the host, as `ssh-keyscan` prints them, without the host: `ssh-ed25519 AAAA…`. No other host
    /// is contacted. Defaults to those of the agent's `known_hosts`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<String>,
    /// Further login hosts of the same Slurm cluster, which share the home folder: each is used while the hosts
    /// before it can't be reached. User, port, credential and jump host are the same; `hostKeys` has the keys of
    /// all hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub login_pool: Vec<String>,
    /// Host through which the login host is reached, with the same key or password.
    pub jump_host: Option<JumpHost>,
}

/// A host between the node and the login host.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct JumpHost {
    /// Host name or IP address.
    pub host: String,
    /// Port of the SSH server; defaults to 22.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// User on the jump host; defaults to that of the login.
    pub username: Option<String>,
    /// Public keys of the jump host, in the format of those of the login host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<String>,
}

impl SlurmLogin {
    /// True if both logins are the same user at the same login host.
    pub fn is_same_account(&self, other: &Self) -> bool {
        self.host == other.host && self.username == other.username
    }

    /// Returns the login hosts in order of preference.
    pub fn hosts(&self) -> impl Iterator<Item = &String> {
        self.host.iter().chain(&self.login_pool)
    }

    /// Returns this login, with missing fields taken from `cluster`. Host keys belong to their host, so they are
    /// taken over only if the job names no host. The Cluster's credential is used only with the Cluster's host and
    /// user: a job that sets any part of the login must name its own credential.
    pub fn or(&self, cluster: &Self) -> Self {
        let own_host = self.host.is_some();
        let own_credentials = self.ssh_key.is_some()
            || self.password.is_some()
            || own_host
            || self.port.is_some()
            || self.username.is_some()
            || !self.host_keys.is_empty()
            || !self.login_pool.is_empty()
            || self.jump_host.is_some();
        let of_host = if own_host { self } else { cluster };
        let of_user = if own_credentials { self } else { cluster };
        Self {
            host: of_host.host.clone(),
            port: self.port.or(of_host.port),
            username: self.username.clone().or_else(|| cluster.username.clone()),
            ssh_key: of_user.ssh_key.clone(),
            password: of_user.password.clone(),
            host_keys: if self.host_keys.is_empty() {
                of_host.host_keys.clone()
            } else {
                self.host_keys.clone()
            },
            login_pool: if self.login_pool.is_empty() {
                of_host.login_pool.clone()
            } else {
                self.login_pool.clone()
            },
            jump_host: of_host.jump_host.clone(),
        }
    }

    /// Returns the secrets that the login names, each with its field.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &SecretKeyRef)> {
        let key = self.ssh_key.iter().map(|secret| ("sshKey", secret));
        key.chain(self.password.iter().map(|secret| ("password", secret)))
    }

    /// Checks the login as written.
    pub(crate) fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        if let Some(host) = self.host.as_deref().filter(|host| !is_host(host)) {
            let message =
                format!("Invalid value: `{}`: must be a host name or an IP address", host.escape_debug());
            findings
                .add(&rules::SLURM_OPTION, &at.field("host"), message)
                .help("user and port have their own fields: username, port");
        }
        let pool = at.field("loginPool");
        for (index, host) in self.login_pool.iter().enumerate().filter(|(_, host)| !is_host(host)) {
            let message =
                format!("Invalid value: `{}`: must be a host name or an IP address", host.escape_debug());
            findings.add(&rules::SLURM_OPTION, &pool.index(index), message);
        }
        if let Some(user) = self.username.as_deref().filter(|user| !is_user(user)) {
            let message = format!("Invalid value: `{}`: not a valid user name", user.escape_debug());
            findings.add(&rules::SLURM_OPTION, &at.field("username"), message);
        }
        for (field, secret) in [("sshKey", &self.ssh_key), ("password", &self.password)] {
            let Some(secret) = secret else { continue };
            let here = at.field(field);
            for (part, value) in [("name", &secret.name), ("key", &secret.key)] {
                if !is_name(value) {
                    let message = format!(
                        "Invalid value: `{}`: a name consists of letters, digits, '-', '_' and '.'",
                        value.escape_debug()
                    );
                    findings.add(&rules::INVALID_NAME, &here.field(part), message);
                }
            }
        }
        if self.ssh_key.is_some() && self.password.is_some() {
            let message = "Forbidden: may not be set together with `sshKey`";
            findings.add(&rules::EXCLUSIVE, &at.field("password"), message).on_key();
        }
        check_keys(&self.host_keys, &at.field("hostKeys"), findings);
        let Some(jump) = &self.jump_host else { return };
        let here = at.field("jumpHost");
        if !is_host(&jump.host) {
            let message = format!(
                "Invalid value: `{}`: must be a host name or an IP address",
                jump.host.escape_debug()
            );
            findings.add(&rules::SLURM_OPTION, &here.field("host"), message);
        }
        if let Some(user) = jump.username.as_deref().filter(|user| !is_user(user)) {
            let message = format!("Invalid value: `{}`: not a valid user name", user.escape_debug());
            findings.add(&rules::SLURM_OPTION, &here.field("username"), message);
        }
        check_keys(&jump.host_keys, &here.field("hostKeys"), findings);
    }
}

fn check_keys(host_keys: &[String], keys: &Path<'_>, findings: &mut Findings) {
    for (index, key) in host_keys.iter().enumerate() {
        if !is_public_key(key) {
            let message =
                format!("Invalid value: `{}`: not a public key of an SSH server", key.escape_debug());
            findings
                .add(&rules::SLURM_OPTION, &keys.index(index), message)
                .help("write type and key as `ssh-keyscan HOST` prints them, without the host");
        }
    }
}

/// True for an IP address, or for labels of letters, digits, `_` and inner dashes, in any case. Never an option of
/// ssh.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && text.split('.').all(is_label))
}

/// True for a login name as Linux and directories allow it; never an option of ssh.
fn is_user(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@' | b'+'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// True for `type base64 [comment]`, with a type that OpenSSH has for hosts.
fn is_public_key(text: &str) -> bool {
    const TYPES: [&str; 7] = [
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ];
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    let mut words = text.split(' ');
    !text.contains(char::is_control)
        && words.next().is_some_and(|kind| TYPES.contains(&kind))
        && words.next().is_some_and(|key| key.len() >= 16 && key.bytes().all(is_base64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_a_host_of_its_own_does_not_take_the_clusters_host_keys() {
        let cluster = SlurmLogin {
            host: Some("login.example.edu".to_owned()),
            port: Some(2222),
            username: Some("alice".to_owned()),
            ssh_key: Some(SecretKeyRef { name: "hpc".to_owned(), key: "id".to_owned() }),
            host_keys: vec!["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5".to_owned()],
            ..SlurmLogin::default()
        };
        assert_eq!(SlurmLogin::default().or(&cluster), cluster);
        let own = SlurmLogin { host: Some("other".to_owned()), ..SlurmLogin::default() };
        let both = own.or(&cluster);
        assert_eq!((both.host, both.port, both.host_keys), (own.host, None, vec![]));
        assert_eq!(
            (both.ssh_key, both.password),
            (None, None),
            "the Cluster's key is for the Cluster's host"
        );
        let own =
            SlurmLogin { port: Some(2022), host_keys: vec!["ssh-rsa x".to_owned()], ..SlurmLogin::default() };
        assert_eq!(own.or(&cluster).ssh_key, None, "nor for another server on it");
        let password = SecretKeyRef { name: "hpc".to_owned(), key: "password".to_owned() };
        let own = SlurmLogin { password: Some(password), ..SlurmLogin::default() };
        assert_eq!(own.or(&cluster).ssh_key, None, "one credential, the job's");
        let own = SlurmLogin { login_pool: vec!["other".to_owned()], ..SlurmLogin::default() };
        assert_eq!(own.or(&cluster).ssh_key, None, "nor for further hosts that a job names");
    }

    #[test]
    fn hosts_and_users_are_never_options_or_commands() {
        for good in ["login", "a.b-c.example.edu", "10.0.0.1", "fe80::1", "pi_1"] {
            assert!(is_host(good), "{good}");
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "alice@host", "host:22", "a..b", "a\nb", "$(x)"] {
            assert!(!is_host(bad), "{bad}");
        }
        assert!(
            is_user("alice") && is_user("_a.b-c@ex") && !is_user("-l") && !is_user("a b") && !is_user("")
        );
        assert!(is_public_key("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA root@host"));
        for bad in [
            "",
            "ssh-ed25519",
            "host ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
            "ssh-rsa a$b\n",
            "ssh-dss AAAAC3NzaC1lZDI1NTE5",
        ] {
            assert!(!is_public_key(bad), "{bad}");
        }
    }
}
