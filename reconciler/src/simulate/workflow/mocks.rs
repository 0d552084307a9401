//! The file of `--mocks`: what functions answer in a simulation.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use schema::kinds::workflow::function_of_resource;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::simulate::TraceError;
use crate::simulate::trace::{read, seconds};

/// What functions answer, by name of the function or by the Resource that names it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mocks(BTreeMap<String, Answers>);

/// What one function answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answers {
    all: Vec<Answer>,
    is_list: bool,
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) returned: Option<Json>,
    pub(super) error: Option<String>,
    pub(super) cause: String,
    pub(super) after: SignedDuration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenAnswer {
    #[serde(default, rename = "return", deserialize_with = "crate::simulate::trace::present")]
    returned: Option<Json>,
    error: Option<String>,
    cause: Option<String>,
    #[serde(default)]
    after_seconds: f64,
}

impl Mocks {
    /// Reads the file's text, which is JSON.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        Self::of_values(read(text, "simulate workflow")?)
    }

    /// Mocks as values: each an answer, or a list of them.
    pub(super) fn of_values(values: BTreeMap<String, Json>) -> Result<Self, TraceError> {
        let mut mocks = BTreeMap::new();
        for (name, value) in values {
            let (all, is_list) = match value {
                Json::Array(all) => (all, true),
                one => (vec![one], false),
            };
            let place = |index: usize| if is_list { format!("{name}[{index}]") } else { name.clone() };
            let all = all.into_iter().enumerate().map(|(index, one)| answer(one, &place(index)));
            let all = all.collect::<Result<_, _>>()?;
            mocks.insert(name, Answers { all, is_list });
        }
        Ok(Self(mocks))
    }

    /// The answers of a function, and the name that they are under.
    pub(super) fn of(&self, function: &str, namespace: &str) -> Option<(&str, &Answers)> {
        let own = format!("{namespace}/{function}");
        let bare = function.rsplit('/').next();
        let is_meant = |name: &str| {
            let named = function_of_resource(name, "").unwrap_or_else(|| name.to_owned());
            named == function || named == own || Some(named.as_str()) == bare
        };
        let exact = self.0.get_key_value(function);
        let found = exact.or_else(|| self.0.iter().find(|(name, _)| is_meant(name)));
        found.map(|(name, answers)| (name.as_str(), answers))
    }
}

impl Answers {
    /// The answer to the call of this number, from 0. One that is no list answers all calls.
    pub(super) fn get(&self, call: usize) -> Option<&Answer> {
        self.all.get(call)
    }

    pub(super) fn is_same_for_all(&self) -> bool {
        !self.is_list
    }
}

fn answer(written: Json, place: &str) -> Result<Answer, TraceError> {
    let help = "write {\"return\": …} or {\"error\": \"Name\", \"cause\": \"…\"}";
    let read: WrittenAnswer =
        serde_json::from_value(written).map_err(|error| TraceError::at(place, error.to_string(), help))?;
    if read.returned.is_some() == (read.error.is_some() || read.cause.is_some()) {
        return Err(TraceError::at(place, "exactly one of `return` and `error` is wanted", help));
    }
    let after = seconds(read.after_seconds, &format!("{place}.afterSeconds"), 0.0)?;
    Ok(Answer { returned: read.returned, error: read.error, cause: read.cause.unwrap_or_default(), after })
}
