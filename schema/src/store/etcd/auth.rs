//! Users and roles of etcd's authentication. A user without a password is whoever shows a certificate of its name.
//!
//! Every call has a deadline. An act that was done before is no error, so that several reconcilers may do the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use etcd_client::{Error, PermissionType, RoleRevokePermissionOptions, UserAddOptions};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::timeout;

use super::watch::request_error;
use super::{EtcdStore, REQUEST_TIMEOUT, StoreError, prefix_end, timed_out, within};
use crate::keys;

/// Concurrent reads of users or roles. Each is as dear to etcd as a write.
const PARALLEL: usize = 8;

// Words of etcd's errors, of version 3.4 on.
const NO_USER: &str = "user name not found";
const NO_ROLE: &str = "role name not found";
const USER_EXISTS: &str = "user name already exists";
const ROLE_EXISTS: &str = "role name already exists";
const ROLE_NOT_GRANTED: &str = "role is not granted to the user";
const PERMISSION_NOT_GRANTED: &str = "permission is not granted to the role";

/// Users and roles by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthState {
    /// Users, each with its roles.
    pub users: BTreeMap<String, BTreeSet<String>>,
    /// Roles, each with its permissions.
    pub roles: BTreeMap<String, BTreeSet<Grant>>,
}

/// Permission of a role, on a key or a range of keys. A role has at most one for each range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The key, or the first one of the range.
    pub key: Vec<u8>,
    /// End of the range, which is not in it; empty for a single key.
    pub range_end: Vec<u8>,
    /// Permitted access.
    pub access: GrantAccess,
}

/// Access to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrantAccess {
    /// Reads and watches.
    Read,
    /// Writes only.
    Write,
    /// Both.
    ReadWrite,
}

impl Grant {
    /// Returns true if both are on the same range: granting one replaces the other.
    pub fn is_on_range_of(&self, other: &Self) -> bool {
        (&self.key, &self.range_end) == (&other.key, &other.range_end)
    }
}

impl From<&keys::Permission> for Grant {
    fn from(permission: &keys::Permission) -> Self {
        let key = permission.key.as_bytes().to_vec();
        let range_end = if permission.is_prefix { prefix_end(&key) } else { Vec::new() };
        let access = if permission.write { GrantAccess::ReadWrite } else { GrantAccess::Read };
        Self { key, range_end, access }
    }
}

impl From<&etcd_client::Permission> for Grant {
    fn from(found: &etcd_client::Permission) -> Self {
        let access = match found.get_type() {
            kind if kind == PermissionType::Read as i32 => GrantAccess::Read,
            kind if kind == PermissionType::Write as i32 => GrantAccess::Write,
            _ => GrantAccess::ReadWrite,
        };
        Self { key: found.key().to_vec(), range_end: found.range_end().to_vec(), access }
    }
}

impl From<&Grant> for etcd_client::Permission {
    fn from(grant: &Grant) -> Self {
        let kind = match grant.access {
            GrantAccess::Read => PermissionType::Read,
            GrantAccess::Write => PermissionType::Write,
            GrantAccess::ReadWrite => PermissionType::Readwrite,
        };
        Self::new(kind, grant.key.clone()).with_range_end(grant.range_end.clone())
    }
}

impl fmt::Display for Grant {
    /// Formats the arguments after `etcdctl role grant-permission ROLE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            GrantAccess::Read => "read",
            GrantAccess::Write => "write",
            GrantAccess::ReadWrite => "readwrite",
        };
        write!(f, "{access} {}", String::from_utf8_lossy(&self.key).escape_debug())?;
        match &self.range_end {
            end if end.is_empty() => Ok(()),
            end if *end == prefix_end(&self.key) => f.write_str(" --prefix"),
            end => write!(f, " {}", String::from_utf8_lossy(end).escape_debug()),
        }
    }
}

impl EtcdStore {
    /// Reads the users and roles whose names `is_read` accepts. Works with authentication on or off.
    ///
    /// # Errors
    /// [`StoreError::Denied`] if the user may not manage users; or the member does not answer.
    pub async fn auth_state(
        &self,
        is_read: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<AuthState, StoreError> {
        let mut client = self.client.auth_client();
        let users = within("a list of users", REQUEST_TIMEOUT, client.user_list()).await?;
        let roles = within("a list of roles", REQUEST_TIMEOUT, client.role_list()).await?;
        let read = |name: &&String| is_read(name.as_str());
        let users: Vec<_> = users.users().iter().filter(read).cloned().map(|name| self.user(name)).collect();
        let roles: Vec<_> = roles.roles().iter().filter(read).cloned().map(|name| self.role(name)).collect();
        let users: Vec<_> = stream::iter(users).buffer_unordered(PARALLEL).try_collect().await?;
        let roles: Vec<_> = stream::iter(roles).buffer_unordered(PARALLEL).try_collect().await?;
        Ok(AuthState {
            users: users.into_iter().flatten().collect(),
            roles: roles.into_iter().flatten().collect(),
        })
    }

    /// Reads a user; `None` if it was deleted meanwhile.
    async fn user(&self, name: String) -> Result<Option<(String, BTreeSet<String>)>, StoreError> {
        let mut client = self.client.auth_client();
        let found = unless(&[NO_USER], "a read of a user", client.user_get(name.clone())).await?;
        Ok(found.map(|found| (name, found.roles().iter().cloned().collect())))
    }

    /// Reads a role; `None` if it was deleted meanwhile.
    async fn role(&self, name: String) -> Result<Option<(String, BTreeSet<Grant>)>, StoreError> {
        let mut client = self.client.auth_client();
        let found = unless(&[NO_ROLE], "a read of a role", client.role_get(name.clone())).await?;
        Ok(found.map(|found| (name, found.permissions().iter().map(Grant::from).collect())))
    }

    /// Adds a user without a password. One that exists stays as it is.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn add_user(&self, user: &str) -> Result<(), StoreError> {
        let options = UserAddOptions::new().with_no_pwd();
        let mut client = self.client.auth_client();
        unless(&[USER_EXISTS], "a new user", client.user_add(user, "", Some(options))).await.map(drop)
    }

