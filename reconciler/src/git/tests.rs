//! Real repositories and a small HTTP server: valid sources, and broken ones of many kinds.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use git2::{Oid, Repository, Signature};
use schema::records::SourceErrorKind;

use super::*;

/// Creates a bare repository with one commit of these `(path, content, mode)`.
pub(super) fn repository(dir: &Path, files: &[(&str, &str, i32)]) -> Oid {
    let git = Repository::init_bare(dir).unwrap();
    commit(&git, files)
}

pub(super) fn commit(git: &Repository, files: &[(&str, &str, i32)]) -> Oid {
    let mut builder = git2::build::TreeUpdateBuilder::new();
    for (path, content, mode) in files {
        let (id, mode) = match mode {
            0o160_000 => {
                (Oid::from_str("0123456789012345678901234567890123456789").unwrap(), git2::FileMode::Commit)
            }
            0o120_000 => (git.blob(content.as_bytes()).unwrap(), git2::FileMode::Link),
            _ => (git.blob(content.as_bytes()).unwrap(), git2::FileMode::Blob),
        };
        builder.upsert(*path, id, mode);
    }
    let empty = git.find_tree(git.treebuilder(None).unwrap().write().unwrap()).unwrap();
    let tree = git.find_tree(builder.create_updated(git, &empty).unwrap()).unwrap();
    let author = Signature::new("Ada", "ada@example.org", &git2::Time::new(1_700_000_000, 0)).unwrap();
    let parent = git.find_reference("refs/heads/main").ok().map(|head| head.peel_to_commit().unwrap());
    let parents: Vec<_> = parent.iter().collect();
    git.commit(Some("refs/heads/main"), &author, &author, "x", &tree, &parents).unwrap()
}

pub(super) fn mirror(url: &str, reference: Reference, state: &Path) -> Mirror {
    let config = SourceConfig { reference, ..SourceConfig::branch("main", url, "main") };
    config.check().unwrap();
    Mirror::new(Arc::new(config), state)
}

pub(super) fn look(mirror: &Mirror) -> Result<Oid, GitError> {
    mirror.ls_remote()?;
    mirror.fetch(&Arc::default())
}

#[test]
fn branches_tags_and_commits_are_found_under_every_local_address() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let first = repository(&at, &[("a.yaml", "a", 0)]);
    let git = Repository::open_bare(&at).unwrap();
    let signature = Signature::now("Ada", "ada@example.org").unwrap();
    git.tag("v1", git.find_commit(first).unwrap().as_object(), &signature, "annotated", false).unwrap();
    git.tag_lightweight("light", git.find_commit(first).unwrap().as_object(), false).unwrap();
    let second = commit(&git, &[("a.yaml", "b", 0)]);
    let path = at.to_str().unwrap();
    for (number, url) in [path.to_owned(), format!("file://{path}")].iter().enumerate() {
        for (name, reference, expected) in [
            ("branch", Reference::Branch("main".into()), second),
            ("tag", Reference::Tag("v1".into()), first),
            ("light tag", Reference::Tag("light".into()), first),
            ("commit", Reference::Commit(first.to_string()), first),
        ] {
            let state = dir.path().join(format!("{number}-{name}"));
            let mirror = mirror(url, reference, &state);
            assert_eq!(mirror.ls_remote().unwrap(), expected, "{name}");
            assert_eq!(look(&mirror).unwrap(), expected, "{name}");
            assert!(mirror.was_fetched());
        }
    }
}

#[test]
fn an_absent_reference_names_those_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    repository(&at, &[("a.yaml", "a", 0)]);
    for reference in [
        Reference::Branch("mian".into()),
        Reference::Tag("v9".into()),
        Reference::Commit("0123456789012345678901234567890123456789".into()),
    ] {
        let error = look(&mirror(at.to_str().unwrap(), reference, dir.path())).unwrap_err();
        assert_eq!(error.kind(), SourceErrorKind::ReferenceNotFound, "{error}");
    }
    let error =
        look(&mirror(at.to_str().unwrap(), Reference::Branch("mian".into()), dir.path())).unwrap_err();
    assert!(error.to_string().contains("no branch `mian`; it has: main; push it"), "{error}");
}

