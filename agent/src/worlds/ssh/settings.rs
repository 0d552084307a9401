//! Settings for ssh, as text. Pure.

use std::path::Path;

use schema::kinds::job::{DEFAULT_SSH_PORT, SlurmLogin};

use super::Credential;

/// Aliases of the login host and the jump host in ssh's settings.
pub(super) const LOGIN: &str = "login";
const JUMP: &str = "jump";

/// Paths of a login's files.
pub(super) struct LoginPaths<'a> {
    pub(super) folder: &'a Path,
    /// Host keys of hosts whose login names none.
    pub(super) known_hosts: &'a Path,
}

/// Content of the file for `-F`: ssh reads no other settings, not even root's. Host, user and keys were checked to
/// be single words.
pub(super) fn config(login: &SlurmLogin, credential: &Credential, places: &LoginPaths<'_>) -> String {
    let mut text = String::new();
    let user = login.username.as_deref().unwrap_or_default();
    let host = login.host.as_deref().unwrap_or_default();
    let of_login = (LOGIN, host, login.port, user, login.host_keys.is_empty());
    let of_jump = login.jump_host.as_ref().map(|jump| {
        let user = jump.username.as_deref().unwrap_or(user);
        (JUMP, jump.host.as_str(), jump.port, user, jump.host_keys.is_empty())
    });
    for (name, host, port, user, has_no_keys) in [Some(of_login), of_jump].into_iter().flatten() {
        let port = port.unwrap_or(DEFAULT_SSH_PORT);
        text.push_str(&format!("Host {name}\n  HostName {host}\n  Port {port}\n  User {user}\n"));
        if has_no_keys {
            text.push_str(&format!("  UserKnownHostsFile \"{}\"\n", places.known_hosts.display()));
        } else {
            // A fixed alias for its keys, whatever its address and port.
            let own = places.folder.join("known_hosts");
            text.push_str(&format!("  HostKeyAlias {name}\n  UserKnownHostsFile \"{}\"\n", own.display()));
            text.push_str("  GlobalKnownHostsFile /dev/null\n");
        }
        if name == LOGIN && login.jump_host.is_some() {
            text.push_str(&format!("  ProxyJump {JUMP}\n"));
        }
    }
    text.push_str("Host *\n");
    match credential {
        Credential::Key(_) => {
            let key = places.folder.join("key");
            text.push_str(&format!("  IdentityFile \"{}\"\n", key.display()));
            text.push_str("  BatchMode yes\n  PreferredAuthentications publickey\n");
        }
        Credential::Password(_) => {
            text.push_str("  PubkeyAuthentication no\n  NumberOfPasswordPrompts 1\n");
            text.push_str("  PreferredAuthentications password,keyboard-interactive\n");
        }
    }
    for (name, value) in [
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
        ("CheckHostIP", "no"),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("ForwardAgent", "no"),
        ("PermitLocalCommand", "no"),
        ("ConnectTimeout", "15"),
        ("ServerAliveInterval", "15"),
        ("ServerAliveCountMax", "3"),
    ] {
        text.push_str(&format!("  {name} {value}\n"));
    }
    text
}

/// Host keys that the login names, under the aliases that [`config`] gives to the hosts.
pub(super) fn known_hosts(login: &SlurmLogin) -> String {
    let of_login = login.host_keys.iter().map(|key| (LOGIN, key));
    let of_jump = login.jump_host.iter().flat_map(|jump| &jump.host_keys).map(|key| (JUMP, key));
    of_login.chain(of_jump).map(|(name, key)| format!("{name} {key}\n")).collect()
}

#[cfg(test)]
mod tests {
    use schema::kinds::job::JumpHost;

    use super::*;

    #[test]
    fn a_login_through_a_jump_host_pins_the_keys_of_both() {
        let login = SlurmLogin {
            host: Some("login.example.edu".into()),
            username: Some("alice".into()),
            host_keys: vec!["ssh-ed25519 AAAA1".into()],
            jump_host: Some(JumpHost {
                host: "gate.example.edu".into(),
                port: Some(2222),
                host_keys: vec!["ssh-ed25519 AAAA2".into()],
                ..JumpHost::default()
            }),
            ..SlurmLogin::default()
        };
        let places = LoginPaths { folder: Path::new("/run/x"), known_hosts: Path::new("/var/known_hosts") };
        let text = config(&login, &Credential::Password(Vec::new()), &places);
        let expected = "\
Host login
  HostName login.example.edu
  Port 22
  User alice
  HostKeyAlias login
  UserKnownHostsFile \"/run/x/known_hosts\"
  GlobalKnownHostsFile /dev/null
  ProxyJump jump
Host jump
  HostName gate.example.edu
  Port 2222
  User alice
  HostKeyAlias jump
  UserKnownHostsFile \"/run/x/known_hosts\"
  GlobalKnownHostsFile /dev/null
Host *
  PubkeyAuthentication no
";
        assert!(text.starts_with(expected) && text.contains("\n  StrictHostKeyChecking yes\n"), "{text}");
        assert_eq!(known_hosts(&login), "login ssh-ed25519 AAAA1\njump ssh-ed25519 AAAA2\n");
        let none = SlurmLogin { host_keys: Vec::new(), jump_host: None, ..login };
        let text = config(&none, &Credential::Key(Vec::new()), &places);
        assert!(
            text.contains("  UserKnownHostsFile \"/var/known_hosts\"\n  IdentityFile")
                || text.contains("UserKnownHostsFile \"/var/known_hosts\"\nHost *"),
            "{text}"
        );
        assert!(
            text.contains("IdentityFile \"/run/x/key\"\n  BatchMode yes") && !text.contains("HostKeyAlias"),
            "{text}"
        );
    }
}
