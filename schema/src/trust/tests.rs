//! Both ends of a connection, with certificates of a real authority.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use openssl::symm::Cipher;
use openssl::x509::X509ExtendedKeyUsage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);

fn now() -> Timestamp {
    Timestamp::now()
}

fn authority() -> Authority {
    Authority::create(WEEK, now()).unwrap()
}

fn leaf(
    authority: &Authority,
    name: &str,
    from: Timestamp,
    lifetime: SignedDuration,
) -> (KeyPair, Certificate) {
    let (key, identity) = (KeyPair::generate().unwrap(), name.parse().unwrap());
    let request =
        LeafRequest { identity: &identity, key: &key.public_key().unwrap(), addresses: &[], lifetime };
    let certificate = authority.sign(&request, from).unwrap();
    (key, certificate)
}

fn credentials(authority: &Authority, name: &str) -> Credentials {
    let (key, certificate) = leaf(authority, name, now(), WEEK);
    Credentials::new(&key, certificate, vec![authority.certificate().clone()], Default::default()).unwrap()
}

fn role(role: Role) -> Expected {
    Expected::Role(role)
}

/// Connects both; returns what the server knows of the client, or the error of the client.
async fn meet(
    server: &Credentials,
    client: &Credentials,
    expected: &Expected,
) -> Result<Option<Peer>, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = async {
        let (mut tls, peer) = accept(far, server).await.map_err(|error| error.to_string())?;
        tls.write_all(b"well").await.map_err(|error| error.to_string())?;
        Ok::<_, String>(peer)
    };
    let asking = async {
        let mut tls =
            connect(near, client, expected, Protocol::Http1).await.map_err(|error| error.to_string())?;
        let mut received = [0; 4];
        tls.read_exact(&mut received).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(())
    };
    let (served, asked) = tokio::join!(serving, asking);
    asked?;
    served
}

#[tokio::test]
async fn both_sides_know_each_other() {
    let authority = authority();
    let (server, client) = (credentials(&authority, "reconciler-r1"), credentials(&authority, "node-n1"));
    let peer = meet(&server, &client, &role(Role::Reconciler)).await.unwrap().unwrap();
    assert_eq!(peer.identity.to_string(), "node-n1");
    assert_eq!(peer.key, client.certificate().public_key().unwrap().fingerprint().unwrap());
}

