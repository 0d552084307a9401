//! Secrets from ciphertext to values: their recipients, and the identities that decrypt them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use age::secrecy::ExposeSecret as _;
use age::x25519::{Identity, Recipient};
use async_trait::async_trait;
use schema::archive::Archive;
use schema::content_refs::{BlobKind, BlobRef, Files, file_name};

use super::*;

/// A reconciler that serves the blobs stored in it.
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<String, Vec<u8>>>);

#[async_trait]
impl BlobSource for Shelf {
    async fn fetch(&self, digest: &str, _: u64, mut to: fs::File) -> Result<(), String> {
        let found = lock(&self.0).get(digest).cloned();
        to.write_all(&found.ok_or("no reconciler answers")?).map_err(|error| error.to_string())
    }
}

struct Fixture {
    shelf: Arc<Shelf>,
    files: PodFiles,
    _state: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (state, shelf) = (tempfile::tempdir().unwrap(), Arc::new(Shelf::default()));
        let keys = Keys::open(&state.path().join("identity")).unwrap();
        let files = PodFiles::new(state.path(), shelf.clone(), keys);
        Self { shelf, files, _state: state }
    }

    fn node(&self) -> Recipient {
        self.files.recipient().unwrap().parse().unwrap()
    }

    /// Stores an encrypted file of the source `main`.
    fn file(&self, path: &str, to: &Recipient, plain: &str) -> BlobRef {
        self.put(path, &age::encrypt(to, plain.as_bytes()).unwrap())
    }

    fn put(&self, path: &str, ciphertext: &[u8]) -> BlobRef {
        let mut archive = Archive::new(Vec::new());
        archive.file(file_name(path), false, ciphertext.len() as u64, ciphertext).unwrap();
        let made = archive.finish().unwrap();
        lock(&self.shelf.0).insert(made.digest.clone(), made.writer);
        let (kind, source) = (BlobKind::Secret, "main".to_owned());
        BlobRef { digest: made.digest, size: made.size, kind, texts: Vec::new(), source }
    }

    fn identity(&self, to: &Recipient, identities: &[&Identity]) -> BlobRef {
        let lines: String =
            identities.iter().map(|identity| format!("{}\n", identity.to_string().expose_secret())).collect();
        self.file("secrets/.identity/cluster.age", to, &lines)
    }

    /// Applies the settings of a cluster with this identity, whose object is in `main`.
    fn follow(&self, identity: &BlobRef) {
        let (identity, source) = (Some(identity.clone()), "main".to_owned());
        self.files.follow(&ClusterSettings { identity, source, ..ClusterSettings::default() });
    }

    async fn open(&self, blob: &BlobRef, namespace: &str) -> Result<String, SecretError> {
        let files = Files::from([("secrets/db.age".to_owned(), blob.clone())]);
        let (_, values) = self.files.open_secret(&files, namespace, "db").await?;
        Ok(String::from_utf8(values).unwrap())
    }
}

#[tokio::test]
async fn a_secret_is_used_where_it_says_and_a_copy_nowhere_else() {
    let fixture = Fixture::new();
    let sealed =
        |header: &str| fixture.file("secrets/db.age", &fixture.node(), &format!("{header}---\nhunter2"));
    let ours = sealed("namespace: shop\nname: db\n");
    assert_eq!(fixture.open(&ours, "shop").await.unwrap(), "hunter2");
    let shared = sealed("namespace: \"*\"\nname: db\n");
    assert_eq!(fixture.open(&shared, "any").await.unwrap(), "hunter2");

    let other_name = sealed("namespace: shop\nname: cache\n");
    for (copy, namespace) in [(&ours, "default"), (&other_name, "shop")] {
        let why = fixture.open(copy, namespace).await.unwrap_err();
        assert!(matches!(why, SecretError::Elsewhere { .. }), "{why}");
        assert!(!why.to_string().contains("hunter2") && why.to_string().contains("secrets seal"), "{why}");
    }
    let unbound = fixture.file("secrets/db.age", &fixture.node(), "user: app\npassword: hunter2\n");
    let why = fixture.open(&unbound, "shop").await.unwrap_err();
    assert!(matches!(why, SecretError::Unbound { .. }), "{why}");
    assert!(why.to_string().contains("minik8s secrets seal db -n shop"), "{why}");
}

