//! Error handlers of a state: retriers first, then catchers, each in order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::path::{NullablePath, written};
use crate::codec::{one, three};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Retries a state after certain errors. Each retrier counts its own attempts, starting over each time the state is
/// entered.
pub struct Retrier {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` matches any.
    pub error_equals: Vec<String>,
    /// Seconds before the first retry.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 99_999_999))]
    pub interval_seconds: u32,
    /// Maximum number of retries; 0 means none.
    #[serde(default = "three")]
    #[schemars(range(max = 99_999_999))]
    pub max_attempts: u32,
    /// Factor by which each wait is longer than the previous one.
    #[serde(default = "two")]
    #[schemars(range(min = 1.0))]
    pub backoff_rate: f64,
    /// Maximum wait in seconds; unlimited if absent.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub max_delay_seconds: Option<u32>,
    /// Randomization of waits, so that many runs do not retry simultaneously.
    #[serde(default)]
    pub jitter_strategy: JitterStrategy,
}

/// Randomization of the waits between attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JitterStrategy {
    /// No randomization.
    #[default]
    None,
    /// A random wait between zero and the full one.
    Full,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Continues a run after an error that is not retried any more.
pub struct Catcher {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` matches any.
    pub error_equals: Vec<String>,
    /// State to continue with.
    pub next: String,
    /// Path in the state's input at which `{"Error": …, "Cause": …}` is inserted; replaces the whole input if
    /// absent, discarded if null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
}

fn two() -> f64 {
    2.0
}
