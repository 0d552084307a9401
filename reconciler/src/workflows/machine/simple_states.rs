//! States without functions and branches: Pass, Choice, Wait, Succeed, Fail.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::workflow::{ChoiceState, FailState, PassState, State, WaitState, timestamp};
use serde_json::Value as Json;

use super::context::PAYLOAD_MAX_BYTES;
use super::data::{expression, fill, lookup, place_result, select};
use super::failure::Failure;
use super::strand::{Phase, Strand};
use super::task::whole_number;
use super::transition::Transition;
use super::{Timer, choice};

impl Transition<'_> {
    pub(super) fn pass(&self, pass: &PassState, strand: &Strand) -> Result<Json, Failure> {
        let context = self.context(strand);
        let input = select("inputPath", pass.input_path.as_ref(), &strand.input, &context)?;
        let input = match &pass.parameters {
            Some(template) => Cow::Owned(fill(template, &input, &context)?),
            None => input,
        };
        let result = pass.result.clone().unwrap_or_else(|| input.into_owned());
        let placed = place_result(pass.result_path.as_ref(), &strand.input, result)?;
        Ok(select("outputPath", pass.output_path.as_ref(), &placed, &context)?.into_owned())
    }

    pub(super) fn choose(&self, choice: &ChoiceState, strand: &Strand) -> Result<(String, Json), Failure> {
        let context = self.context(strand);
        let input = select("inputPath", choice.input_path.as_ref(), &strand.input, &context)?;
        let next = choice::next(choice, &input, &context)?;
        let output = select("outputPath", choice.output_path.as_ref(), &input, &context)?.into_owned();
        Ok((next.to_owned(), output))
    }

    /// Returns the failure that a Fail state stands for.
    pub(super) fn failed_state(&self, fail: &FailState, strand: &Strand) -> Result<Failure, Failure> {
        let context = self.context(strand);
        let text = |field: &str, plain: &Option<String>, path: &Option<String>| match (plain, path) {
            (Some(plain), _) => Ok(plain.clone()),
            (None, None) => Ok(String::new()),
            (None, Some(path)) => {
                let value = if path.starts_with("States.") {
                    expression(field, path, &strand.input, &context, &mut PAYLOAD_MAX_BYTES.clone())?
                } else {
                    lookup(field, path, &strand.input, &context)?.into_owned()
                };
                value.as_str().map(str::to_owned).ok_or_else(|| {
                    Failure::runtime(format!("{field}: `{path}` is {value}, which is not a string"))
                })
            }
        };
        let error = text("errorPath", &fail.error, &fail.error_path)?;
        let cause = text("causePath", &fail.cause, &fail.cause_path)?;
        Ok(Failure::new(&error, cause))
    }

    /// Returns the output of a state without a result: its input, through both paths.
    pub(super) fn output_of_input(&self, state: &State, strand: &Strand) -> Result<Json, Failure> {
        let (input, output) = match state {
            State::Wait(wait) => (&wait.input_path, &wait.output_path),
            State::Succeed(succeed) => (&succeed.input_path, &succeed.output_path),
            _ => (&None, &None),
        };
        let context = self.context(strand);
        let seen = select("inputPath", input.as_ref(), &strand.input, &context)?;
        Ok(select("outputPath", output.as_ref(), &seen, &context)?.into_owned())
    }

    pub(super) fn wait(&mut self, wait: &WaitState, strand: &Strand) -> Result<Phase, Failure> {
        let due = {
            let context = self.context(strand);
            let input = select("inputPath", wait.input_path.as_ref(), &strand.input, &context)?;
            let seconds = match &wait.seconds_path {
                Some(path) => Some(whole_number("secondsPath", path, &input, &context)?),
                None => wait.seconds,
            };
            let until = |text: &str| {
                timestamp(text)
                    .ok_or_else(|| Failure::runtime(format!("`{text}` is not an RFC 3339 timestamp")))
            };
            match (seconds, &wait.timestamp, &wait.timestamp_path) {
                (Some(seconds), ..) => {
                    let after = SignedDuration::from_secs(i64::from(seconds));
                    self.at.checked_add(after).unwrap_or(Timestamp::MAX)
                }
                (None, Some(text), _) => until(text)?,
                (None, None, Some(path)) => {
                    let value = lookup("timestampPath", path, &input, &context)?;
                    until(value.as_str().unwrap_or_default())?
                }
                (None, None, None) => self.at,
            }
        };
        Ok(Phase::Waiting { timer: Timer { id: self.id(), due } })
    }
}
