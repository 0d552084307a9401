//! `minik8s validate`, `schema` and `explain` as a person or a CI job runs them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: m, image: \"i:1\"}]}\n";

fn minik8s(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_minik8s")).args(arguments).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

/// The fourteen files with twenty-six faults, in a separate folder outside of any repository.
fn faults() -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if from.is_dir() {
                copy(&from, &to);
            } else {
                fs::copy(from, to).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults"), dir.path());
    dir
}

fn report(dir: &Path, code: i32) -> Value {
    let output = minik8s(dir, &["validate", "-o", "json"]);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn fourteen_files_with_many_faults_give_one_diagnostic_each() {
    let dir = faults();
    let report = report(dir.path(), 1);
    let all = report["violations"].as_array().unwrap();
    let reported = all.iter().map(|v| {
        let [rule, file] = ["rule", "file"].map(|key| v[key].as_str().unwrap());
        format!("{file}:{}:{} {rule}", v["line"], v["column"])
    });
    let reported: Vec<String> = reported.collect();
    assert_eq!(reported.len(), 26, "{reported:#?}");
    insta::assert_snapshot!("each_fault", reported.join("\n"));
}

#[test]
fn the_text_shows_each_fault_with_its_line() {
    let dir = faults();
    let output = minik8s(dir.path(), &["validate", "apps"]);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("faults_as_text", text(&output.stdout));
    assert_eq!(minik8s(dir.path(), &["validate", "apps"]).stdout, output.stdout, "the same each time");
}

#[test]
fn json_has_these_keys_and_no_others() {
    let dir = folder(&[("a.yaml", POD.replace("image:", "imagee:").as_bytes())]);
    let wanted = json!({"ok": false, "objects": 0, "violations": [{
        "severity": "error", "rule": "unknown-field", "file": "a.yaml", "line": 4, "column": 31,
        "message": "spec.containers[0].imagee: unknown field `imagee`", "help": "did you mean `image`?",
        "object": "Pod/default/web"}]});
    assert_eq!(report(dir.path(), 1), wanted);
    let good = folder(&[("a.yaml", POD.as_bytes()), ("data.json", b"{\"a\": 1}")]);
    assert_eq!(report(good.path(), 0), json!({"ok": true, "objects": 1, "violations": []}));
}

#[test]
fn several_paths_are_checked_as_one_and_a_file_without_a_manifest_is_named() {
    let dir = folder(&[
        ("apps/a.yaml", POD.as_bytes()),
        ("jobs/b.yaml", POD.as_bytes()),
        ("jobs/values.yaml", b"replicas: 2\n"),
        ("other.yaml", POD.replace("image:", "imagee:").as_bytes()),
    ]);
    let output = minik8s(dir.path(), &["validate", "-o", "json", "apps/a.yaml", "jobs", "jobs/values.yaml"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reported: Vec<_> =
        report["violations"].as_array().unwrap().iter().map(|v| (&v["file"], &v["rule"])).collect();
    let (file, rule) = (json!("jobs/b.yaml"), json!("duplicate-object"));
    assert_eq!((output.status.code(), reported), (Some(1), vec![(&file, &rule)]));
    let note = "jobs/values.yaml: no document in it has a `kind`; it is not a manifest and is ignored\n";
    assert_eq!(text(&output.stderr), note);
    let output = minik8s(dir.path(), &["validate", "jobs/values.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), note.replace("jobs/", ""));
    assert_eq!(minik8s(dir.path(), &["validate", "apps", "nowhere"]).status.code(), Some(2));
}

#[test]
fn annotations_for_a_pull_request_are_commands() {
    let dir = folder(&[("a,b.yaml", POD.replace("image:", "imagee:").as_bytes())]);
    let output = minik8s(dir.path(), &["validate", "-o", "github"]);
    assert_eq!(
        text(&output.stdout),
        "::error file=a%2Cb.yaml,line=4,col=31,title=unknown-field::spec.containers[0].imagee: unknown field \
         `imagee`%0Adid you mean `image`?\n1 error in 1 file; 0 objects\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn exit_codes_distinguish_good_from_wrong_from_misuse() {
    let warned = folder(&[("a.yaml", POD.replace("web", "Web_1").as_bytes())]);
    for (arguments, code) in [
        (&["validate"][..], 0),
        (&["validate", "--strict"], 1),
        (&["validate", "nowhere"], 2),
        (&["validate", ".", "-o", "yaml"], 2),
        (&["explain", "pod.spec.contaners"], 1),
        (&["schema", "deploymint"], 1),
        (&["schema", "pod"], 0),
    ] {
        let output = minik8s(warned.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let complaints = text(&output.stderr);
        let is_reported_on_stdout = arguments[0] == "validate" && code == 1;
        assert_eq!(
            complaints.lines().count(),
            usize::from(code > 0 && !is_reported_on_stdout),
            "{complaints}"
        );
        assert_eq!(complaints.contains("see 'minik8s validate --help'"), code == 2, "{complaints}");
    }
}

/// Runs `validate` with limits on address space, so that reading a file whole or unpacking a bomb fails, and on
/// processor time, so that anything quadratic fails.
fn bounded(dir: &Path, format: &str) -> Output {
    let output = Command::new("prlimit")
        .args(["--as=600000000", "--cpu=20", env!("CARGO_BIN_EXE_minik8s"), "validate", "-o", format])
        .current_dir(dir)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    output
}

#[test]
fn hostile_files_are_named_within_bounded_time_and_memory() {
    let bomb: String = ('b'..='z')
        .map(|c| format!("{c}: &{c} [{}]\n", vec![format!("*{}", char::from(c as u8 - 1)); 10].join(",")))
        .collect();
    let bomb = format!("kind: Pod\na: &a [x,x]\n{bomb}");
    let deep = format!("kind: Pod\na: {}", "[".repeat(500_000));
    let wide = format!("kind: Pod\n{{{}", "\"a\": 1, ".repeat(100_000));
    let keys = format!("{}data:\n{}", POD, "  a: 1\n".repeat(100_000));
    let utf16: Vec<u8> = POD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let utf16 = [b"\xff\xfe".to_vec(), utf16].concat();
    let dir = folder(&[
        ("bom.yaml", format!("\u{feff}{}", POD.replace("web", "bom")).as_bytes()),
        ("bomb.yaml", bomb.as_bytes()),
        ("crlf.yaml", POD.replace("web", "crlf").replace('\n', "\r\n").as_bytes()),
        ("deep.yaml", deep.as_bytes()),
        ("duplicate.yaml", POD.replace("spec:", "metadata: {name: b}\nspec:").as_bytes()),
        ("keys.yaml", keys.as_bytes()),
        ("latin1.yaml", b"kind: Pod\nmetadata: {name: caf\xe9}\n"),
        ("lfs.yaml", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        ("nul.yaml", b"kind: Pod\n\0"),
        ("tabs.yaml", b"kind: Pod\nmetadata:\n\tname: a\n"),
        ("utf16.yaml", &utf16),
        ("wide.json", wide.as_bytes()),
    ]);
    File::create(dir.path().join("huge.yaml")).unwrap().set_len(1 << 30).unwrap();
    let secret = folder(&[("secret.yaml", b"kind: Pod\npassword: hunter2\n")]);
    std::os::unix::fs::symlink(secret.path().join("secret.yaml"), dir.path().join("link.yaml")).unwrap();

    let output = bounded(dir.path(), "json");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for violation in report["violations"].as_array().unwrap() {
        first.entry(violation["file"].as_str().unwrap()).or_insert(violation["rule"].as_str().unwrap());
    }
    let wanted = BTreeMap::from([
        ("bomb.yaml", "too-many-nodes"),
        ("deep.yaml", "too-deep"),
        ("duplicate.yaml", "duplicate-key"),
        ("huge.yaml", "file-too-large"),
        ("keys.yaml", "more-violations"),
        ("latin1.yaml", "not-utf8"),
        ("lfs.yaml", "lfs-pointer"),
        ("link.yaml", "symlink"),
        ("nul.yaml", "control-character"),
        ("tabs.yaml", "yaml-syntax"),
        ("utf16.yaml", "not-utf8"),
        ("wide.json", "json-syntax"),
    ]);
    assert_eq!(first, wanted);
    assert_eq!(report["objects"], 2, "the byte order mark and CRLF are fine");
    for format in ["text", "github"] {
        let output = bounded(dir.path(), format);
        assert!(!text(&output.stdout).contains("hunter2"));
        let escapes = output.stdout.iter().filter(|byte| **byte == 0x1b || **byte == 0).count();
        assert_eq!(escapes, 0, "{format}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure_of_its_own() {
    let dir = folder(&[("a.yaml", POD.as_bytes())]);
    let script = format!("'{}' schema | head -1", env!("CARGO_BIN_EXE_minik8s"));
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

const FLOW: &str = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: order}\nspec:\n  startAt: a\n  states:\n    \
                    a: {type: Task, function: price, end: true}\n";
const FUNCTION: &str = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: price}\nspec: {image: \"i:1\", timeoutSeconds: 5}\n";

#[test]
fn cases_beside_workflows_are_run_counted_and_shown_at_their_line() {
    let good =
        "cases:\n- {mocks: {price: {return: 1}}, output: 1}\n- {mocks: {price: {return: 2}}, output: 2}\n";
    let dir = folder(&[
        ("order.yaml", FLOW.as_bytes()),
        ("f.yaml", FUNCTION.as_bytes()),
        ("order.tests.yaml", good.as_bytes()),
    ]);
    let output = minik8s(dir.path(), &["validate"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let summary = "no errors, no warnings; 2 objects in 2 files; 2 workflow test cases passed\n";
    assert_eq!(text(&output.stdout), summary);
    let one = minik8s(dir.path(), &["validate", "order.yaml"]);
    assert!(text(&one.stdout).contains("; 2 workflow test cases passed"), "{}", text(&one.stdout));
    let tests = minik8s(dir.path(), &["validate", "order.tests.yaml"]);
    let said = text(&tests.stderr);
    assert!(
        said.contains(
            "it holds test cases; to run them, validate the folder or file of the workflow `order`"
        ),
        "{said}"
    );

    let bad =
        good.to_owned() + "- mocks: {price: {return: 1, afterSeconds: 6}}\n- mocks:\n    pric: {return: 1}\n";
    fs::write(dir.path().join("order.tests.yaml"), bad).unwrap();
    let report = report(dir.path(), 1);
    assert_eq!(report["workflowTests"], json!({"passed": 2, "failed": 2}));
    let reported: Vec<String> = report["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| format!("{}:{} {} {} ({})", v["line"], v["column"], v["rule"], v["message"], v["help"]))
        .collect();
    insta::assert_snapshot!(reported.join("\n"), @r#"
    4:3 "workflow-test" "case 3: expected SUCCEEDED, found FAILED States.Timeout: the call was ended after 5 s, the function's timeoutSeconds" ("")
    5:3 "workflow-test" "case 4: state a: function price has no mock; add a mock: {\"price\": {\"return\": {}}}" ("")
    6:5 "workflow-test-unused" "case 4: mock `pric`: no Task of the workflow calls this function" ("did you mean `price`?")
    "#);
}

#[test]
fn cases_that_no_workflow_runs_are_warned_of() {
    let cases = b"cases: [{output: {}}]".as_slice();
    let dir = folder(&[
        ("order.yaml", FLOW.as_bytes()),
        ("f.yaml", FUNCTION.as_bytes()),
        ("ordre.tests.yaml", cases),
        ("order.tests.yml", cases),
    ]);
    let output = minik8s(dir.path(), &["validate"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout), @r"
    warning[workflow-test-unused]: none of these cases is run: cases are read from `*.tests.yaml`
    --> order.tests.yml
     = help: rename it to `order.tests.yaml`

    warning[workflow-test-unused]: none of these cases is run: no workflow in this folder is called `ordre`
    --> ordre.tests.yaml
     = help: rename it to `order.tests.yaml` if it tests the workflow `order`

    2 warnings in 2 files; 2 objects
    ");
}

#[test]
fn a_line_about_a_pass_is_shown() {
    let flow = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: order}\nspec:\n  startAt: Pass\n  states:\n    \
                Pass: {type: Pass, ned: true}\n";
    let dir = folder(&[("order.yaml", flow.as_bytes())]);
    let said = text(&minik8s(dir.path(), &["validate"]).stdout);
    assert!(said.contains("Pass: {type: Pass, ned: true}") && !said.contains("(hidden)"), "{said}");
}
