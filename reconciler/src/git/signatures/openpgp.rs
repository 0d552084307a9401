//! OpenPGP signatures: made by a key of the keyring that was, and is, neither expired nor revoked.
//!
//! Every key of the keyring is as good as another: the keyring is the list of who may. A key counts
//! for what its owner's own signatures say: the newest one sets when it ends and what it is for.
//! Signatures over weak hashes count for nothing, except that a revocation always counts.

use jiff::Timestamp;
use pgp::composed::{Deserializable as _, DetachedSignature, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureType, SubpacketData};
use pgp::types::{KeyDetails, Tag, VerifyingKey};

use super::{Doubt, HELP_KEYS, HELP_SIGN, Signed};

const ARMOR: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const HELP_KEYRING: &str = "sign it with a key of the keyring, or add the key to the GPG keys of the source";
/// More signatures than any real commit has are only work.
const SIGNATURES_MAX: usize = 8;

/// The keys that may sign.
#[derive(Debug, Clone)]
pub(super) struct Keyring(Vec<SignedPublicKey>);

impl Keyring {
    /// Reads keys, armored (one block or more) or binary.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let unreadable = |error: pgp::errors::Error| format!("its keys can't be read: {error}");
        let mut keys = Vec::new();
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.contains(ARMOR));
        if let Some(text) = text {
            if text.contains("PRIVATE KEY BLOCK") {
                return Err("it holds a private key; put in only public ones".to_owned());
            }
            for block in text.split(ARMOR).skip(1) {
                let block = format!("{ARMOR}{block}");
                let (found, _) = SignedPublicKey::from_string_many(&block).map_err(unreadable)?;
                for key in found {
                    keys.push(key.map_err(unreadable)?);
                }
            }
        } else {
            for key in SignedPublicKey::from_bytes_many(bytes).map_err(unreadable)? {
                keys.push(key.map_err(unreadable)?);
            }
        }
        if keys.is_empty() {
            return Err("it holds no key".to_owned());
        }
        Ok(Self(merged(keys)))
    }
}

/// A key that is there several times, say as it was and as it was renewed, becomes one with all that
/// was ever signed about it: the newest word on its end counts, and any revocation.
fn merged(keys: Vec<SignedPublicKey>) -> Vec<SignedPublicKey> {
    let mut all: Vec<SignedPublicKey> = Vec::new();
    for key in keys {
        let print = key.primary_key.fingerprint();
        match all.iter_mut().find(|known| known.primary_key.fingerprint() == print) {
            Some(known) => merge(known, key),
            None => all.push(key),
        }
    }
    all
}

fn merge(into: &mut SignedPublicKey, other: SignedPublicKey) {
    into.details.revocation_signatures.extend(other.details.revocation_signatures);
    into.details.direct_signatures.extend(other.details.direct_signatures);
    for user in other.details.users {
        match into.details.users.iter_mut().find(|known| known.id == user.id) {
            Some(known) => known.signatures.extend(user.signatures),
            None => into.details.users.push(user),
        }
    }
    for subkey in other.public_subkeys {
        let print = subkey.key.fingerprint();
        match into.public_subkeys.iter_mut().find(|known| known.key.fingerprint() == print) {
            Some(known) => known.signatures.extend(subkey.signatures),
            None => into.public_subkeys.push(subkey),
        }
    }
}

/// Believes `armor` over the commit, or says why not.
pub(super) fn verify(keyring: &Keyring, armor: &str, signed: &Signed<'_>) -> Result<(), Doubt> {
    let unreadable = |error: pgp::errors::Error| {
        Doubt::new(format!("its GPG signature can't be read: {}", one_line(&error)), HELP_SIGN)
    };
    let (found, _) = DetachedSignature::from_string_many(armor).map_err(unreadable)?;
    let mut last = Doubt::new("its GPG signature is empty", HELP_SIGN);
    for signature in found.take(SIGNATURES_MAX) {
        match verify_one(keyring, &signature.map_err(unreadable)?.signature, signed) {
            Ok(()) => return Ok(()),
            Err(doubt) => last = doubt,
        }
    }
    Err(last)
}

