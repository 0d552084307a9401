//! What is asked of single kinds. Most have a list and a page of one object, which are the same but for the view.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::routing::{MethodRouter, get};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;
use serde::Serialize;

use super::app::{App, Shared};
use super::error::ApiError;
use super::events::{self, Wanted};
use super::input::{self, Asked};
use super::read::InNamespace;
use crate::view::{EventView, List, Selection};

pub(super) mod functions;
pub(super) mod jobs;
pub(super) mod results;
pub(super) mod workflows;

type Answer<T> = Result<Json<T>, ApiError>;

/// A kind in errors: `pod`, and what `minik8s get` calls several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noun {
    kind: Kind,
    one: &'static str,
    several: &'static str,
}

pub(super) const POD: Noun = Noun { kind: Kind::Pod, one: "pod", several: "pods" };
pub(super) const SERVICE: Noun = Noun { kind: Kind::Service, one: "service", several: "services" };
pub(super) const AUTOSCALER: Noun =
    Noun { kind: Kind::HorizontalPodAutoscaler, one: "autoscaler", several: "hpa" };
pub(super) const FUNCTION: Noun = Noun { kind: Kind::Function, one: "function", several: "functions" };
pub(super) const WORKFLOW: Noun = Noun { kind: Kind::Workflow, one: "workflow", several: "workflows" };
pub(super) const JOB: Noun = Noun { kind: Kind::Job, one: "job", several: "jobs" };

impl Noun {
    /// The object of this name, if that can be one.
    pub(super) fn named(self, namespace: String, name: String) -> Result<NamespacedName, ApiError> {
        input::name("namespace", &namespace)?;
        input::name(self.one, &name)?;
        Ok(NamespacedName::new(namespace, name))
    }

    pub(super) fn missing(self, id: &NamespacedName) -> ApiError {
        let message = format!("there is no {} {} in namespace {}", self.one, id.name, id.namespace);
        ApiError::not_found(message, format!("see 'minik8s get {} -A'", self.several))
    }
}

/// The rows of a kind.
pub(super) fn list_of<T: Serialize + Send + 'static>(
    rows: fn(&Snapshot, &Selection<'_>, Timestamp) -> Vec<T>,
) -> MethodRouter<Arc<Shared>> {
    get(move |State(app): App, Asked(query): Asked<InNamespace>| async move {
        let items = rows(&*app.snapshot()?, &query.selection()?, Timestamp::now());
        Answer::Ok(Json(List { items }))
    })
}

/// One object of a kind in full, with its events.
pub(super) fn one_of<T: Serialize + Send + 'static>(
    noun: Noun,
    detail: fn(&Snapshot, &NamespacedName, Vec<EventView>, Timestamp) -> Option<T>,
) -> MethodRouter<Arc<Shared>> {
    get(move |State(app): App, Path((namespace, name)): Path<(String, String)>| async move {
        let id = noun.named(namespace, name)?;
        let (snapshot, now) = (app.snapshot()?, Timestamp::now());
        // Without etcd it is shown without its events.
        let events = events::read(&app, &Wanted::of(noun.kind, &id), now).await.unwrap_or_default();
        detail(&snapshot, &id, events, now).map(Json).ok_or_else(|| noun.missing(&id))
    })
}
