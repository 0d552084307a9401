//! `minik8s simulate hpa`: the decisions of an autoscaler. Pure: text in, entries out.
//!
//! `trace.rs` parses the load; [`run()`] decides with the controller's own code and returns an [`Evaluation`] per
//! evaluation.

mod run;
#[cfg(test)]
mod tests;
mod trace;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Number;

pub use run::run;
pub use trace::Trace;

/// Evaluations in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Entry of each evaluation.
    pub steps: Vec<Evaluation>,
}

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    /// Time in seconds of the trace.
    pub at: Number,
    /// Pods at that time.
    pub current: u32,
    /// Recommendation of the metrics, before windows and policies; `None` if they were not evaluated or had no
    /// result.
    pub recommendation: Option<u32>,
    /// Number of pods decided on.
    pub desired: u32,
    /// Limit that keeps `desired` from the recommendation.
    pub limit: String,
    /// Each metric of the autoscaler, in its order.
    pub metrics: Vec<Metric>,
    /// Conditions by type, as `True/ReadyForNewScale`.
    pub conditions: BTreeMap<String, String>,
    /// Reason for the change, or for no change.
    pub reason: String,
    /// Usage of the first metric's resource by all pods, for the chart: thousandths of a core, or bytes.
    #[serde(skip)]
    pub load: Option<u64>,
}

/// Result of a metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// `cpu` or `memory`.
    pub name: &'static str,
    /// Percentage of the requests, for a target of that type.
    pub utilization: Option<u32>,
    /// Average usage of the pods that count.
    pub average_value: Option<String>,
    /// Number of pods that the metric asks for.
    pub desired: Option<u32>,
    /// Reason that the metric has no result.
    pub error: Option<String>,
}
