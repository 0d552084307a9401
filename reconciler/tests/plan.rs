//! `minik8s plan` as a person or CI runs it: output and exit codes.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::path::Path;
use std::process::{Command, Output};

fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Ada").env(format!("GIT_{role}_EMAIL"), "a@b");
    }
    assert!(command.status().unwrap().success(), "git {args:?}");
}

fn pod(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: app\n    image: {image}\n"
    )
}

/// Branches: `main`, `change` (another image), `broken` (a file that can't be applied).
fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let commit = |branch: &str, file: &str, text: &str| {
        git(dir.path(), &["checkout", "-q", "-B", branch, "main"]);
        std::fs::write(dir.path().join(file), text).unwrap();
        git(dir.path(), &["add", "-A"]);
        git(dir.path(), &["commit", "-q", "-m", "x"]);
    };
    git(dir.path(), &["init", "-q", "-b", "main", "."]);
    git(dir.path(), &["commit", "-q", "--allow-empty", "-m", "begin"]);
    commit("main", "web.yaml", &pod("web:1"));
    commit("change", "web.yaml", &pod("web:2"));
    commit("broken", "b.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}\n");
    dir
}

fn plan(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s"));
    command.current_dir(dir).arg("plan").args(args).env_remove("MINIK8S_SERVER").output().unwrap()
}

#[track_caller]
fn check(output: &Output, code: i32, words: &str) -> String {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(words), "{text}");
    text
}

#[test]
fn exit_codes_distinguish_nothing_changes_and_errors() {
    let repo = repository();
    let dir = repo.path();
    check(&plan(dir, &["--base", "main", "--head", "main"]), 0, "no changes");
    check(
        &plan(dir, &["--base", "main", "--head", "change"]),
        2,
        "spec.containers[0].image: \"web:1\" -> \"web:2\"",
    );
    check(&plan(dir, &["--base", "main", "--head", "broken"]), 1, "1 file quarantined");
    check(&plan(dir, &["--base", "main", "--head", "nope"]), 1, "no revision nope");
    check(&plan(dir, &["--base", "main"]), 1, "--head");
    check(&plan(Path::new("/"), &["--base", "a", "--head", "b"]), 1, "--repo");
}

#[test]
fn a_repository_that_libgit2_can_not_read_is_said_with_its_cause_and_remedy() {
    let repo = repository();
    let all = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let dir = all.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    };
    let planned = |dir: &Path| plan(dir, &["--base", "main", "--head", "main"]);
    let sha256 = made("sha256");
    git(&sha256, &["init", "-q", "--object-format=sha256", "-b", "main", "."]);
    check(&planned(&sha256), 1, "SHA-256 are not supported");
    let reftable = made("reftable");
    git(&reftable, &["init", "-q", "-b", "main", "."]);
    git(&reftable, &["config", "core.repositoryformatversion", "1"]);
    git(&reftable, &["config", "extensions.refstorage", "reftable"]);
    check(&planned(&reftable), 1, "--ref-format=files");
    // `validate` goes on without what only Git knows, and says so.
    std::fs::write(reftable.join("web.yaml"), pod("web:1")).unwrap();
    let validate = |dir: &Path| {
        Command::new(env!("CARGO_BIN_EXE_minik8s")).current_dir(dir).args(["validate", "."]).output().unwrap()
    };
    check(&validate(&reftable), 0, "warning[repository-unreadable]");
    git(repo.path(), &["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", repo.path().display());
    git(all.path(), &["clone", "-q", "--filter=blob:none", "--no-checkout", &url, "partial"]);
    let partial = plan(&all.path().join("partial"), &["--base", "origin/main", "--head", "origin/change"]);
    check(&partial, 1, "git fetch --refetch --no-filter");
    // Only root can give a repository away.
    let other = made("other");
    git(&other, &["init", "-q", "-b", "main", "."]);
    if [other.clone(), other.join(".git")]
        .iter()
        .all(|path| std::os::unix::fs::chown(path, Some(65_534), None).is_ok())
    {
        let advice = format!("safe.directory {}", other.canonicalize().unwrap().display());
        check(&planned(&other), 1, &advice);
        check(&validate(&other), 0, &advice);
    }
}

