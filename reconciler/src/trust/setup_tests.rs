//! Certificates of this machine: which are signed again, and which authority signs them.

use schema::testing::at;
use schema::trust::{Credentials, bundle_from_pem};
use tempfile::TempDir;

use super::*;

const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);

fn settings(name: &str, addresses: &[&str]) -> TrustSettings {
    TrustSettings {
        name: name.to_owned(),
        addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        authority_days: 3650,
        certificate_lifetime: WEEK,
    }
}

/// Serial number of the certificate in force after this call.
fn serial(state: &TempDir, settings: &TrustSettings, now: Timestamp) -> String {
    open(state.path(), settings, now).unwrap().keeper.current().certificate().serial().unwrap()
}

#[test]
fn a_second_start_changes_no_file() {
    let state = tempfile::tempdir().unwrap();
    let all = || -> Vec<(String, Vec<u8>)> {
        let files = fs::read_dir(pki_dir(state.path()).path()).unwrap().flatten();
        let mut files: Vec<_> = files
            .filter(|file| file.path().is_file())
            .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
            .collect();
        files.sort();
        files
    };
    let settings = settings("r1", &["10.0.0.5", "r1.lan", "FD00::1"]);
    let own = open(state.path(), &settings, at(0)).unwrap();
    let certificate = own.keeper.current().certificate().clone();
    assert_eq!(certificate.identity().unwrap().to_string(), "reconciler-r1");
    assert_eq!(certificate.addresses(), ["10.0.0.5", "r1.lan", "fd00::1"]);
    let before = all();
    assert_eq!(before.len(), 5, "{before:?}");
    open(state.path(), &settings, at(60)).unwrap();
    assert!(!own.renew(&settings, at(60)).unwrap());
    assert_eq!(all(), before);
}

#[test]
fn a_certificate_that_is_not_good_is_signed_again() {
    let state = tempfile::tempdir().unwrap();
    let first = settings("r1", &["10.0.0.5"]);
    let mut last = serial(&state, &first, at(0));
    let late = at(0) + SignedDuration::from_hours(24 * 5);
    let damage = || fs::write(pki_dir(state.path()).certificate_file(), "damaged").unwrap();
    let nothing = || {};
    let cases: [(&str, TrustSettings, Timestamp, &dyn Fn()); 5] = [
        ("another name", settings("r2", &["10.0.0.5"]), at(1), &nothing),
        ("another address", settings("r2", &["10.0.0.6"]), at(1), &nothing),
        ("damage", settings("r2", &["10.0.0.6"]), at(1), &damage),
        ("two thirds over", settings("r2", &["10.0.0.6"]), late, &nothing),
        ("a clock that was far ahead", settings("r2", &["10.0.0.6"]), at(1), &nothing),
    ];
    for (why, settings, now, happens) in cases {
        happens();
        let next = serial(&state, &settings, now);
        assert_ne!(next, last, "{why}");
        assert_eq!(serial(&state, &settings, now), next, "{why}: once");
        last = next;
    }
}

// Would fail with a key that outlives its name: the removal of the former name would revoke it.
#[test]
fn another_name_has_another_key_and_another_address_has_not() {
    let state = tempfile::tempdir().unwrap();
    let key = |dir: &TrustDir| dir.certificate().unwrap().public_key().unwrap().fingerprint().unwrap();
    let own = |name: &str, addresses: &[&str]| {
        key(open(state.path(), &settings(name, addresses), at(0)).unwrap().keeper.dir())
    };
    let first = own("r1", &[]);
    assert_eq!(own("r1", &["10.0.0.5"]), first);
    assert_ne!(own("r2", &[]), first);
    assert_eq!(known_name(state.path()).as_deref(), Some("r2"));
    let node = |name: &str| {
        sign_node(state.path(), name, WEEK, at(0)).unwrap();
        key(&TrustDir::new(state.path().join("agent/pki")))
    };
    let first = node("n1");
    assert_eq!(node("n1"), first);
    assert_ne!(node("n2"), first);
}

