//! State machines and recorded results from others, in `../shared/corpora` next to the workspace. Where they are
//! missing, these tests print so and end.

use std::path::{Path, PathBuf};

use schema::kinds::workflow::Operator;
use schema::manifest::{ManifestFile, load_file};
use schema::violation::Severity;

/// Valid machines that use features Minik8s lacks.
const UNSUPPORTED: &[&str] = &[
    "valid-assign.asl.json",
    "valid-fail-paths.json",
    "valid-map-distributed.asl.json",
    "valid-map-items.asl.json",
    "valid-map-noconfig.asl.json",
    "valid-map-with-item-batcher.json",
    "valid-task-batch.json",
    "valid-task-intrisic-function.json",
];

/// Searches next to the workspace and its parent folders, so that worktrees find the corpora too.
fn corpora() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found =
        workspace.ancestors().map(|above| above.join("shared/corpora/asl")).find(|path| path.is_dir());
    if found.is_none() {
        eprintln!("skipped: no ../shared/corpora/asl beside the workspace");
    }
    found
}

fn definitions(prefix: &str) -> Vec<(String, ManifestFile)> {
    let Some(corpora) = corpora() else { return Vec::new() };
    let mut found = Vec::new();
    for file in std::fs::read_dir(corpora.join("definitions")).expect("the folder of definitions") {
        let file = file.expect("an entry of the folder");
        let name = file.file_name().into_string().expect("a name in UTF-8");
        if name.starts_with(prefix) {
            let definition = std::fs::read_to_string(file.path()).expect("a definition in UTF-8");
            let head = r#"{"apiVersion": "minik8s.io/v1", "kind": "Workflow", "metadata": {"name": "flow"}, "spec":"#;
            found.push((name, load_file("flow.json", format!("{head}\n{definition}}}").as_bytes())));
        }
    }
    assert!(found.len() >= 20, "{}", found.len());
    found
}

#[test]
fn valid_machines_load_or_name_what_is_not_supported() {
    for (name, loaded) in definitions("valid-") {
        let mut errors = loaded.violations.iter().filter(|found| found.severity == Severity::Error);
        if UNSUPPORTED.contains(&name.as_str()) {
            assert!(loaded.has_errors(), "{name}");
            assert!(
                errors.all(|error| error.rule == "workflow-unsupported"),
                "{name}: {:#?}",
                loaded.violations
            );
        } else {
            assert_eq!(errors.next(), None, "{name}");
            assert_eq!(loaded.documents.len(), 1, "{name}");
        }
    }
}

#[test]
fn invalid_machines_are_refused_with_a_place() {
    for (name, loaded) in definitions("invalid-") {
        let error = loaded.violations.iter().find(|found| found.severity == Severity::Error);
        let error = error.unwrap_or_else(|| panic!("{name} is taken"));
        // Line 1 was added by the test.
        assert!(error.line > 1 && error.column > 0, "{name}: {error}");
        assert!(loaded.documents.is_empty(), "{name}");
    }
}

#[test]
fn every_operator_whose_results_were_recorded_is_known() {
    let Some(corpora) = corpora() else { return };
    let text = std::fs::read_to_string(corpora.join("choice-operators.json")).unwrap();
    let recorded: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tables = recorded["tables"].as_array().unwrap();
    assert!(tables.len() >= 10);
    for table in tables {
        let name = table["operator"].as_str().unwrap();
        let is_known = Operator::ALL.iter().any(|operator| operator.as_str().eq_ignore_ascii_case(name));
        assert!(is_known, "{name}");
    }
    assert_eq!(Operator::ALL.len(), 39, "the language has 39 operators");
}
