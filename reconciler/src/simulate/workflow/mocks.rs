//! Mocked answers of functions, from the file of `--mocks` or a test case.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use schema::kinds::workflow::{WorkflowSpec, function_from_resource};
use schema::manifest::{Layout, suggestion};
use schema::violation::OwnedStep;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::simulate::trace::{read_json, seconds};

const HELP: &str = "write {\"return\": …} or {\"error\": \"Name\", \"cause\": \"…\"}";

/// Error of a run that can't be simulated with its mocks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct MockError {
    /// Place in the mocks; empty if something is missing there.
    pub at: Vec<OwnedStep>,
    message: String,
    help: String,
}

impl MockError {
    pub(super) fn new(at: Vec<OwnedStep>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { at, message: message.into(), help: help.into() }
    }
}

/// Mocked answers, by name of the function or by the Resource that names it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mocks(BTreeMap<String, MockAnswers>);

/// A mock that no Task of the workflow uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMock {
    pub name: String,
    /// The function that may be meant, or every function.
    pub help: String,
}

/// Answers of a function.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MockAnswers {
    all: Vec<Answer>,
    is_list: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) returned: Option<Json>,
    pub(super) error: Option<String>,
    pub(super) cause: String,
    pub(super) after: SignedDuration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawAnswer {
    #[serde(default, rename = "return", deserialize_with = "crate::simulate::trace::present")]
    returned: Option<Json>,
    error: Option<String>,
    cause: Option<String>,
    #[serde(default)]
    after_seconds: f64,
}

impl Mocks {
    /// Parses the JSON file. An error begins with line and column.
    pub fn read(text: &str) -> Result<Self, String> {
        let help = "see 'minik8s simulate workflow --help' for the format of MOCKS";
        let values = read_json(text).map_err(|(place, why)| format!("{place}: {why}; {help}"))?;
        Self::from_values(values).map_err(|error| {
            let place = Layout::read("mocks.json", text.as_bytes()).place(&error.at);
            let place = place.map(|(line, column)| format!("line {line}, column {column}: "));
            format!("{}{error}", place.unwrap_or_default())
        })
    }

    /// Builds mocks from values: each an answer, or a list of answers.
    pub(super) fn from_values(values: BTreeMap<String, Json>) -> Result<Self, MockError> {
        let mut mocks = BTreeMap::new();
        for (name, value) in values {
            let mut at = vec![OwnedStep::Field(name.clone())];
            let (all, is_list) = match value {
                Json::Array(all) => (all, true),
                one => (vec![one], false),
            };
            let mut answers = Vec::new();
            for (index, one) in all.into_iter().enumerate() {
                at.truncate(1);
                at.extend(is_list.then_some(OwnedStep::Index(index)));
                let shown = if is_list { format!("{name}[{index}]") } else { name.clone() };
                answers.push(answer(one, &shown, &at)?);
            }
            mocks.insert(name, MockAnswers { all: answers, is_list });
        }
        Ok(Self(mocks))
    }

    /// Answers of a function, with the name of its mock.
    pub(super) fn for_function(&self, function: &str, namespace: &str) -> Option<(&str, &MockAnswers)> {
        let exact = self.0.get_key_value(function);
        let found = exact.or_else(|| self.0.iter().find(|(name, _)| applies_to(name, function, namespace)));
        found.map(|(name, answers)| (name.as_str(), answers))
    }

    /// Mocks that no Task of the workflow uses.
    pub fn unknown(&self, spec: &WorkflowSpec, namespace: &str) -> Vec<UnknownMock> {
        let functions = spec.functions();
        let functions: BTreeSet<&str> = functions.iter().map(|(_, function)| *function).collect();
        let is_unknown =
            |name: &&String| !functions.iter().any(|function| applies_to(name, function, namespace));
        let unknown = self.0.keys().filter(is_unknown).map(|name| UnknownMock {
            name: name.clone(),
            help: match functions.is_empty() {
                true => "the workflow has no Task".to_owned(),
                false => suggestion(name, functions.iter().copied()),
            },
        });
        unknown.collect()
    }

    /// True if an answer comes later than its call.
    pub fn have_delays(&self) -> bool {
        self.0.values().flat_map(|answers| &answers.all).any(|answer| answer.after.is_positive())
    }

    /// Describes mocks with unused answers; `used` is the number of answers given by each mock.
    pub(super) fn unused(
        &self,
        used: &BTreeMap<String, usize>,
        spec: &WorkflowSpec,
        namespace: &str,
    ) -> Vec<String> {
        let unknown = self.unknown(spec, namespace);
        let known = self.0.iter().filter(|(name, _)| !unknown.iter().any(|unknown| unknown.name == **name));
        let unused = known.filter_map(|(name, answers)| {
            let (count, used) = (answers.all.len(), used.get(name).copied().unwrap_or_default());
            if used == 0 {
                return Some(format!("mock `{name}` was not used by this run"));
            }
            (answers.is_list && used < count)
                .then(|| format!("mock `{name}`: this run used {used} of its {count} answers"))
        });
        unused.collect()
    }
}

/// True if a mock of this name applies to the function that a Task of this namespace names.
fn applies_to(name: &str, function: &str, namespace: &str) -> bool {
    let named = function_from_resource(name, "").unwrap_or_else(|| name.to_owned());
    named == function
        || named == format!("{namespace}/{function}")
        || Some(named.as_str()) == function.rsplit('/').next()
}

impl MockAnswers {
    /// Answer to the call of this number, from 0. A single answer applies to all calls.
    pub(super) fn get(&self, call: usize) -> Option<&Answer> {
        self.all.get(if self.is_list { call } else { 0 })
    }
}

fn answer(written: Json, shown: &str, at: &[OwnedStep]) -> Result<Answer, MockError> {
    let error = |why: &str, help: &str| MockError::new(at.to_vec(), format!("mock {shown}: {why}"), help);
    if !written.is_object() {
        return Err(error(&format!("an answer is an object, found {written}"), HELP));
    }
    let read: RawAnswer =
        serde_json::from_value(written).map_err(|failed| error(&failed.to_string(), HELP))?;
    if read.returned.is_some() == (read.error.is_some() || read.cause.is_some()) {
        return Err(error("expected exactly one of `return` and `error`", HELP));
    }
    let after = seconds(read.after_seconds, "afterSeconds", 0.0)
        .map_err(|failed| error(&format!("{}: {}", failed.place, failed.why), &failed.help))?;
    Ok(Answer { returned: read.returned, error: read.error, cause: read.cause.unwrap_or_default(), after })
}