    /// Deletes a user. Its open watches go on until its connections end.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn delete_user(&self, user: &str) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        unless(&[NO_USER], "the end of a user", client.user_delete(user)).await.map(drop)
    }

    /// Adds a role without permissions. One that exists stays as it is.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn add_role(&self, role: &str) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        unless(&[ROLE_EXISTS], "a new role", client.role_add(role)).await.map(drop)
    }

    /// Deletes a role, and takes it from all users.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn delete_role(&self, role: &str) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        unless(&[NO_ROLE], "the end of a role", client.role_delete(role)).await.map(drop)
    }

    /// Gives a role to a user.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`]; or there is no such user or role.
    pub async fn grant_role(&self, user: &str, role: &str) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        within("a role of a user", REQUEST_TIMEOUT, client.user_grant_role(user, role)).await.map(drop)
    }

    /// Takes a role from a user.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn revoke_role(&self, user: &str, role: &str) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        let revoked = client.user_revoke_role(user, role);
        unless(&[NO_USER, ROLE_NOT_GRANTED], "the end of a role of a user", revoked).await.map(drop)
    }

    /// Grants a permission to a role, in place of one on the same range.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`]; or there is no such role.
    pub async fn grant_permission(&self, role: &str, grant: &Grant) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        let granted = client.role_grant_permission(role, grant.into());
        within("a permission of a role", REQUEST_TIMEOUT, granted).await.map(drop)
    }

    /// Takes the permission on a range from a role, whatever its access.
    ///
    /// # Errors
    /// As [`EtcdStore::auth_state`].
    pub async fn revoke_permission(&self, role: &str, grant: &Grant) -> Result<(), StoreError> {
        let options = RoleRevokePermissionOptions::new().with_range_end(grant.range_end.clone());
        let mut client = self.client.auth_client();
        let revoked = client.role_revoke_permission(role, grant.key.clone(), Some(options));
        let words = [NO_ROLE, PERMISSION_NOT_GRANTED];
        unless(&words, "the end of a permission of a role", revoked).await.map(drop)
    }

    /// Switches authentication on. From then on etcd serves only users. Nothing happens if it is on already.
    ///
    /// # Errors
    /// There is no user `root` with the role `root`; or the member does not answer.
    pub async fn enable_auth(&self) -> Result<(), StoreError> {
        let mut client = self.client.auth_client();
        within("the start of authentication", REQUEST_TIMEOUT, client.auth_enable()).await.map(drop)
    }
}

/// Sends a request; `None` if etcd refuses it with one of these words.
async fn unless<T>(
    words: &[&str],
    act: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, StoreError> {
    match timeout(REQUEST_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(error)) if has_words(&error, words) => Ok(None),
        Ok(Err(error)) => Err(request_error(act, &error)),
        Err(_) => Err(timed_out(act)),
    }
}

fn has_words(error: &Error, words: &[&str]) -> bool {
    matches!(error, Error::GRpcStatus(status) if words.iter().any(|word| status.message().contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_of_the_contract_is_what_etcd_returns_for_it() {
        for permission in keys::node_role("n1") {
            let grant = Grant::from(&permission);
            assert_eq!(grant.to_string(), permission.to_string(), "as etcdctl takes it");
            let sent = etcd_client::Permission::from(&grant);
            assert_eq!(Grant::from(&sent), grant, "{grant}");
        }
    }

    #[test]
    fn only_an_act_that_was_done_before_counts_as_done() {
        let refused =
            |text: &str| Error::GRpcStatus(tonic::Status::failed_precondition(format!("etcdserver: {text}")));
        assert!(has_words(&refused("role name already exists"), &[ROLE_EXISTS]));
        assert!(!has_words(&refused("role name not found"), &[ROLE_EXISTS]));
        let denied = Error::GRpcStatus(tonic::Status::permission_denied("etcdserver: permission denied"));
        assert!(!has_words(&denied, &[USER_EXISTS, NO_USER]));
        assert!(matches!(request_error("a new user", &denied), StoreError::Denied { .. }));
    }
}