// Would fail with the modes of a new context: "bad write retry".
#[tokio::test]
async fn a_write_that_had_to_wait_goes_on_from_another_buffer() {
    let authority = authority();
    let (server, client) = (credentials(&authority, "reconciler-r1"), credentials(&authority, "node-n1"));
    let (near, far) = tokio::io::duplex(4 * 1024);
    let expected = role(Role::Reconciler);
    let (served, asked) =
        tokio::join!(accept(far, &server), connect(near, &client, &expected, Protocol::Http1));
    let (mut writer, mut reader) = (served.unwrap().0, asked.unwrap());
    let piece = [7; 16 * 1024];
    let mut whole = 0;
    // Until the pipe is full.
    while let Some(written) = writer.write(&piece).now_or_never() {
        whole += written.unwrap();
    }
    let rest = piece.to_vec();
    let writing = async {
        writer.write_all(&rest).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut read = Vec::new();
    let (_, ended) = tokio::join!(writing, reader.read_to_end(&mut read));
    ended.unwrap();
    assert_eq!(read.len(), whole + rest.len());
}

#[tokio::test]
async fn another_role_or_name_is_not_taken_for_the_server() {
    let authority = authority();
    let (server, client) = (credentials(&authority, "node-n1"), credentials(&authority, "node-n2"));
    let error = meet(&server, &client, &role(Role::Reconciler)).await.unwrap_err();
    assert_eq!(error, "node-n1 answered in place of a reconciler");
    let other = Expected::Identity("node-n3".parse().unwrap());
    assert_eq!(meet(&server, &client, &other).await.unwrap_err(), "node-n1 answered in place of node-n3");
}

#[tokio::test]
async fn a_stranger_is_refused_by_either_side() {
    let (own, other) = (authority(), authority());
    let (server, stranger) = (credentials(&own, "reconciler-r1"), credentials(&other, "node-n1"));
    assert!(meet(&server, &stranger, &role(Role::Reconciler)).await.is_err());
    // The client trusts the server's authority, too, so it is the server that refuses.
    let (key, certificate) = leaf(&other, "node-n1", now(), WEEK);
    let both = vec![other.certificate().clone(), own.certificate().clone()];
    let client = Credentials::new(&key, certificate, both, Default::default()).unwrap();
    assert!(meet(&server, &client, &role(Role::Reconciler)).await.is_err());
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let authority = authority();
    let (key, certificate) =
        leaf(&authority, "node-n1", now() - SignedDuration::from_hours(2), SignedDuration::from_hours(1));
    let trusted = vec![authority.certificate().clone()];
    let client = Credentials::new(&key, certificate, trusted, Default::default()).unwrap();
    let server = credentials(&authority, "reconciler-r1");
    assert!(meet(&server, &client, &role(Role::Reconciler)).await.is_err());
}

#[tokio::test]
async fn with_an_expired_certificate_only_a_connection_that_shows_none_is_made() {
    let (own, other) = (authority(), authority());
    let from = now() - SignedDuration::from_hours(2);
    let (key, certificate) = leaf(&own, "node-n1", from, SignedDuration::from_hours(1));
    let trusted = vec![own.certificate().clone()];
    let client = Credentials::new(&key, certificate, trusted, Default::default()).unwrap();
    for (server, is_reached) in [
        (credentials(&own, "reconciler-r1"), true),
        (credentials(&own, "node-n2"), false),
        (credentials(&other, "reconciler-r1"), false),
    ] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let reconciler = role(Role::Reconciler);
        let (served, asked) =
            tokio::join!(accept(far, &server), connect_anonymous(near, &client, &reconciler));
        assert_eq!(asked.is_ok(), is_reached, "{:?}", asked.err());
        if is_reached {
            assert_eq!(served.unwrap().1, None);
        }
    }
}