#[test]
fn a_tag_of_a_file_or_folder_is_no_broken_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let head = repository(&at, &[("a.yaml", "a", 0)]);
    let git = Repository::open_bare(&at).unwrap();
    let signature = Signature::now("Ada", "ada@example.org").unwrap();
    let tree = git.find_commit(head).unwrap().tree().unwrap();
    let blob = git.find_blob(git.blob(b"a").unwrap()).unwrap();
    git.tag_lightweight("folder", tree.as_object(), false).unwrap();
    git.tag_lightweight("file", blob.as_object(), false).unwrap();
    git.tag("signed", blob.as_object(), &signature, "annotated", false).unwrap();
    for name in ["folder", "file", "signed"] {
        let error = look(&mirror(at.to_str().unwrap(), Reference::Tag(name.into()), dir.path())).unwrap_err();
        assert_eq!(error.kind(), SourceErrorKind::ReferenceNotFound, "{name}: {error}");
        assert!(error.to_string().contains(&format!("no tag `{name}` that names a commit")), "{error}");
    }
}

#[test]
fn links_and_submodules_are_passed_over_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let files = [
        ("apps/a.yaml", "a", 0),
        ("apps/b.yml", "b", 0),
        ("apps/c.json", "{}", 0),
        ("apps/notes.txt", "x", 0),
        ("apps/link.yaml", "/etc/passwd", 0o120_000),
        ("vendor", "", 0o160_000),
        ("other/d.yaml", "d", 0),
    ];
    let head = repository(&at, &files);
    let git = Repository::open_bare(&at).unwrap();
    let listing = list(&git, head, "", &Listing::default()).unwrap().unwrap();
    let paths: Vec<&str> = listing.files.keys().map(|path| &**path).collect();
    assert_eq!(paths, ["apps/a.yaml", "apps/b.yml", "apps/c.json", "other/d.yaml"]);
    let notes: Vec<_> = listing.notes.iter().map(|note| (note.file.as_str(), note.rule.as_str())).collect();
    assert_eq!(notes, [("apps/link.yaml", "symlink"), ("vendor", "submodule")]);
    let apps = list(&git, head, "apps", &Listing::default()).unwrap().unwrap();
    assert_eq!(apps.files.len(), 3);
    assert!(list(&git, head, "none", &Listing::default()).unwrap().is_none());
    assert!(list(&git, head, "apps/a.yaml", &Listing::default()).unwrap().is_none());
}

#[test]
fn a_listing_from_the_last_one_is_the_listing_from_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let steps: [&[(&str, &str, i32)]; 8] = [
        &[("a.yaml", "1", 0), ("x/b.yaml", "1", 0), ("x/y/c.yaml", "1", 0)],
        &[("a.yaml", "2", 0), ("x/b.yaml", "1", 0), ("x/y/c.yaml", "1", 0)],
        &[("a.yaml/now/a/folder.yaml", "1", 0), ("x/b.yaml", "1", 0), ("x/y", "file now", 0)],
        &[("x/b.yaml", "1", 0), ("x/.minik8signore", "b.yaml\n", 0)],
        &[("x/b.yaml", "1", 0), ("x/.minik8signore", "c.yaml\n", 0), ("x/c.yaml", "1", 0)],
        &[("x/b.yaml", "target", 0o120_000), ("x/c.yaml", "1", 0)],
        &[("README.md", "no more", 0)],
        &[("x/b.yaml", "1", 0), ("y/b.yaml", "1", 0)],
    ];
    let mut last = Listing::default();
    for (number, files) in steps.iter().enumerate() {
        let head = if number == 0 {
            repository(&at, files)
        } else {
            commit(&Repository::open_bare(&at).unwrap(), files)
        };
        let git = Repository::open_bare(&at).unwrap();
        let fresh = list(&git, head, "", &Listing::default()).unwrap().unwrap();
        last = list(&git, head, "", &last).unwrap().unwrap();
        assert_eq!(last.files, fresh.files, "step {number}");
        assert_eq!(last.notes, fresh.notes, "step {number}");
    }
}