/// Secrets that name no source belong to the source of the Cluster object.
#[tokio::test]
async fn a_copy_in_another_source_is_refused_unless_it_is_for_that_source() {
    let fixture = Fixture::new();
    let cluster = Identity::generate();
    let identity = fixture.identity(&fixture.node(), &[&cluster]);
    fixture.follow(&identity);
    let sealed =
        |header: &str| fixture.file("secrets/db.age", &cluster.to_public(), &format!("{header}---\nx"));
    let in_extra = |blob: BlobRef| BlobRef { source: "extra".to_owned(), ..blob };
    let ours = sealed("namespace: shop\nname: db\n");
    assert_eq!(fixture.open(&ours, "shop").await.unwrap(), "x");
    let why = fixture.open(&in_extra(ours), "shop").await.unwrap_err();
    assert!(matches!(why, SecretError::Elsewhere { .. }), "{why}");
    let theirs = sealed("namespace: shop\nname: db\nsource: extra\n");
    assert!(fixture.open(&theirs, "shop").await.is_err());
    assert_eq!(fixture.open(&in_extra(theirs), "shop").await.unwrap(), "x");
}

/// The same rule for secrets encrypted to single nodes. Seen red with the identity's source for the object's.
#[tokio::test]
async fn a_copy_in_another_source_is_refused_where_the_cluster_has_no_identity() {
    let fixture = Fixture::new();
    let settings = ClusterSettings { source: "main".to_owned(), ..ClusterSettings::default() };
    fixture.files.follow(&settings);
    let ours = fixture.file("secrets/db.age", &fixture.node(), "namespace: shop\nname: db\n---\nx");
    assert_eq!(fixture.open(&ours, "shop").await.unwrap(), "x");
    let copy = BlobRef { source: "extra".to_owned(), ..ours };
    let why = fixture.open(&copy, "shop").await.unwrap_err();
    assert!(matches!(why, SecretError::Elsewhere { .. }), "{why}");
}

#[tokio::test]
async fn the_clusters_identity_is_kept_until_another_version_is_here() {
    let fixture = Fixture::new();
    let (old, new, stranger) = (Identity::generate(), Identity::generate(), Identity::generate());
    let text = "namespace: shop\nname: db\n---\nhunter2";
    let secret = fixture.file("secrets/db.age", &old.to_public(), text);
    let why = fixture.open(&secret, "shop").await.unwrap_err();
    assert!(matches!(why, SecretError::NotForUs { .. }), "{why}");

    // The identity is fetched when a pod first needs it, and published by its recipient.
    let first = fixture.identity(&fixture.node(), &[&old]);
    fixture.follow(&first);
    assert_eq!(fixture.open(&secret, "shop").await.unwrap(), "hunter2");
    let recipient = fixture.files.cluster_recipient();
    assert_eq!(recipient.borrow().as_deref(), Some(old.to_public().to_string().as_str()));

    // A version that can't be fetched leaves the former identity in use.
    let second = fixture.identity(&fixture.node(), &[&new, &old]);
    let archive = lock(&fixture.shelf.0).remove(&second.digest).unwrap();
    fixture.follow(&second);
    assert!(fixture.files.load_identity().await.is_err() && !fixture.files.has_identity(Some(&second)));
    assert_eq!(fixture.open(&secret, "shop").await.unwrap(), "hunter2");
    lock(&fixture.shelf.0).insert(second.digest.clone(), archive);
    fixture.files.load_identity().await.unwrap();
    assert_eq!(recipient.borrow().as_deref(), Some(new.to_public().to_string().as_str()));
    assert_eq!(fixture.open(&secret, "shop").await.unwrap(), "hunter2", "the old one is in it, too");

    // So does a truncated version. Seen red with one that drops the identity.
    let damaged = fixture.put("secrets/.identity/cluster.age", b"age-encryption.org/v1\n-> X25519 ab");
    fixture.follow(&damaged);
    let why = fixture.files.load_identity().await.unwrap_err();
    assert!(matches!(why, SecretError::IdentityDamaged { .. }), "{why}");
    assert_eq!(fixture.open(&secret, "shop").await.unwrap(), "hunter2");

    // A version for other nodes drops it, and the error names the recipient to add.
    let third = fixture.identity(&stranger.to_public(), &[&new]);
    fixture.follow(&third);
    let why = fixture.open(&secret, "shop").await.unwrap_err();
    assert!(why.to_string().contains(fixture.files.recipient().unwrap()), "{why}");
    assert!(matches!(why, SecretError::NotAmongRecipients { .. }), "{why}");
    assert_eq!(*recipient.borrow(), None);
}

