//! Commits signed by the real git, ssh-keygen and gpg, and faulty signatures of many kinds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use git2::Oid;
use schema::records::SourceErrorKind;

use crate::git::{FirstSeen, GitError, Mirror, SignaturePolicy, SourceConfig};

const MAIL: &str = "ada@example.test";

/// A working repository, a directory for keys, and a separate gpg home.
struct Bench {
    dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Stops the agent that gpg left behind; this finds only the agent of this directory.
        let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", self.at("gpg")).output();
    }
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(bench.at("gpg")).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(bench.at("gpg"), private).unwrap();
        bench.run("git", &["init", "-q", "-b", "main", "work"]);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        self.pipe(program, args, "")
    }

    fn pipe(&self, program: &str, args: &[&str], input: &str) -> String {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("GNUPGHOME", self.at("gpg"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env_remove("SSH_AUTH_SOCK");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "Ada").env(format!("GIT_{role}_EMAIL"), MAIL);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn ssh_key(&self, name: &str, kind: &[&str]) -> String {
        let file = self.at(name);
        let args = [&["-q", "-N", "", "-C", "", "-f", file.to_str().unwrap()], kind].concat();
        self.run("ssh-keygen", &args);
        std::fs::read_to_string(file.with_extension("pub")).unwrap().trim().to_owned()
    }

    /// Makes an empty commit with these Git settings.
    fn commit(&self, settings: &[&str], sign: bool) -> Oid {
        let mut args = vec!["-C", "work"];
        settings.iter().for_each(|setting| args.extend(["-c", setting]));
        args.extend(["commit", "-q", "--allow-empty", "-m", "Change"]);
        args.push(if sign { "-S" } else { "--no-gpg-sign" });
        self.run("git", &args);
        self.head()
    }

    fn head(&self) -> Oid {
        Oid::from_str(&self.run("git", &["-C", "work", "rev-parse", "HEAD"])).unwrap()
    }

    fn ssh_commit(&self, key: &str) -> Oid {
        let key = format!("user.signingkey={}", self.at(key).display());
        self.commit(&["gpg.format=ssh", &key], true)
    }

    /// Stores a changed copy of the head commit as its own object.
    fn forged(&self, change: impl Fn(&str) -> String) -> Oid {
        let text = self.run("git", &["-C", "work", "cat-file", "commit", "HEAD"]) + "\n";
        let changed = change(&text);
        assert_ne!(changed, text);
        let id = self.pipe("git", &["-C", "work", "hash-object", "-t", "commit", "-w", "--stdin"], &changed);
        Oid::from_str(&id).unwrap()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    /// Checks a commit with the working repository itself as the mirror.
    fn check(&self, signers: Option<PathBuf>, keys: Option<PathBuf>, commit: Oid) -> Result<(), GitError> {
        let state = self.at("state");
        let mirrors = state.join("reconciler/mirrors");
        if !mirrors.exists() {
            std::fs::create_dir_all(&mirrors).unwrap();
            std::os::unix::fs::symlink(self.at("work/.git"), mirrors.join("main")).unwrap();
        }
        let mut config = SourceConfig::branch("main", "/srv/repo.git", "main");
        config.signatures = SignaturePolicy::from_files(signers, keys);
        Mirror::new(Arc::new(config), Path::new(&state)).check_commit(commit, &FirstSeen::new())
    }

    fn refused(&self, signers: Option<PathBuf>, keys: Option<PathBuf>, commit: Oid, says: &str) {
        let error = self.check(signers, keys, commit).expect_err(says);
        let text = error.to_string();
        assert_eq!(error.kind(), SourceErrorKind::SignatureInvalid, "{text}");
        assert!(text.contains(says) && !text.contains('\n'), "{says}: {text}");
        if matches!(error, GitError::SignatureInvalid { .. }) {
            assert!(text.contains(&commit.to_string()[..12]) && text.contains(MAIL), "{text}");
        }
    }

    fn gpg(&self, args: &[&str]) -> String {
        self.run(
            "gpg",
            &[&["--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""], args].concat(),
        )
    }

    fn gpg_commit(&self, key: &str, settings: &[&str]) -> Oid {
        self.commit(&[&[format!("user.signingkey={key}!").as_str()], settings].concat(), true)
    }

    fn fingerprint(&self, user: &str) -> Vec<String> {
        let listed = self.gpg(&["--with-colons", "--list-keys", user]);
        let prints = listed.lines().filter_map(|line| line.strip_prefix("fpr:"));
        prints.map(|line| line.trim_matches(':').to_owned()).collect()
    }
}

#[test]
fn a_commit_that_an_allowed_ssh_key_signed_passes() {
    let bench = Bench::new();
    for (name, kind) in [
        ("ed", &["-t", "ed25519"] as &[&str]),
        ("rsa", &["-t", "rsa", "-b", "2048"]),
        ("ec", &["-t", "ecdsa", "-b", "256"]),
        ("ec384", &["-t", "ecdsa", "-b", "384"]),
    ] {
        let key = bench.ssh_key(name, kind);
        let commit = bench.ssh_commit(name);
        let signers = bench.file("signers", format!("# who\n*@example.test namespaces=\"git\" {key}\n"));
        bench.check(Some(signers), None, commit).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn every_other_ssh_signature_is_refused_with_its_reason() {
    let bench = Bench::new();
    let (mine, other) =
        (bench.ssh_key("mine", &["-t", "ed25519"]), bench.ssh_key("other", &["-t", "ed25519"]));
    let unsigned = bench.commit(&[], false);
    let signed = bench.ssh_commit("mine");
    let signers = |text: &str| Some(bench.file("signers", text));
    let good = || signers(&format!("{MAIL} {mine}\n{MAIL} {other}\n"));
    bench.check(good(), None, signed).unwrap();
    bench.refused(good(), None, unsigned, "it is not signed");
    bench.refused(signers(&format!("{MAIL} {other}\n")), None, signed, "not among the allowed signers");
    bench.refused(
        signers(&format!("bob@example.test {mine}\n")),
        None,
        signed,
        "not allowed for the committer",
    );
    bench.refused(signers(&format!("*,!{MAIL} {mine}\n")), None, signed, "not allowed for the committer");
    bench.refused(signers(&format!("* namespaces=\"file\" {mine}\n")), None, signed, "not permitted");
    bench.refused(
        signers(&format!("* valid-before=\"20200101Z\" {mine}\n")),
        None,
        signed,
        "key has expired",
    );
    bench.refused(
        signers(&format!("* valid-after=\"20990101Z\" {mine}\n")),
        None,
        signed,
        "key is not yet valid",
    );

    let tree = bench.forged(|text| text.replacen("tree 4b825dc6", "tree 4b825dc7", 1));
    let message = bench.forged(|text| text.replace("\nChange", "\nChange all"));
    let date = bench.forged(|text| {
        text.replacen("committer Ada <ada@example.test> 1", "committer Ada <ada@example.test> 2", 1)
    });
    for forged in [tree, message, date] {
        bench.refused(good(), None, forged, "does not match the commit");
    }
    let cut = bench.forged(|text| {
        text.replacen("-----BEGIN SSH SIGNATURE-----\n ", "-----BEGIN SSH SIGNATURE-----\n AA", 1)
    });
    bench.refused(good(), None, cut, "SSH signature can't be read");
    let none = bench.forged(|text| text.replace("SSH SIGNATURE", "TLS SIGNATURE"));
    bench.refused(good(), None, none, "neither SSH nor GPG");
}

// Seen red with the committer's date alone; would fail with times that are not kept.
#[test]
fn a_key_whose_time_is_over_signs_nothing_new_whatever_date_the_commit_has() {
    let bench = Bench::new();
    let key = bench.ssh_key("mine", &["-t", "ed25519"]);
    let accepted = bench.ssh_commit("mine");
    let signers = |until: &str| Some(bench.file("signers", format!("* valid-before=\"{until}\" {key}\n")));
    bench.check(signers("20990101Z"), None, accepted).unwrap();
    // From here on the key's time is over, and every commit claims to be older. `main` moves on from an old one.
    let program = bench
        .file("git-then", "#!/bin/sh\nexport GIT_COMMITTER_DATE=2019-06-01T00:00:00Z\nexec git \"$@\"\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    let signing = format!("user.signingkey={}", bench.at("mine").display());
    let args = [
        "-C",
        "work",
        "-c",
        "gpg.format=ssh",
        "-c",
        &signing,
        "commit",
        "-q",
        "--allow-empty",
        "-S",
        "-m",
        "Old",
    ];
    bench.run(program.to_str().unwrap(), &args);
    let backdated = bench.head();
    bench.refused(signers("20200101Z"), None, backdated, "key has expired");
    // The same commit was applied while the key was valid, says etcd.
    let mut config = SourceConfig::branch("main", "/srv/repo.git", "main");
    config.signatures = SignaturePolicy::from_files(signers("20200101Z"), None);
    let mirror = Mirror::new(Arc::new(config), &bench.at("state"));
    let applied = FirstSeen::from([(backdated.to_string(), "2019-06-02T00:00:00Z".parse().unwrap())]);
    mirror.check_commit(backdated, &applied).unwrap();
    // It stays accepted by this disk alone, as when etcd was lost, and through another mirror.
    mirror.check_commit(backdated, &FirstSeen::new()).unwrap();
    mirror.check_signature(backdated).unwrap();
}

#[test]
fn a_signature_for_files_does_not_sign_a_commit() {
    let bench = Bench::new();
    let key = bench.ssh_key("mine", &["-t", "ed25519"]);
    let plain = bench.commit(&[], false);
    let text = bench.run("git", &["-C", "work", "cat-file", "commit", &plain.to_string()]) + "\n";
    bench.file("commit", &text);
    bench.run("ssh-keygen", &["-q", "-Y", "sign", "-n", "file", "-f", "mine", "commit"]);
    let armor = std::fs::read_to_string(bench.at("commit.sig")).unwrap();
    let signed = bench.forged(|text| {
        let (head, message) = text.split_once("\n\n").unwrap();
        format!("{head}\ngpgsig {}\n\n{message}", armor.trim_end().replace('\n', "\n "))
    });
    let signers = bench.file("signers", format!("* {key}\n"));
    bench.refused(Some(signers), None, signed, "made for something other than Git");
}

#[test]
fn a_file_of_keys_that_cannot_be_used_lets_nothing_pass() {
    let bench = Bench::new();
    let key = bench.ssh_key("mine", &["-t", "ed25519"]);
    let signed = bench.ssh_commit("mine");
    let good = || bench.file("good", format!("* {key}\n"));
    bench.refused(Some(bench.at("none")), None, signed, "No such file");
    bench.refused(Some(bench.at("work")), None, signed, "directory");
    bench.refused(Some(bench.file("empty", "")), None, signed, "names no signer");
    bench.refused(Some(bench.file("broken", "* ssh-ed25519 x\n")), None, signed, "line 1");
    bench.refused(Some(bench.file("bytes", [0xff, 0xfe])), None, signed, "not text");
    // A good file does not make up for a bad one.
    bench.refused(Some(good()), Some(bench.file("empty", "")), signed, "holds no key");
    bench.refused(Some(good()), Some(bench.file("text", "hello")), signed, "text");
    bench.refused(None, Some(bench.at("none")), signed, "No such file");
    bench.check(Some(good()), None, signed).unwrap();
    bench.check(None, None, signed).unwrap();
}

#[test]
fn a_commit_that_a_gpg_key_of_the_keyring_signed_passes() {
    let bench = Bench::new();
    for kind in ["ed25519", "rsa2048", "nistp256"] {
        let user = format!("{kind} <{MAIL}>");
        bench.gpg(&["--quick-gen-key", &user, kind, "sign", "never"]);
        let print = bench.fingerprint(kind).remove(0);
        let commit = bench.gpg_commit(&print, &[]);
        let armored = bench.file("keys.asc", bench.gpg(&["--armor", "--export", kind]));
        bench.check(None, Some(armored), commit).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
    // A whole binary keyring, and a subkey that signs for a primary key without that right.
    bench.gpg(&["--quick-gen-key", &format!("sub <{MAIL}>"), "ed25519", "cert", "never"]);
    let primary = bench.fingerprint("sub").remove(0);
    bench.gpg(&["--quick-add-key", &primary, "ed25519", "sign", "never"]);
    let commit = bench.gpg_commit(&bench.fingerprint("sub")[1], &[]);
    let keys = bench.at("keys.gpg");
    bench.gpg(&["--output", keys.to_str().unwrap(), "--export"]);
    bench.check(None, Some(keys), commit).unwrap();
}

#[test]
fn every_other_gpg_signature_is_refused_with_its_reason() {
    let bench = Bench::new();
    for user in ["mine", "other"] {
        bench.gpg(&["--quick-gen-key", &format!("{user} <{MAIL}>"), "ed25519", "sign", "never"]);
    }
    let mine = bench.fingerprint("mine").remove(0);
    let signed = bench.gpg_commit(&mine, &[]);
    let export = |user: &str, name: &str| Some(bench.file(name, bench.gpg(&["--armor", "--export", user])));
    bench.check(None, export("mine", "mine.asc"), signed).unwrap();
    bench.refused(None, export("other", "other.asc"), signed, "is not in the keyring");
    let message = bench.forged(|text| text.replace("\nChange", "\nChange all"));
    bench.refused(None, export("mine", "mine.asc"), message, "does not match the commit");
    let ssh = bench.ssh_key("ssh", &["-t", "ed25519"]);
    let signers = bench.file("signers", format!("* {ssh}\n"));
    bench.refused(Some(signers), None, signed, "has no GPG keys");

    // gpg writes a revocation beside each new key, with a colon so that it is not used by mistake.
    let revocation = bench.at(&format!("gpg/openpgp-revocs.d/{mine}.rev"));
    let text = std::fs::read_to_string(revocation).unwrap().replace(":-----BEGIN", "-----BEGIN");
    let file = bench.file("revocation", text);
    bench.gpg(&["--import", file.to_str().unwrap()]);
    bench.refused(None, export("mine", "revoked.asc"), signed, "is revoked");
}

#[test]
fn an_expired_gpg_key_and_a_revoked_subkey_sign_nothing() {
    let bench = Bench::new();
    let then = ["--faked-system-time", "20200101T000000!"];
    bench.gpg(&[&then[..], &["--quick-gen-key", &format!("old <{MAIL}>"), "ed25519", "sign", "1y"]].concat());
    let old = bench.fingerprint("old").remove(0);
    let wrapper = bench.file("old-gpg", "#!/bin/sh\nexec gpg --faked-system-time 20200601T000000! \"$@\"\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&wrapper, executable).unwrap();
    let commit = bench.gpg_commit(&old, &[&format!("gpg.program={}", wrapper.display())]);
    let keys = bench.file("old.asc", bench.gpg(&["--armor", "--export", "old"]));
    bench.refused(None, Some(keys), commit, "expired at 2020-12-31");

    bench.gpg(&["--quick-gen-key", &format!("sub <{MAIL}>"), "ed25519", "cert", "never"]);
    let primary = bench.fingerprint("sub").remove(0);
    bench.gpg(&["--quick-add-key", &primary, "ed25519", "sign", "never"]);
    let commit = bench.gpg_commit(&bench.fingerprint("sub")[1], &[]);
    let before = bench.file("before.asc", bench.gpg(&["--armor", "--export", "sub"]));
    bench.check(None, Some(before), commit).unwrap();
    let answers = "key 1\nrevkey\ny\n0\n\ny\nsave\n";
    let edit = [
        "--quiet",
        "--no-tty",
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "",
        "--command-fd",
        "0",
        "--edit-key",
    ];
    bench.pipe("gpg", &[&edit[..], &[&primary]].concat(), answers);
    let after = bench.file("after.asc", bench.gpg(&["--armor", "--export", "sub"]));
    bench.refused(None, Some(after), commit, "is revoked");
}

#[test]
fn a_renewed_key_beside_its_old_self_counts_as_renewed_and_a_revoked_one_as_revoked() {
    let bench = Bench::new();
    let then = ["--faked-system-time", "20200101T000000!"];
    bench
        .gpg(&[&then[..], &["--quick-gen-key", &format!("mine <{MAIL}>"), "ed25519", "cert", "1y"]].concat());
    let primary = bench.fingerprint("mine").remove(0);
    bench.gpg(&[&then[..], &["--quick-add-key", &primary, "ed25519", "sign", "1y"]].concat());
    let export = || bench.gpg(&["--armor", "--export", "mine"]);
    let old = export();
    bench.gpg(&["--quick-set-expire", &primary, "0"]);
    let subkey = bench.fingerprint("mine").remove(1);
    bench.gpg(&["--quick-set-expire", &primary, "0", &subkey]);
    let renewed = export();
    let commit = bench.gpg_commit(&subkey, &[]);
    bench.refused(None, Some(bench.file("old", &old)), commit, "expired at");
    bench.check(None, Some(bench.file("renewed", &renewed)), commit).unwrap();
    for both in [format!("{old}\n{renewed}\n"), format!("{renewed}\n{old}\n")] {
        bench.check(None, Some(bench.file("both", both)), commit).unwrap();
    }
    let revocation = bench.at(&format!("gpg/openpgp-revocs.d/{primary}.rev"));
    let text = std::fs::read_to_string(revocation).unwrap().replace(":-----BEGIN", "-----BEGIN");
    bench.gpg(&["--import", bench.file("revocation", text).to_str().unwrap()]);
    let revoked = export();
    for both in [format!("{revoked}\n{renewed}\n"), format!("{renewed}\n{revoked}\n")] {
        bench.refused(None, Some(bench.file("both", both)), commit, "is revoked");
    }
}
