//! Test cases next to a workflow, in `<workflow>.tests.yaml`: expected results of runs with mocks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schema::kinds::Kind;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::{Layout, ManifestFile, nearest};
use schema::meta::ObjectRef;
use schema::violation::{OwnedStep, Violation, rules};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{BEGIN, FunctionLimits, Mocks, Report, RunContext, Status, UnknownMock, run};

/// Maximum number of cases in a file: each may be a run of 25,000 states.
const CASES_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CasesFile {
    cases: Vec<Case>,
}

/// A run and its expected result; missing fields match anything.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: Option<String>,
    /// Input; the workflow's params if missing.
    #[serde(default, deserialize_with = "crate::simulate::trace::present")]
    input: Option<Json>,
    #[serde(default)]
    mocks: BTreeMap<String, Json>,
    #[serde(default, deserialize_with = "crate::simulate::trace::present")]
    output: Option<Json>,
    error: Option<String>,
    /// `SUCCEEDED` if neither this nor an error is given.
    status: Option<Status>,
    /// Entered states, in order.
    path: Option<Vec<String>>,
}

/// Result of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// `case NAME`, with a number if it has no name; `the file` if that can't be used.
    pub case: String,
    /// Expected and found value, if they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Line and column of the case or of its failed field; both 0 if unknown.
    #[serde(skip)]
    place: (u32, u32),
    /// Mocks that no Task uses, with their places.
    #[serde(skip)]
    unknown: Vec<(UnknownMock, (u32, u32))>,
}

/// Placeholder for a case if the file has none that can be run.
const THE_FILE: &str = "the file";

impl CaseResult {
    fn of_file(failure: String, place: (u32, u32)) -> Vec<Self> {
        vec![Self { case: THE_FILE.to_owned(), failure: Some(failure), place, unknown: Vec::new() }]
    }

    /// True for a case that was run, false for the file.
    pub fn is_case(&self) -> bool {
        self.case != THE_FILE
    }

    /// The failure in a sentence.
    pub fn failed(&self) -> Option<String> {
        self.failure.as_ref().map(|failure| format!("{}: {failure}", self.case))
    }

    /// Violations for the failure and for unused mocks.
    pub fn violations(&self, file: &str, workflow: &ObjectRef) -> Vec<Violation> {
        let failed =
            self.failed().map(|message| Violation::new(&rules::WORKFLOW_TEST, file, self.place, message));
        let unknown = self.unknown.iter().map(|(UnknownMock { name, help }, place)| {
            let message =
                format!("{}: mock `{name}`: no Task of the workflow calls this function", self.case);
            Violation::new(&rules::WORKFLOW_TEST_UNUSED, file, *place, message).with_help(help)
        });
        failed.into_iter().chain(unknown).map(|violation| violation.about(workflow)).collect()
    }
}

/// Runs the cases of a file for a workflow.
pub fn check(
    text: &str,
    workflow: &ObjectRef,
    spec: &WorkflowSpec,
    limits: &FunctionLimits,
) -> Vec<CaseResult> {
    let file: CasesFile = match serde_yaml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            let whole = error.to_string();
            let why = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(why, _)| why);
            let number = |number: usize| u32::try_from(number).unwrap_or_default();
            let place = error.location().map(|at| (number(at.line()), number(at.column())));
            let help = "write `cases:` and a list, each with `input`, `mocks`, and `output`, `error`, `status` or `path`";
            return CaseResult::of_file(format!("{why}; {help}"), place.unwrap_or_default());
        }
    };
    if file.cases.len() > CASES_MAX {
        let why = format!("{} cases; at most {CASES_MAX} are run", file.cases.len());
        return CaseResult::of_file(why, (0, 0));
    }
    let layout = Layout::read("tests.yaml", text.as_bytes());
    let tested = CaseContext { workflow, spec, limits, layout };
    file.cases.into_iter().enumerate().map(|(index, case)| case.result(index, &tested)).collect()
}

/// Data shared by all cases of a file.
struct CaseContext<'a> {
    workflow: &'a ObjectRef,
    spec: &'a WorkflowSpec,
    limits: &'a FunctionLimits,
    layout: Layout,
}

