//! Files of test cases: the file that belongs to a workflow, and files that belong to none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schema::kinds::Kind;
use schema::manifest::{ManifestFile, nearest};
use schema::violation::{Violation, rules};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Suffix of the files that are read.
const ENDING: &str = ".tests.yaml";
/// Suffixes that people write as well.
const OTHER_ENDINGS: [&str; 5] = [".tests.yml", ".tests.json", ".test.yaml", ".test.yml", ".test.json"];

/// Path of the file with the cases of a workflow, next to its manifest.
pub fn file_beside(manifest: &str, workflow: &str) -> String {
    Path::new(manifest).with_file_name(format!("{workflow}{ENDING}")).to_string_lossy().into_owned()
}

/// Workflow that a file with cases is for, according to its name.
pub fn workflow_of(file: &str, text: &str) -> Option<String> {
    let name = Path::new(file).file_name()?.to_str()?;
    let stem = [ENDING].into_iter().chain(OTHER_ENDINGS).find_map(|ending| name.strip_suffix(ending))?;
    has_cases(text).then(|| stem.to_owned())
}

fn has_cases(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Cases {
        #[serde(rename = "cases")]
        _cases: Vec<IgnoredAny>,
    }
    serde_yaml::from_str::<Cases>(text).is_ok()
}

/// Warnings about files whose cases are not run; `files` are paths with their contents as manifests.
pub fn unused<'a>(
    files: impl Iterator<Item = (&'a str, &'a ManifestFile)>,
    text: impl Fn(&str) -> Option<String>,
) -> Vec<Violation> {
    let files: Vec<_> = files.collect();
    // Names of workflows by folder, and the folders in which some may be unknown.
    let mut workflows: BTreeMap<&Path, BTreeSet<&str>> = BTreeMap::new();
    let mut unclear = BTreeSet::new();
    for (file, loaded) in &files {
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        let whole = loaded.documents.iter().map(|document| &document.reference);
        let all = whole.chain(loaded.broken.iter().map(|document| &document.reference));
        let names = all.filter(|object| object.kind == Kind::Workflow).map(|object| object.name.as_str());
        workflows.entry(folder).or_default().extend(names);
        if loaded.has_errors() {
            unclear.insert(folder);
        }
    }
    let mut violations = Vec::new();
    for file in files.iter().filter(|(_, loaded)| !loaded.is_manifest).map(|(file, _)| *file) {
        let path = Path::new(file);
        let (folder, is_read) = (path.parent().unwrap_or(Path::new("")), file.ends_with(ENDING));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let has_ending = is_read || OTHER_ENDINGS.iter().any(|ending| name.ends_with(ending));
        let Some(workflow) = has_ending.then(|| workflow_of(file, &text(file)?)).flatten() else { continue };
        let here = workflows.get(folder);
        let is_here = here.is_some_and(|names| names.contains(workflow.as_str()));
        if is_here && is_read || !is_here && unclear.contains(folder) {
            continue;
        }
        let elsewhere = || workflows.iter().find(|(_, names)| names.contains(workflow.as_str()));
        let near = || nearest(&workflow, here.into_iter().flatten().copied());
        let (why, help) = if is_here {
            (format!("cases are read from `*{ENDING}`"), format!("rename it to `{workflow}{ENDING}`"))
        } else {
            let why = format!("no workflow of this folder is called `{workflow}`");
            let help = if let Some(near) = near() {
                format!("rename it to `{near}{ENDING}` if it tests the workflow `{near}`")
            } else if let Some((folder, _)) = elsewhere() {
                format!("move it to `{}`, beside the manifest of `{workflow}`", folder.join(name).display())
            } else {
                format!("name it `NAME{ENDING}` after a workflow of this folder, or remove it")
            };
            (why, help)
        };
        let message = format!("none of these cases is run: {why}");
        violations.push(Violation::of(&rules::WORKFLOW_TEST_UNUSED, file, (0, 0), message).with_help(help));
    }
    violations
}

#[cfg(test)]
mod tests {
    use schema::manifest::load_file;

    use super::*;

    const FLOW: &str = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: order}\nspec: {startAt: a, states: {a: \
                        {type: Succeed}}}\n";

    fn reported(others: &[(&str, &str)]) -> Vec<String> {
        let files = [&[("apps/flow.yaml", FLOW)], others].concat();
        let loaded: Vec<_> =
            files.iter().map(|(path, text)| (*path, load_file(path, text.as_bytes()))).collect();
        let text =
            |path: &str| files.iter().find(|(file, _)| *file == path).map(|(_, text)| (*text).to_owned());
        let violations = unused(loaded.iter().map(|(path, file)| (*path, file)), text);
        violations.into_iter().map(|v| format!("{}: {} ({})", v.file, v.message, v.help)).collect()
    }

    #[test]
    fn cases_that_nobody_runs_are_reported_with_what_to_do() {
        let cases = "cases: [{output: {}}]";
        let found = reported(&[
            ("apps/order.tests.yaml", cases),
            ("apps/order.tests.yml", cases),
            ("apps/ordr.tests.yaml", cases),
            ("apps/unlike.tests.yaml", cases),
            ("other/order.tests.yaml", cases),
        ]);
        insta::assert_snapshot!(found.join("\n"), @r"
    apps/order.tests.yml: none of these cases is run: cases are read from `*.tests.yaml` (rename it to `order.tests.yaml`)
    apps/ordr.tests.yaml: none of these cases is run: no workflow of this folder is called `ordr` (rename it to `order.tests.yaml` if it tests the workflow `order`)
    apps/unlike.tests.yaml: none of these cases is run: no workflow of this folder is called `unlike` (name it `NAME.tests.yaml` after a workflow of this folder, or remove it)
    other/order.tests.yaml: none of these cases is run: no workflow of this folder is called `order` (move it to `apps/order.tests.yaml`, beside the manifest of `order`)
    ");
    }

    #[test]
    fn other_files_and_what_may_be_broken_are_left_alone() {
        let cases = "cases: [{output: {}}]";
        for (path, text) in [
            ("apps/web.tests.yaml", "suites: []"),
            ("apps/web.tests.yaml", "cases: 7"),
            ("apps/cases.yaml", cases),
            ("apps/web.test.yml", "{{ not yaml"),
        ] {
            assert_eq!(reported(&[(path, text)]), Vec::<String>::new(), "{path}: {text}");
        }
        let broken = FLOW.replace("Succeed", "Suceed").replace("order", "bill");
        for name in ["bill", "web"] {
            let file = format!("apps/{name}.tests.yaml");
            assert_eq!(
                reported(&[("apps/bill.yaml", &broken), (&file, cases)]),
                Vec::<String>::new(),
                "{name}"
            );
        }
    }
}
