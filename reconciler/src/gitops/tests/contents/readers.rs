//! The three readers of a repository agree: `validate` reads a folder, `plan` a commit, and the source loop the same
//! commit in its mirror. Random folders become commits by Git itself; the errors must have the same rules and places.
//!
//! `MINIK8S_ROUNDS` is the number of folders, `MINIK8S_SEED` the first seed; a failure names its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use git2::Repository;
use schema::arbitrary::Chance;
use schema::snapshot::Table;
use schema::violation::{Violation, rules};

use super::super::{from_environment, rounds};
use crate::blobs::BlobStore;
use crate::git::{GitError, LocalFault, Mirror, ReadError, SourceConfig};
use crate::gitops::check::CommitLimits;
use crate::gitops::offline::{OfflineError, Request, compare};
use crate::gitops::plan::{PlanInput, plan};
use crate::gitops::prune::Lineage;
use crate::gitops::read::read_commit;

const AGE: &[u8] = b"age-encryption.org/v1\n-> X25519 abc\n--- mac\n";
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
const GIT_CRYPT: &[u8] = b"\0GITCRYPT\0\xff\x80secret";
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Paths that manifests name, whether there is such a file or not.
const NAMED: [&str; 17] = [
    "conf",
    "conf/a.txt",
    "conf/model.bin",
    "conf/l",
    "conf/deep",
    "conf/deep/b.txt",
    "fn",
    "fn/app",
    "drafts",
    "apps",
    "vendor",
    "vendor/x",
    "empty",
    "lnk",
    "lnk/a.txt",
    "none",
    ".",
];
const FOLDERS: [&str; 8] = ["", "apps/", "apps/deep/", "conf/", "conf/deep/", "drafts/", "fn/", ".hidden/"];

fn pick<'a, T: ?Sized>(chance: &mut Chance, all: &[&'a T]) -> &'a T {
    all[chance.index(all.len())]
}

/// A folder that is being filled.
struct Filled<'a> {
    chance: &'a mut Chance,
    root: &'a Path,
    objects: usize,
}

