//! Users, roles and members in memory, as etcd keeps them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use schema::control::lock;
use schema::store::StoreError;
use schema::store::etcd::{AuthState, ListedMember};

use super::etcd_users::{EtcdAuth, ROOT_USER, Scope, UserStep};
use super::restart::{OwnMember, RestartError};

/// Applies a step as etcd does; fails if etcd would refuse it.
pub(super) fn apply(state: &mut AuthState, step: &UserStep) {
    match step.clone() {
        UserStep::AddRole { role } => drop(state.roles.entry(role).or_default()),
        UserStep::GrantPermission { role, grant } => {
            let grants = state.roles.get_mut(&role).expect("role name not found");
            grants.retain(|other| !other.is_on_range_of(&grant));
            grants.insert(grant);
        }
        UserStep::RevokePermission { role, grant } => {
            let grants = state.roles.get_mut(&role).expect("role name not found");
            grants.retain(|other| !other.is_on_range_of(&grant));
        }
        UserStep::AddUser { user } => drop(state.users.entry(user).or_default()),
        UserStep::GrantRole { user, role } => {
            assert!(state.roles.contains_key(&role), "role name not found: {role}");
            state.users.get_mut(&user).expect("user name not found").insert(role);
        }
        UserStep::RevokeRole { user, role } => drop(state.users.get_mut(&user).unwrap().remove(&role)),
        UserStep::DeleteUser { user } => drop(state.users.remove(&user)),
        UserStep::DeleteRole { role } => {
            state.roles.remove(&role);
            for roles in state.users.values_mut() {
                roles.remove(&role);
            }
        }
        UserStep::EnableAuth => {
            let root = state.users.get(ROOT_USER).expect("root user does not exist");
            assert!(root.contains(ROOT_USER), "root user does not have root role");
        }
    }
}

/// This machine's member of etcd, which only counts its restarts. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeMember {
    pub(super) restarts: Arc<Mutex<usize>>,
    /// Set if it does not come back.
    pub(super) fails: Arc<Mutex<bool>>,
}

#[async_trait]
impl OwnMember for FakeMember {
    async fn restart(&self, _: u64) -> Result<(), RestartError> {
        *lock(&self.restarts) += 1;
        match *lock(&self.fails) {
            true => Err(RestartError::StillRuns { pid: 1 }),
            false => Ok(()),
        }
    }
}

/// Member of etcd at `https://ADDRESS:2379`.
pub(super) fn member(name: &str, address: &str) -> ListedMember {
    ListedMember {
        id: name.to_owned(),
        name: name.to_owned(),
        client_urls: vec![format!("https://{address}:2379")],
        peer_urls: Vec::new(),
        is_learner: false,
    }
}

impl Default for FakeAuth {
    /// Returns an etcd of one member.
    fn default() -> Self {
        Self {
            state: Arc::default(),
            steps: Arc::default(),
            reads: Arc::default(),
            members: Arc::new(Mutex::new(vec![member("minik8s", "10.0.0.1")])),
            silent: Arc::default(),
            denies: false,
        }
    }
}

/// etcd's authentication and members in memory. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct FakeAuth {
    pub(super) state: Arc<Mutex<AuthState>>,
    /// Steps taken, as arguments of etcdctl.
    pub(super) steps: Arc<Mutex<Vec<String>>>,
    /// Number of reads of users.
    pub(super) reads: Arc<Mutex<usize>>,
    /// Members. With none of them, nobody lists them.
    pub(super) members: Arc<Mutex<Vec<ListedMember>>>,
    /// Names of members that do not answer.
    pub(super) silent: Arc<Mutex<BTreeSet<String>>>,
    /// Set if users are somebody else's to manage.
    pub(super) denies: bool,
}

#[async_trait]
impl EtcdAuth for FakeAuth {
    async fn read(&mut self, scope: &Scope) -> Result<AuthState, StoreError> {
        *lock(&self.reads) += 1;
        if self.denies {
            let message = "etcdserver: permission denied".to_owned();
            return Err(StoreError::Denied { act: "a list of users", message });
        }
        let mut state = lock(&self.state).clone();
        state.users.retain(|name, _| scope.has(name));
        state.roles.retain(|name, _| scope.has(name));
        Ok(state)
    }

    async fn take(&mut self, step: &UserStep) -> Result<(), StoreError> {
        apply(&mut lock(&self.state), step);
        lock(&self.steps).push(step.to_string());
        Ok(())
    }

    async fn members(&mut self) -> Result<Vec<ListedMember>, StoreError> {
        let members = lock(&self.members).clone();
        match members.is_empty() {
            false => Ok(members),
            true => {
                let message = "no answer".to_owned();
                Err(StoreError::Connect { endpoints: String::new(), message })
            }
        }
    }

    async fn ask(&self, member: &ListedMember) -> Result<(), StoreError> {
        match lock(&self.silent).contains(&member.name) {
            false => Ok(()),
            true => {
                let message = "no answer".to_owned();
                Err(StoreError::Connect { endpoints: member.client_urls.join(","), message })
            }
        }
    }

    fn use_endpoints(&mut self, _: Vec<String>) {}
}
