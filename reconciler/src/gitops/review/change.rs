//! Change of an object, as a reviewer reads it.

use std::fmt;

use schema::kinds::Kind;
use schema::violation::OwnedStep;
use serde::Serialize;
use serde_json::Value;

use super::effects::Effect;
use crate::gitops::plan::Act;

/// Action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The object is new.
    Create,
    /// The object changes without interrupting what runs.
    Update,
    /// Everything that runs is stopped and started again.
    Replace,
    /// The object is removed.
    Delete,
}

impl Action {
    pub(super) fn from_act(act: &Act) -> Self {
        match act {
            Act::Create(_) => Action::Create,
            Act::Update(_) => Action::Update,
            Act::Replace(_) => Action::Replace,
            Act::Delete => Action::Delete,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Create => "create",
            Action::Update => "update",
            Action::Replace => "replace",
            Action::Delete => "delete",
        })
    }
}

/// A single object that changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    pub action: Action,
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// File of the object; the former file of a removed one.
    pub file: String,
    /// 1-based line of the document.
    pub line: u32,
    /// Fields that differ; empty for a new or removed object.
    pub fields: Vec<Field>,
    /// Effects on what runs, one sentence each.
    pub effects: Vec<Effect>,
    pub reason: String,
}

/// A field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Path, such as `spec.containers[0].image`.
    pub path: String,
    /// Value before; null if absent.
    pub from: Option<Value>,
    /// Value after.
    pub to: Option<Value>,
    /// 1-based line in the head's file, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Set if the field changes but is a secret.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Changed files of a repository folder, as far as Git was queried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(skip)]
    pub(super) steps: Vec<OwnedStep>,
}

impl Change {
    /// Formats `Pod default/web`, or `Node n1` for a kind without namespaces.
    pub(super) fn title(&self) -> String {
        if self.kind.is_cluster_scoped() {
            return format!("{} {}", self.kind, self.name);
        }
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}