#[test]
fn a_changed_folder_that_is_mounted_names_the_files() {
    let repo = repository();
    let dir = repo.path();
    let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
    git(dir, &["checkout", "-q", "-b", "mounted", "main"]);
    std::fs::create_dir_all(dir.join("conf/sub")).unwrap();
    for file in ["conf/a.conf", "conf/b.conf", "conf/sub/c.conf"] {
        write(file, "one");
    }
    let volumes = "  volumes: [{name: conf, repo: {path: conf}}]\n";
    write("web.yaml", &(pod("web:1") + volumes));
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "-m", "Mount"]);
    for file in ["conf/a.conf", "conf/sub/c.conf"] {
        write(file, "two");
    }
    git(dir, &["commit", "-q", "-am", "Change"]);
    let output = plan(dir, &["--base", "mounted~1", "--head", "mounted"]);
    let text = check(&output, 2, "files.conf: \"");
    assert!(text.lines().any(|line| line.ends_with("\" (a.conf, sub/c.conf)")), "{text}");
}

#[test]
fn the_same_revisions_give_the_same_bytes_in_every_form() {
    let repo = repository();
    for form in ["text", "markdown", "json", "comment"] {
        let once = || plan(repo.path(), &["--base", "main", "--head", "change", "-o", form]);
        let (one, other) = (once(), once());
        assert_eq!(one.stdout, other.stdout);
        check(&one, 2, "web");
    }
}

#[test]
fn json_has_the_fields_that_programs_read() {
    let repo = repository();
    let output = plan(repo.path(), &["--base", "main", "--head", "change", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for pointer in [
        "/base",
        "/head",
        "/hash",
        "/summary/create",
        "/summary/update",
        "/summary/replace",
        "/summary/delete",
        "/summary/unchanged",
        "/summary/quarantined",
        "/changes/0/action",
        "/changes/0/kind",
        "/changes/0/namespace",
        "/changes/0/name",
        "/changes/0/file",
        "/changes/0/line",
        "/changes/0/fields/0/path",
        "/changes/0/fields/0/from",
        "/changes/0/fields/0/to",
        "/changes/0/effects/0",
        "/changes/0/reason",
        "/violations",
        "/prune/deletes",
        "/prune/held",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer}: {json}");
    }
}

#[test]
fn code_of_a_function_that_python_cannot_parse_is_an_error_with_its_line() {
    let repo = repository();
    let dir = repo.path();
    let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
    let function =
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: hello}\nspec: {source: hello}\n";
    for (branch, code) in [
        ("good", "def main(params):\n    return {}\n"),
        ("typo", "import os\n\ndef main(params:\n    return {}\n"),
    ] {
        git(dir, &["checkout", "-q", "-B", branch, "main"]);
        std::fs::create_dir_all(dir.join("hello")).unwrap();
        write("hello.yaml", function);
        write("hello/main.py", code);
        git(dir, &["add", "-A"]);
        git(dir, &["commit", "-q", "-m", "x"]);
    }
    check(&plan(dir, &["--base", "main", "--head", "good"]), 2, "Function default/hello");
    for form in ["text", "markdown"] {
        let text = check(&plan(dir, &["--base", "main", "--head", "typo", "-o", form]), 1, "SyntaxError");
        assert!(text.contains("hello/main.py:3"), "{text}");
    }
    let validate =
        || Command::new(env!("CARGO_BIN_EXE_minik8s")).current_dir(dir).args(["validate", "."]).output();
    check(&validate().unwrap(), 1, "SyntaxError");
    // Files of its folder that it imports, and no others. Seen red without following imports.
    write("hello/main.py", "import json\nfrom lib.words import greet\n\ndef main(params):\n    return {}\n");
    std::fs::create_dir_all(dir.join("hello/lib")).unwrap();
    write("hello/notes.py", "print 'of an older Python'\n");
    write("hello/lib/words.py", "def greet():\n    return (\n");
    let text = check(&validate().unwrap(), 1, "SyntaxError");
    assert!(text.contains("hello/lib/words.py:2") && !text.contains("notes.py"), "{text}");
}