impl Filled<'_> {
    /// Writes a file, unless a link or file stands in the way.
    fn put(&mut self, path: impl AsRef<Path>, bytes: &[u8]) {
        let at = self.root.join(path);
        if fs::create_dir_all(at.parent().unwrap()).is_ok() && at.symlink_metadata().is_err() {
            let _ = fs::write(at, bytes);
        }
    }

    fn link(&mut self, path: &str, target: &str) {
        let at = self.root.join(path);
        let _ = fs::create_dir_all(at.parent().unwrap());
        let _ = symlink(target, at);
    }

    fn path(&mut self, names: &[&str]) -> String {
        format!("{}{}", pick(self.chance, &FOLDERS), pick(self.chance, names))
    }

    fn fill(&mut self) {
        for _ in 0..2 + self.chance.below(9) {
            match self.chance.below(15) {
                0..=2 => self.manifest(),
                3 => self.ignore_file(),
                4 => self.git_files(),
                5 | 6 => self.data(),
                7 | 8 => self.function(),
                9 => self.secret(),
                10 => self.links(),
                11 => self.nested(),
                12 => self.odd(),
                13 => self.definition(),
                _ => self.named(),
            }
        }
    }

    /// A manifest as editors, filters and mistakes leave it.
    fn manifest(&mut self) {
        let path = self.path(&["a.yaml", "b.yml", "c.json", "d.u16.yaml", "e.crypt.yaml", "f.big.yaml"]);
        let text = self.pod("");
        let bytes = match self.chance.below(12) {
            0 | 1 => [MARK, text.as_bytes()].concat(),
            2 => text.replace('\n', "\r\n").into_bytes(),
            3 => utf16(&text),
            4 => LFS.to_vec(),
            5 => GIT_CRYPT.to_vec(),
            6 => [text.as_bytes(), b"# caf\xe9\n"].concat(),
            7 => text.replace("spec", "sepc").into_bytes(),
            8 => format!("{text}---\n\u{feff}{text}").into_bytes(),
            _ => text.into_bytes(),
        };
        self.put(path, &bytes);
    }

    fn pod(&mut self, rest: &str) -> String {
        // The same name twice is an error in two places.
        self.objects += usize::from(!self.chance.one_in(12));
        let spec = "spec:\n  containers: [{name: m, image: i:1}]\n";
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}}}\n{spec}{rest}", self.objects)
    }

    fn named(&mut self) {
        let path = self.path(&["v.yaml", "w.yaml", "x.yaml"]);
        let rest = match self.chance.below(4) {
            0 => "  imagePullSecrets: [{name: db}]\n".to_owned(),
            _ => format!("  volumes: [{{name: v, repo: {{path: {}}}}}]\n", pick(self.chance, &NAMED)),
        };
        let text = self.pod(&rest);
        self.put(path, text.as_bytes());
    }

    fn ignore_file(&mut self) {
        let path = format!("{}.minik8signore", pick(self.chance, &["", "", "apps/", "drafts/", "conf/"]));
        if self.chance.one_in(12) {
            return self.link(&path, "conf/a.txt");
        }
        let lines = [
            "drafts/",
            "/drafts/",
            "!d.yaml",
            "*.yml",
            "!/drafts/a.yaml",
            "deep",
            "apps/*",
            "# x",
            "!*.yaml",
        ];
        let text: String =
            (0..1 + self.chance.below(3)).map(|_| format!("{}\n", pick(self.chance, &lines))).collect();
        let bytes = match self.chance.below(8) {
            0..=2 => [MARK, text.as_bytes()].concat(),
            3 => utf16(&text),
            _ => text.into_bytes(),
        };
        self.put(path, &bytes);
    }

    /// A byte order mark, or nothing.
    fn mark(&mut self) -> &'static [u8] {
        if self.chance.one_in(3) { MARK } else { &[] }
    }

    /// Files that Git reads, too.
    fn git_files(&mut self) {
        let mark = self.mark();
        let lines =
            ["drafts/\n", "*.bin\n", "/conf/deep/\n", "fn/*\n!fn/main.py\n", "a.yaml\n", "secrets/\n"];
        let text = pick(self.chance, &lines);
        self.put(".gitignore", &[mark, text.as_bytes()].concat());
        let attributes = "*.u16.yaml working-tree-encoding=UTF-16\n*.crypt.yaml filter=git-crypt\n*.key filter=git-crypt\n\
                          *.big.yaml filter=lfs\n*.bin filter=lfs -text\n*.other filter=unknown\n";
        if !self.chance.one_in(3) {
            self.put(".gitattributes", attributes.as_bytes());
        }
    }

    fn data(&mut self) {
        let path = self.path(&["a.txt", "b.txt", "model.bin", "x.key", "y.other", "run.sh"]);
        let all: [&[u8]; 5] = [b"a", b"", LFS, GIT_CRYPT, b"\xff\xfe"];
        let bytes = pick(self.chance, &all);
        self.put(&path, bytes);
        if path.ends_with(".sh") {
            let _ = fs::set_permissions(self.root.join(path), fs::Permissions::from_mode(0o755));
        }
    }

    fn function(&mut self) {
        let source = pick(self.chance, &["fn", "fn/", "./fn/app", "conf", "none", "drafts"]);
        let runtime = pick(self.chance, &["", "", ", runtime: python", ", runtime: dockerfile"]);
        let handler = match runtime.ends_with("dockerfile") {
            true => "",
            false => pick(
                self.chance,
                &["", "", ", handler: main.nofunc", ", handler: nomod.f", ", handler: app.handlers.handle"],
            ),
        };
        self.objects += 1;
        let text = format!(
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: f{}}}\nspec: {{source: {source}{runtime}{handler}}}\n",
            self.objects
        );
        let path = self.path(&["f.yaml", "g.yaml"]);
        self.put(path, text.as_bytes());
        let folder = pick(self.chance, &["fn", "fn/app", "drafts"]);
        let (file, text) = [
            ("main.py", "def main(params):\n    return {}\n"),
            ("main.py", "import app\n"),
            ("func.py", "main = print\n"),
            ("app/handlers.py", "def handle(params):\n    return {}\n"),
            ("handlers.py", "def handle(params):\n    return {}\n"),
            ("Dockerfile", "FROM scratch\nCOPY a /a\n"),
            ("Dockerfile", "FROM scratch\nADD http://h/x /x\n"),
            ("requirements.txt", "flask\n"),
        ][self.chance.index(8)];
        let mark = self.mark();
        self.put(format!("{folder}/{file}"), &[mark, text.as_bytes()].concat());
        if self.chance.one_in(6) {
            self.link(&format!("{folder}/main.py"), "../app.py");
        }
    }

    fn secret(&mut self) {
        let file = pick(self.chance, &["db.age", "default/db.age", "db.sops.yaml"]);
        let all: [&[u8]; 5] = [AGE, AGE, b"password: x", LFS, GIT_CRYPT];
        let bytes = pick(self.chance, &all);
        self.put(format!("secrets/{file}"), bytes);
        if self.chance.one_in(2) {
            self.put("secrets/db.keys", b"\xEF\xBB\xBFpassword\n");
            let env = "  initContainers: [{name: i, image: i:1, env: [{name: A, valueFrom: {secretKeyRef: {name: db, key: password}}}]}]\n";
            let text = self.pod(env);
            self.put("apps/env.yaml", text.as_bytes());
        }
    }

    fn links(&mut self) {
        let path =
            pick(self.chance, &["conf/l", "conf/deep/l", "lnk", "apps/l.yaml", "fn/l", "conf", "drafts/l"]);
        let target =
            pick(self.chance, &["a.txt", "../conf", "/etc/passwd", "..", "../../x", "deep", "conf", "."]);
        self.link(path, target);
    }

    /// A repository in a folder, which becomes a submodule.
    fn nested(&mut self) {
        let path = self.root.join(pick(self.chance, &["vendor", "conf/vendor", "fn/vendor", "drafts"]));
        if path.symlink_metadata().is_ok() || fs::create_dir_all(&path).is_err() {
            return;
        }
        let nested = Repository::init(&path).unwrap();
        fs::write(path.join("x"), "x").unwrap();
        fs::write(path.join("x.yaml"), "kind: Pdo\n").unwrap();
        let tree = nested.find_tree(nested.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let author = git2::Signature::now("Ada", "a@b").unwrap();
        nested.commit(Some("HEAD"), &author, &author, "x", &tree, &[]).unwrap();
    }

    /// Entries that editors do not make.
    fn odd(&mut self) {
        let folder = pick(self.chance, &FOLDERS);
        let at = |name: &[u8]| Path::new(folder).join(OsStr::from_bytes(name));
        match self.chance.below(6) {
            0 => self.put(at(b"caf\xe9.yaml"), b"kind: Pod\n"),
            1 => self.put(at(b"caf\xe9/x.yaml"), b"kind: Pod\n"),
            2 => self.put(at(b"caf\xe9.txt"), b"x"),
            3 => drop(fs::create_dir_all(self.root.join("empty/below"))),
            4 => {
                let _ = fs::create_dir_all(self.root.join(folder));
                let _ = nix::unistd::mkfifo(&self.root.join(at(b"pipe.yaml")), nix::sys::stat::Mode::S_IRWXU);
            }
            _ => self.put(at(&[b"d/".repeat(66), b"deep.yaml".to_vec()].concat()), b"kind: Pdo\n"),
        }
    }

    fn definition(&mut self) {
        let bytes = br#"{"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}"#;
        let broken = br#"{"StartAt": "B", "States": {"A": {"Type": "Succeed"}}}"#;
        let all: [&[u8]; 4] = [bytes, broken, LFS, GIT_CRYPT];
        let bytes = pick(self.chance, &all);
        let mark = self.mark();
        let path = pick(self.chance, &["conf/sm.json", "drafts/sm.json", "conf/sm.bin"]);
        self.put(path, &[mark, bytes].concat());
        self.objects += 1;
        let text = format!(
            "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: w{}}}\nspec: {{definitionPath: {}}}\n",
            self.objects,
            pick(self.chance, &[path, "none.json", "conf"]),
        );
        let at = self.path(&["s.yaml"]);
        self.put(at, text.as_bytes());
    }
}

