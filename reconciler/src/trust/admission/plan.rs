//! Decides who is admitted and who is removed, and on the records of both. Pure.

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::{DEFAULT_NAMESPACE, ObjectRef};
use schema::records::{IdentityRecord, JoinRecord};
use schema::snapshot::Snapshot;
use schema::trust::{Certificate, Identity, JoinRequest, JoinToken, KeyFingerprint, PublicKey, Role};
use subtle::ConstantTimeEq as _;

use crate::trust::revocation::{in_force, renewable_until};

/// Hash of no secret, compared where there is no token.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Reason why somebody is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The same for a wrong id, secret and name, so that a guess learns nothing.
    #[error("this token does not admit a machine of this name")]
    WrongToken,
    #[error("the token was used already at {0}")]
    UsedToken(Timestamp),
    #[error("the token ended at {0}")]
    LateToken(Timestamp),
    #[error("Git marks the node of {0} as gone")]
    Gone(Identity),
    #[error("the Node object of {0} can't be read, and it may name another key")]
    UnreadableNode(Identity),
    #[error("the Node object of {identity} names another key than this one, {key}")]
    OtherInGit { identity: Identity, key: KeyFingerprint },
    #[error("the key {0} was revoked")]
    Revoked(KeyFingerprint),
    #[error("no authority of this cluster has signed the certificate")]
    Stranger,
    #[error("the signing request is not that of the certificate's key")]
    OtherKey,
    #[error("the certificate ended at {0}, more than a year ago")]
    TooOld(Timestamp),
    #[error("{0} has another key by now")]
    Replaced(Identity),
    #[error("the certificate of {0} is not renewed here")]
    NotRenewable(Identity),
}

/// Decides whether a token admits the machine that sends it.
pub(super) fn check_token(
    record: Option<&JoinRecord>,
    request: &JoinRequest,
    now: Timestamp,
) -> Result<(), Refusal> {
    // Takes as long without a record as with one.
    let wanted = record.map_or(NO_HASH, |record| &record.secret_hash);
    let is_secret: bool = JoinToken::hash(&request.secret).as_bytes().ct_eq(wanted.as_bytes()).into();
    let record = record.filter(|record| is_secret && record.identity == request.identity);
    match record.ok_or(Refusal::WrongToken)? {
        JoinRecord { spent_at: Some(at), .. } => Err(Refusal::UsedToken(*at)),
        JoinRecord { expires_at, .. } if *expires_at <= now => Err(Refusal::LateToken(*expires_at)),
        JoinRecord { .. } => Ok(()),
    }
}

/// Decides whether a certificate may be renewed by the key of a signing request; returns its owner. Its validity is of no
/// interest for a year after its end: the machine may have been off.
pub(super) fn check_certificate(
    certificate: &Certificate,
    key: &PublicKey,
    authorities: &[Certificate],
    now: Timestamp,
) -> Result<Identity, Refusal> {
    if !authorities.iter().any(|authority| certificate.is_signed_by(authority)) {
        return Err(Refusal::Stranger);
    }
    // An authority's own certificate has no identity.
    let identity = certificate.identity().map_err(|_| Refusal::Stranger)?;
    if !certificate.public_key().is_ok_and(|own| own.is(key)) {
        return Err(Refusal::OtherKey);
    }
    // Reconcilers sign their own, and that of a person shall end.
    if identity.role() != Role::Node {
        return Err(Refusal::NotRenewable(identity));
    }
    match certificate.not_after() {
        Ok(end) if renewable_until(end) > now => Ok(identity),
        Ok(end) => Err(Refusal::TooOld(end)),
        Err(_) => Err(Refusal::Stranger),
    }
}

/// Decides whether Git lets somebody in at all.
pub(super) fn check_not_gone(snapshot: &Snapshot, identity: &Identity) -> Result<(), Refusal> {
    let is_gone = identity.node().is_some_and(|node| snapshot.is_gone(node));
    if is_gone { Err(Refusal::Gone(identity.clone())) } else { Ok(()) }
}

