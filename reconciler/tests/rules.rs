//! Checks that every rule has a sample in `docs/rules/` that breaks it alone, or a test that does, and that
//! `docs/rules.md` lists them. `MINIK8S_UPDATE=1` rewrites that page.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use reconciler::diagnostics::inspect;
use schema::violation::rules;

/// Rules that no reasonably small file, or no single file, can break: rule, file of the test, its name.
const TESTED: [(&str, &str, &str); 25] = [
    ("too-large", "schema/tests/manifest/files.rs", "every_bound_is_named"),
    (
        "more-violations",
        "schema/tests/manifest/files.rs",
        "of_very_many_violations_the_first_errors_are_reported",
    ),
    ("too-many-documents", "schema/tests/manifest/files.rs", "every_bound_is_named"),
    ("annotations-size", "reconciler/tests/rules.rs", "annotations_may_not_be_too_large"),
    ("file-too-large", FOLDER_TESTS, "links_pipes_odd_names_and_huge_files_are_reported_and_not_opened"),
    (
        "file-truncated",
        "reconciler/src/gitops/tests/contents/truncated.rs",
        "a_file_truncated_within_a_valid_document_removes_nothing_however_many_commits_follow",
    ),
    (
        "foreign-file",
        "schema/tests/manifest/files.rs",
        "what_cannot_be_read_and_has_no_word_of_a_manifest_is_another_programs",
    ),
    ("file-name", FOLDER_TESTS, "links_pipes_odd_names_and_huge_files_are_reported_and_not_opened"),
    ("symlink", FOLDER_TESTS, "links_pipes_odd_names_and_huge_files_are_reported_and_not_opened"),
    ("submodule", FOLDER_TESTS, "a_folder_is_read_as_its_commit_would_be"),
    ("folder-too-deep", FOLDER_TESTS, "folders_are_followed_down_to_a_bound"),
    ("unreadable", FOLDER_TESTS, "a_file_that_cannot_be_opened_is_reported"),
    (
        "python-syntax",
        "reconciler/src/gitops/load/python.rs",
        "code_that_cannot_be_parsed_is_said_with_its_line_and_nothing_of_it_runs",
    ),
    (
        "dockerfile",
        "reconciler/src/gitops/tests/contents/files.rs",
        "a_dockerfile_that_no_node_would_build_is_refused_with_its_line",
    ),
    (
        "function-source",
        "reconciler/src/gitops/tests/contents/files.rs",
        "a_function_that_can_not_run_is_refused_by_all_readers",
    ),
    (
        "repository-unreadable",
        "reconciler/tests/plan.rs",
        "a_repository_that_libgit2_can_not_read_is_said_with_its_cause_and_remedy",
    ),
    (
        "python-unchecked",
        "reconciler/src/gitops/load/python.rs",
        "without_python_it_is_said_that_nothing_was_checked",
    ),
    ("owned-by-other-source", CHECK_TESTS, "an_object_of_another_source_is_refused"),
    (
        "reserved-address",
        "reconciler/src/gitops/check/external_ip_tests.rs",
        "an_external_address_is_none_of_the_clusters_own",
    ),
    ("not-allowed", CHECK_TESTS, "an_object_outside_of_what_its_source_may_hold_is_refused"),
    ("owner-unreadable", CHECK_TESTS, "nobody_takes_an_object_from_a_file_that_cannot_be_read"),
    ("manifest-vanished", CHECK_TESTS, "a_file_that_stops_being_a_manifest_is_no_removal"),
    (
        "depends-on-quarantined",
        "reconciler/src/gitops/check/link_tests.rs",
        "dependants_of_what_is_quarantined_and_not_live_are_quarantined_with_it",
    ),
    (
        "immutable",
        "reconciler/src/gitops/tests/contents/config_maps.rs",
        "what_is_in_use_is_not_removed_and_if_immutable_not_changed",
    ),
    (
        "secret-key",
        "reconciler/src/gitops/tests/contents/secrets.rs",
        "a_key_that_the_list_beside_a_secret_has_not_keeps_its_user_from_being_applied",
    ),
];
const FOLDER_TESTS: &str = "reconciler/src/gitops/load/folder/tests.rs";
const CHECK_TESTS: &str = "reconciler/src/gitops/check/tests.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Samples by the rule that they are named after.
fn samples() -> BTreeMap<String, PathBuf> {
    let files = fs::read_dir(root().join("docs/rules")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

/// Rules broken by a repository that holds only this file.
fn broken_rules(path: &Path) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    if path.is_file() {
        fs::copy(path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    inspect(&[if path.is_file() { folder.path() } else { path }])
        .unwrap()
        .report
        .violations
        .into_iter()
        .map(|violation| violation.rule)
        .collect()
}

#[test]
fn each_sample_breaks_the_rule_that_it_is_named_after_and_no_other() {
    let mut wrong = Vec::new();
    for (rule, path) in samples() {
        let found = broken_rules(&path);
        if found != BTreeSet::from([rule.clone()]) {
            wrong.push(format!("{rule}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_rule_has_a_sample_or_a_test() {
    let samples = samples();
    let mut wrong = Vec::new();
    for rule in rules::ALL {
        let tested = TESTED.iter().find(|(id, ..)| *id == rule.id);
        match (samples.contains_key(rule.id), tested) {
            (false, None) => wrong.push(format!("{} has neither a sample nor a test", rule.id)),
            (true, Some(_)) => wrong.push(format!("{} has a sample, so it needs no row", rule.id)),
            _ => {}
        }
    }
    let known = |id: &str| rules::ALL.iter().any(|rule| rule.id == id);
    for id in samples.keys().map(String::as_str).chain(TESTED.iter().map(|(id, ..)| *id)) {
        if !known(id) {
            wrong.push(format!("no rule is called {id}"));
        }
    }
    for (id, file, test) in TESTED {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        let has_test = text.contains(&format!("fn {test}()"));
        if !has_test
            || !(text.contains(&format!("\"{id}\""))
                || text.contains(&format!("{id}\""))
                || text.contains(&format!("[{id}]")))
        {
            wrong.push(format!("{file} has no test {test} of {id}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn annotations_may_not_be_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let pod = "spec: {containers: [{name: m, image: i}]}";
    let big = "a".repeat(300 * 1024);
    let text =
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{big: {big}}}}}\n{pod}\n");
    fs::write(dir.path().join("a.yaml"), text).unwrap();
    // Such a large object fits under no key either.
    let found = broken_rules(dir.path());
    assert!(found.contains("annotations-size"), "{found:?}");
}

#[test]
fn what_people_copy_breaks_no_rule() {
    // In a separate repository, so that paths are relative to its root.
    let copy = tempfile::tempdir().unwrap();
    for copied in ["sample-repo/.", "deploy/observe"] {
        let copied = Command::new("cp").arg("-R").arg(root().join(copied)).arg(copy.path()).status();
        assert!(copied.unwrap().success());
    }
    // The certificate of Prometheus: everyone encrypts their own.
    fs::create_dir_all(copy.path().join("secrets/observe")).unwrap();
    let sealed = "age-encryption.org/v1\n-> X25519 abc\n--- mac\n";
    fs::write(copy.path().join("secrets/observe/prometheus.age"), sealed).unwrap();
    let report = inspect(&[copy.path()]).unwrap().report;
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert!(report.objects > 0);
}

/// Expected content of docs/rules.md, from rules and samples.
fn page() -> String {
    let mut page = String::from(
        "# Rules\n\n\
         Made from `schema/src/violation/rules.rs` by `reconciler/tests/rules.rs`; `MINIK8S_UPDATE=1 cargo test -p \
         minik8s-reconciler --test rules` rewrites it.\n\n\
         `minik8s validate [PATH]...` finds what a push would report, without a cluster; `-o json` is for programs, \
         `-o github` puts each\nviolation beside its line of a pull request. Exit code: 0 without errors, 1 with \
         errors (with `--strict` also with warnings),\n2 when PATH can't be read.\n\n\
         An error keeps its file from being applied (its live objects stay as they are); a warning works, but is \
         likely not meant; a note is\nworth knowing. Paths are relative to the Git repository around PATH; \
         `.minik8signore` and what Git ignores are left out,\nunless PATH itself is such a folder.\n\n\
         | rule | severity | what | sample or test |\n|---|---|---|---|\n",
    );
    let samples = samples();
    for rule in rules::ALL {
        let proof = match samples.get(rule.id) {
            Some(path) => {
                let name = path.file_name().unwrap().to_string_lossy();
                format!("[{name}](rules/{name})")
            }
            None => {
                let row = TESTED.iter().find(|(id, ..)| *id == rule.id);
                row.map(|(_, file, test)| format!("`{test}` in `{file}`")).unwrap_or_default()
            }
        };
        writeln!(page, "| `{}` | {} | {} | {proof} |", rule.id, rule.severity, rule.summary).unwrap();
    }
    page
}

#[test]
fn the_page_of_rules_is_what_the_rules_say() {
    let path = root().join("docs/rules.md");
    if std::env::var_os("MINIK8S_UPDATE").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page(), "docs/rules.md is not what the rules say: set MINIK8S_UPDATE=1 to rewrite it");
}