// Would fail after a week in which the machine was off: etcd cannot be read with a certificate that has ended.
#[test]
fn the_certificate_of_a_member_of_etcd_is_renewed_with_its_own_addresses() {
    let state = tempfile::tempdir().unwrap();
    renew_etcd(state.path(), WEEK, at(0)).unwrap();
    assert!(etcd_certificate(state.path()).is_none(), "it has no member");
    sign_etcd(state.path(), &["10.0.0.5".to_owned()], WEEK, at(0)).unwrap();
    let late = at(0) + SignedDuration::from_hours(24 * 30);
    let hour = SignedDuration::from_hours(1);
    renew_etcd(state.path(), hour, late).unwrap();
    let certificate = etcd_certificate(state.path()).unwrap();
    assert_eq!(
        (certificate.addresses(), certificate.not_after().unwrap()),
        (vec!["10.0.0.5".to_owned()], late + hour)
    );
}

// Would fail with a new key in silence, under a name whose records have the former one.
#[test]
fn a_key_that_was_lost_is_not_replaced() {
    let state = tempfile::tempdir().unwrap();
    open(state.path(), &settings("r1", &[]), at(0)).unwrap();
    fs::remove_file(pki_dir(state.path()).key_file()).unwrap();
    let error = open(state.path(), &settings("r1", &[]), at(0)).unwrap_err().to_string();
    assert!(error.contains("key.pem") && error.contains("is missing"), "{error}");
    assert!(open(state.path(), &settings("r2", &[]), at(0)).is_ok(), "another name has another key anyway");
}

#[test]
fn a_renewed_certificate_is_in_force_at_once() {
    let state = tempfile::tempdir().unwrap();
    let settings = settings("r1", &[]);
    let own = open(state.path(), &settings, at(0)).unwrap();
    let reader = own.keeper.reader();
    let before = reader.current().certificate().serial().unwrap();
    assert!(own.renew(&settings, at(0) + SignedDuration::from_hours(24 * 5)).unwrap());
    assert_ne!(reader.current().certificate().serial().unwrap(), before);
}

// A second authority would divide the cluster in silence.
#[test]
fn an_authority_that_was_lost_is_not_replaced() {
    let state = tempfile::tempdir().unwrap();
    let settings = settings("r1", &[]);
    open(state.path(), &settings, at(0)).unwrap();
    fs::remove_file(pki_dir(state.path()).path().join(AUTHORITY_FILE)).unwrap();
    let error = open(state.path(), &settings, at(0)).unwrap_err().to_string();
    assert!(error.contains(AUTHORITY_FILE), "{error}");
    assert!(sign_node(state.path(), "n1", WEEK, at(0)).is_err());
}

#[test]
fn the_certificate_names_the_addresses_that_others_use() {
    let listen = |text: &str| text.parse().unwrap();
    let expected = ["10.0.0.5", "127.0.0.1", "::1", "api.example", "localhost"];
    assert_eq!(server_addresses(listen("10.0.0.5"), Some("api.example")), expected);
    let alone = ["127.0.0.1", "::1", "localhost"];
    for one in ["0.0.0.0", "::", "127.0.0.1"] {
        assert_eq!(server_addresses(listen(one), None), alone, "{one}");
    }
}

// Would fail if each reconciler of the cluster gave it an authority of its own.
#[test]
fn a_reconciler_that_served_without_certificates_gets_no_authority_unasked() {
    for made in ["mirrors/main/HEAD", "last-known.json"] {
        let state = tempfile::tempdir().unwrap();
        assert!(check_upgraded(state.path()).is_ok(), "it has never served");
        let file = state.path().join("reconciler").join(made);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "{}").unwrap();
        let error = check_upgraded(state.path()).unwrap_err().to_string();
        assert!(error.contains("'minik8s trust enable'") && !error.contains('\n'), "{error}");
        open(state.path(), &settings("r1", &[]), at(0)).unwrap();
        assert!(check_upgraded(state.path()).is_ok());
        // A lost authority is another fault, and has its own words.
        fs::remove_file(pki_dir(state.path()).path().join(AUTHORITY_FILE)).unwrap();
        assert!(check_upgraded(state.path()).is_ok());
    }
}

#[test]
fn an_etcd_that_is_not_ours_has_a_certificate_for_a_year() {
    let state = tempfile::tempdir().unwrap();
    let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
    let addresses = ["10.0.0.5".to_owned()];
    let dir = sign_users_etcd(state.path(), &addresses, at(0)).unwrap();
    let certificate = dir.certificate().unwrap();
    assert_eq!(certificate.identity().unwrap(), Identity::etcd());
    assert!(certificate.is_signed_by(own.authority().certificate()));
    let half = at(0) + SignedDuration::from_hours(24 * 180);
    sign_users_etcd(state.path(), &addresses, half).unwrap();
    assert_eq!(dir.certificate().unwrap().serial().unwrap(), certificate.serial().unwrap());
    assert!(!etcd_pki_dir(state.path()).is_filled(), "it is no member of ours");
}

