//! `minik8s simulate hpa`: what an autoscaler would have done. Pure: text in, entries out.
//!
//! `trace.rs` says what was, [`run()`] decides on it with the controller's own code, and gives an [`Entry`] per look.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Number;

mod load;
mod run;
#[cfg(test)]
mod tests;
mod trace;

pub use run::run;
pub use trace::Trace;

/// All looks, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// One for each look.
    pub steps: Vec<Entry>,
}

/// One look.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Seconds, as the trace counts them.
    pub at: Number,
    /// Pods at that time.
    pub current: u32,
    /// What the metrics ask for, before windows and policies; none where they were not asked, or could not say.
    pub recommendation: Option<u32>,
    /// What was decided.
    pub desired: u32,
    /// What keeps `desired` from the recommendation.
    pub limit: String,
    /// Each metric of the autoscaler, in its order.
    pub metrics: Vec<Metric>,
    /// By type: `True/ReadyForNewScale`.
    pub conditions: BTreeMap<String, String>,
    /// Why the number changes, or does not.
    pub reason: String,
    /// What all pods use of the first metric's resource, for the chart: thousandths of a core, or bytes.
    #[serde(skip)]
    pub load: Option<u64>,
}

/// What one metric said.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// `cpu` or `memory`.
    pub name: &'static str,
    /// Whole per cent of the requests, for a target of that type.
    pub utilization: Option<u32>,
    /// What the pods that count use on average.
    pub average_value: Option<String>,
    /// Pods that it asks for.
    pub desired: Option<u32>,
    /// Why it can't say.
    pub error: Option<String>,
}
