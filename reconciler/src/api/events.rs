//! Events, read from etcd on demand: no snapshot contains them.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use schema::codec::decode;
use schema::keys::prefix;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::Event;
use serde::Deserialize;

use super::app::{App, Shared};
use super::error::ApiError;
use super::input::{self, Asked};
use crate::view::{EventView, List, event_views};

const EVENTS_MAX: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Selects this namespace, and objects without a namespace.
    namespace: Option<String>,
    name: Option<String>,
    /// Kind of the object, case-insensitive.
    kind: Option<String>,
}

impl Wanted {
    pub(super) fn of(kind: Kind, id: &NamespacedName) -> Self {
        Self {
            namespace: Some(id.namespace.clone()),
            name: Some(id.name.clone()),
            kind: Some(kind.as_str().to_owned()),
        }
    }

    fn matches(&self, event: &Event) -> bool {
        self.namespace.as_ref().is_none_or(|n| event.namespace.is_empty() || *n == event.namespace)
            && self.name.as_ref().is_none_or(|n| *n == event.name)
            && self.kind.as_ref().is_none_or(|k| k.eq_ignore_ascii_case(&event.object_kind))
    }
}

pub(super) async fn events(
    State(app): App,
    Asked(wanted): Asked<Wanted>,
) -> Result<Json<List<EventView>>, ApiError> {
    for (what, text) in [("namespace", &wanted.namespace), ("object", &wanted.name), ("kind", &wanted.kind)] {
        input::optional_name(what, text.as_deref())?;
    }
    let items = read(&app, &wanted, Timestamp::now()).await?;
    Ok(Json(List { items }))
}

/// The matching events, oldest first. Skips events that can't be decoded.
pub(super) async fn read(app: &Shared, wanted: &Wanted, now: Timestamp) -> Result<Vec<EventView>, ApiError> {
    let listing = app.deps.store.list(prefix::EVENTS).await?;
    let events = listing.items.iter().filter_map(|item| decode::<Event>(&item.value).ok());
    Ok(event_views(events.filter(|event| wanted.matches(event)).collect(), EVENTS_MAX, now))
}
