//! Reads runs for the API, at any reconciler.

use schema::codec::decode;
use schema::keys::{Key, prefix};
use schema::kinds::workflow::WorkflowSpec;
use schema::store::{SharedStore, StoreError};

use super::journal::{Journal, JournalError, Loaded};
use super::records::{RunHead, RunId};

/// The heads of the newest runs, of one namespace or workflow if `below` says so: `default/` or `default/sum/`. At most
/// `limit`, and only such as began before `before`; with what to give as `before` for the next ones, if there are more.
///
/// # Errors
/// Etcd does not answer.
pub async fn newest_runs(
    store: &SharedStore,
    below: &str,
    limit: u16,
    before: Option<i64>,
) -> Result<(Vec<(RunId, RunHead)>, Option<i64>), StoreError> {
    let page = store.newest(&format!("{}{below}", prefix::RUN_HEADS), limit, before).await?;
    // Each run begins in a transaction of its own, so none is lost between two pages.
    let next = page.items.last().filter(|_| page.has_more).map(|last| last.create_revision);
    let heads = page.items.into_iter().filter_map(|item| {
        let Ok(Key::RunHead(workflow, run)) = item.key.parse() else { return None };
        Some((RunId { workflow, run }, decode(&item.value).ok()?))
    });
    Ok((heads.collect(), next))
}

/// The head of a run; none if there is none.
///
/// # Errors
/// Etcd does not answer, or what it holds can't be read.
pub async fn run_head(store: &SharedStore, id: &RunId) -> Result<Option<RunHead>, JournalError> {
    let Some(found) = store.get(&id.head().to_string()).await? else { return Ok(None) };
    decode(&found.value).map(Some).map_err(|error| JournalError::Unreadable(error.to_string()))
}

/// A run with its definition and its journal; none if there is none.
///
/// # Errors
/// Etcd does not answer, or what it holds can't be read.
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
