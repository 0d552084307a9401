//! Admission of machines and people: join tokens, first certificates, renewals; in `removal.rs` the opposite.
//!
//! Any reconciler admits. Reads `joins/`, `identities/`, `revoked/`, Git's Node objects and `trust`; `plan.rs` decides;
//! signs certificates, writes these keys, guarded by their revisions, and events; keeps etcd's users in step.

mod messages;
mod plan;
mod removal;
mod rotate;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use age::x25519::Recipient;
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::codec::{decode, encode};
use schema::control::lock;
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::names::is_host_name;
use schema::records::{EventType, IdentityRecord, JoinRecord, RevokedIdentity};
use schema::snapshot::Snapshot;
use schema::store::events::{EventDraft, EventRecorder};
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, LeaseId, Op, SharedStore, StoreError, TxnOutcome};
use schema::trust::{
    Certificate, Identity, JoinAnswer, JoinRequest, JoinToken, KeyFingerprint, LeafRequest, PublicKey,
    RenewRequest, Role, TrustError, USER_DAYS, bundle_to_pem,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::messages::{
    AdmissionError, IdentityItem, RemovedIdentity, RotationAnswer, TokenAnswer, TokenRequest, UserRequest,
    admits_or_removes,
};
pub(crate) use self::plan::Refusal;
use super::etcd_users::{EtcdUsers, UserOutcome};
use super::revocation::revoke;
use super::setup::{AuthorityText, OwnTrust};
use crate::crypt;

/// Attempts to write what another reconciler writes at the same time.
const ATTEMPTS: usize = 5;
/// Shortest time between two renewals of one identity.
const RENEWALS_GAP: SignedDuration = SignedDuration::from_secs(10);
/// Time for which the record of a token is kept, so that a used one is known as such.
const TOKEN_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Validity of a token unless requested otherwise.
const TOKEN_SECONDS: u32 = 3600;
/// Longest validity of a token: while its record is kept.
const TOKEN_SECONDS_MAX: u32 = 24 * 3600;
/// Longest validity of a person's certificate: a year.
const USER_SECONDS_MAX: u32 = 365 * 24 * 3600;
/// Most certificates of one key that have not ended. A daemon renews at two thirds, and so has two; one that asks every 10 s,
/// because something refuses it, reaches this after three hours, and can renew again when the first of them have ended.
const CERTIFICATES_MAX: usize = 1_000;
/// Most addresses of a reconciler.
const ADDRESSES_MAX: usize = 32;

/// Users of etcd with their roles, and its members.
#[async_trait]
pub(crate) trait Accounts: Send + Sync {
    /// Creates user and role, and grants what is missing.
    async fn ensure(&self, identity: &Identity) -> Result<UserOutcome, StoreError>;
    /// Removes user and role.
    async fn remove(&self, identity: &Identity) -> Result<UserOutcome, StoreError>;
    /// Removes the member with this name; true if there was one.
    async fn remove_member(&self, name: &str) -> Result<bool, StoreError>;
}

#[async_trait]
impl Accounts for EtcdUsers {
    async fn ensure(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        EtcdUsers::ensure(self, identity).await
    }

    async fn remove(&self, identity: &Identity) -> Result<UserOutcome, StoreError> {
        EtcdUsers::remove(self, identity).await
    }

    async fn remove_member(&self, name: &str) -> Result<bool, StoreError> {
        EtcdUsers::remove_member(self, name).await
    }
}

/// Dependencies of the admission.
pub(crate) struct AdmissionDeps {
    pub(crate) store: SharedStore,
    pub(crate) snapshot: SnapshotReader,
    pub(crate) events: EventRecorder,
    pub(crate) own: OwnTrust,
    pub(crate) accounts: Box<dyn Accounts>,
    /// Set if etcd is the cluster's own: then a reconciler that is removed takes its member with it.
    pub(crate) owns_etcd: bool,
    /// Addresses of etcd for others, as long as `trust` has none.
    pub(crate) etcd: Vec<String>,
    /// URLs of the own API for others, as long as `trust` has none.
    pub(crate) api: Vec<String>,
    /// Validity of certificates of machines.
    pub(crate) lifetime: SignedDuration,
}

/// A key to certify.
struct Candidate {
    identity: Identity,
    key: PublicKey,
    fingerprint: KeyFingerprint,
    recipient: Option<String>,
    addresses: Vec<String>,
    lifetime: SignedDuration,
    /// Set if it may take the place of a machine with another key.
    replaces: bool,
}

impl Candidate {
    fn leaf(&self) -> LeafRequest<'_> {
        let Self { identity, key, addresses, lifetime, .. } = self;
        LeafRequest { identity, key, addresses, lifetime: *lifetime }
    }
}

