//! Content on this node: hostile archives, a disk changed by someone else, secrets for others.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use proptest::prelude::*;
use schema::archive::Archive;
use schema::content_refs::{BlobKind, LIMITS};
use tar::{Builder, EntryType, Header};

use super::unpack::{UnpackError, digest, unpack};
use super::*;

/// Blob source that returns these bytes for every digest.
struct Gives(Vec<u8>, AtomicUsize);

#[async_trait]
impl BlobSource for Gives {
    async fn fetch(&self, _: &str, _: u64, mut to: fs::File) -> Result<(), String> {
        self.1.fetch_add(1, Ordering::SeqCst);
        if self.0.is_empty() {
            return Err("http://nowhere: connection refused".into());
        }
        to.write_all(&self.0).map_err(|error| error.to_string())
    }
}

fn archive(files: &[(&str, &[u8])]) -> (BlobRef, Vec<u8>) {
    let mut archive = Archive::new(Vec::new());
    for (path, content) in files {
        archive.file(path, path.ends_with(".sh"), content.len() as u64, *content).unwrap();
    }
    let made = archive.finish().unwrap();
    (
        BlobRef {
            digest: made.digest,
            size: made.size,
            kind: BlobKind::Folder,
            texts: Vec::new(),
            source: String::new(),
        },
        made.writer,
    )
}

fn entry(kind: EntryType, name: &[u8], link: &[u8], size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    // Written directly, because the library would reject such names.
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn refused(bytes: &[u8]) -> (bool, usize) {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("in");
    fs::create_dir(&dir).unwrap();
    let refused = unpack(bytes, &dir).is_err();
    // Nothing may ever appear next to the folder.
    (refused, fs::read_dir(outer.path()).unwrap().count())
}

/// Red without the checks of path components, of links above, of link targets, and of entry types.
#[test]
fn nothing_comes_out_of_a_hostile_archive_but_files_inside() {
    let file = EntryType::Regular;
    let link = EntryType::Symlink;
    for (name, bytes) in [
        ("up", entry(file, b"../evil", b"", 0)),
        ("up inside", entry(file, b"a/../../evil", b"", 0)),
        ("absolute", entry(file, b"/tmp/evil-of-a-test", b"", 0)),
        ("link out", entry(link, b"a", b"../..", 0)),
        ("link absolute", entry(link, b"a", b"/etc", 0)),
        ("through a link", [entry(link, b"a", b"b", 0), entry(file, b"a/c", b"", 0)].concat()),
        ("over a link", [entry(link, b"a", b"b", 0), entry(file, b"a", b"", 0)].concat()),
        ("twice", [entry(file, b"a", b"", 0), entry(file, b"a", b"", 0)].concat()),
        ("hard link", entry(EntryType::Link, b"a", b"/etc/passwd", 0)),
        ("device", entry(EntryType::Char, b"a", b"", 0)),
        ("pipe", entry(EntryType::Fifo, b"a", b"", 0)),
        ("folder", entry(EntryType::Directory, b"a", b"", 0)),
        ("not text", entry(file, b"a\xFF", b"", 0)),
        ("huge", entry(file, b"a", b"", LIMITS.bytes + 1)),
        ("cut off", entry(file, b"a", b"", 5000)),
    ] {
        let ended = [bytes, vec![0; 1024]].concat();
        assert_eq!(refused(&ended), (true, 1), "{name}");
    }
    assert!(!Path::new("/tmp/evil-of-a-test").exists());
}

#[test]
fn an_archive_of_too_many_files_ends_at_the_bound() {
    let mut builder = Builder::new(Vec::new());
    for number in 0..=LIMITS.entries {
        let mut header = Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        builder.append_data(&mut header, number.to_string(), io::empty()).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let bytes = builder.into_inner().unwrap();
    assert!(matches!(unpack(bytes.as_slice(), dir.path()), Err(UnpackError::TooMuch)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_unpacked_has_the_digest_of_its_archive(
        files in proptest::collection::btree_map("[a-c]{1,3}(/[d-f]{1,90}){0,3}([.]sh)?", any::<Vec<u8>>(), 1..8)
    ) {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, content)| (path.as_str(), content.as_slice())).collect();
        let beneath = |path: &str| files.iter().any(|(other, _)| other.starts_with(&format!("{path}/")));
        prop_assume!(!files.iter().any(|(path, _)| beneath(path)));
        let (blob, bytes) = archive(&files);
        let dir = tempfile::tempdir().unwrap();
        unpack(bytes.as_slice(), dir.path()).unwrap();
        prop_assert_eq!(digest(dir.path()).unwrap(), blob.digest);
    }

    #[test]
    fn random_bytes_neither_panic_nor_leave_the_folder(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert_eq!(refused(&bytes).1, 1);
    }
}

/// Red without the check of existing content (`look_over` always `Whole`), and without the comparison in `place`.
#[tokio::test]
async fn content_is_verified_when_it_comes_and_before_each_use() {
    let state = tempfile::tempdir().unwrap();
    let (blob, bytes) = archive(&[("app.conf", b"red"), ("run.sh", b"x")]);
    let source = Arc::new(Gives(bytes, AtomicUsize::new(0)));
    let cache = Cache::new(state.path(), source.clone());
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Fetched);
    let file = cache.folder(&blob).join("app.conf");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&file), mode(&cache.folder(&blob).join("run.sh"))), (0o644, 0o755));
    assert_eq!(mode(&cache.folder(&blob)), 0o755);
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Was);

    fs::write(&file, "black").unwrap();
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired);
    assert_eq!(fs::read_to_string(&file).unwrap(), "red");
    fs::write(file.with_file_name("another"), "x").unwrap();
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(
        cache.ensure("config", &blob).await.unwrap(),
        EnsureOutcome::Repaired,
        "anyone could write it"
    );
    fs::create_dir(file.with_file_name("empty")).unwrap();
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired, "a folder too many");
    fs::set_permissions(cache.folder(&blob), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        assert_eq!(cache.ensure("config", &blob).await.unwrap(), EnsureOutcome::Repaired, "another owner");
        assert_eq!(source.1.load(Ordering::SeqCst), 8);
    }

    let (other, _) = archive(&[("app.conf", b"blue")]);
    assert!(matches!(cache.ensure("config", &other).await, Err(CacheError::Digest { .. })));
    assert!(!cache.folder(&other).exists());
    let nobody = Cache::new(state.path(), Arc::new(Gives(Vec::new(), AtomicUsize::new(0))));
    assert_eq!(nobody.ensure("config", &blob).await.unwrap(), EnsureOutcome::Was, "what is here is enough");
    let why = nobody.ensure("config/app", &other).await.unwrap_err().to_string();
    assert!(
        why.contains("config/app") && why.contains("connection refused") && why.contains("--reconciler"),
        "{why}"
    );
}

