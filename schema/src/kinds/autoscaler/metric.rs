//! Metrics that an autoscaler scales by.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_with::skip_serializing_none;

use crate::quantity::{Cpu, Memory, QuantityError};

/// A metric that an autoscaler scales by.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Metric {
    /// Source of the metric; always `Resource`.
    #[serde(rename = "type")]
    pub kind: MetricType,
    /// Resource and target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceMetric>,
}

/// Source of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricType {
    /// CPU or memory of the pods.
    #[default]
    Resource,
}

/// CPU or memory, and its target per pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ResourceMetric {
    /// Name of the resource.
    pub name: ResourceName,
    /// Target of its usage.
    pub target: MetricTarget,
}

/// A resource of pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResourceName {
    /// CPU.
    #[default]
    Cpu,
    /// Memory.
    Memory,
}

/// Target for the usage of a resource per pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct MetricTarget {
    /// Unit of the target.
    #[serde(rename = "type")]
    pub kind: TargetType,
    /// Percentage of the pods' requests, for `Utilization`.
    pub average_utilization: Option<u32>,
    /// Quantity per pod, for `AverageValue`.
    pub average_value: Option<AverageValue>,
}

/// Unit of a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetType {
    /// Percentage of the requests.
    #[default]
    Utilization,
    /// Quantity per pod.
    AverageValue,
}

/// An amount of CPU or memory, in the format of the metric's resource: `500m`, `128Mi`, `2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct AverageValue(pub String);

impl AverageValue {
    /// Returns the amount in thousandths of a core, or in bytes.
    ///
    /// # Errors
    /// Fails if the text is not a quantity.
    pub fn amount(&self, resource: ResourceName) -> Result<u64, QuantityError> {
        match resource {
            ResourceName::Cpu => self.0.parse::<Cpu>().map(|cpu| cpu.millis),
            ResourceName::Memory => self.0.parse::<Memory>().map(|memory| memory.bytes),
        }
    }

    /// Normalizes equal amounts to one spelling.
    pub(super) fn normalize(&mut self, resource: ResourceName) {
        let canonical = match resource {
            ResourceName::Cpu => self.0.parse::<Cpu>().map(|cpu| cpu.to_string()),
            ResourceName::Memory => self.0.parse::<Memory>().map(|memory| memory.to_string()),
        };
        if let Ok(canonical) = canonical {
            self.0 = canonical;
        }
    }
}

impl<'de> Deserialize<'de> for AverageValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            serde_json::Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(de::Error::custom(format!("`{other}` is not a quantity"))),
        }
    }
}

impl JsonSchema for AverageValue {
    fn schema_name() -> Cow<'static, str> {
        "AverageValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "CPU in cores or memory in bytes: `500m`, `128Mi`, `2`.",
            "anyOf": [{"type": "string", "format": "quantity"}, {"type": "number", "minimum": 0}]
        })
    }
}