fn utf16(text: &str) -> Vec<u8> {
    [0xFF, 0xFE].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
}

/// Runs Git in a folder; true if it succeeded.
fn git(dir: &Path, args: &[&str]) -> bool {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Ada").env(format!("GIT_{role}_EMAIL"), "a@b");
    }
    command.status().unwrap().success()
}

/// Errors by rule and place; or what keeps the whole commit from being read.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Errors(BTreeSet<(String, String, u32, u32)>),
    /// An ignore file whose rules are unknown.
    IgnoreFile(String),
    Owner,
}

fn errors<'v>(violations: impl IntoIterator<Item = &'v Violation>) -> Verdict {
    let place = |found: &Violation| (found.rule.clone(), found.file.clone(), found.line, found.column);
    Verdict::Errors(violations.into_iter().filter(|found| found.is_error()).map(place).collect())
}

fn validated(root: &Path) -> Verdict {
    let violations = crate::diagnostics::inspect(&[root]).unwrap().report.violations;
    if violations.iter().any(|found| found.rule == rules::REPOSITORY_UNREADABLE.id) {
        return Verdict::Owner;
    }
    let unread = violations
        .iter()
        .find(|found| found.rule == rules::UNREADABLE.id && found.file.ends_with(".minik8signore"));
    unread.map_or_else(|| errors(&violations), |found| Verdict::IgnoreFile(found.file.clone()))
}

