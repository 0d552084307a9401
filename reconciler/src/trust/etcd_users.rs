//! Users and roles of etcd, one for each identity: a node may do what its role in `keys.rs` says, a reconciler may do
//! everything. Users have no password; etcd knows them by their certificates.
//!
//! Reads users and roles; `plan` decides; writes these and nothing else. [`EtcdUsers`] does it for one who joins, renews
//! or is removed, the loop of this room for all. No user or role is touched whose name is not that of a node or a
//! reconciler, but for `root`, without which etcd does not switch authentication on.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use schema::keys::{ROOT, RUNS_ROOT, node_role};
use schema::store::StoreError;
use schema::store::etcd::{Access, AuthState, EtcdStore, Grant, ListedMember};
use schema::trust::{Identity, Role};

/// User and role that etcd demands before it switches authentication on. Users with this role may do everything.
pub(super) const ROOT_USER: &str = "root";
/// Longest wait for a connection to etcd.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the answer of one member.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Identities that should have a user, and those that should not.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedUsers {
    /// Identities of the cluster. Only nodes and reconcilers have a user.
    pub(super) identities: BTreeSet<Identity>,
    /// Identities that were removed. A node that is in neither set loses a user that has no other role.
    pub(super) removed: BTreeSet<Identity>,
    /// Set if authentication is to be switched on.
    pub(super) enables_auth: bool,
}

/// An act on etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UserStep {
    AddRole { role: String },
    GrantPermission { role: String, grant: Grant },
    RevokePermission { role: String, grant: Grant },
    AddUser { user: String },
    GrantRole { user: String, role: String },
    RevokeRole { user: String, role: String },
    DeleteUser { user: String },
    DeleteRole { role: String },
    EnableAuth,
}

impl fmt::Display for UserStep {
    /// Formats it like the arguments of etcdctl.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddRole { role } => write!(f, "role add {role}"),
            Self::GrantPermission { role, grant } => write!(f, "role grant-permission {role} {grant}"),
            Self::RevokePermission { role, grant } => write!(f, "role revoke-permission {role} {grant}"),
            Self::AddUser { user } => write!(f, "user add {user} --no-password"),
            Self::GrantRole { user, role } => write!(f, "user grant-role {user} {role}"),
            Self::RevokeRole { user, role } => write!(f, "user revoke-role {user} {role}"),
            Self::DeleteUser { user } => write!(f, "user delete {user}"),
            Self::DeleteRole { role } => write!(f, "role delete {role}"),
            Self::EnableAuth => f.write_str("auth enable"),
        }
    }
}

/// A step with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedUserStep {
    pub(super) step: UserStep,
    pub(super) why: &'static str,
}

/// Decides on the steps from the observed users and roles to the wanted ones. Reconcilers come first and authentication
/// last, so that whoever takes the steps is never locked out. A user gets its role once this is complete.
pub(super) fn plan(wanted: &WantedUsers, observed: &AuthState) -> Vec<PlannedUserStep> {
    let mut plan = UserPlan { observed, steps: Vec::new() };
    let of = |role: Role| wanted.identities.iter().filter(move |identity| identity.role() == role);
    let has_reconciler = of(Role::Reconciler).next().is_some();
    if has_reconciler {
        plan.role(ROOT_USER, "etcd needs it");
    }
    for identity in of(Role::Reconciler) {
        plan.user(&identity.to_string(), ROOT_USER);
    }
    if has_reconciler {
        plan.missing_user(ROOT_USER, ROOT_USER, "etcd needs it to switch authentication on");
    }
    for (identity, node) in of(Role::Node).filter_map(|identity| Some((identity, identity.node()?))) {
        let name = identity.to_string();
        plan.role(&name, "the node has none");
        plan.permissions(&name, &node_role(node).iter().map(Grant::from).collect());
        plan.user(&name, &name);
    }
    plan.removals(wanted);
    if wanted.enables_auth && has_reconciler {
        plan.push(UserStep::EnableAuth, "this etcd is the cluster's own");
    }
    plan.steps
}

struct UserPlan<'a> {
    observed: &'a AuthState,
    steps: Vec<PlannedUserStep>,
}