impl Case {
    fn result(mut self, index: usize, tested: &CaseContext<'_>) -> CaseResult {
        let CaseContext { workflow, spec, limits, layout } = tested;
        let place = |field: &str, below: &[OwnedStep]| {
            let mut at = vec![OwnedStep::Field("cases".to_owned()), OwnedStep::Index(index)];
            at.extend((!field.is_empty()).then(|| OwnedStep::Field(field.to_owned())));
            at.extend_from_slice(below);
            layout.place(&at).unwrap_or_default()
        };
        let shown = self.name.take().unwrap_or_else(|| (index + 1).to_string());
        let params = || spec.params.clone().unwrap_or_else(|| Json::Object(Map::new()));
        let context = RunContext {
            namespace: workflow.namespace.clone(),
            workflow: workflow.name.clone(),
            id: format!("case-{}", index + 1),
            input: self.input.take().unwrap_or_else(params),
            started_at: BEGIN,
        };
        let mocks = Mocks::from_values(std::mem::take(&mut self.mocks));
        let unknown = mocks.as_ref().map_or(Vec::new(), |mocks| mocks.unknown(spec, &workflow.namespace));
        let unknown = unknown.into_iter().map(|mock| {
            let at = place("mocks", &[OwnedStep::Field(mock.name.clone())]);
            (mock, at)
        });
        let unknown = unknown.collect();
        let (failure, place) = match mocks.and_then(|mocks| run(context, spec, &mocks, limits)) {
            Err(error) => (Some(error.to_string()), place("mocks", &error.at)),
            Ok(report) => match self.first_difference(&report) {
                Some((field, why)) => (Some(why), place(field, &[])),
                None => (None, place("", &[])),
            },
        };
        CaseResult { case: format!("case {shown}"), failure, place, unknown }
    }

    /// First difference from the expected result, with its field.
    fn first_difference(&self, report: &Report) -> Option<(&'static str, String)> {
        let said = || {
            let said = [report.error.as_deref(), report.cause.as_deref()];
            said.into_iter().flatten().filter(|said| !said.is_empty()).collect::<Vec<_>>().join(": ")
        };
        let status = report.status.as_str();
        if let Some(error) = &self.error
            && report.error.as_ref() != Some(error)
        {
            let why = format!("expected error {error}, found {status} {}", said());
            return Some(("error", why.trim_end().to_owned()));
        }
        let wanted = self.status.or(self.error.is_none().then_some(Status::Succeeded));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != report.status) {
            let why = format!("expected {}, found {status} {}", wanted.as_str(), said());
            return Some(("status", why.trim_end().to_owned()));
        }
        if let (Some(wanted), Some(found)) = (&self.output, &report.output)
            && wanted != found
        {
            return Some(("output", format!("expected output {wanted}, found {found}")));
        }
        let entered = report.history.iter().filter(|event| event.kind.ends_with("StateEntered"));
        let path: Vec<&str> = entered.filter_map(|event| event.state.as_deref()).collect();
        let wanted = self.path.as_ref().filter(|wanted| **wanted != path)?;
        Some(("path", format!("expected path {}, found {}", wanted.join(", "), path.join(", "))))
    }
}

// Files of test cases: the file that belongs to a workflow, and files that belong to none.

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
            let why = format!("no workflow in this folder is called `{workflow}`");
            let help = if let Some(near) = near() {
                format!("rename it to `{near}{ENDING}` if it tests the workflow `{near}`")
            } else if let Some((folder, _)) = elsewhere() {
                format!("move it to `{}`, next to the manifest of `{workflow}`", folder.join(name).display())
            } else {
                format!("name it `NAME{ENDING}` after a workflow in this folder, or remove it")
            };
            (why, help)
        };
        let message = format!("none of these cases is run: {why}");
        violations.push(Violation::new(&rules::WORKFLOW_TEST_UNUSED, file, (0, 0), message).with_help(help));
    }
    violations
}

#[cfg(test)]
mod tests {
    use schema::kinds::Resource;
    use schema::manifest::load_definition;

    use super::*;

    const FLOW: &str = "startAt: a
params: {x: 1}
states:
  a: {type: Task, function: f, next: c}
  c: {type: Choice, choices: [{variable: $.n, numericGreaterThan: 0, next: e}], default: bad}
  e: {type: Succeed}
  bad: {type: Fail, error: Low, cause: too low}
";

