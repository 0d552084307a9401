//! The loop of trust, on every reconciler: the own certificates are renewed, the own record is kept, what the cluster
//! trusts and has revoked is applied, another authority signs once it may, and this machine's member of etcd restarts when
//! it has its turn. The leader also writes `trust`, and in it gives the turn and leads a rotation of the authority,
//! removes the nodes that Git declares gone, and manages the users of etcd.
//!
//! Reads the own certificates, `identities/`, `revoked/`, `trust`, `authorities/`, `nodes/`, the nodes in Git, and as
//! leader etcd's users and members; `plan/` decides; writes the own folder of keys, these keys but `nodes/`, etcd's users,
//! and events; ends the process of this machine's member of etcd.

mod deps;
mod plan;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod rotation_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::codec::encode;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{AuthorityRecord, EventType};
use schema::snapshot::Snapshot;
use schema::store::etcd::{Access, AuthState, ListedMember};
use schema::store::events::EventDraft;
use schema::store::{Guard, Op, StoreError, TxnOutcome};
use schema::trust::{Certificate, Identity, TrustError, bundle_from_pem};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::deps::TrustDeps;
use self::plan::roll::{self, ObservedMember, ObservedMembers};
use self::plan::{
    Adoption, NextTrust, Observed, ObservedUsers, RecordWrite, Removal, Resealing, Restart, TRUST, TrustPlan,
    TrustProblem, about_trust, is_here,
};
use super::etcd_users::{EtcdAuth, RealAuth, Scope, UserOutcome, has_user, take_all};
use super::restart::{OwnMember, RealMember};
use super::setup::{AuthorityText, RefusedSerials, etcd_pki_dir, renew_etcd, write_refused};
use crate::crypt;
use crate::guarded_writes::{PARALLEL, StopReason, WriteGroup, guard_of_present, guarded, write};

/// Interval of the loop.
pub(crate) const TRUST_INTERVAL: Duration = Duration::from_secs(60);
/// Longest run: the users of a thousand nodes are read and made.
pub(crate) const TRUST_MAX: Duration = Duration::from_secs(600);
/// Interval at which the users of all identities are checked, whatever changed. Each read is as dear to etcd as a write.
const USERS_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
/// The same while etcd does not let this reconciler manage users.
const DENIED_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// Interval at which etcd's members are listed.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(60);

/// The loop.
pub(crate) struct TrustLoop {
    deps: TrustDeps,
    auth: Box<dyn EtcdAuth>,
    member: Box<dyn OwnMember>,
    /// Number of the newest roll in which this process has restarted the own member.
    rolled: u64,
    checks: UserChecks,
    /// True if the recorded node of this machine's name was this machine's when this process first looked; `None` before.
    is_node_here: Option<bool>,
    /// Members of etcd, and the time at which these were listed.
    members: Option<(Instant, Vec<ListedMember>)>,
    known_problems: Vec<TrustProblem>,
    problems: watch::Sender<Arc<Vec<String>>>,
    /// Cancelled once this reconciler was removed.
    removed: CancellationToken,
}

/// Results of the checks of etcd's users, since this reconciler leads.
#[derive(Debug, Default)]
struct UserChecks {
    /// Time of the next check of all; `None` before the first.
    again_at: Option<Timestamp>,
    /// Identities at the last check.
    wanted: BTreeSet<Identity>,
    /// Identities of these whose users were as they should be.
    verified: BTreeSet<Identity>,
    /// Reason of etcd for not letting this reconciler manage users.
    denied: Option<String>,
}

impl TrustLoop {
    /// Creates a loop that has checked nothing yet.
    pub(crate) fn new(deps: TrustDeps) -> Self {
        let auth = RealAuth::new(deps.access.clone());
        let member = RealMember::new(&deps.state_dir, deps.access.clone());
        Self::on(deps, Box::new(auth), Box::new(member))
    }

    fn on(deps: TrustDeps, auth: Box<dyn EtcdAuth>, member: Box<dyn OwnMember>) -> Self {
        Self {
            deps: TrustDeps { events: deps.events.reporting_as("trust"), ..deps },
            auth,
            member,
            rolled: 0,
            checks: UserChecks::default(),
            is_node_here: None,
            members: None,
            known_problems: Vec::new(),
            problems: watch::Sender::new(Arc::default()),
            removed: CancellationToken::new(),
        }
    }