impl UserPlan<'_> {
    fn push(&mut self, step: UserStep, why: &'static str) {
        self.steps.push(PlannedUserStep { step, why });
    }

    fn role(&mut self, role: &str, why: &'static str) {
        if !self.observed.roles.contains_key(role) {
            self.push(UserStep::AddRole { role: role.to_owned() }, why);
        }
    }

    /// Makes the permissions of a role exactly these. Missing ones come first: the node may be at work.
    fn permissions(&mut self, role: &str, wanted: &BTreeSet<Grant>) {
        let observed = self.observed.roles.get(role).cloned().unwrap_or_default();
        for grant in wanted.difference(&observed) {
            let step = UserStep::GrantPermission { role: role.to_owned(), grant: grant.clone() };
            self.push(step, "the contract of keys has it");
        }
        let is_replaced = |grant: &Grant| wanted.iter().any(|wanted| wanted.is_on_range_of(grant));
        for grant in observed.difference(wanted).filter(|grant| !is_replaced(grant)) {
            let step = UserStep::RevokePermission { role: role.to_owned(), grant: grant.clone() };
            self.push(step, "the contract of keys does not have it");
        }
    }

    /// Makes a user with this role and no other.
    fn user(&mut self, user: &str, role: &str) {
        self.missing_user(user, role, "it belongs to the cluster");
        let roles = self.observed.users.get(user).cloned().unwrap_or_default();
        for other in roles.into_iter().filter(|other| other != role) {
            let step = UserStep::RevokeRole { user: user.to_owned(), role: other };
            self.push(step, "it is not the role of this identity");
        }
    }

    /// Makes a user with at least this role.
    fn missing_user(&mut self, user: &str, role: &str, why: &'static str) {
        let roles = self.observed.users.get(user);
        if roles.is_none() {
            self.push(UserStep::AddUser { user: user.to_owned() }, why);
        }
        if !roles.is_some_and(|roles| roles.contains(role)) {
            self.push(UserStep::GrantRole { user: user.to_owned(), role: role.to_owned() }, why);
        }
    }

    /// Removes users and roles of those who do not belong to the cluster: all that were removed, and nodes as far as
    /// their user or role has the shape that it has here. An etcd may have users of other programs.
    fn removals(&mut self, wanted: &WantedUsers) {
        let observed = self.observed;
        let stranger = |name: &str| {
            let identity = name.parse::<Identity>().ok().filter(has_user)?;
            (!wanted.identities.contains(&identity)).then_some(identity)
        };
        let why = |identity: &Identity, has_own_shape: bool| match wanted.removed.contains(identity) {
            true => Some("it was removed from the cluster"),
            false => {
                (has_own_shape && identity.role() == Role::Node).then_some("it is no node of the cluster")
            }
        };
        for (user, roles) in &observed.users {
            let has_own_shape = roles.iter().all(|role| role == user);
            let found = stranger(user).and_then(|identity| why(&identity, has_own_shape));
            if let Some(why) = found {
                self.push(UserStep::DeleteUser { user: user.clone() }, why);
            }
        }
        let is_ours =
            |grant: &Grant| [ROOT, RUNS_ROOT].iter().any(|root| grant.key.starts_with(root.as_bytes()));
        for (role, grants) in &observed.roles {
            // A reconciler has no role of its own.
            let node = stranger(role).filter(|identity| identity.role() == Role::Node);
            if let Some(why) = node.and_then(|node| why(&node, grants.iter().all(is_ours))) {
                self.push(UserStep::DeleteRole { role: role.clone() }, why);
            }
        }
    }
}

/// Returns true if such an identity has a user of etcd. A person has none.
pub(super) fn has_user(identity: &Identity) -> bool {
    matches!(identity.role(), Role::Node | Role::Reconciler)
}

/// Names of users and roles to read.
#[derive(Debug, Clone)]
pub(super) enum Scope {
    /// The given names, and `root`.
    Only(BTreeSet<String>),
    /// Names of nodes and reconcilers without the given ones, and `root`.
    AllBut(BTreeSet<String>),
}

impl Scope {
    pub(super) fn has(&self, name: &str) -> bool {
        let is_identity = || name.parse::<Identity>().is_ok_and(|identity| has_user(&identity));
        name == ROOT_USER
            || match self {
                Self::Only(names) => names.contains(name),
                Self::AllBut(names) => is_identity() && !names.contains(name),
            }
    }
}