fn planned(root: &Path) -> Verdict {
    let request = Request {
        repo: root,
        base: None,
        head: "HEAD",
        folder: "",
        source: "main",
        strict: false,
        in_place: false,
        live: None,
        effects: crate::cli::kinds::effects,
    };
    match compare(&request) {
        Ok(review) => errors(&review.violations),
        Err(OfflineError::Commit { why: ReadError::IgnoreFile { file, .. }, .. }) => {
            Verdict::IgnoreFile(file)
        }
        Err(OfflineError::Open(LocalFault::Owner { .. })) => Verdict::Owner,
        Err(error) => panic!("{error}"),
    }
}

fn pushed(root: &Path, state: &Path) -> Verdict {
    let config = SourceConfig::branch("main", root.to_str().unwrap(), "main");
    let mirror = Mirror::new(Arc::new(config), state);
    let head = match mirror.ls_remote().and_then(|_| mirror.fetch(&Arc::default())) {
        Ok(head) => head,
        Err(GitError::AuthenticationFailed { help, .. }) if help.contains("safe.directory") => {
            return Verdict::Owner;
        }
        Err(error) => panic!("{error}"),
    };
    let loaded = match read_commit(&mirror, head, None, None, &BlobStore::new(state)) {
        Ok(loaded) => loaded,
        Err(GitError::CommitUnreadable { why, .. }) => {
            let file = why.split_whitespace().next().unwrap_or_default().to_owned();
            return Verdict::IgnoreFile(file);
        }
        Err(error) => panic!("{error}"),
    };
    let planned = plan(&PlanInput {
        source: "main".to_owned(),
        commit: loaded.commit,
        manifests: loaded.manifests,
        live: Table::new(),
        malformed: BTreeSet::new(),
        lineage: Lineage::default(),
        held: None,
        revision: 0,
        lost: BTreeMap::new(),
        limits: CommitLimits::default(),
        service_cidr: None,
        incomplete: None,
    });
    errors(planned.quarantined.values().flatten())
}