    /// Returns the reader of sentences about what a person should know of.
    pub(crate) fn problems(&self) -> watch::Receiver<Arc<Vec<String>>> {
        self.problems.subscribe()
    }

    /// Returns a token that is cancelled once this reconciler was removed from the cluster, and has done what it must.
    pub(crate) fn removed(&self) -> CancellationToken {
        self.removed.clone()
    }

    /// Set if etcd is the cluster's own and knows its clients by their certificates: without these nobody could log in.
    fn enables_auth(&self) -> bool {
        let is_tls = |url: &String| url.starts_with("https://");
        self.deps.owns_etcd && self.deps.access.tls.is_some() && self.deps.access.endpoints.iter().all(is_tls)
    }

    /// Reads the list of etcd's members, once a minute unless a roll depends on it.
    async fn list_members(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let is_fresh = |(at, _): &(Instant, Vec<ListedMember>)| at.elapsed() < MEMBERS_INTERVAL;
        // A roll is over only by the list of this very moment.
        if self.members.as_ref().is_some_and(is_fresh) && !roll::needs_health(snapshot) {
            return Ok(());
        }
        self.auth.use_endpoints(endpoints(&self.deps.access, published_etcd(snapshot)));
        self.members = Some((Instant::now(), self.auth.members().await?));
        Ok(())
    }

    /// Returns the addresses of etcd for clients, and its members. Their health is checked only if a roll depends on it.
    async fn etcd(&mut self, snapshot: &Snapshot) -> (Vec<String>, ObservedMembers) {
        let listed = self.list_members(snapshot).await;
        if let Err(error) = listed {
            // A user's etcd may not tell.
            tracing::debug!(%error, "etcd's members are not listed");
            return (self.former_etcd(snapshot), Err(error.to_string()));
        }
        let members = self.members.as_ref().map(|(_, members)| members.clone()).unwrap_or_default();
        let urls: Vec<String> = members.iter().flat_map(|member| member.client_urls.clone()).collect();
        let urls = if urls.is_empty() { self.former_etcd(snapshot) } else { urls };
        let (auth, asks) = (&self.auth, roll::needs_health(snapshot));
        let asked = members.into_iter().map(|member| async move {
            let answer = if asks { auth.ask(&member).await } else { Ok(()) };
            ObservedMember { name: member.name, error: answer.err().map(|error| error.to_string()) }
        });
        let seen = futures::future::join_all(asked).await;
        (urls, Ok(seen))
    }

    /// Returns the published addresses of etcd. Before there are any, those that were given, which may be this machine's own
    /// loopback.
    fn former_etcd(&self, snapshot: &Snapshot) -> Vec<String> {
        let published = published_etcd(snapshot);
        if published.is_empty() { self.deps.access.endpoints.clone() } else { published.to_vec() }
    }

    /// Reads the users of etcd, but for those that were verified.
    async fn read_users(&mut self, wanted: &BTreeSet<Identity>) -> (ObservedUsers, BTreeSet<Identity>) {
        let verified = self.checks.verified.iter().map(Identity::to_string).collect();
        let failed = |error: StoreError| (ObservedUsers::Failed(error.to_string()), BTreeSet::new());
        match self.auth.read(&Scope::AllBut(verified)).await {
            Ok(found) => match self.with_record(&found, wanted).await {
                Ok(recorded) => (ObservedUsers::Found(found), recorded),
                Err(error) => failed(error),
            },
            Err(StoreError::Denied { message, .. }) => (ObservedUsers::Denied(message), BTreeSet::new()),
            Err(error) => failed(error),
        }
    }