/// 1 MiB that expands to 1 GB is an error of the pod that uses it.
#[tokio::test]
async fn a_secret_of_many_aliases_is_refused() {
    let fixture = Fixture::new();
    let mut bomb = format!("namespace: a\nname: db\n---\na: &a \"{}\"\n", "x".repeat(24_000));
    (0..45_000).for_each(|number| bomb += &format!("k{number}: *a\n"));
    let blob = fixture.file("secrets/db.age", &fixture.node(), &bomb);
    let opened = fixture.open(&blob, "a").await.unwrap();
    assert!(format::entries(Format::Guess, opened.as_bytes()).is_err());
}

/// The age crate reads a header again for each of its lines: these would take hours.
#[tokio::test]
async fn a_header_without_an_end_is_refused_at_once() {
    let fixture = Fixture::new();
    let junk = format!("age-encryption.org/v1\n{}", "-> a\n\n".repeat(170_000));
    let why = fixture.open(&fixture.put("secrets/db.age", junk.as_bytes()), "a").await.unwrap_err();
    assert!(matches!(why, SecretError::Damaged { .. }), "{why}");
}

/// The file was written by SOPS; its recipient is the cluster's identity here.
#[tokio::test]
async fn a_sops_file_is_used_where_it_says() {
    const FILE: &str = include_str!("../../../schema/src/secrets/format/sops/testdata/db.sops.yaml");
    const IDENTITY: &str = include_str!("../../../schema/src/secrets/format/sops/testdata/identity.txt");
    let fixture = Fixture::new();
    let path = "secrets/shop/db.sops.yaml";
    let put = |text: &str| Files::from([(path.to_owned(), fixture.put(path, text.as_bytes()))]);
    let files = put(FILE);
    let why = fixture.files.secret_values(&files, "shop", "db").await.unwrap_err();
    assert!(matches!(why, SecretError::NotForUs { .. }) && why.to_string().contains("--add-age"), "{why}");

    let cluster: Identity = IDENTITY.lines().last().unwrap().parse().unwrap();
    fixture.follow(&fixture.identity(&fixture.node(), &[&cluster]));
    let values = fixture.files.secret_values(&files, "shop", "db").await.unwrap();
    assert_eq!((&*values["user"], &*values["pin"]), (b"app".as_slice(), b"42".as_slice()));
    let why = fixture.files.secret_values(&files, "other", "db").await.unwrap_err();
    assert!(matches!(why, SecretError::Elsewhere { .. }), "{why}");
    let without: String =
        FILE.lines().filter(|line| !line.starts_with("pin")).map(|l| format!("{l}\n")).collect();
    let why = fixture.files.secret_values(&put(&without), "shop", "db").await.unwrap_err();
    assert!(matches!(why, SecretError::Sops { .. }) && why.to_string().contains("MAC"), "{why}");
}