// etcd, too, would let the user in with `clientAuth`.
#[tokio::test]
async fn a_user_is_a_client_of_daemons_and_of_nobody_else() {
    let authority = authority();
    let server = credentials(&authority, "reconciler-r1");
    for (name, of_all) in [("user-ada", false), ("node-n1", true)] {
        let client = credentials(&authority, name);
        let peer = meet(&server, &client, &role(Role::Reconciler)).await.unwrap().unwrap();
        assert_eq!(peer.identity.to_string(), name);
        let certificate = &client.certificate().0;
        let usage = certificate.extended_key_usage().unwrap();
        assert_eq!(usage.contains(X509ExtendedKeyUsage::SSL_CLIENT), of_all, "{name}");
        let text = String::from_utf8(certificate.to_text().unwrap()).unwrap();
        assert_eq!(text.contains("TLS Web Client Authentication"), of_all, "{text}");
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_by_either_side() {
    let authority = authority();
    let (server, client) = (credentials(&authority, "reconciler-r1"), credentials(&authority, "node-n1"));
    let without = |credentials: &Credentials, revoked: &Credentials| {
        let key = revoked.certificate().public_key().unwrap().fingerprint().unwrap();
        let mut next = credentials.clone();
        next.revoke_for_test(key);
        next
    };
    assert!(meet(&without(&server, &client), &client, &role(Role::Reconciler)).await.is_err());
    assert!(meet(&server, &without(&client, &server), &role(Role::Reconciler)).await.is_err());
}

#[tokio::test]
async fn a_machine_without_a_certificate_knows_the_server_by_the_pin() {
    let (own, other) = (authority(), authority());
    let server = credentials(&own, "reconciler-r1");
    for (pin, is_right) in [(own.certificate().digest(), true), (other.certificate().digest(), false)] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let pin = pin.unwrap();
        let (served, asked) = tokio::join!(accept(far, &server), connect_pinned(near, &pin));
        assert_eq!(asked.is_ok(), is_right, "{:?}", asked.err());
        if is_right {
            assert_eq!(served.unwrap().1, None);
        }
    }
}

#[tokio::test]
async fn only_a_reconciler_is_known_by_the_pin() {
    let authority = authority();
    let node = credentials(&authority, "node-n1");
    let (near, far) = tokio::io::duplex(64 * 1024);
    let pin = authority.certificate().digest().unwrap();
    let (_, asked) = tokio::join!(accept(far, &node), connect_pinned(near, &pin));
    assert!(matches!(asked, Err(HandshakeError::WrongPeer { .. })), "{:?}", asked.err());
}

#[test]
fn a_certificate_begins_ten_minutes_ago_and_ends_with_its_authority() {
    let authority = authority();
    let now = Timestamp::from_second(now().as_second()).unwrap();
    let (_, certificate) = leaf(&authority, "node-n1", now, WEEK * 2);
    assert_eq!(certificate.not_before().unwrap(), now - SignedDuration::from_secs(BACKDATED_SECONDS));
    assert_eq!(certificate.not_after().unwrap(), authority.certificate().not_after().unwrap());
    let span =
        (certificate.not_after().unwrap().as_second() - certificate.not_before().unwrap().as_second()) / 3;
    let renewed = certificate.renew_at().unwrap().as_second() - certificate.not_before().unwrap().as_second();
    assert!((span * 2 - 2..=span * 2).contains(&renewed), "{renewed} of {span} × 3");
}

#[test]
fn a_signing_request_is_of_use_only_with_its_own_signature() {
    let (key, identity) = (KeyPair::generate().unwrap(), "node-n1".parse().unwrap());
    let request = key.signing_request(&identity).unwrap();
    assert!(PublicKey::of_signing_request(&request).unwrap().is(&key.public_key().unwrap()));
    // Another key in the place of the signed one.
    let other = KeyPair::generate().unwrap().signing_request(&identity).unwrap();
    let der = |pem: &str| openssl::x509::X509Req::from_pem(pem.as_bytes()).unwrap().to_der().unwrap();
    let (own, other) = (der(&request), der(&other));
    let mut mixed = own.clone();
    let at = own.iter().zip(&other).position(|(a, b)| a != b).unwrap();
    mixed[at..at + 32].copy_from_slice(&other[at..at + 32]);
    if let Ok(mixed) = openssl::x509::X509Req::from_der(&mixed) {
        let pem = String::from_utf8(mixed.to_pem().unwrap()).unwrap();
        assert!(PublicKey::of_signing_request(&pem).is_err());
    }
    assert!(PublicKey::of_signing_request("-----BEGIN").is_err());
}

#[test]
fn a_folder_keeps_credentials_and_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt as _;
    let (root, authority) = (tempfile::tempdir().unwrap(), authority());
    let dir = TrustDir::new(root.path().join("pki"));
    assert!(dir.certificate().unwrap_err().is_missing());
    let key = dir.ensure_key().unwrap();
    assert!(dir.ensure_key().unwrap().public_key().unwrap().is(&key.public_key().unwrap()));
    let identity = "node-n1".parse().unwrap();
    let request =
        LeafRequest { identity: &identity, key: &key.public_key().unwrap(), addresses: &[], lifetime: WEEK };
    let certificate = authority.sign(&request, now()).unwrap();
    dir.write_authorities(std::slice::from_ref(authority.certificate())).unwrap();
    dir.write_certificate(&certificate).unwrap();
    let keeper = TrustKeeper::open(dir.clone()).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(dir.path()), mode(&dir.key_file())), (0o700, 0o600));

    let renewed = authority.sign(&request, now()).unwrap();
    let next = Authority::create(WEEK, now()).unwrap();
    let foreign = next.sign(&request, now()).unwrap();
    let trusted = vec![authority.certificate().clone()];
    assert!(keeper.renew(foreign, trusted.clone()).is_err(), "no authority that is trusted has signed it");
    keeper.renew(renewed.clone(), trusted).unwrap();
    keeper.revoke([("ab".to_owned(), now())].into()).unwrap();
    let again = Credentials::load(&dir).unwrap();
    assert_eq!(again.certificate().serial().unwrap(), renewed.serial().unwrap());
    assert!(again.is_revoked("ab") && keeper.reader().current().is_revoked("ab"));
}