    /// Returns the identities among the users of which the snapshot has no record, but etcd has: they joined just now.
    /// Whoever admits them writes the record before the user.
    async fn with_record(
        &self,
        found: &AuthState,
        wanted: &BTreeSet<Identity>,
    ) -> Result<BTreeSet<Identity>, StoreError> {
        let names = found.users.keys().chain(found.roles.keys());
        let others = names.filter_map(|name| name.parse::<Identity>().ok());
        let others: BTreeSet<Identity> =
            others.filter(|identity| has_user(identity) && !wanted.contains(identity)).collect();
        let mut recorded = BTreeSet::new();
        for identity in others {
            if self.deps.store.get(&Key::Identity(identity.to_string()).to_string()).await?.is_some() {
                recorded.insert(identity);
            }
        }
        Ok(recorded)
    }

    async fn renew(&self, is_due: bool) -> Result<(), LoopError> {
        if !is_due {
            return Ok(());
        }
        let act = "renewing the certificates of this machine";
        let (own, settings) = (self.deps.own.clone(), self.deps.settings.clone());
        let state_dir = self.deps.state_dir.clone();
        let renewed = tokio::task::spawn_blocking(move || -> Result<(), TrustError> {
            let now = Timestamp::now();
            if own.renew(&settings, now)? {
                tracing::info!("own certificate renewed");
            }
            renew_etcd(&state_dir, settings.certificate_lifetime, now)
        });
        renewed.await.map_err(|error| LoopError::new(act, error))?.map_err(|error| LoopError::new(act, error))
    }

    async fn apply(&self, next: Option<NextTrust>) -> Result<(), LoopError> {
        let Some(next) = next else { return Ok(()) };
        let act = "applying what the cluster trusts";
        let keeper = Arc::clone(&self.deps.own.keeper);
        let applied = tokio::task::spawn_blocking(move || -> Result<(), TrustError> {
            keeper.revoke(next.revoked)?;
            let authorities = bundle_from_pem(&next.authorities.concat())?;
            // Read only now: it may just have been renewed.
            keeper.renew(keeper.current().certificate().clone(), authorities)
        });
        applied.await.map_err(|error| LoopError::new(act, error))?.map_err(|error| LoopError::new(act, error))
    }

    /// Has this machine's member of etcd refuse certificates.
    async fn refuse(&self, refused: Option<RefusedSerials>) -> Result<(), LoopError> {
        let Some(refused) = refused else { return Ok(()) };
        let act = "writing what etcd refuses";
        let (own, dir) = (self.deps.own.clone(), etcd_pki_dir(&self.deps.state_dir));
        let written = tokio::task::spawn_blocking(move || {
            write_refused(&dir, &own.authority(), &refused, Timestamp::now())
        });
        written.await.map_err(|error| LoopError::new(act, error))?.map_err(|error| LoopError::new(act, error))
    }

    async fn write_own(&self, record: Option<(Guard, Op)>) -> Result<(), LoopError> {
        let Some((guard, op)) = record else { return Ok(()) };
        // After a conflict the snapshot is behind: the next run writes.
        let written = self.deps.store.txn(vec![guard], vec![op]).await;
        written.map(drop).map_err(|error| LoopError::new("writing the own identity", error))
    }

    /// Records the new key of this machine's own node.
    async fn take_over(&self, takeover: Option<Removal>) -> Result<(), LoopError> {
        let Some(Removal { writes, event }) = takeover else { return Ok(()) };
        let (guards, ops) = writes.into_iter().unzip();
        let written = self.deps.store.txn(guards, ops).await;
        // After a conflict the snapshot is behind: the next run decides anew.
        if let TxnOutcome::Committed(_) =
            written.map_err(|error| LoopError::new("recording the key of this machine's node", error))?
        {
            tracing::info!(node = event.name, "{}", event.message);
            self.deps.events.record(event);
        }
        Ok(())
    }

    async fn remove(&self, removals: Vec<Removal>) -> Result<(), LoopError> {
        let Some(fence) = self.deps.fence.current().filter(|_| !removals.is_empty()) else { return Ok(()) };
        let (groups, events): (Vec<WriteGroup>, Vec<EventDraft>) =
            removals.into_iter().map(|removal| (removal.writes, removal.event)).unzip();
        let written = write(self.deps.store.as_ref(), fence, &groups, PARALLEL).await;
        for event in written.done.iter().filter_map(|number| events.get(*number)) {
            tracing::info!(node = event.name, "identity removed and its key revoked");
            self.deps.events.record(event.clone());
        }
        match written.stopped {
            Some(StopReason::Store(error)) => Err(LoopError::new("removing identities", error)),
            Some(StopReason::FenceLost) | None => Ok(()),
        }
    }