/// Answers every request with this status line until the test ends.
fn serve(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let ask = "WWW-Authenticate: Basic realm=\"git\"\r\n";
            let _ = write!(
                connection,
                "HTTP/1.1 {status}\r\n{ask}Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    format!("http://{address}/repo.git")
}

#[test]
fn what_a_server_refuses_is_reported_without_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cr3t-token\n").unwrap();
    for (status, with_token, kind, says) in [
        ("401 Unauthorized", false, SourceErrorKind::AuthenticationFailed, "--token-file"),
        ("401 Unauthorized", true, SourceErrorKind::AuthenticationFailed, "not accepted"),
        ("403 Forbidden", true, SourceErrorKind::AuthenticationFailed, "--token-file"),
        ("404 Not Found", true, SourceErrorKind::RemoteUnreachable, "no Git repository"),
        ("500 Internal Server Error", true, SourceErrorKind::RemoteUnreachable, "500"),
    ] {
        let mut config = SourceConfig::branch("main", &serve(status), "main");
        config.credentials.token_file = with_token.then(|| token.clone());
        let error = Mirror::new(Arc::new(config), dir.path()).ls_remote().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{status}: {text}");
        assert!(text.contains(says) && !text.contains("s3cr3t") && !text.contains('\n'), "{status}: {text}");
    }
}

#[test]
fn nothing_at_the_address_is_an_unreachable_remote() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for url in [format!("http://user:hunter2@{closed}/x.git"), "http://name.invalid/x.git".to_owned()] {
        let error = Mirror::new(Arc::new(SourceConfig::branch("main", &url, "main")), dir.path())
            .ls_remote()
            .unwrap_err();
        assert_eq!(error.kind(), SourceErrorKind::RemoteUnreachable, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn many_fetches_leave_few_packs_and_a_mirror_that_reads() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    repository(&at, &[("a.yaml", "0", 0)]);
    let git = Repository::open_bare(&at).unwrap();
    let mirror = mirror(at.to_str().unwrap(), Reference::Branch("main".into()), dir.path());
    let mut head = look(&mirror).unwrap();
    for number in 0..60 {
        commit(&git, &[("a.yaml", &number.to_string(), 0)]);
        head = look(&mirror).unwrap();
    }
    mirror.tidy(head, &[]).unwrap();
    let mirrored = mirror.open().unwrap();
    let packs = std::fs::read_dir(mirrored.path().join("objects/pack")).unwrap().count();
    assert_eq!(packs, 2, "one pack and its index");
    let listing = list(&mirrored, head, "", &Listing::default()).unwrap().unwrap();
    let id = listing.files.get("a.yaml").copied().unwrap();
    assert_eq!(blob(&mirrored, id).unwrap().unwrap(), b"59");
    commit(&git, &[("a.yaml", "more", 0)]);
    assert!(look(&mirror).is_ok());
}

#[test]
fn the_applied_commit_outlives_a_force_push_and_a_repack() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let root = repository(&at, &[("a.yaml", "root", 0)]);
    let git = Repository::open_bare(&at).unwrap();
    let applied = commit(&git, &[("a.yaml", "applied", 0)]);
    let mirror = mirror(at.to_str().unwrap(), Reference::Branch("main".into()), dir.path());
    look(&mirror).unwrap();
    git.reference("refs/heads/main", root, true, "force").unwrap();
    let mut head = root;
    for number in 0..60 {
        head = commit(&git, &[("a.yaml", &number.to_string(), 0)]);
        assert_eq!(look(&mirror).unwrap(), head);
    }
    let gone = Oid::from_str("0123456789012345678901234567890123456789").unwrap();
    mirror.tidy(head, &[applied, gone]).unwrap();
    let mirrored = mirror.open().unwrap();
    let packs = std::fs::read_dir(mirrored.path().join("objects/pack")).unwrap().count();
    assert_eq!(packs, 2, "one pack and its index");
    assert_eq!(relation(&mirrored, &applied.to_string(), head).unwrap(), Relation::Related);
    assert!(list(&mirrored, applied, "", &Listing::default()).unwrap().is_some());
}