/// A folder in which `node-n1` has joined, and its keeper.
fn joined(root: &std::path::Path, authority: &Authority) -> (TrustDir, TrustKeeper) {
    let dir = TrustDir::new(root.join("pki"));
    let (key, certificate) = leaf(authority, "node-n1", now(), WEEK);
    dir.write("key.pem", key.to_pem().unwrap().as_bytes()).unwrap();
    dir.write_authorities(std::slice::from_ref(authority.certificate())).unwrap();
    dir.write_certificate(&certificate).unwrap();
    (dir.clone(), TrustKeeper::open(dir).unwrap())
}

// Would fail with the write first. A folder in the place of the file stands for a full disk.
#[test]
fn a_revoked_key_is_in_force_also_while_it_cannot_be_written() {
    let (root, authority) = (tempfile::tempdir().unwrap(), authority());
    let (dir, keeper) = joined(root.path(), &authority);
    let of = |key: &str| BTreeMap::from([(key.to_owned(), now() + WEEK)]);
    let blocker = dir.path().join("revoked.json");
    std::fs::create_dir(&blocker).unwrap();
    keeper.revoke(of("ab")).unwrap_err();
    assert!(keeper.current().is_revoked("ab"));
    std::fs::remove_dir(&blocker).unwrap();
    keeper.reload().unwrap();
    assert!(keeper.current().is_revoked("ab"), "it is not on disk yet");
    keeper.revoke(keeper.current().revoked().clone()).unwrap();
    // Somebody who does not know of the first key.
    keeper.revoke(of("cd")).unwrap();
    assert!(dir.revoked().unwrap().keys().eq(["ab", "cd"]));
    keeper.revoke([("ef".to_owned(), now() - WEEK)].into()).unwrap();
    keeper.revoke(of("ab")).unwrap();
    assert!(dir.revoked().unwrap().keys().eq(["ab", "cd"]), "`ef` is of no use any more");
}

// Would fail with the write first, and with all published first.
#[test]
fn without_a_disk_no_authority_is_added_and_none_is_kept() {
    let (root, own) = (tempfile::tempdir().unwrap(), authority());
    let (dir, keeper) = joined(root.path(), &own);
    let (former, next) = (authority(), authority());
    let all = |some: &[&Authority]| some.iter().map(|it| it.certificate().clone()).collect::<Vec<_>>();
    let certificate = keeper.current().certificate().clone();
    keeper.renew(certificate.clone(), all(&[&own, &former])).unwrap();
    std::fs::remove_file(dir.authorities_file()).unwrap();
    std::fs::create_dir(dir.authorities_file()).unwrap();
    keeper.renew(certificate.clone(), all(&[&next, &own])).unwrap_err();
    let digests = |all: &[Certificate]| all.iter().map(|it| it.digest().unwrap()).collect::<Vec<_>>();
    assert_eq!(digests(keeper.current().authorities()), digests(&all(&[&own])));
    std::fs::remove_dir(dir.authorities_file()).unwrap();
    keeper.renew(certificate, all(&[&next, &own])).unwrap();
    assert_eq!(digests(&dir.authorities().unwrap()), digests(&all(&[&next, &own])));
    assert_eq!(digests(keeper.current().authorities()), digests(&all(&[&next, &own])));
}

