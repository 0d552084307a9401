//! Begin of a rotation of the authority, and the confirmation that the members of an etcd of the user's were restarted.
//! The loop of trust on each reconciler does the rest.

use age::x25519::Recipient;
use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::records::{AuthorityRecord, EventType, IdentityRecord, TrustRecord};
use schema::store::events::EventDraft;
use schema::store::{Guard, TxnOutcome};
use schema::trust::{Authority, BACKDATED_SECONDS, Certificate, Identity, Role};

use super::{ATTEMPTS, Admission, AdmissionError, AuthorityText, RotationAnswer, identity_key, put};
use crate::crypt;

impl Admission {
    /// Creates the next authority on behalf of `by`, sealed to all reconcilers. The leader then has it trusted by all
    /// before anybody signs with it.
    ///
    /// # Errors
    /// [`AdmissionError`]: a rotation is under way, or a reconciler could not open the key.
    pub(crate) async fn rotate(&self, by: &str, now: Timestamp) -> Result<RotationAnswer, AdmissionError> {
        self.check_standing(&self.0.snapshot.current())?;
        let (trust_guard, trust) = self.read::<TrustRecord>(&Key::Trust).await?;
        let trusted = trust.map(|trust| trust.authorities).unwrap_or_default();
        let present = Certificate::from_pem(trusted.first().ok_or(AdmissionError::Starting)?)?;
        let present_key = Key::Authority(present.digest()?).to_string();
        let listed = self.0.store.list(prefix::AUTHORITIES).await?.items;
        // Several without a record are what is left of a rotation during which etcd was lost.
        if listed.iter().any(|item| item.key != present_key || trusted.len() > 1) {
            return Err(AdmissionError::RotationUnderWay);
        }
        let identities = self.identity_records().await?;
        let recipients = recipients(&identities)?;
        let lifetime = present.not_after()?.duration_since(present.not_before()?);
        let next = Authority::create(lifetime - SignedDuration::from_secs(BACKDATED_SECONDS), now)?;
        let sealed = crypt::encrypt(AuthorityText::of(&next)?.to_json()?.as_bytes(), &recipients);
        let sealed = sealed.and_then(|sealed| Ok(String::from_utf8(sealed)?));
        let record = AuthorityRecord {
            certificate: next.certificate().to_pem()?,
            sealed: sealed.map_err(|error| AdmissionError::Invalid(format!("{error:#}")))?,
            recipients: recipients.iter().map(ToString::to_string).collect(),
            created_at: now,
        };
        let digest = next.certificate().digest()?;
        let key = Key::Authority(digest.clone());
        let guards = vec![trust_guard, Guard::Absent(key.to_string())];
        if self.0.store.txn(guards, vec![put(&key, &record, None)?]).await? == TxnOutcome::Conflict {
            return Err(AdmissionError::Busy);
        }
        self.report_trust(
            "RotationStarted",
            format!("{by} created the authority {digest}; once all trust it, it signs"),
        );
        let users = identities.iter().map(|(identity, _)| identity);
        let users = users.filter(|identity| identity.role() == Role::User);
        Ok(RotationAnswer { authority: digest, users: users.map(|user| user.name().to_owned()).collect() })
    }

    /// Records on behalf of `by` that all members of an etcd of the user's were restarted since `status` asked for it.
    ///
    /// # Errors
    /// [`AdmissionError`]: the members are the cluster's own, or etcd does not answer.
    pub(crate) async fn confirm_etcd_restart(&self, by: &str) -> Result<(), AdmissionError> {
        if self.identity_records().await?.iter().any(|(_, record)| record.etcd_member.is_some()) {
            let why = "the members of this etcd are the cluster's own, which restarts them itself";
            return Err(AdmissionError::Invalid(why.to_owned()));
        }
        let own = self.0.own.keeper.current().identity().clone();
        for _ in 0..ATTEMPTS {
            let (_, trust) = self.read::<TrustRecord>(&Key::Trust).await?;
            let Some(roll) = trust.and_then(|trust| trust.roll) else { return Ok(()) };
            let (guard, record) = self.read::<IdentityRecord>(&identity_key(&own)).await?;
            let record = record.ok_or(AdmissionError::Starting)?;
            let confirmed = IdentityRecord { confirmed_roll: Some(roll.number), ..record };
            let ops = vec![put(&identity_key(&own), &confirmed, None)?];
            if self.0.store.txn(vec![guard], ops).await? != TxnOutcome::Conflict {
                let message = format!("{by} has restarted all members of etcd: {}", roll.why);
                self.report_trust("EtcdRestartConfirmed", message);
                return Ok(());
            }
        }
        Err(AdmissionError::Busy)
    }

    async fn identity_records(&self) -> Result<Vec<(Identity, IdentityRecord)>, AdmissionError> {
        let listed = self.0.store.list(prefix::IDENTITIES).await?.items;
        let items = listed.into_iter().filter_map(|item| {
            let identity: Identity = item.key.strip_prefix(prefix::IDENTITIES)?.parse().ok()?;
            Some((identity, decode::<IdentityRecord>(&item.value).ok()?))
        });
        Ok(items.collect())
    }

    fn report_trust(&self, reason: &str, message: String) {
        tracing::info!(reason, "{message}");
        let object = NamespacedName::new("", "trust");
        self.0.events.record(EventDraft::about(EventType::Normal, "Trust", &object, reason, message));
    }
}

/// Returns the recipients of all reconcilers. One without a recipient could not sign after the rotation.
fn recipients(identities: &[(Identity, IdentityRecord)]) -> Result<Vec<Recipient>, AdmissionError> {
    let reconcilers = identities.iter().filter(|(identity, _)| identity.role() == Role::Reconciler);
    let recipient = |(identity, record): &(Identity, IdentityRecord)| {
        let recipient = record.recipient.as_deref().and_then(|text| crypt::recipient(text).ok());
        recipient.ok_or_else(|| {
            let why = "has no age recipient, to which the key is encrypted: start it, or remove it from the cluster";
            AdmissionError::Invalid(format!("{identity} {why}"))
        })
    };
    let found = reconcilers.map(recipient).collect::<Result<Vec<_>, _>>()?;
    // This reconciler writes its record soon after its start.
    if found.is_empty() { Err(AdmissionError::Starting) } else { Ok(found) }
}
