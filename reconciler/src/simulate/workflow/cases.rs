//! Cases beside a workflow, in `<workflow>.tests.yaml`: what a run with these mocks must come to.

use std::collections::BTreeMap;
use std::path::Path;

use schema::kinds::workflow::WorkflowSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{BEGIN, Mocks, Report, RunContext, Status, run};

/// Most cases of a file: each may be a run of 25,000 states.
const CASES_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cases: Vec<Case>,
}

/// A run, and what is expected of it; what is left out may be anything.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: Option<String>,
    /// The workflow's params when absent.
    #[serde(default, deserialize_with = "crate::simulate::trace::present")]
    input: Option<Json>,
    #[serde(default)]
    mocks: BTreeMap<String, Json>,
    #[serde(default, deserialize_with = "crate::simulate::trace::present")]
    output: Option<Json>,
    error: Option<String>,
    /// `SUCCEEDED` when neither this nor an error is named.
    status: Option<Status>,
    /// The states that are entered, in their order.
    path: Option<Vec<String>>,
}

/// A case that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// `case NAME`, by its number if it has none; of the file if that can't be used.
    pub case: String,
    /// What is expected and what was found, if it does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl CaseResult {
    fn of_file(failure: String) -> Vec<Self> {
        vec![Self { case: "the file".to_owned(), failure: Some(failure) }]
    }

    /// What does not hold, in a sentence.
    pub fn failed(&self) -> Option<String> {
        self.failure.as_ref().map(|failure| format!("{}: {failure}", self.case))
    }
}

/// The file with the cases of a workflow, beside that of its manifest.
pub fn file_beside(manifest: &str, workflow: &str) -> String {
    Path::new(manifest).with_file_name(format!("{workflow}.tests.yaml")).to_string_lossy().into_owned()
}

/// Runs the cases of a file for the workflow of this namespace and name.
pub fn check(text: &str, (namespace, name): (&str, &str), spec: &WorkflowSpec) -> Vec<CaseResult> {
    let file: File = match serde_yaml::from_str(text) {
        Ok(file) => file,
        Err(error) => return CaseResult::of_file(format!("it can't be read: {error}")),
    };
    if file.cases.len() > CASES_MAX {
        return CaseResult::of_file(format!("{} cases; at most {CASES_MAX} are run", file.cases.len()));
    }
    let mut results = Vec::new();
    for (index, mut case) in file.cases.into_iter().enumerate() {
        let shown = case.name.take().unwrap_or_else(|| (index + 1).to_string());
        let params = || spec.params.clone().unwrap_or_else(|| Json::Object(Map::new()));
        let context = RunContext {
            namespace: namespace.to_owned(),
            workflow: name.to_owned(),
            id: format!("case-{}", index + 1),
            input: case.input.take().unwrap_or_else(params),
            started_at: BEGIN,
        };
        let mocks = Mocks::of_values(std::mem::take(&mut case.mocks));
        let failure = match mocks.and_then(|mocks| run(context, spec, &mocks)) {
            Err(error) => Some(error.to_string()),
            Ok(report) => case.differs(&report),
        };
        results.push(CaseResult { case: format!("case {shown}"), failure });
    }
    results
}

impl Case {
    /// The first thing that is not as expected.
    fn differs(&self, report: &Report) -> Option<String> {
        let said = || {
            let said = [report.error.as_deref(), report.cause.as_deref()];
            said.into_iter().flatten().filter(|said| !said.is_empty()).collect::<Vec<_>>().join(": ")
        };
        if let Some(error) = &self.error
            && report.error.as_ref() != Some(error)
        {
            return Some(
                format!("error {error} is expected, found {} {}", report.status.as_str(), said())
                    .trim_end()
                    .to_owned(),
            );
        }
        let status = self.status.or(self.error.is_none().then_some(Status::Succeeded));
        if let Some(status) = status.filter(|status| *status != report.status) {
            return Some(format!(
                "{} is expected, found {} {}",
                status.as_str(),
                report.status.as_str(),
                said()
            ));
        }
        if let (Some(wanted), Some(found)) = (&self.output, &report.output)
            && wanted != found
        {
            return Some(format!("output {wanted} is expected, found {found}"));
        }
        let entered = report.history.iter().filter(|event| event.kind.ends_with("StateEntered"));
        let path: Vec<&str> = entered.filter_map(|event| event.state.as_deref()).collect();
        match &self.path {
            Some(wanted) if *wanted != path => {
                Some(format!("path {} is expected, found {}", wanted.join(", "), path.join(", ")))
            }
            _ => None,
        }
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

    fn checked(cases: &str) -> Vec<String> {
        let loaded = load_definition("a.yaml", FLOW.as_bytes());
        let Resource::Workflow(spec) = &loaded.documents[0].object.resource else { panic!() };
        check(cases, ("default", "flow"), spec).iter().filter_map(CaseResult::failed).collect()
    }

    #[test]
    fn cases_that_hold_say_nothing() {
        let cases = "cases:
- {name: high, mocks: {f: {return: {n: 1}}}, output: {n: 1}, path: [a, c, e]}
- {mocks: {f: {return: {n: 0}}}, error: Low, path: [a, c, bad]}
- {mocks: {f: {error: Down}}, status: FAILED}
";
        assert_eq!(checked(cases), Vec::<String>::new());
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
            checked(cases),
            [
                r#"case high: output {"n":2} is expected, found {"n":1}"#,
                "case 2: SUCCEEDED is expected, found FAILED Low: too low",
                "case 3: error Low is expected, found SUCCEEDED",
                "case 4: path a, e is expected, found a, c, e",
                r#"case 5: state a: function f has no mock; add a mock: {"f": {"return": {}}}"#,
            ]
        );
        assert!(checked("cases: 7")[0].starts_with("the file: it can't be read: "));
    }
}
