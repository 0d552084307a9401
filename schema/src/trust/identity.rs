//! Names in certificates, which are also the names of etcd's users.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a node, a reconciler or a user: a common name has 64 characters at most, and `reconciler-` is the
/// longest prefix.
pub const NAME_MAX: usize = 53;

/// Part that somebody has in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The agent of a node.
    Node,
    /// A reconciler.
    Reconciler,
    /// A person, or a program that uses the API in a person's place.
    User,
    /// A member of etcd.
    Etcd,
}

impl Role {
    const NAMED: [(Role, &'static str); 3] =
        [(Role::Node, "node-"), (Role::Reconciler, "reconciler-"), (Role::User, "user-")];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Node => "node",
            Role::Reconciler => "reconciler",
            Role::User => "user",
            Role::Etcd => "etcd",
        })
    }
}

/// Common name of a certificate: `node-web-2`, `reconciler-r1`, `user-ada`, or `etcd` for each of its members.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Identity {
    role: Role,
    name: String,
}

/// Text that is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Name of no node, reconciler or user.
    #[error(
        "`{0}` is no name for a certificate: give at most {NAME_MAX} lower-case letters, digits, `-` and `.`, with a letter \
         or digit at both ends"
    )]
    Name(String),
    /// Text that does not begin with a role.
    #[error("`{0}` is nobody who has a certificate: write node-NAME, reconciler-NAME or user-NAME")]
    Role(String),
}

impl Identity {
    /// Creates the identity of a node, a reconciler or a user.
    ///
    /// # Errors
    /// [`IdentityError`] if the name is too long or has other characters.
    pub fn new(role: Role, name: &str) -> Result<Self, IdentityError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let right = name.starts_with(edge) && name.ends_with(edge) && name.chars().all(allowed);
        match right && name.len() <= NAME_MAX && role != Role::Etcd {
            true => Ok(Self { role, name: name.to_owned() }),
            false => Err(IdentityError::Name(name.to_owned())),
        }
    }

    /// Returns the identity of every member of etcd.
    pub fn etcd() -> Self {
        Self { role: Role::Etcd, name: String::new() }
    }

    /// Returns the role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the name without its prefix; empty for a member of etcd.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the node; `None` for others.
    pub fn node(&self) -> Option<&str> {
        (self.role == Role::Node).then_some(&self.name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Etcd => f.write_str("etcd"),
            role => write!(f, "{role}-{}", self.name),
        }
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        if text == "etcd" {
            return Ok(Self::etcd());
        }
        let named = Role::NAMED.iter().find_map(|(role, prefix)| Some((*role, text.strip_prefix(prefix)?)));
        let (role, name) = named.ok_or_else(|| IdentityError::Role(text.to_owned()))?;
        Self::new(role, name)
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> Self {
        identity.to_string()
    }
}

impl TryFrom<String> for Identity {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        for text in ["node-web-2.lan", "reconciler-r1", "user-ada", "etcd"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        let longest = format!("reconciler-{}", "a".repeat(NAME_MAX));
        assert_eq!(longest.len(), 64, "the longest common name");
        assert!(longest.parse::<Identity>().is_ok());
    }

    #[test]
    fn others_names_are_refused() {
        let long = format!("node-{}", "a".repeat(NAME_MAX + 1));
        for text in
            ["root", "node-", "node", "node-Web", "user-a/b", "etcd-1", "node-a\n", "node-.a", long.as_str()]
        {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
        assert!(Identity::new(Role::Etcd, "m1").is_err());
    }
}
