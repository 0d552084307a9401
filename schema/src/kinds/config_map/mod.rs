//! ConfigMap: text values and files for pods, separate from their images. Fields and semantics are those of
//! Kubernetes (core/v1).
//!
//! The values travel by digest; etcd holds their summary. A pod is recreated when a ConfigMap that it uses changes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;

use super::content::{Content, Values, decode_base64};

/// Configuration values by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapSpec {
    /// Text values by key. Keys consist of letters, digits, `-`, `_` and `.`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Binary values by key, base64-encoded. They can become files, but not environment variables. All values of
    /// the ConfigMap together have at most 1 MiB.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
    /// Forbids changes of the values while pods use them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immutable: bool,
    /// Summary of the values, which are not stored themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub content: Option<Content>,
}

impl ConfigMapSpec {
    fn values(&self) -> Values {
        let texts = self.data.iter().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
        let binaries =
            self.binary_data.iter().filter_map(|(key, text)| Some((key.clone(), decode_base64(text)?)));
        Values { texts: texts.collect(), binaries: binaries.collect() }
    }
}