    fn checked(cases: &str) -> Vec<CaseResult> {
        let loaded = load_definition("a.yaml", FLOW.as_bytes());
        let document = &loaded.documents[0];
        let Resource::Workflow(spec) = &document.object.resource else { panic!() };
        check(cases, &document.reference, spec, &FunctionLimits::default())
    }

    fn failed(cases: &str) -> Vec<String> {
        checked(cases).iter().filter_map(CaseResult::failed).collect()
    }

    #[test]
    fn cases_that_hold_say_nothing() {
        let cases = "cases:
- {name: high, mocks: {f: {return: {n: 1}}}, output: {n: 1}, path: [a, c, e]}
- {mocks: {f: {return: {n: 0}}}, error: Low, path: [a, c, bad]}
- {mocks: {f: {error: Down}}, status: FAILED}
";
        assert_eq!(failed(cases), Vec::<String>::new());
    }

    #[test]
    fn cases_that_do_not_hold_say_what_came_instead() {
        let cases = "cases:
- {name: high, mocks: {f: {return: {n: 1}}}, output: {n: 2}}
- {mocks: {f: {return: {n: 0}}}}
- {mocks: {f: {return: {n: 1}}}, error: Low}
- {mocks: {f: {return: {n: 1}}}, path: [a, e]}
- {input: {}}
";
        assert_eq!(
            failed(cases),
            [
                r#"case high: expected output {"n":2}, found {"n":1}"#,
                "case 2: expected SUCCEEDED, found FAILED Low: too low",
                "case 3: expected error Low, found SUCCEEDED",
                "case 4: expected path a, e, found a, c, e",
                r#"case 5: state a: function f has no mock; add a mock: {"f": {"return": {}}}"#,
            ]
        );
    }

    /// Every violation as `line:column rule message (help)`.
    fn reported(cases: &str) -> Vec<String> {
        let workflow =
            ObjectRef { kind: Kind::Workflow, namespace: "default".to_owned(), name: "flow".to_owned() };
        let violations =
            checked(cases).into_iter().flat_map(|case| case.violations("flow.tests.yaml", &workflow));
        violations.map(|v| format!("{}:{} {} {} ({})", v.line, v.column, v.rule, v.message, v.help)).collect()
    }

    #[test]
    fn mistakes_are_reported_at_their_line() {
        let cases = "cases:
- name: high
  mocks: {f: {return: {n: 1}}}
  output: {n: 2}
- mocks:
    f: [{return: {n: 1}}, {returns: 1}]
- mocks:
    f: {return: {n: 0}}
- mocks: {f: {return: {n: 1}}}
  path:
  - a
  - e
- mocks:
    f: {return: {n: 1}}
    ff: {return: {}}
";
        insta::assert_snapshot!(reported(cases).join("\n"), @r#"
    4:3 workflow-test case high: expected output {"n":2}, found {"n":1} ()
    6:27 workflow-test case 2: mock f[1]: unknown field `returns`, expected one of `return`, `error`, `cause`, `afterSeconds`; write {"return": …} or {"error": "Name", "cause": "…"} ()
    7:3 workflow-test case 3: expected SUCCEEDED, found FAILED Low: too low ()
    10:3 workflow-test case 4: expected path a, e, found a, c, e ()
    15:5 workflow-test-unused case 5: mock `ff`: no Task of the workflow calls this function (did you mean `f`?)
    "#);
        for (text, wanted) in [
            ("cases: 7", "1:8 workflow-test the file: cases: invalid type: integer `7`"),
            (
                "cases:\n- name: a\n  inputs: {}",
                "3:3 workflow-test the file: cases[0]: unknown field `inputs`",
            ),
        ] {
            let found = reported(text);
            assert!(found.len() == 1 && found[0].starts_with(wanted), "{found:?}");
        }
    }
}

#[cfg(test)]
mod stray_tests {
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
    apps/ordr.tests.yaml: none of these cases is run: no workflow in this folder is called `ordr` (rename it to `order.tests.yaml` if it tests the workflow `order`)
    apps/unlike.tests.yaml: none of these cases is run: no workflow in this folder is called `unlike` (name it `NAME.tests.yaml` after a workflow in this folder, or remove it)
    other/order.tests.yaml: none of these cases is run: no workflow in this folder is called `order` (move it to `apps/order.tests.yaml`, next to the manifest of `order`)
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