// Would ask for a passphrase on the terminal.
#[test]
fn encrypted_pem_texts_are_refused() {
    let key = KeyPair::generate().unwrap();
    let cipher = Cipher::aes_128_cbc();
    let of_pkcs8 = key.0.private_key_to_pem_pkcs8_passphrase(cipher, b"secret").unwrap();
    assert!(KeyPair::from_pem(std::str::from_utf8(&of_pkcs8).unwrap()).is_err());
    let older = key.0.ec_key().unwrap().private_key_to_pem_passphrase(cipher, b"secret").unwrap();
    let older = String::from_utf8(older).unwrap();
    assert!(older.contains("Proc-Type: 4,ENCRYPTED"));
    for refused in [
        KeyPair::from_pem(&older).map(drop),
        Certificate::from_pem(&older.replace("EC PRIVATE KEY", "CERTIFICATE")).map(drop),
        bundle_from_pem(&older.replace("EC PRIVATE KEY", "CERTIFICATE")).map(drop),
        PublicKey::of_signing_request(&older.replace("EC PRIVATE KEY", "CERTIFICATE REQUEST")).map(drop),
    ] {
        assert!(matches!(refused, Err(TrustError::Content(_))), "{refused:?}");
    }
}

#[test]
fn a_file_of_more_than_its_bound_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let dir = TrustDir::new(root.path().join("pki"));
    let most = " ".repeat(4 << 20);
    dir.write("x", most.as_bytes()).unwrap();
    assert_eq!(dir.read("x").unwrap().len(), most.len());
    dir.write("x", (most + " ").as_bytes()).unwrap();
    assert!(matches!(dir.read("x"), Err(TrustError::File { act: "read", .. })));
}

#[test]
fn a_request_to_join_shows_no_secret() {
    let request = JoinRequest {
        token: "id".to_owned(),
        secret: "hush".to_owned(),
        identity: "node-n1".to_owned(),
        signing_request: String::new(),
        recipient: None,
        addresses: Vec::new(),
    };
    let shown = format!("{request:?}");
    assert!(shown.contains("node-n1") && !shown.contains("hush"), "{shown}");
}

#[test]
fn nothing_is_written_where_a_link_of_another_user_could_lead() {
    let root = tempfile::tempdir().unwrap();
    let (elsewhere, link) = (root.path().join("elsewhere"), root.path().join("pki"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let error = TrustDir::new(&link).ensure_key().err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("its folder is a link"), "{error}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    // Above it, an own link may lead to another disk.
    TrustDir::new(link.join("etcd")).ensure_key().unwrap();
}

#[test]
fn an_authority_is_read_only_with_its_own_key() {
    let (own, other) = (authority(), authority());
    let pem = |authority: &Authority| authority.certificate().to_pem().unwrap();
    assert!(Authority::from_pem(&pem(&own), &own.key_pem().unwrap()).is_ok());
    assert!(Authority::from_pem(&pem(&own), &other.key_pem().unwrap()).is_err());
}

#[test]
fn a_list_of_revoked_certificates_has_exactly_their_serial_numbers() {
    let authority = authority();
    let serial = || leaf(&authority, "node-n1", now(), WEEK).1.serial().unwrap();
    let all: std::collections::BTreeSet<_> = [serial(), serial(), "00ff".to_owned()].into();
    for serials in [Default::default(), all] {
        let list = authority.sign_revocations(&serials, now()).unwrap();
        assert!(list.starts_with("-----BEGIN X509 CRL-----"), "as etcd expects it: {list}");
        let expected: std::collections::BTreeSet<_> =
            serials.iter().map(|serial| serial.replacen("00ff", "ff", 1)).collect();
        assert_eq!(revoked_serials(&list).unwrap(), expected);
    }
    assert!(authority.sign_revocations(&["no number".to_owned()], now()).is_err());
    assert!(revoked_serials("").is_err());
}

// Seen red: while two authorities were trusted, connections failed by an error that was not theirs.
#[test]
fn a_wrong_signature_leaves_no_error_for_the_next_connection() {
    let (own, other) = (authority(), authority());
    let certificate = leaf(&own, "node-n1", now(), WEEK).1;
    assert!(!certificate.is_signed_by(other.certificate()));
    assert!(ErrorStack::get().errors().is_empty());
    assert!(certificate.is_signed_by(own.certificate()));
}