#[test]
fn an_authority_of_which_only_the_key_was_written_is_created_again() {
    let state = tempfile::tempdir().unwrap();
    pki_dir(state.path()).write(AUTHORITY_KEY_FILE, b"half").unwrap();
    open(state.path(), &settings("r1", &[]), at(0)).unwrap();
}

fn digest(authority: &Authority) -> String {
    authority.certificate().digest().unwrap()
}

/// A reconciler that trusts another authority besides its own.
fn before_a_replacement() -> (TempDir, OwnTrust, Authority) {
    let state = tempfile::tempdir().unwrap();
    let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
    let next = Authority::create(WEEK, at(0)).unwrap();
    let both = vec![own.authority().certificate().clone(), next.certificate().clone()];
    own.keeper.renew(own.keeper.current().certificate().clone(), both).unwrap();
    (state, own, next)
}

#[test]
fn another_authority_signs_at_once() {
    let (state, own, next) = before_a_replacement();
    own.adopt(next.clone()).unwrap();
    assert_eq!(digest(&own.authority()), digest(&next));
    let settings = settings("r1", &[]);
    assert!(own.renew(&settings, at(0)).unwrap(), "a certificate of the former authority is not good");
    assert!(own.keeper.current().certificate().is_signed_by(next.certificate()));
    let etcd = sign_etcd(state.path(), &["127.0.0.1".to_owned()], WEEK, at(0)).unwrap();
    let certificate = Certificate::from_pem(&TlsFiles::read(&etcd.certificate).unwrap()).unwrap();
    assert!(certificate.is_signed_by(next.certificate()));
    assert!(!pki_dir(state.path()).path().join(NEXT_AUTHORITY_FILE).exists());
}

// Would fail by a start with the key of one authority and the certificate of the other.
#[test]
fn a_replacement_that_was_interrupted_is_finished_by_the_next_start() {
    for is_key_written in [false, true] {
        let (state, _, next) = before_a_replacement();
        let dir = pki_dir(state.path());
        let text = AuthorityText::of(&next).unwrap().to_json().unwrap();
        dir.write(NEXT_AUTHORITY_FILE, text.as_bytes()).unwrap();
        if is_key_written {
            dir.write(AUTHORITY_KEY_FILE, next.key_pem().unwrap().as_bytes()).unwrap();
        }
        let opened = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
        assert_eq!(digest(&opened.authority()), digest(&next));
    }
}

#[test]
fn etcd_and_the_own_node_have_certificates_of_the_same_authority() {
    let state = tempfile::tempdir().unwrap();
    // Before the reconciler opens its folder: etcd starts first.
    let etcd = sign_etcd(state.path(), &["127.0.0.1".to_owned()], WEEK, at(0)).unwrap();
    sign_node(state.path(), "n1", WEEK, at(0)).unwrap();
    let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
    let node = Credentials::load(&TrustDir::new(state.path().join("agent/pki"))).unwrap();
    assert_eq!(node.identity().to_string(), "node-n1");
    let read = |path: &Path| TlsFiles::read(path).unwrap();
    let certificate = Certificate::from_pem(&read(&etcd.certificate)).unwrap();
    assert_eq!(certificate.identity().unwrap(), Identity::etcd());
    let authority = own.authority();
    let signer = authority.certificate();
    assert!(certificate.is_signed_by(signer) && node.certificate().is_signed_by(signer));
    let trusted = bundle_from_pem(&read(&etcd.authorities)).unwrap();
    assert_eq!(bundle_to_pem(&trusted).unwrap(), signer.to_pem().unwrap());
    let (file, before) = (&etcd.certificate, read(&etcd.certificate));
    sign_etcd(state.path(), &["127.0.0.1".to_owned()], WEEK, at(60)).unwrap();
    assert_eq!(read(file), before);
    sign_etcd(state.path(), &["127.0.0.1".to_owned(), "10.0.0.5".to_owned()], WEEK, at(60)).unwrap();
    assert_ne!(read(file), before);
}