#[tokio::test]
async fn what_no_pod_names_goes_after_an_hour() {
    let state = tempfile::tempdir().unwrap();
    let (blob, bytes) = archive(&[("a", b"")]);
    let cache = Cache::new(state.path(), Arc::new(Gives(bytes, AtomicUsize::new(0))));
    cache.ensure("a", &blob).await.unwrap();
    let age = |minutes: u64| {
        let then = std::time::SystemTime::now() - Duration::from_secs(minutes * 60);
        fs::File::open(cache.folder(&blob)).unwrap().set_modified(then).unwrap();
    };
    age(59);
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(cache.folder(&blob).exists());
    age(61);
    cache.sweep(&BTreeSet::from([blob.digest.clone()])).unwrap();
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(cache.folder(&blob).exists(), "its hour began anew");
    age(61);
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(!cache.folder(&blob).exists());
}

/// A container has the folder mounted, so the mounted folder stays as it was. Red with the folder removed instead of
/// renamed.
#[tokio::test]
async fn what_is_repaired_stays_as_it_was_for_those_who_have_it_open() {
    let state = tempfile::tempdir().unwrap();
    let (blob, bytes) = archive(&[("a", b"red"), ("b", b"x")]);
    let cache = Cache::new(state.path(), Arc::new(Gives(bytes, AtomicUsize::new(0))));
    cache.ensure("a", &blob).await.unwrap();
    let mounted = fs::File::open(cache.folder(&blob)).unwrap();
    let within = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&mounted)));
    fs::write(cache.folder(&blob).join("a"), "black").unwrap();
    assert_eq!(cache.ensure("a", &blob).await.unwrap(), EnsureOutcome::Repaired);
    assert_eq!(fs::read_to_string(cache.folder(&blob).join("a")).unwrap(), "red");
    assert_eq!(fs::read_to_string(within.join("b")).unwrap(), "x");
    let long_ago = || mounted.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
    long_ago();
    cache.sweep(&BTreeSet::from([blob.digest.clone()])).unwrap();
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(within.join("b").exists(), "a pod names it, and its hour began anew");
    long_ago();
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(!within.join("b").exists());
}

