//! Reads runs for the API, at any reconciler.

use schema::codec::decode;
use schema::keys::{Key, prefix};
use schema::kinds::workflow::WorkflowSpec;
use schema::store::{SharedStore, StoreError};

use super::journal::{Journal, JournalError, Loaded};
use super::records::{RunHead, RunId};

/// Reads the heads of the newest runs, of one namespace or workflow if `below` says so: `default/` or
/// `default/sum/`. Returns at most `limit` runs that began before `before`, and the value of `before` for the next
/// page, if there is one.
///
/// # Errors
/// Etcd does not respond.
pub async fn newest_runs(
    store: &SharedStore,
    below: &str,
    limit: u16,
    before: Option<i64>,
) -> Result<(Vec<(RunId, RunHead)>, Option<i64>), StoreError> {
    let page = store.newest(&format!("{}{below}", prefix::RUN_HEADS), limit, before).await?;
    // Each run begins in its own transaction, so none is lost between two pages.
    let next = page.items.last().filter(|_| page.has_more).map(|last| last.create_revision);
    let heads = page.items.into_iter().filter_map(|item| {
        let Ok(Key::RunHead(workflow, run)) = item.key.parse() else { return None };
        Some((RunId { workflow, run }, decode(&item.value).ok()?))
    });
    Ok((heads.collect(), next))
}

/// Reads the head of a run; `None` if there is no such run.
///
/// # Errors
/// Etcd does not respond, or the head is unreadable.
pub async fn run_head(store: &SharedStore, id: &RunId) -> Result<Option<RunHead>, JournalError> {
    let Some(found) = store.get(&id.head().to_string()).await? else { return Ok(None) };
    decode(&found.value).map(Some).map_err(|error| JournalError::Unreadable(error.to_string()))
}

/// Reads a run with its definition and its journal; `None` if there is no such run.
///
/// # Errors
/// Etcd does not respond, or a value is unreadable.
pub async fn kept_run(
    store: &SharedStore,
    id: &RunId,
) -> Result<Option<(RunHead, WorkflowSpec, Loaded)>, JournalError> {
    let unreadable = |error: schema::codec::CodecError| JournalError::Unreadable(error.to_string());
    let Some(head) = run_head(store, id).await? else { return Ok(None) };
    let key = Key::RunDefinition(id.workflow.clone(), head.definition.clone());
    let Some(spec) = store.get(&key.to_string()).await? else { return Ok(None) };
    let spec = decode(&spec.value).map_err(unreadable)?;
    Ok(Journal::load(store, id).await?.map(|journal| (head, spec, journal)))
}