/// etcd's users, roles and members.
#[async_trait]
pub(super) trait EtcdAuth: Send + Sync + 'static {
    /// Reads the users and roles in the scope.
    async fn read(&mut self, scope: &Scope) -> Result<AuthState, StoreError>;
    /// Takes a step. One that was taken before is no error.
    async fn take(&mut self, step: &UserStep) -> Result<(), StoreError>;
    /// Reads the list of members.
    async fn members(&mut self) -> Result<Vec<ListedMember>, StoreError>;
    /// Checks that a member answers at its published addresses, with the others.
    async fn ask(&self, member: &ListedMember) -> Result<(), StoreError>;
    /// Replaces the addresses at which it reaches etcd.
    fn use_endpoints(&mut self, endpoints: Vec<String>);
}

/// A real etcd. The connection is kept until it fails.
pub(super) struct RealAuth {
    access: Access,
    store: Option<EtcdStore>,
}

impl RealAuth {
    pub(super) fn new(access: Access) -> Self {
        Self { access, store: None }
    }

    async fn store(&mut self) -> Result<&EtcdStore, StoreError> {
        let store = match self.store.take() {
            Some(store) => store,
            // Boxed: connecting is a large future.
            None => Box::pin(EtcdStore::connect(&self.access, PATIENCE)).await?,
        };
        Ok(self.store.insert(store))
    }

    /// Gives the connection up after an error that another one may not have.
    fn checked<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(&answer, Err(error) if !matches!(error, StoreError::Denied { .. })) {
            self.store = None;
        }
        answer
    }
}

#[async_trait]
impl EtcdAuth for RealAuth {
    async fn read(&mut self, scope: &Scope) -> Result<AuthState, StoreError> {
        let answer = self.store().await?.auth_state(|name| scope.has(name)).await;
        self.checked(answer)
    }

    async fn take(&mut self, step: &UserStep) -> Result<(), StoreError> {
        let store = self.store().await?;
        let answer = match step {
            UserStep::AddRole { role } => store.add_role(role).await,
            UserStep::GrantPermission { role, grant } => store.grant_permission(role, grant).await,
            UserStep::RevokePermission { role, grant } => store.revoke_permission(role, grant).await,
            UserStep::AddUser { user } => store.add_user(user).await,
            UserStep::GrantRole { user, role } => store.grant_role(user, role).await,
            UserStep::RevokeRole { user, role } => store.revoke_role(user, role).await,
            UserStep::DeleteUser { user } => store.delete_user(user).await,
            UserStep::DeleteRole { role } => store.delete_role(role).await,
            UserStep::EnableAuth => store.enable_auth().await,
        };
        self.checked(answer)
    }

    async fn members(&mut self) -> Result<Vec<ListedMember>, StoreError> {
        let answer = self.store().await?.listed_members().await;
        self.checked(answer)
    }

    async fn ask(&self, member: &ListedMember) -> Result<(), StoreError> {
        let own = Access { endpoints: member.client_urls.clone(), ..self.access.clone() };
        // It reads a key, for which the member needs its leader and a vote.
        Box::pin(EtcdStore::connect(&own, ANSWER_MAX)).await.map(drop)
    }

    fn use_endpoints(&mut self, endpoints: Vec<String>) {
        if self.access.endpoints != endpoints {
            self.access.endpoints = endpoints;
            self.store = None;
        }
    }
}

/// Outcome of a change of users.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum UserOutcome {
    /// Users and roles are as they should be.
    Done,
    /// etcd does not let this reconciler manage users, with the reason: somebody else does.
    NotAllowed(String),
}

/// Takes the steps in their order, up to the first that fails.
pub(super) async fn take_all(
    auth: &mut dyn EtcdAuth,
    steps: &[PlannedUserStep],
) -> Result<UserOutcome, StoreError> {
    for PlannedUserStep { step, why } in steps {
        match auth.take(step).await {
            Ok(()) => tracing::debug!(%step, why, "users of etcd changed"),
            Err(StoreError::Denied { message, .. }) => return Ok(UserOutcome::NotAllowed(message)),
            Err(error) => return Err(error),
        }
    }
    Ok(UserOutcome::Done)
}

/// Manages users and members of etcd for those who join, renew or are removed.
#[derive(Debug, Clone)]
pub(crate) struct EtcdUsers {
    access: Access,
    own: Identity,
}