/// Decides whether Git lets somebody in with this key.
pub(super) fn check_in_git(snapshot: &Snapshot, identity: &Identity, key: &str) -> Result<(), Refusal> {
    check_not_gone(snapshot, identity)?;
    let Some(node) = identity.node() else { return Ok(()) };
    let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), node.to_owned());
    let object = Key::Object(ObjectRef { kind: Kind::Node, namespace, name });
    if snapshot.malformed.contains_key(&object.to_string()) {
        return Err(Refusal::UnreadableNode(identity.clone()));
    }
    match snapshot.node_spec(node).and_then(|node| node.identity.as_deref()) {
        Some(wanted) if wanted != key => {
            Err(Refusal::OtherInGit { identity: identity.clone(), key: key.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Returns the record of an identity whose certificate was just signed: `signed` with what is kept of the former one. A
/// machine with another key is another machine.
pub(super) fn record(known: Option<&IdentityRecord>, signed: IdentityRecord) -> IdentityRecord {
    match known.filter(|known| known.key == signed.key) {
        None => signed,
        Some(known) => IdentityRecord {
            serials: in_force(&known.serials, signed.joined_at).into_iter().chain(signed.serials).collect(),
            issuer: signed.issuer,
            not_after: signed.not_after,
            recipient: signed.recipient.or_else(|| known.recipient.clone()),
            ..known.clone()
        },
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use schema::kinds::metadata::GONE_ANNOTATION;
    use schema::kinds::node::NodeSpec;
    use schema::testing::{SnapshotBuilder, at, object_of};
    use schema::trust::{Authority, KeyPair, LeafRequest};

    use super::*;

    const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);

    fn token() -> JoinRecord {
        JoinRecord {
            identity: "node-n1".to_owned(),
            secret_hash: JoinToken::hash("secret"),
            expires_at: at(3600),
            spent_at: None,
        }
    }

    fn request(identity: &str, secret: &str) -> JoinRequest {
        JoinRequest {
            token: "0a0b0c0d0e0f".to_owned(),
            secret: secret.to_owned(),
            identity: identity.to_owned(),
            signing_request: String::new(),
            recipient: None,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn a_token_admits_its_own_name_once_and_in_time() {
        let (right, now) = (request("node-n1", "secret"), at(10));
        let spent = JoinRecord { spent_at: Some(at(5)), ..token() };
        assert_eq!(check_token(Some(&token()), &right, now), Ok(()));
        assert_eq!(check_token(Some(&spent), &right, now), Err(Refusal::UsedToken(at(5))));
        assert_eq!(check_token(Some(&token()), &right, at(3599)), Ok(()));
        assert_eq!(check_token(Some(&token()), &right, at(3600)), Err(Refusal::LateToken(at(3600))));
    }

    #[test]
    fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
        let spent = JoinRecord { spent_at: Some(at(5)), ..token() };
        for record in [None, Some(&token()), Some(&spent)] {
            for (identity, secret) in [
                ("node-n1", ""),
                ("node-n1", "secret2"),
                ("node-n2", "secret"),
                ("", token().secret_hash.as_str()),
            ] {
                let found = check_token(record, &request(identity, secret), at(10));
                assert_eq!(found, Err(Refusal::WrongToken), "{identity} {secret}");
            }
        }
        assert_eq!(check_token(None, &request("node-n1", "secret"), at(10)), Err(Refusal::WrongToken));
    }

    #[test]
    fn a_certificate_is_renewed_by_its_key_until_a_year_after_its_end() {
        let create = || Authority::create(SignedDuration::from_hours(24 * 3650), at(0)).unwrap();
        let (own, other, key, next) =
            (create(), create(), KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let (key, next) = (key.public_key().unwrap(), next.public_key().unwrap());
        let signed = |authority: &Authority, name: &str| {
            let identity = name.parse().unwrap();
            let leaf = LeafRequest { identity: &identity, key: &key, addresses: &[], lifetime: WEEK };
            authority.sign(&leaf, at(0)).unwrap()
        };
        let trusted = [own.certificate().clone()];
        let node: Identity = "node-n1".parse().unwrap();
        let certificate = signed(&own, "node-n1");
        let end = certificate.not_after().unwrap();
        let year = SignedDuration::from_hours(24 * 365);
        let second = SignedDuration::from_secs(1);
        let check = |certificate: &Certificate, key: &PublicKey, now| {
            check_certificate(certificate, key, &trusted, now)
        };
        assert_eq!(check(&certificate, &key, at(0)), Ok(node.clone()));
        assert_eq!(check(&certificate, &key, end + year - second), Ok(node));
        assert_eq!(check(&certificate, &key, end + year), Err(Refusal::TooOld(end)));
        assert_eq!(check(&certificate, &next, at(0)), Err(Refusal::OtherKey));
        assert_eq!(check(&signed(&other, "node-n1"), &key, at(0)), Err(Refusal::Stranger));
        let authority = own.certificate();
        let own_key = authority.public_key().unwrap();
        assert_eq!(check(authority, &own_key, at(0)), Err(Refusal::Stranger));
        for name in ["user-ada", "reconciler-r1", "etcd"] {
            let found = check(&signed(&own, name), &key, at(0));
            assert_eq!(found, Err(Refusal::NotRenewable(name.parse().unwrap())));
        }
    }

    #[test]
    fn git_decides_which_key_a_node_has_and_whether_it_is_gone() {
        let (n1, ada): (Identity, Identity) = ("node-n1".parse().unwrap(), "user-ada".parse().unwrap());
        let pinned = NodeSpec { identity: Some("sha256:a".to_owned()), ..NodeSpec::default() };
        let builder = SnapshotBuilder::new().node_object("n1", pinned.clone());
        let check = |builder: &SnapshotBuilder, identity: &Identity, key: &str| {
            check_in_git(&builder.snapshot, identity, key)
        };
        assert_eq!(check(&SnapshotBuilder::new(), &n1, "sha256:b"), Ok(()));
        let unpinned = SnapshotBuilder::new().node_object("n1", NodeSpec::default());
        assert_eq!(check(&unpinned, &n1, "sha256:b"), Ok(()));
        assert_eq!(check(&builder, &n1, "sha256:a"), Ok(()));
        assert!(matches!(check(&builder, &n1, "sha256:b"), Err(Refusal::OtherInGit { .. })));
        assert_eq!(check(&builder, &ada, "sha256:b"), Ok(()));

        let mut gone = object_of("n1", pinned);
        gone.metadata.annotations.insert(GONE_ANNOTATION.into(), "true".into());
        let gone = builder.clone().object(&gone);
        assert_eq!(check(&gone, &n1, "sha256:a"), Err(Refusal::Gone(n1.clone())));
        assert!(check_not_gone(&gone.snapshot, &"node-n2".parse().unwrap()).is_ok());

        let unreadable = builder.garbage(&Key::Object(object_of("n1", NodeSpec::default()).reference()));
        assert_eq!(check(&unreadable, &n1, "sha256:a"), Err(Refusal::UnreadableNode(n1)));
    }

    fn identity_record(key: &str, joined: i64, end: i64) -> IdentityRecord {
        IdentityRecord {
            key: key.to_owned(),
            serials: [(format!("{joined}{end}"), at(end))].into(),
            issuer: "ca".to_owned(),
            not_after: at(end),
            joined_at: at(joined),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        }
    }

    #[test]
    fn a_record_keeps_what_belongs_to_the_key_and_nothing_of_another() {
        let known = IdentityRecord {
            recipient: Some("age1a".to_owned()),
            api: Some("https://10.0.0.5:7070".to_owned()),
            ..identity_record("a", 0, 10)
        };
        let renewed = record(Some(&known), identity_record("a", 5, 15));
        let wanted = IdentityRecord {
            not_after: at(15),
            serials: known.serials.clone().into_iter().chain([("515".to_owned(), at(15))]).collect(),
            ..known.clone()
        };
        assert_eq!(renewed, wanted);
        let other = IdentityRecord { recipient: Some("age1b".to_owned()), ..identity_record("b", 5, 15) };
        for known in [Some(&known), None] {
            assert_eq!(record(known, other.clone()), other);
        }
    }
}