    async fn restore(&self, groups: Vec<WriteGroup>) -> Result<(), LoopError> {
        let Some(fence) = self.deps.fence.current().filter(|_| !groups.is_empty()) else { return Ok(()) };
        let written = write(self.deps.store.as_ref(), fence, &groups, PARALLEL).await;
        tracing::info!(count = written.done.len(), "identities that etcd had lost restored");
        match written.stopped {
            Some(StopReason::Store(error)) => Err(LoopError::new("restoring identities", error)),
            Some(StopReason::FenceLost) | None => Ok(()),
        }
    }

    async fn write_record(&self, write: Option<RecordWrite>) -> Result<(), LoopError> {
        let (Some(fence), Some(write)) = (self.deps.fence.current(), write) else { return Ok(()) };
        let failed = |error| LoopError::new("writing what the cluster trusts", error);
        let key = Key::Trust.to_string();
        let guard = match write.base {
            Some(revision) => Guard::ModRevision(key, revision),
            // None, or one that cannot be read.
            None => guard_of_present(&self.deps.store, &key).await.map_err(failed)?,
        };
        let (mut guards, mut ops): (Vec<Guard>, Vec<Op>) = write.drops.into_iter().unzip();
        guards.push(guard);
        ops.push(Op::put(Key::Trust, write.value));
        let committed = guarded(&self.deps.store, fence, guards, ops).await.map_err(failed)?;
        // After a conflict the snapshot is behind: the next run decides anew.
        if let (Some(_), Some(event)) = (committed, write.event) {
            tracing::info!(reason = event.reason, "{}", event.message);
            self.deps.events.record(event);
        }
        Ok(())
    }

    async fn adopt(&self, adoption: Option<Adoption>) -> Result<(), LoopError> {
        let Some(Adoption { certificate, sealed }) = adoption else { return Ok(()) };
        let failed = |error: TrustError| LoopError::new("taking over the next authority", error);
        let (own, file) = (self.deps.own.clone(), self.deps.identity_file.clone());
        let adopted = tokio::task::spawn_blocking(move || -> Result<String, TrustError> {
            let text = crypt::open_sealed(&sealed, &file).map_err(|error| content(&error))?;
            let next = AuthorityText::parse(&text)?;
            let digest = next.certificate().digest()?;
            if digest != Certificate::from_pem(&certificate)?.digest()? {
                return Err(TrustError::Content("the sealed authority is another one".to_owned()));
            }
            own.adopt(next)?;
            Ok(digest)
        });
        let adopted =
            adopted.await.map_err(|error| LoopError::new("taking over the next authority", error))?;
        let authority = adopted.map_err(failed)?;
        tracing::info!(authority, "another authority signs from now on");
        Ok(())
    }

    /// Encrypts an authority to all reconcilers, as any of those does that can open it.
    async fn reseal(&self, resealing: Option<Resealing>) -> Result<(), LoopError> {
        let Some(Resealing { digest, guard, record, recipients }) = resealing else { return Ok(()) };
        let act = "encrypting an authority to another reconciler";
        let file = self.deps.identity_file.clone();
        let sealed = tokio::task::spawn_blocking(move || -> anyhow::Result<AuthorityRecord> {
            let text = crypt::open_sealed(&record.sealed, &file)?;
            let to: Vec<_> =
                recipients.iter().map(|to| crypt::recipient(to)).collect::<anyhow::Result<_>>()?;
            let sealed = String::from_utf8(crypt::encrypt(text.as_bytes(), &to)?)?;
            Ok(AuthorityRecord { sealed, recipients: recipients.into_iter().collect(), ..record })
        });
        let sealed = sealed.await.map_err(|error| LoopError::new(act, error))?;
        let sealed = sealed.map_err(|error| LoopError::new(act, content(&error)))?;
        let value = encode(&sealed).map_err(|error| LoopError::new(act, error))?;
        let written = self.deps.store.txn(vec![guard], vec![Op::put(Key::Authority(digest), value)]).await;
        // After a conflict another one has done it.
        written.map(drop).map_err(|error| LoopError::new(act, error))
    }