impl EtcdUsers {
    /// Creates the manager of the reconciler with this identity.
    pub(crate) fn new(access: Access, own: Identity) -> Self {
        Self { access, own }
    }

    /// Makes user and role of a node or a reconciler; others have none.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(crate) async fn ensure(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        let identities = BTreeSet::from([identity.clone()]);
        self.converge(identity, &WantedUsers { identities, ..WantedUsers::default() }).await
    }

    /// Removes user and role of a node or a reconciler other than this one.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(crate) async fn remove(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        if *identity == self.own {
            let why = "a reconciler does not remove its own user; let another one do it";
            return Ok(UserOutcome::NotAllowed(why.to_owned()));
        }
        let removed = BTreeSet::from([identity.clone()]);
        self.converge(identity, &WantedUsers { removed, ..WantedUsers::default() }).await
    }

    /// Removes the member of etcd with this name; true if there was one.
    ///
    /// # Errors
    /// etcd does not answer, or the rest would have no majority.
    pub(crate) async fn remove_member(&self, name: &str) -> Result<bool, StoreError> {
        let store = Box::pin(EtcdStore::connect(&self.access, PATIENCE)).await?;
        let members = store.listed_members().await?;
        match members.iter().find(|member| member.name == name) {
            Some(member) => store.remove_member(&member.id).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn converge(&self, identity: &Identity, wanted: &WantedUsers) -> Result<UserOutcome, StoreError> {
        if !has_user(identity) {
            return Ok(UserOutcome::Done);
        }
        let mut auth = RealAuth::new(self.access.clone());
        let scope = Scope::Only([identity.to_string()].into());
        match auth.read(&scope).await {
            Ok(observed) => take_all(&mut auth, &plan(wanted, &observed)).await,
            Err(StoreError::Denied { message, .. }) => Ok(UserOutcome::NotAllowed(message)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::store::etcd::GrantAccess;

    use super::*;
    use crate::trust::fake::apply;

    fn identity(name: &str) -> Identity {
        name.parse().unwrap()
    }

    fn wanted(names: &[&str]) -> WantedUsers {
        WantedUsers {
            identities: names.iter().map(|name| identity(name)).collect(),
            ..WantedUsers::default()
        }
    }

    fn steps(wanted: &WantedUsers, state: &AuthState) -> Vec<String> {
        plan(wanted, state).iter().map(|planned| planned.step.to_string()).collect()
    }

    /// Users and roles once all is done for these identities.
    fn converged(names: &[&str]) -> AuthState {
        let mut state = AuthState::default();
        let wanted = wanted(names);
        plan(&wanted, &state).iter().for_each(|planned| apply(&mut state, &planned.step));
        assert_eq!(steps(&wanted, &state), [""; 0], "the plan after its steps");
        state
    }

    #[test]
    fn nobody_is_locked_out_of_an_empty_etcd() {
        let wanted = WantedUsers { enables_auth: true, ..wanted(&["node-n1", "reconciler-r1", "user-ada"]) };
        let all = steps(&wanted, &AuthState::default());
        let others: Vec<&str> =
            all.iter().map(String::as_str).filter(|step| !step.contains("grant-permission")).collect();
        assert_eq!(
            others,
            [
                "role add root",
                "user add reconciler-r1 --no-password",
                "user grant-role reconciler-r1 root",
                "user add root --no-password",
                "user grant-role root root",
                "role add node-n1",
                "user add node-n1 --no-password",
                "user grant-role node-n1 node-n1",
                "auth enable",
            ]
        );
        let grants: BTreeSet<String> = node_role("n1")
            .iter()
            .map(|permission| format!("role grant-permission node-n1 {permission}"))
            .collect();
        let planned: Vec<&String> = all.iter().filter(|step| step.contains("grant-permission")).collect();
        assert_eq!(planned.iter().map(|step| (*step).clone()).collect::<BTreeSet<_>>(), grants);
        let at = |step: &str| all.iter().position(|other| other == step).unwrap();
        assert!(
            at(planned[planned.len() - 1]) < at("user add node-n1 --no-password"),
            "a role is complete first"
        );
        let mut state = AuthState::default();
        plan(&wanted, &state).iter().for_each(|planned| apply(&mut state, &planned.step));
    }

    #[test]
    fn authentication_is_never_switched_on_without_a_reconciler() {
        let wanted = WantedUsers { enables_auth: true, ..wanted(&["node-n1"]) };
        assert!(!steps(&wanted, &AuthState::default()).contains(&"auth enable".to_owned()));
    }

    #[test]
    fn a_role_becomes_exactly_that_of_the_contract() {
        let mut state = converged(&["reconciler-r1", "node-n1"]);
        let grants = state.roles.get_mut("node-n1").unwrap();
        let first = grants.pop_first().unwrap();
        let changed = Grant { access: GrantAccess::Write, ..first.clone() };
        let wide = Grant { key: ROOT.into(), range_end: Vec::new(), access: GrantAccess::ReadWrite };
        grants.extend([changed, wide.clone()]);
        state.users.get_mut("node-n1").unwrap().insert(ROOT_USER.to_owned());
        assert_eq!(
            steps(&wanted(&["reconciler-r1", "node-n1"]), &state),
            [
                format!("role grant-permission node-n1 {first}"),
                format!("role revoke-permission node-n1 {wide}"),
                "user revoke-role node-n1 root".to_owned(),
            ]
        );
    }

    #[test]
    fn users_of_other_programs_are_left_alone() {
        let mut state = converged(&["reconciler-r1", "node-n1"]);
        for (user, role) in
            [("backup", "backup"), ("user-ada", "x"), ("etcd", "x"), ("node-exporter", "metrics")]
        {
            state.users.insert(user.to_owned(), BTreeSet::from([role.to_owned()]));
        }
        let foreign = Grant { key: b"/other/".to_vec(), range_end: Vec::new(), access: GrantAccess::Read };
        state.roles.insert("node-pool".to_owned(), BTreeSet::from([foreign]));
        state.roles.insert("reconciler-x".to_owned(), BTreeSet::new());
        assert_eq!(steps(&wanted(&["reconciler-r1", "node-n1"]), &state), [""; 0]);
    }

    #[test]
    fn who_left_loses_user_and_role() {
        let state = converged(&["reconciler-r1", "reconciler-r2", "node-n1", "node-n2"]);
        let left = wanted(&["reconciler-r1", "node-n1"]);
        assert_eq!(
            steps(&left, &state),
            ["user delete node-n2", "role delete node-n2"],
            "its record is gone"
        );
        let mut state = state;
        state.users.get_mut("node-n2").unwrap().insert("metrics".to_owned());
        assert_eq!(steps(&left, &state), ["role delete node-n2"]);
        let removed = [identity("node-n2"), identity("reconciler-r2")].into();
        assert_eq!(
            steps(&WantedUsers { removed, ..left }, &state),
            ["user delete node-n2", "user delete reconciler-r2", "role delete node-n2"],
            "it was removed, whatever roles it has"
        );
    }

    #[test]
    fn who_came_back_under_its_name_keeps_its_user() {
        let state = converged(&["reconciler-r1", "node-n1"]);
        let removed = [identity("node-n1")].into();
        assert_eq!(steps(&WantedUsers { removed, ..wanted(&["reconciler-r1", "node-n1"]) }, &state), [""; 0]);
    }

    #[test]
    fn one_identity_is_read_alone_and_all_without_those_of_other_programs() {
        let one = Scope::Only(["node-n1".to_owned()].into());
        assert!(one.has("node-n1") && one.has("root") && !one.has("node-n2"));
        let all = Scope::AllBut(["node-n1".to_owned()].into());
        assert!(!all.has("node-n1") && all.has("root") && all.has("node-n2") && all.has("reconciler-r1"));
        assert!(!all.has("user-ada") && !all.has("etcd") && !all.has("backup"));
    }

    #[tokio::test]
    async fn a_person_needs_no_user_and_nobody_removes_himself() {
        let users =
            EtcdUsers::new(Access::anonymous(&["http://127.0.0.1:1".to_owned()]), identity("reconciler-r1"));
        assert_eq!(users.ensure(&identity("user-ada")).await.unwrap(), UserOutcome::Done);
        let own = users.remove(&identity("reconciler-r1")).await.unwrap();
        assert!(matches!(own, UserOutcome::NotAllowed(_)), "{own:?}");
    }
}
