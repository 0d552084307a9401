//! Test cases next to a workflow, in `<workflow>.tests.yaml`: expected results of runs with mocks.

use std::collections::BTreeMap;

use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::Layout;
use schema::meta::ObjectRef;
use schema::violation::{OwnedStep, Violation, rules};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{BEGIN, FunctionLimits, Mocks, Report, RunContext, Status, UnknownMock, run};

/// Maximum number of cases in a file: each may be a run of 25,000 states.
const CASES_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
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
            self.failed().map(|message| Violation::of(&rules::WORKFLOW_TEST, file, self.place, message));
        let unknown = self.unknown.iter().map(|(UnknownMock { name, help }, place)| {
            let message =
                format!("{}: mock `{name}`: no Task of the workflow calls such a function", self.case);
            Violation::of(&rules::WORKFLOW_TEST_UNUSED, file, *place, message).with_help(help)
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
    let file: File = match serde_yaml::from_str(text) {
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
    let tested = Tested { workflow, spec, limits, layout };
    file.cases.into_iter().enumerate().map(|(index, case)| case.result(index, &tested)).collect()
}

/// Data shared by all cases of a file.
struct Tested<'a> {
    workflow: &'a ObjectRef,
    spec: &'a WorkflowSpec,
    limits: &'a FunctionLimits,
    layout: Layout,
}

impl Case {
    fn result(mut self, index: usize, tested: &Tested<'_>) -> CaseResult {
        let Tested { workflow, spec, limits, layout } = tested;
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
        let mocks = Mocks::of_values(std::mem::take(&mut self.mocks));
        let unknown = mocks.as_ref().map_or(Vec::new(), |mocks| mocks.unknown(spec, &workflow.namespace));
        let unknown = unknown.into_iter().map(|mock| {
            let at = place("mocks", &[OwnedStep::Field(mock.name.clone())]);
            (mock, at)
        });
        let unknown = unknown.collect();
        let (failure, place) = match mocks.and_then(|mocks| run(context, spec, &mocks, limits)) {
            Err(error) => (Some(error.to_string()), place("mocks", &error.at)),
            Ok(report) => match self.differs(&report) {
                Some((field, why)) => (Some(why), place(field, &[])),
                None => (None, place("", &[])),
            },
        };
        CaseResult { case: format!("case {shown}"), failure, place, unknown }
    }

    /// First difference from the expected result, with its field.
    fn differs(&self, report: &Report) -> Option<(&'static str, String)> {
        let said = || {
            let said = [report.error.as_deref(), report.cause.as_deref()];
            said.into_iter().flatten().filter(|said| !said.is_empty()).collect::<Vec<_>>().join(": ")
        };
        let status = report.status.as_str();
        if let Some(error) = &self.error
            && report.error.as_ref() != Some(error)
        {
            let why = format!("error {error} is expected, found {status} {}", said());
            return Some(("error", why.trim_end().to_owned()));
        }
        let wanted = self.status.or(self.error.is_none().then_some(Status::Succeeded));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != report.status) {
            let why = format!("{} is expected, found {status} {}", wanted.as_str(), said());
            return Some(("status", why.trim_end().to_owned()));
        }
        if let (Some(wanted), Some(found)) = (&self.output, &report.output)
            && wanted != found
        {
            return Some(("output", format!("output {wanted} is expected, found {found}")));
        }
        let entered = report.history.iter().filter(|event| event.kind.ends_with("StateEntered"));
        let path: Vec<&str> = entered.filter_map(|event| event.state.as_deref()).collect();
        let wanted = self.path.as_ref().filter(|wanted| **wanted != path)?;
        Some(("path", format!("path {} is expected, found {}", wanted.join(", "), path.join(", "))))
    }
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
                r#"case high: output {"n":2} is expected, found {"n":1}"#,
                "case 2: SUCCEEDED is expected, found FAILED Low: too low",
                "case 3: error Low is expected, found SUCCEEDED",
                "case 4: path a, e is expected, found a, c, e",
                r#"case 5: state a: function f has no mock; add a mock: {"f": {"return": {}}}"#,
            ]
        );
    }

    /// Every violation as `line:column rule message (help)`.
    fn reported(cases: &str) -> Vec<String> {
        let workflow = ObjectRef {
            kind: schema::kinds::Kind::Workflow,
            namespace: "default".to_owned(),
            name: "flow".to_owned(),
        };
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
    4:3 workflow-test case high: output {"n":2} is expected, found {"n":1} ()
    6:27 workflow-test case 2: mock f[1]: unknown field `returns`, expected one of `return`, `error`, `cause`, `afterSeconds`; write {"return": …} or {"error": "Name", "cause": "…"} ()
    7:3 workflow-test case 3: SUCCEEDED is expected, found FAILED Low: too low ()
    10:3 workflow-test case 4: path a, e is expected, found a, c, e ()
    15:5 workflow-test-unused case 5: mock `ff`: no Task of the workflow calls such a function (did you mean `f`?)
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