    /// Restarts this machine's member of etcd, which reads its list of authorities at its start.
    async fn restart(&mut self, restart: Option<Restart>) -> Result<(), LoopError> {
        let Some(Restart { number, why }) = restart else { return Ok(()) };
        // Writes the list, too.
        self.sign_own_etcd().await?;
        let begun = Instant::now();
        tracing::info!(number, why, "restarting this machine's member of etcd");
        let restarted = self.member.restart(number).await;
        restarted.map_err(|error| LoopError::new("restarting this machine's member of etcd", error))?;
        self.rolled = number;
        let name = self.deps.own.keeper.current().identity().to_string();
        let took = begun.elapsed().as_secs_f64();
        tracing::info!(number, took, "member of etcd restarted");
        let message =
            format!("{name} has restarted its member of etcd, {why}; it answered after {took:.1} s");
        self.deps.events.record(about_trust("MemberRestarted", message));
        Ok(())
    }

    async fn sign_own_etcd(&self) -> Result<(), LoopError> {
        let act = "renewing the certificate of etcd";
        let (state_dir, lifetime) = (self.deps.state_dir.clone(), self.deps.settings.certificate_lifetime);
        let signed = tokio::task::spawn_blocking(move || renew_etcd(&state_dir, lifetime, Timestamp::now()));
        signed.await.map_err(|error| LoopError::new(act, error))?.map_err(|error| LoopError::new(act, error))
    }

    async fn manage_users(&mut self, seen: &Observed, plan: &TrustPlan) -> Result<(), LoopError> {
        let act = "managing the users of etcd";
        let outcome = match &seen.users {
            ObservedUsers::NotDue => return Ok(()),
            ObservedUsers::Failed(why) => return Err(LoopError::message(format!("{act}: {why}"))),
            ObservedUsers::Denied(why) => UserOutcome::NotAllowed(why.clone()),
            ObservedUsers::Found(_) => {
                take_all(self.auth.as_mut(), &plan.users).await.map_err(|error| LoopError::new(act, error))?
            }
        };
        if !plan.users.is_empty() && outcome == UserOutcome::Done {
            tracing::info!(steps = plan.users.len(), "users of etcd changed");
        }
        let now = Timestamp::now();
        let wanted = plan::identities(&seen.snapshot, &seen.own.identity);
        let (interval, verified, denied) = match outcome {
            UserOutcome::Done => (USERS_INTERVAL, wanted.clone(), None),
            UserOutcome::NotAllowed(why) => (DENIED_INTERVAL, BTreeSet::new(), Some(why)),
        };
        let is_full = seen.verified.is_empty();
        let again_at = if is_full { Some(now + interval) } else { self.checks.again_at };
        self.checks = UserChecks { again_at, wanted, verified, denied };
        Ok(())
    }

    /// Publishes the problems and the notes, and reports each new problem.
    fn report_problems(&mut self, problems: Vec<TrustProblem>, notes: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.known_problems.contains(problem)) {
            tracing::warn!(reason = problem.reason, problem.message, "trust needs attention");
            let object = NamespacedName::new("", &self.deps.settings.name);
            let message = problem.message.clone();
            let event = EventDraft::about(EventType::Warning, TRUST, &object, problem.reason, message);
            self.deps.events.record(event);
        }
        let sentences: Vec<String> =
            problems.iter().map(|problem| problem.message.clone()).chain(notes).collect();
        self.problems.send_if_modified(|known| {
            let is_news = **known != sentences;
            if is_news {
                *known = Arc::new(sentences);
            }
            is_news
        });
        self.known_problems = problems;
    }
}

/// Returns the addresses of etcd in the record of trust.
fn published_etcd(snapshot: &Snapshot) -> &[String] {
    snapshot.trust.get(&()).map(|row| row.value.etcd.as_slice()).unwrap_or_default()
}

fn content(error: &anyhow::Error) -> TrustError {
    TrustError::Content(format!("{error:#}"))
}