#[test]
fn a_mirror_that_broke_in_any_way_is_made_anew_and_reads_as_before() {
    type Harm = fn(&Path);
    let each = |folder: &Path, act: &dyn Fn(&Path)| {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            act(&entry.path());
        }
    };
    let harms: [(&str, Harm); 7] = [
        ("no objects", |mirror| std::fs::remove_dir_all(mirror.join("objects")).unwrap()),
        ("no HEAD", |mirror| std::fs::remove_file(mirror.join("HEAD")).unwrap()),
        ("garbage in HEAD", |mirror| std::fs::write(mirror.join("HEAD"), [0xff; 64]).unwrap()),
        ("garbage in a reference", |mirror| {
            std::fs::write(mirror.join("refs/heads/main"), "no commit\n").unwrap();
        }),
        ("a reference to nothing", |mirror| {
            std::fs::write(mirror.join("refs/heads/main"), format!("{}\n", "1".repeat(40))).unwrap();
        }),
        ("a lock left behind", |mirror| std::fs::write(mirror.join("refs/heads/main.lock"), "").unwrap()),
        ("garbage in config", |mirror| std::fs::write(mirror.join("config"), "[core\n= x").unwrap()),
    ];
    for (what, harm) in harms {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("repo.git");
        repository(&at, &[("a.yaml", "one", 0)]);
        let mirror = mirror(at.to_str().unwrap(), Reference::Branch("main".into()), dir.path());
        look(&mirror).unwrap();
        harm(&dir.path().join("reconciler/mirrors/main"));
        let git = Repository::open_bare(&at).unwrap();
        let head = commit(&git, &[("a.yaml", "two", 0)]);
        assert_eq!(look(&mirror).unwrap_or_else(|error| panic!("{what}: {error}")), head, "{what}");
        let mirrored = mirror.open().unwrap();
        let listing = list(&mirrored, head, "", &Listing::default()).unwrap().unwrap();
        assert_eq!(blob(&mirrored, listing.files["a.yaml"]).unwrap().unwrap(), b"two", "{what}");
    }
    // Unreadable objects are found when the commit is read, and a rebuild repairs them.
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("repo.git");
    let head = repository(&at, &[("a.yaml", "one", 0)]);
    let mirror = mirror(at.to_str().unwrap(), Reference::Branch("main".into()), dir.path());
    look(&mirror).unwrap();
    let objects = dir.path().join("reconciler/mirrors/main/objects");
    each(&objects, &|folder| each(folder, &|file| std::fs::write(file, "cut").unwrap_or_default()));
    let broken = mirror.open().and_then(|git| commit_meta(&git, head).map_err(|error| mirror.broken(&error)));
    assert_eq!(broken.unwrap_err().kind(), SourceErrorKind::MirrorBroken);
    assert_eq!(mirror.rebuild(&Arc::default()).unwrap(), head);
    assert!(commit_meta(&mirror.open().unwrap(), head).is_ok());
}

// Would fail without the limit: everything arrived.
#[test]
fn a_repository_that_is_too_large_is_not_fetched_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (at, state) = (dir.path().join("repo.git"), dir.path().join("state"));
    // Text that does not compress.
    let noise = |seed: u64| -> String {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b' ' + u8::try_from(state >> 57).unwrap() % 94)
        };
        (0..1_000_000).map(|_| next()).collect()
    };
    repository(&at, &[("large", &noise(1), 0)]);
    let path = at.to_str().unwrap();
    let mirror = mirror(path, Reference::Branch("main".into()), &state).limited_to(1_500_000);
    let first = look(&mirror).unwrap();
    let git = Repository::open_bare(&at).unwrap();
    commit(&git, &[("larger", &noise(2), 0)]);
    // The mirror outgrows its limit, and a fresh one does not fit either.
    let error = look(&mirror).unwrap_err();
    assert!(matches!(error, GitError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("a repository of their own"), "{error}");
    let names = |folder: &str| -> Vec<String> {
        let all = std::fs::read_dir(state.join("reconciler/mirrors").join(folder)).unwrap();
        let mut names: Vec<_> = all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["main"]);
    let packs = names("main/objects/pack");
    assert!(packs.len() == 2 && packs.iter().all(|name| name.starts_with("pack-")), "{packs:?}");
    assert!(mirror.open().unwrap().find_commit(first).is_ok(), "what was there stays");
    // History that is gone at the remote does not count: the mirror is made anew.
    let tree = git.find_commit(first).unwrap().tree().unwrap().id();
    git.find_reference("refs/heads/main").unwrap().delete().unwrap();
    assert_ne!(commit(&git, &[("other", &noise(3), 0)]), first);
    let head = look(&mirror).unwrap();
    assert_ne!(mirror.open().unwrap().find_commit(head).unwrap().tree().unwrap().id(), tree);
}
