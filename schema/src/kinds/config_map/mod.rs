//! ConfigMap: texts and files for pods, beside their images. Fields and meaning are Kubernetes' (core/v1).
//!
//! Its values travel by digest; etcd holds what stands for them. A pod that uses one is made anew when it changes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod descriptor;
mod validate;

use super::content::{Content, Values, decoded};

/// Values by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapSpec {
    /// Texts by key; keys are letters, digits, `-`, `_` and `.`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Other bytes by key, in base64. They can be files, but not variables. All values together have at most 1 MiB.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
    /// The values can't be changed while pods use them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immutable: bool,
    /// What stands for the values, which are not kept themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub content: Option<Content>,
}

impl ConfigMapSpec {
    fn values(&self) -> Values {
        let texts = self.data.iter().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
        let binaries = self.binary_data.iter().filter_map(|(key, text)| Some((key.clone(), decoded(text)?)));
        Values { texts: texts.collect(), binaries: binaries.collect() }
    }
}