fn verify_one(keyring: &Keyring, signature: &Signature, signed: &Signed<'_>) -> Result<(), Doubt> {
    if signature.typ() != Some(SignatureType::Binary) {
        return Err(Doubt::new("its GPG signature is not one over a document", HELP_SIGN));
    }
    if !is_strong(signature) {
        return Err(Doubt::new("its GPG signature uses a weak hash", HELP_SIGN));
    }
    if has_unknown_critical(signature) {
        return Err(Doubt::new("its GPG signature has conditions that are not known here", HELP_SIGN));
    }
    let Some(made_at) = signature.created().and_then(|time| second(time.as_secs())) else {
        return Err(Doubt::new("its GPG signature has no date", HELP_SIGN));
    };
    if let Some(life) = signature.signature_expiration_time().filter(|life| life.as_secs() > 0)
        && second_after(made_at, life.as_secs()).is_none_or(|end| end <= signed.now)
    {
        return Err(Doubt::new("its GPG signature is expired", HELP_SIGN));
    }
    for certificate in &keyring.0 {
        if signature.verify(&certificate.primary_key, signed.content).is_ok() {
            return check_primary(certificate, Use::Signs, made_at, signed.now);
        }
        for subkey in &certificate.public_subkeys {
            if signature.verify(&subkey.key, signed.content).is_ok() {
                check_primary(certificate, Use::Certifies, made_at, signed.now)?;
                return check_subkey(certificate, subkey, made_at, signed.now);
            }
        }
    }
    Err(not_verified(keyring, signature))
}