/// Makes a repository, with the filters that may be configured on a machine, and fills its folder.
fn repository(root: &Path, chance: &mut Chance) {
    Repository::init_opts(root, git2::RepositoryInitOptions::new().initial_head("main")).unwrap();
    if !chance.one_in(3) {
        let config = "\n[filter \"git-crypt\"]\n\tclean = \"printf '\\\\0GITCRYPT\\\\0'; cat\"\n\
                      [filter \"lfs\"]\n\tclean = \"cat >/dev/null; printf 'version https://git-lfs.github.com/spec/v1\\\\n'\"\n";
        let file = root.join(".git/config");
        fs::write(&file, fs::read_to_string(&file).unwrap() + config).unwrap();
    }
    Filled { chance, root, objects: 0 }.fill();
}

/// Gives files, or the whole repository, to another user.
fn give_away(root: &Path, chance: &mut Chance) {
    // Only root can.
    let give = |path: &Path| drop(chown(path, Some(65_534), None));
    match chance.below(24) {
        0 => [root.to_owned(), root.join(".git")].iter().for_each(|path| give(path)),
        1..=3 => {
            for entry in fs::read_dir(root).unwrap().flatten().filter(|entry| entry.file_name() != ".git") {
                if entry.file_type().unwrap().is_dir() {
                    give(&entry.path());
                }
            }
        }
        _ => {}
    }
}

#[test]
fn validate_plan_and_a_push_find_the_same_errors_in_any_folder() {
    let first = from_environment("MINIK8S_SEED").unwrap_or(1);
    let (mut found, mut refused, mut skipped) = (BTreeSet::new(), 0, 0);
    let all = rounds(300);
    for seed in first..first + all {
        let mut chance = Chance::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("repo");
        repository(&root, &mut chance);
        let before = validated(&root);
        // Git refuses, for example, text that is not of its declared encoding.
        if !git(&root, &["add", "-A"]) || !git(&root, &["commit", "-q", "--allow-empty", "-m", "x"]) {
            skipped += 1;
            continue;
        }
        let named = |what: &str| format!("MINIK8S_SEED={seed} MINIK8S_ROUNDS=1, {what}: {}", listing(&root));
        assert_eq!(validated(&root), before, "{}", named("before and after the commit"));
        give_away(&root, &mut chance);
        let planned = planned(&root);
        assert_eq!(
            pushed(&root, &dir.path().join("state")),
            without_code(&planned),
            "{}",
            named("push and plan")
        );
        assert_eq!(validated(&root), planned, "{}", named("validate and plan"));
        match planned {
            Verdict::Errors(errors) => found.extend(errors.into_iter().map(|(rule, ..)| rule)),
            Verdict::IgnoreFile(_) | Verdict::Owner => refused += 1,
        }
    }
    // The folders must stay rich enough to find anything.
    if all >= 300 {
        let wanted = [
            "not-utf8",
            "lfs-pointer",
            "repo-file",
            "function-source",
            "dockerfile",
            "secret-file",
            "file-name",
        ];
        for rule in wanted {
            assert!(found.contains(rule), "no folder broke {rule}: {found:?}");
        }
        assert!(refused > 0 && skipped * 5 < all, "{refused} refused, {skipped} skipped");
    }
}

/// Without what only this machine's Python finds: the source loop runs none.
fn without_code(verdict: &Verdict) -> Verdict {
    match verdict {
        Verdict::Errors(errors) => {
            let kept = errors.iter().filter(|(rule, ..)| rule != rules::PYTHON_SYNTAX.id);
            Verdict::Errors(kept.cloned().collect())
        }
        Verdict::IgnoreFile(file) => Verdict::IgnoreFile(file.clone()),
        Verdict::Owner => Verdict::Owner,
    }
}

fn listing(root: &Path) -> String {
    let mut command = Command::new("find");
    command.current_dir(root).args([".", "-path", "./.git", "-prune", "-o", "-printf", "%p %y %l\n"]);
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
