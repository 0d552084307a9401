//! What a reviewer reads of one object that changes.

use std::fmt;

use schema::kinds::Kind;
use schema::violation::OwnedStep;
use serde::Serialize;
use serde_json::Value;

use super::effects::Effect;
use crate::gitops::plan::Act;

/// What happens to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is new.
    Create,
    /// It changes while what runs goes on.
    Update,
    /// What runs is stopped and started anew.
    Replace,
    /// It goes.
    Delete,
}

impl Action {
    pub(super) fn of(act: &Act) -> Self {
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

/// One object that changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    pub action: Action,
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// Where it is; where it was for one that goes.
    pub file: String,
    /// 1-based line of the document.
    pub line: u32,
    /// Fields that differ; none for a new object or one that goes.
    pub fields: Vec<Field>,
    /// What it does to what runs, one sentence each.
    pub effects: Vec<Effect>,
    pub reason: String,
}

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// `spec.containers[0].image`.
    pub path: String,
    /// Before; null is absent.
    pub from: Option<Value>,
    /// After.
    pub to: Option<Value>,
    /// 1-based line in the head's file, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// It changes, but is a secret.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Of a folder of the repository: the files in it that changed, as far as Git was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(skip)]
    pub(super) steps: Vec<OwnedStep>,
}

impl Change {
    /// `Pod default/web`; `Node n1` of a kind that belongs to no namespace.
    pub(super) fn title(&self) -> String {
        if self.kind.is_cluster_scoped() {
            return format!("{} {}", self.kind, self.name);
        }
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}
