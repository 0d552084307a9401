//! Rollout of a changed template: Kubernetes' Deployment strategy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Strategy for rolling out a changed template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Strategy {
    /// Type of the strategy: step by step, or all pods together.
    #[serde(default, rename = "type")]
    pub kind: StrategyType,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Type of a rollout: step by step, or all pods together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    /// New pods start before old ones stop.
    #[default]
    RollingUpdate,
    /// Every old pod stops before new ones start.
    Recreate,
}

/// Allowed deviation of a rollout from the desired number of pods.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct RollingUpdate {
    /// Pods above the desired number, as a number or percentage; defaults to 25%.
    pub max_surge: Option<IntOrPercent>,
    /// Pods below the desired number, as a number or percentage; defaults to 25%.
    pub max_unavailable: Option<IntOrPercent>,
}

/// A number, or a percentage of the desired pods such as `25%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A number of pods.
    Number(u32),
    /// A percentage of the desired pods, with the sign: `25%`.
    Percent(String),
}

impl IntOrPercent {
    /// Returns `25%`, Kubernetes' default for both fields.
    pub fn quarter() -> Self {
        Self::Percent("25%".to_owned())
    }

    /// Returns the percentage, if it is a well-formed one.
    pub fn percent(&self) -> Option<u32> {
        let Self::Percent(text) = self else { return None };
        let digits = text.strip_suffix('%')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_number)
    }

    /// Returns the number of pods out of `wanted`, if well-formed. Kubernetes rounds up for `maxSurge` and down for
    /// `maxUnavailable`.
    pub fn of(&self, wanted: u32, round_up: bool) -> Option<u32> {
        if let Self::Number(number) = self {
            return Some(*number);
        }
        let hundredths = u64::from(wanted) * u64::from(self.percent()?);
        let pods = if round_up { hundredths.div_ceil(100) } else { hundredths / 100 };
        Some(u32::try_from(pods).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_as_in_kubernetes() {
        let quarter = IntOrPercent::quarter();
        assert_eq!((quarter.of(10, true), quarter.of(10, false)), (Some(3), Some(2)));
        assert_eq!(IntOrPercent::Number(7).of(3, true), Some(7));
        for text in ["25", "%", "+5%", "-5%", "5 %", "99999999999%"] {
            assert_eq!(IntOrPercent::Percent(text.to_owned()).of(10, true), None, "{text}");
        }
    }
}