#[tokio::test]
async fn an_odd_entry_keeps_nothing_else_and_what_is_being_looked_over_stays() {
    let state = tempfile::tempdir().unwrap();
    let (blob, bytes) = archive(&[("a", b"red")]);
    let cache = Cache::new(state.path(), Arc::new(Gives(bytes, AtomicUsize::new(0))));
    cache.ensure("a", &blob).await.unwrap();
    let dir = cache.folder(&blob).parent().unwrap().to_owned();
    let then = std::time::SystemTime::now() - Duration::from_secs(7200);
    let aged = |path: &Path| fs::File::open(path).unwrap().set_modified(then).unwrap();
    for number in 0..4 {
        fs::write(dir.join(format!("odd-{number}")), "x").unwrap();
        aged(&dir.join(format!("odd-{number}")));
    }
    std::os::unix::fs::symlink("nowhere", dir.join("b".repeat(64))).unwrap();
    aged(&cache.folder(&blob));
    let turn = cache.turn(&blob.digest);
    let held = turn.lock().await;
    cache.sweep(&BTreeSet::from(["b".repeat(64)])).unwrap();
    assert!(cache.folder(&blob).exists(), "someone has its turn");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "the folder and a link that is new");
    drop(held);
    cache.sweep(&BTreeSet::new()).unwrap();
    assert!(!cache.folder(&blob).exists());
}

#[test]
fn an_identity_is_made_once_and_for_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent/age-identity.txt");
    let first = Keys::open(&path).unwrap();
    assert!(first.recipient().unwrap().starts_with("age1"));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Keys::open(&path).unwrap().recipient(), first.recipient());
    for wrong in ["", "# nothing\n", "hello\n"] {
        fs::write(&path, wrong).unwrap();
        let why = Keys::open(&path).err().unwrap().to_string();
        assert!(why.contains("age-identity.txt") && !why.contains('\n'), "{why}");
        // The agent runs regardless, and secrets fail with this message.
        let without = Keys::open_or_without(&path);
        assert_eq!(without.recipient(), None);
        let failed =
            without.decrypt(SecretLocation { name: "db", path: "secrets/db.age" }, b"", &[]).unwrap_err();
        assert!(matches!(&failed, SecretError::NoIdentity(reported) if *reported == why), "{failed}");
        assert_eq!(fs::read_to_string(&path).unwrap(), wrong, "no agent may replace it");
    }
}

#[test]
fn a_secret_for_others_and_a_damaged_one_say_what_to_do_and_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Keys::open(&dir.path().join("one")).unwrap();
    let theirs = Keys::open(&dir.path().join("two")).unwrap();
    let place = SecretLocation { name: "db", path: "secrets/db.age" };
    let recipient: age::x25519::Recipient = ours.recipient().unwrap().parse().unwrap();
    let mut text = age::encrypt(&recipient, b"password: canary").unwrap();
    assert_eq!(ours.decrypt(place, &text, &[]).unwrap(), b"password: canary");
    let armored = age::encrypt_and_armor(&recipient, b"canary").unwrap();
    assert_eq!(ours.decrypt(place, armored.as_bytes(), &[]).unwrap(), b"canary");
    let why = theirs.decrypt(place, &text, &[]).unwrap_err();
    assert!(
        matches!(&why, SecretError::NotForUs { recipient, .. } if Some(recipient.as_str()) == theirs.recipient()),
        "{why}"
    );
    *text.last_mut().unwrap() ^= 1;
    let why = ours.decrypt(place, &text, &[]).unwrap_err();
    assert!(matches!(why, SecretError::Damaged { .. }) && !why.to_string().contains("canary"), "{why}");
}

#[test]
fn a_value_that_does_not_fit_its_use_is_said_by_its_key() {
    let entries = BTreeMap::from([("a".to_owned(), b"b".to_vec())]);
    let s = ContentRef::Secret("s".to_owned());
    assert_eq!(secrets::variable(&s, "a", &entries).unwrap(), "b");
    assert_eq!(
        secrets::variable(&s, "c", &entries).unwrap_err().to_string(),
        "secret s has no key c; it has a"
    );
    for key in ["..data", "a/b", ".."] {
        let entries = BTreeMap::from([(key.to_owned(), Vec::new())]);
        assert!(secrets::check_file_names(&s, &entries).is_err(), "{key}");
    }
    let entries = BTreeMap::from([(".dockerconfigjson".to_owned(), Vec::new())]);
    assert!(secrets::check_file_names(&s, &entries).is_ok());
}