/// Returns the addresses at which a reconciler reaches etcd: the given ones, that of its own machine first, and those that
/// the members of the cluster's own publish, so that it goes on with another one while that restarts.
pub(crate) fn endpoints(given: &Access, published: &[String]) -> Vec<String> {
    let mut all = given.endpoints.clone();
    if given.tls.as_ref().is_some_and(|tls| tls.is_own) {
        let others =
            published.iter().filter(|url| url.starts_with("https://") && !given.endpoints.contains(url));
        all.extend(others.cloned());
    }
    all
}

#[async_trait]
impl Loop for TrustLoop {
    type Observed = Observed;
    type Plan = TrustPlan;
    type Outcome = Result<(), LoopError>;

    fn name(&self) -> &'static str {
        "trust"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let snapshot = self.deps.snapshot.current();
        let mut own = self.deps.own_identity(self.rolled).await?;
        if let Some(node) = own.node.as_mut().filter(|_| snapshot.synced) {
            // Of the first look: later the agent has written a record with its own addresses.
            let addresses = &self.deps.settings.addresses;
            node.is_here =
                *self.is_node_here.get_or_insert_with(|| is_here(&node.identity, &snapshot, addresses));
        }
        // Before etcd is listed only the own certificates count: with ended ones it would never be.
        let leads = snapshot.synced && self.deps.fence.current().is_some();
        let (mut users, mut recorded, mut etcd) = (ObservedUsers::NotDue, BTreeSet::new(), Vec::new());
        let (mut enables_auth, mut members) = (false, Err("another reconciler leads".to_owned()));
        if leads {
            (etcd, members) = self.etcd(&snapshot).await;
            let wanted = plan::identities(&snapshot, &own.identity);
            let is_over = self.checks.again_at.is_none_or(|at| at <= Timestamp::now());
            self.checks.verified.retain(|identity| !is_over && wanted.contains(identity));
            if is_over || wanted != self.checks.wanted {
                (users, recorded) = self.read_users(&wanted).await;
                // With the check of all.
                enables_auth = self.checks.verified.is_empty() && self.enables_auth();
            }
        } else if snapshot.synced {
            // Another leader may do what this one did not.
            self.checks = UserChecks::default();
        }
        let denied = match &users {
            ObservedUsers::Denied(why) => Some(why.clone()),
            _ => self.checks.denied.clone(),
        };
        let verified = self.checks.verified.clone();
        let last_known = Arc::clone(&self.deps.last_known.borrow());
        let lost = last_known.lost_identities(&snapshot).into_iter();
        Ok(Observation::Ready(Observed {
            lost: lost.map(|(name, record)| (name.to_owned(), record.clone())).collect(),
            digests: deps::digests(&snapshot, &own),
            owns_etcd: self.deps.owns_etcd,
            snapshot,
            leads,
            own,
            etcd,
            members,
            users,
            recorded,
            verified,
            enables_auth,
            denied,
        }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> TrustPlan {
        plan::plan(seen, now)
    }

    async fn act(&mut self, seen: &Observed, mut plan: TrustPlan) -> Result<(), LoopError> {
        if seen.snapshot.synced {
            self.report_problems(std::mem::take(&mut plan.problems), std::mem::take(&mut plan.notes));
        }
        // One that fails holds up no other.
        let done = [
            self.renew(plan.renews).await,
            self.apply(plan.trust.take()).await,
            self.adopt(plan.adoption.take()).await,
            self.refuse(plan.refused.take()).await,
            self.write_own(plan.own_record.take()).await,
            self.take_over(plan.takeover.take()).await,
            self.remove(std::mem::take(&mut plan.removals)).await,
            self.restore(std::mem::take(&mut plan.restored)).await,
            self.write_record(plan.record.take()).await,
            self.reseal(plan.resealing.take()).await,
            self.manage_users(seen, &plan).await,
            // Last: nothing else can be written meanwhile if it is the only member.
            self.restart(plan.restart.take()).await,
        ];
        if plan.is_removed {
            // Also if a write failed: etcd may refuse it by now.
            self.removed.cancel();
        }
        done.into_iter().collect()
    }

    async fn report(&mut self, _: Observed, done: Result<(), LoopError>) -> Result<Next, LoopError> {
        done.map(|()| Next::Interval)
    }
}
