//! Asks for a run, at any reconciler. The leader begins it.

use jiff::Timestamp;
use schema::codec::{encode, sha256_hex};
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use serde_json::Value as Json;

use super::journal::in_parts;
use super::records::{INLINE_MAX_BYTES, Origin, PAYLOAD_MAX_BYTES, Parts, RunId, RunRequest, Stored};

/// What is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The run will begin.
    New,
    /// There is such a run already, or it is asked for.
    Before,
}

/// Why it was not asked for.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The input is too large.
    #[error("the input is {0} bytes; the limit is {PAYLOAD_MAX_BYTES}")]
    TooLarge(usize),
    /// Etcd did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Asks for a run. The same id is the same run, however often and wherever it is asked for.
///
/// # Errors
/// The input is too large, or etcd does not answer.
pub async fn ask(
    store: &SharedStore,
    id: &RunId,
    input: Json,
    origin: Origin,
    at: Timestamp,
) -> Result<Asked, RequestError> {
    let text = input.to_string();
    if text.len() > PAYLOAD_MAX_BYTES {
        return Err(RequestError::TooLarge(text.len()));
    }
    let mut ops = Vec::new();
    let input = if text.len() <= INLINE_MAX_BYTES {
        Stored::Inline(input)
    } else {
        let (parts, count) = in_parts(&text);
        ops.extend(parts.zip(0..).map(|(part, number)| Op::put(id.input(number), part)));
        Stored::Parts(Parts { digest: sha256_hex(text.as_bytes()), count })
    };
    let request = RunRequest { asked_at: at, origin, input };
    let value = encode(&request).map_err(|_| RequestError::TooLarge(text.len()))?;
    ops.push(Op::put(id.request(), value));
    let guards = vec![Guard::Absent(id.head().to_string()), Guard::Absent(id.request().to_string())];
    Ok(match store.txn(guards, ops).await? {
        TxnOutcome::Committed(_) => Asked::New,
        TxnOutcome::Conflict => Asked::Before,
    })
}