/// Known key and wrong signature, or unknown key.
fn not_verified(keyring: &Keyring, signature: &Signature) -> Doubt {
    let prints = signature.issuer_fingerprint();
    let ids = signature.issuer_key_id();
    let is_issuer = |key: &dyn KeyDetails| {
        let (print, id) = (key.fingerprint(), key.legacy_key_id());
        prints.contains(&&print) || ids.contains(&&id)
    };
    let known = keyring.0.iter().any(|certificate| {
        is_issuer(&certificate.primary_key) || certificate.public_subkeys.iter().any(|s| is_issuer(&s.key))
    });
    let issuer = prints.first().map(|print| format!("{print:x}"));
    let issuer = issuer.or_else(|| ids.first().map(ToString::to_string)).unwrap_or_default();
    if known {
        Doubt::new(format!("the signature of GPG key {issuer} does not fit the commit"), HELP_SIGN)
    } else {
        Doubt::new(format!("GPG key {issuer} is not in the keyring"), HELP_KEYRING)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It made the signature itself.
    Signs,
    /// It vouches for the subkey that did.
    Certifies,
}

fn check_primary(key: &SignedPublicKey, used: Use, made_at: Timestamp, now: Timestamp) -> Result<(), Doubt> {
    let name = format!("GPG key {:x}", key.primary_key.fingerprint());
    let revoked = |signature: &&Signature| signature.verify_key(&key.primary_key).is_ok();
    if key.details.revocation_signatures.iter().any(|signature| revoked(&signature)) {
        return Err(Doubt::new(format!("{name} is revoked"), HELP_KEYRING));
    }
    let direct = key.details.direct_signatures.iter().filter(|s| s.verify_key(&key.primary_key).is_ok());
    let mut own: Vec<&Signature> = direct.collect();
    for user in &key.details.users {
        let valid: Vec<&Signature> = user
            .signatures
            .iter()
            .filter(|s| s.verify_certification(&key.primary_key, Tag::UserId, &user.id).is_ok())
            .collect();
        // A name that was taken back says nothing any more.
        if valid.iter().any(|s| s.typ() == Some(SignatureType::CertRevocation)) {
            continue;
        }
        own.extend(valid);
    }
    let newest = own.into_iter().filter(|s| is_strong(s)).max_by_key(|s| s.created().map(|t| t.as_secs()));
    let Some(newest) = newest else {
        return Err(Doubt::new(format!("{name} has no valid signature of its own"), HELP_KEYS));
    };
    if used == Use::Signs && !newest.key_flags().sign() {
        return Err(Doubt::new(format!("{name} is not for signing"), HELP_KEYRING));
    }
    check_life(&name, &key.primary_key, newest, made_at, now)
}

fn check_subkey(
    key: &SignedPublicKey,
    subkey: &SignedPublicSubKey,
    made_at: Timestamp,
    now: Timestamp,
) -> Result<(), Doubt> {
    let name = format!("GPG subkey {:x}", subkey.key.fingerprint());
    let bound = |s: &&Signature| s.verify_subkey_binding(&key.primary_key, &subkey.key).is_ok();
    let valid: Vec<&Signature> = subkey.signatures.iter().filter(bound).collect();
    if valid.iter().any(|s| s.typ() == Some(SignatureType::SubkeyRevocation)) {
        return Err(Doubt::new(format!("{name} is revoked"), HELP_KEYRING));
    }
    let newest = valid
        .into_iter()
        .filter(|s| s.typ() == Some(SignatureType::SubkeyBinding) && is_strong(s))
        .max_by_key(|s| s.created().map(|time| time.as_secs()));
    let Some(newest) = newest else {
        return Err(Doubt::new(format!("{name} is not bound to its key"), HELP_KEYS));
    };
    if !newest.key_flags().sign() {
        return Err(Doubt::new(format!("{name} is not for signing"), HELP_KEYRING));
    }
    // Without its own word for it, anyone could claim a stranger's subkey.
    let points_back = newest
        .embedded_signature()
        .is_some_and(|back| back.verify_primary_key_binding(&subkey.key, &key.primary_key).is_ok());
    if !points_back {
        return Err(Doubt::new(format!("{name} does not belong to its key"), HELP_KEYS));
    }
    check_life(&name, &subkey.key, newest, made_at, now)
}

/// The key was valid when it signed, and is now: as `git verify-commit` has it.
fn check_life(
    name: &str,
    key: &impl VerifyingKey,
    own: &Signature,
    made_at: Timestamp,
    now: Timestamp,
) -> Result<(), Doubt> {
    let Some(created) = second(key.created_at().as_secs()) else {
        return Err(Doubt::new(format!("{name} has no date"), HELP_KEYS));
    };
    if made_at < created {
        return Err(Doubt::new(format!("the signature is older than {name}"), HELP_SIGN));
    }
    let Some(life) = own.key_expiration_time().filter(|life| life.as_secs() > 0) else { return Ok(()) };
    match second_after(created, life.as_secs()) {
        Some(end) if made_at < end && now < end => Ok(()),
        Some(end) => Err(Doubt::new(format!("{name} is expired since {end}"), HELP_KEYRING)),
        None => Err(Doubt::new(format!("{name} has no readable end"), HELP_KEYS)),
    }
}

fn second(seconds: u32) -> Option<Timestamp> {
    Timestamp::from_second(i64::from(seconds)).ok()
}

fn second_after(time: Timestamp, seconds: u32) -> Option<Timestamp> {
    Timestamp::from_second(time.as_second().checked_add(i64::from(seconds))?).ok()
}

fn is_strong(signature: &Signature) -> bool {
    let weak = [HashAlgorithm::Md5, HashAlgorithm::Sha1, HashAlgorithm::Ripemd160, HashAlgorithm::None];
    signature.hash_alg().is_some_and(|hash| !weak.contains(&hash))
}

/// "Must be understood, or the signature does not count" (RFC 9580, 5.2.3.7).
fn has_unknown_critical(signature: &Signature) -> bool {
    let Some(config) = signature.config() else { return true };
    let known = |data: &SubpacketData| {
        !matches!(
            data,
            SubpacketData::Other(..) | SubpacketData::Experimental(..) | SubpacketData::Notation(_)
        )
    };
    config.hashed_subpackets().any(|subpacket| subpacket.is_critical && !known(&subpacket.data))
}

fn one_line(error: &pgp::errors::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
