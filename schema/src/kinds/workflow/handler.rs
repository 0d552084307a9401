//! What happens when a state fails: retriers first, then catchers, each in its order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::path::{NullablePath, written};
use crate::codec::{one, three};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// When a state is tried again. Each retrier counts its own attempts, anew each time the state is entered.
pub struct Retrier {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` is any.
    pub error_equals: Vec<String>,
    /// Seconds before the first new attempt.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 99_999_999))]
    pub interval_seconds: u32,
    /// Most new attempts; none when 0.
    #[serde(default = "three")]
    #[schemars(range(max = 99_999_999))]
    pub max_attempts: u32,
    /// By what each wait is longer than the last.
    #[serde(default = "two")]
    #[schemars(range(min = 1.0))]
    pub backoff_rate: f64,
    /// Longest wait in seconds; no limit when absent.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub max_delay_seconds: Option<u32>,
    /// Whether waits are random, so that many runs do not try again at once.
    #[serde(default)]
    pub jitter_strategy: JitterStrategy,
}

/// How random the waits between attempts are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JitterStrategy {
    /// Not at all.
    #[default]
    None,
    /// Anything from none to the whole wait.
    Full,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Where a run goes on after an error that was not retried any more.
pub struct Catcher {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` is any.
    pub error_equals: Vec<String>,
    /// The state to go to.
    pub next: String,
    /// Where in the state's input `{"Error": …, "Cause": …}` is put; in place of it when absent, nowhere
    /// when null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
}

fn two() -> f64 {
    2.0
}