/// A certificate in force.
struct Enrollment {
    certificate: Certificate,
    key: KeyFingerprint,
    /// Key that it replaced.
    former: Option<KeyFingerprint>,
}

/// Admits machines and people. Has the time of each recent renewal.
pub struct Admission(AdmissionDeps, Mutex<BTreeMap<Identity, Timestamp>>);

impl Admission {
    pub(crate) fn new(deps: AdmissionDeps) -> Self {
        Self(AdmissionDeps { events: deps.events.reporting_as("trust"), ..deps }, Mutex::default())
    }

    /// Admits a machine with a token; `from` is its address.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub(crate) async fn join(
        &self,
        request: &JoinRequest,
        from: &str,
        now: Timestamp,
    ) -> Result<JoinAnswer, AdmissionError> {
        let mut lease = None;
        for _ in 0..ATTEMPTS {
            let (guard, token) = self.token(&request.token).await?;
            plan::check_token(token.as_ref(), request, now)?;
            let Some(token) = token else { break };
            let (candidate, sealed_authority) = self.candidate(request)?;
            let lease = match lease {
                Some(lease) => lease,
                None => *lease.insert(self.0.store.lease_grant(TOKEN_KEPT).await?),
            };
            let spent = JoinRecord { spent_at: Some(now), ..token };
            let spend = put(&Key::Join(request.token.clone()), &spent, Some(lease))?;
            let Some(enrolled) = self.enroll(&candidate, Some((guard, spend)), now).await? else { continue };
            let former = enrolled.former.as_ref().map(|key| format!("; the former key {key} is revoked"));
            let message = format!("joined from {from} with the key {}", enrolled.key);
            self.report(&candidate.identity, "Joined", message + &former.unwrap_or_default());
            return Ok(JoinAnswer { sealed_authority, ..self.answer(&enrolled.certificate)? });
        }
        Err(AdmissionError::Busy)
    }

    /// Renews the certificate of a node.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub(crate) async fn renew(
        &self,
        request: &RenewRequest,
        now: Timestamp,
    ) -> Result<JoinAnswer, AdmissionError> {
        let invalid = |error: TrustError| AdmissionError::Invalid(error.to_string());
        let certificate = Certificate::from_pem(&request.certificate).map_err(invalid)?;
        let key = PublicKey::of_signing_request(&request.signing_request).map_err(invalid)?;
        let trusted = self.0.own.keeper.current();
        let identity = plan::check_certificate(&certificate, &key, trusted.authorities(), now)?;
        let fingerprint = key.fingerprint()?;
        // The reason that stays comes before the one that passes.
        if trusted.is_revoked(&fingerprint) {
            return Err(Refusal::Revoked(fingerprint).into());
        }
        self.limit_renewals(&identity, now)?;
        let candidate = Candidate {
            fingerprint,
            identity,
            key,
            recipient: None,
            addresses: Vec::new(),
            lifetime: self.0.lifetime,
            replaces: false,
        };
        let enrolled = self.enroll_repeatedly(&candidate, now).await?;
        tracing::info!(identity = %candidate.identity, "certificate renewed");
        self.answer(&enrolled.certificate)
    }

    /// Refuses a renewal soon after the last one: each is a write, and several reads of etcd's users.
    fn limit_renewals(&self, identity: &Identity, now: Timestamp) -> Result<(), AdmissionError> {
        let mut recent = lock(&self.1);
        recent.retain(|_, at| now.duration_since(*at).abs() < RENEWALS_GAP);
        match recent.contains_key(identity) {
            true => Err(AdmissionError::TooOften(identity.clone())),
            false => {
                recent.insert(identity.clone(), now);
                Ok(())
            }
        }
    }

    /// Creates a token for a node or a reconciler on behalf of `by`.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub(crate) async fn create_token(
        &self,
        request: &TokenRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<TokenAnswer, AdmissionError> {
        let identity = parsed(&request.identity)?;
        if !matches!(identity.role(), Role::Node | Role::Reconciler) {
            let why = "tokens are for nodes and reconcilers: give node-NAME or reconciler-NAME";
            return Err(AdmissionError::Invalid(why.to_owned()));
        }
        let snapshot = self.snapshot()?;
        plan::check_not_gone(&snapshot, &identity)?;
        let lasts = lifetime("a token", request.ttl_seconds, TOKEN_SECONDS, TOKEN_SECONDS_MAX)?;
        let token = JoinToken::create(&self.0.own.authority().certificate().digest()?)?;
        let record = JoinRecord {
            identity: identity.to_string(),
            secret_hash: JoinToken::hash(&token.secret),
            expires_at: now + lasts,
            spent_at: None,
        };
        let key = Key::Join(token.id.clone());
        let lease = self.0.store.lease_grant(TOKEN_KEPT).await?;
        let write = put(&key, &record, Some(lease))?;
        let TxnOutcome::Committed(_) =
            self.0.store.txn(vec![Guard::Absent(key.to_string())], vec![write]).await?
        else {
            return Err(AdmissionError::Busy);
        };
        let message = format!("token {} was created by {by}; it ends at {:.0}", token.id, record.expires_at);
        self.report(&identity, "TokenCreated", message);
        Ok(TokenAnswer {
            token: token.to_string(),
            expires_at: record.expires_at,
            reconcilers: self.addresses().1,
        })
    }

    /// Signs the certificate of a person on behalf of `by`. A certificate of another key under this name is revoked.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub(crate) async fn add_user(
        &self,
        request: &UserRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<JoinAnswer, AdmissionError> {
        let invalid = |error: TrustError| AdmissionError::Invalid(error.to_string());
        let identity = Identity::new(Role::User, &request.name)
            .map_err(|error| AdmissionError::Invalid(error.to_string()))?;
        let key = PublicKey::of_signing_request(&request.signing_request).map_err(invalid)?;
        let usual = USER_DAYS * 24 * 3600;
        let candidate = Candidate {
            fingerprint: key.fingerprint()?,
            identity,
            key,
            recipient: None,
            addresses: Vec::new(),
            lifetime: lifetime(
                "the certificate of a user",
                request.lifetime_seconds,
                usual,
                USER_SECONDS_MAX,
            )?,
            replaces: true,
        };
        let enrolled = self.enroll_repeatedly(&candidate, now).await?;
        let message =
            format!("added by {by}, with a certificate until {}", enrolled.certificate.not_after()?);
        self.report(&candidate.identity, "UserAdded", message);
        self.answer(&enrolled.certificate)
    }

    /// Lists everybody who has a certificate.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(crate) async fn identities(&self) -> Result<Vec<IdentityItem>, AdmissionError> {
        let listed = self.0.store.list(prefix::IDENTITIES).await?.items;
        let items = listed.into_iter().filter_map(|item| {
            let identity = item.key.strip_prefix(prefix::IDENTITIES)?.to_owned();
            let IdentityRecord { key, not_after, joined_at, recipient, .. } = decode(&item.value).ok()?;
            Some(IdentityItem { identity, key, not_after, joined_at, recipient })
        });
        Ok(items.collect())
    }

    /// Reads a token. An id that is none of ours has no key.
    async fn token(&self, id: &str) -> Result<(Guard, Option<JoinRecord>), AdmissionError> {
        let is_id = (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match is_id {
            true => self.read(&Key::Join(id.to_owned())).await,
            false => Ok((Guard::Absent(String::new()), None)),
        }
    }

    /// Returns the key to certify, and for a reconciler the sealed authority. Only for holders of a token.
    fn candidate(&self, request: &JoinRequest) -> Result<(Candidate, Option<String>), AdmissionError> {
        let invalid = AdmissionError::Invalid;
        let identity = parsed(&request.identity)?;
        let key = PublicKey::of_signing_request(&request.signing_request)
            .map_err(|error| invalid(error.to_string()))?;
        let recipient = request.recipient.as_deref().map(crypt::recipient).transpose();
        let recipient = recipient.map_err(|_| invalid("the recipient is not one of age".to_owned()))?;
        let is_address = |text: &String| text.parse::<IpAddr>().is_ok() || is_host_name(text);
        if request.addresses.len() > ADDRESSES_MAX || !request.addresses.iter().all(is_address) {
            return Err(invalid(format!("give at most {ADDRESSES_MAX} addresses or host names")));
        }
        let (mut addresses, mut sealed) = (Vec::new(), None);
        if identity.role() == Role::Reconciler {
            let needed = || invalid("a reconciler needs a recipient for the authority's key".to_owned());
            let to = recipient.clone().ok_or_else(needed)?;
            sealed = Some(self.sealed_authority(to)?);
            addresses.clone_from(&request.addresses);
        }
        let candidate = Candidate {
            fingerprint: key.fingerprint()?,
            identity,
            key,
            recipient: recipient.map(|recipient| recipient.to_string()),
            addresses,
            lifetime: self.0.lifetime,
            replaces: true,
        };
        Ok((candidate, sealed))
    }

    async fn enroll_repeatedly(
        &self,
        candidate: &Candidate,
        now: Timestamp,
    ) -> Result<Enrollment, AdmissionError> {
        for _ in 0..ATTEMPTS {
            if let Some(enrolled) = self.enroll(candidate, None, now).await? {
                return Ok(enrolled);
            }
        }
        Err(AdmissionError::Busy)
    }

    /// Signs a certificate and writes its record, together with `also`. `None` if a record has changed meanwhile.
    async fn enroll(
        &self,
        candidate: &Candidate,
        also: Option<(Guard, Op)>,
        now: Timestamp,
    ) -> Result<Option<Enrollment>, AdmissionError> {
        let Candidate { identity, fingerprint, .. } = candidate;
        let snapshot = self.snapshot()?;
        plan::check_in_git(&snapshot, identity, fingerprint)?;
        let (guard, known) = self.read::<IdentityRecord>(&identity_key(identity)).await?;
        let (revoked_guard, revoked) = self.read::<RevokedIdentity>(&revoked_key(identity)).await?;
        let listed = revoked.as_ref().is_some_and(|revoked| revoked.keys.contains_key(fingerprint));
        if listed || self.0.own.keeper.current().is_revoked(fingerprint) {
            return Err(Refusal::Revoked(fingerprint.clone()).into());
        }
        let former = known.as_ref().filter(|known| known.key != *fingerprint);
        if former.is_some() && !candidate.replaces {
            return Err(Refusal::Replaced(identity.clone()).into());
        }
        // One for both: a rotation replaces it at any time, and goes by what the record says.
        let authority = self.0.own.authority();
        let certificate = authority.sign(&candidate.leaf(), now)?;
        let signed = IdentityRecord {
            key: fingerprint.clone(),
            serials: [(certificate.serial()?, certificate.not_after()?)].into(),
            issuer: authority.certificate().digest()?,
            not_after: certificate.not_after()?,
            joined_at: now,
            recipient: candidate.recipient.clone(),
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        };
        let record = plan::record(known.as_ref(), signed);
        if record.serials.len() > CERTIFICATES_MAX {
            return Err(AdmissionError::TooMany(identity.clone()));
        }
        let revoked = former.map(|former| revoke(identity, revoked.as_ref(), former, now));
        let (mut guards, mut ops) =
            (vec![guard, revoked_guard], vec![put(&identity_key(identity), &record, None)?]);
        if let Some(revoked) = &revoked {
            ops.push(put(&revoked_key(identity), revoked, None)?);
        }
        if let Some((guard, op)) = also {
            guards.push(guard);
            ops.push(op);
        }
        if self.0.store.txn(guards, ops).await? == TxnOutcome::Conflict {
            return Ok(None);
        }
        if let Some(revoked) = revoked {
            self.revoke_here(revoked).await;
        }
        if identity.role() != Role::User {
            self.follow_up(identity, self.0.accounts.ensure(identity).await);
        }
        let former = former.map(|former| former.key.clone());
        Ok(Some(Enrollment { certificate, key: fingerprint.clone(), former }))
    }

    /// Certificate and key of the authority, for a reconciler that joins.
    fn sealed_authority(&self, to: Recipient) -> Result<String, TrustError> {
        let text = AuthorityText::of(&self.0.own.authority())?.to_json()?;
        crypt::seal(&text, to).map_err(|error| TrustError::Content(format!("{error:#}")))
    }

    fn answer(&self, certificate: &Certificate) -> Result<JoinAnswer, AdmissionError> {
        let (etcd, reconcilers) = self.addresses();
        Ok(JoinAnswer {
            certificate: certificate.to_pem()?,
            authorities: bundle_to_pem(self.0.own.keeper.current().authorities())?,
            etcd,
            reconcilers,
            sealed_authority: None,
        })
    }

    /// Returns the addresses of etcd and of the reconcilers.
    fn addresses(&self) -> (Vec<String>, Vec<String>) {
        let snapshot = self.0.snapshot.current();
        let trust = snapshot.trust.get(&()).map(|trust| &trust.value);
        let etcd = trust.map(|trust| &trust.etcd).filter(|etcd| !etcd.is_empty());
        let api = trust.map(|trust| &trust.reconcilers).filter(|api| !api.is_empty());
        (etcd.unwrap_or(&self.0.etcd).clone(), api.unwrap_or(&self.0.api).clone())
    }

    /// Puts revoked keys in force in this process; the others learn of them by `trust`.
    async fn revoke_here(&self, revoked: RevokedIdentity) {
        let keeper = Arc::clone(&self.0.own.keeper);
        let written = tokio::task::spawn_blocking(move || keeper.revoke(revoked.keys));
        let written = written.await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::warn!(
                ?written,
                "a revoked key is in force, but not on disk yet; the trust loop tries again"
            );
        }
    }

    /// Reports what etcd's users lack. A failure is made up for by the leader's loop.
    fn follow_up(&self, identity: &Identity, outcome: Result<UserOutcome, StoreError>) {
        match outcome {
            Ok(UserOutcome::Done) => {}
            Ok(UserOutcome::NotAllowed(why)) => {
                let message = format!(
                    "etcd does not let the reconciler change its users ({why}); run the commands that \
                     'minik8s trust etcd-users' prints"
                );
                self.event(EventType::Warning, identity, "EtcdUsersDiffer", message);
            }
            Err(error) => tracing::warn!(%identity, %error, "user of etcd not changed yet"),
        }
    }

    fn report(&self, identity: &Identity, reason: &str, message: String) {
        tracing::info!(%identity, reason, "{message}");
        self.event(EventType::Normal, identity, reason, message);
    }

    fn event(&self, kind: EventType, identity: &Identity, reason: &str, message: String) {
        let object = NamespacedName::new("", identity.to_string());
        self.0.events.record(EventDraft::about(kind, "Identity", &object, reason, message));
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, AdmissionError> {
        let snapshot = self.0.snapshot.current();
        self.check_standing(&snapshot)?;
        if snapshot.synced { Ok(snapshot) } else { Err(AdmissionError::Starting) }
    }

    /// Refuses while this reconciler does not belong to the cluster.
    fn check_standing(&self, snapshot: &Snapshot) -> Result<(), AdmissionError> {
        if self.0.own.is_removed()? {
            return Err(AdmissionError::Excluded("was removed from the cluster"));
        }
        let authority = self.0.own.authority().certificate().to_pem()?;
        let trusted = snapshot.trust.get(&()).map(|row| &row.value.authorities);
        match trusted.is_some_and(|trusted| !trusted.contains(&authority)) {
            true => Err(AdmissionError::Excluded("signs with an authority that is not the cluster's")),
            false => Ok(()),
        }
    }

    /// Reads a record, and returns the guard of its present state.
    async fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<(Guard, Option<T>), AdmissionError> {
        let key = key.to_string();
        let Some(found) = self.0.store.get(&key).await? else { return Ok((Guard::Absent(key), None)) };
        match decode(&found.value) {
            Ok(value) => Ok((Guard::ModRevision(key, found.mod_revision), Some(value))),
            Err(source) => Err(AdmissionError::Record { key, source }),
        }
    }
}

fn identity_key(identity: &Identity) -> Key {
    Key::Identity(identity.to_string())
}

fn revoked_key(identity: &Identity) -> Key {
    Key::RevokedIdentity(identity.to_string())
}

fn parsed(name: &str) -> Result<Identity, AdmissionError> {
    name.parse().map_err(|error: schema::trust::IdentityError| AdmissionError::Invalid(error.to_string()))
}

fn put<T: Serialize>(key: &Key, value: &T, lease: Option<LeaseId>) -> Result<Op, AdmissionError> {
    let key = key.to_string();
    match encode(value) {
        Ok(value) => Ok(Op::Put { key, value: value.into(), lease }),
        Err(source) => Err(AdmissionError::Record { key, source }),
    }
}

fn lifetime(
    what: &str,
    wanted: Option<u32>,
    usual: u32,
    most: u32,
) -> Result<SignedDuration, AdmissionError> {
    match wanted.unwrap_or(usual) {
        seconds if (1..=most).contains(&seconds) => Ok(SignedDuration::from_secs(seconds.into())),
        seconds => {
            Err(AdmissionError::Invalid(format!("{what} lasts 1 s to {} h, not {seconds} s", most / 3600)))
        }
    }
}
