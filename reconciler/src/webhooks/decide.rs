//! Decides whether to write a sync request, to count it as a repetition, or to ignore it. Pure.

use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{CLI_REQUESTS_MAX, Provider, REQUEST_ID_MAX, SyncRequest, WEBHOOK_REQUESTS_MAX};
use schema::snapshot::Table;

/// Maximum number of old requests, and of orphaned answers, that one write removes.
pub(super) const REMOVED_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// A new request: write it, and remove the oldest.
    Write { remove: Vec<Key> },
    /// A repetition of an earlier request, which counts it and waits for an answer again.
    Repeat(Box<SyncRequest>),
    /// The very same delivery again: nothing is left to do.
    Duplicate { id: String },
}

/// Decides on `new`, whose id is from [`id`]; `known` is the earlier request of that id.
pub(super) fn decide(
    requests: &Table<String, SyncRequest>,
    known: Option<&SyncRequest>,
    new: &SyncRequest,
    has_own_id: bool,
) -> Decision {
    if let Some(known) = known {
        return match has_own_id && known.body == new.body {
            true => Decision::Duplicate { id: new.id.clone() },
            // Without the sender's id it may be a different request that looks the same.
            false => Decision::Repeat(Box::new(repeated(known, new))),
        };
    }
    // The provider's id is not signed, so a replayed request may have any id; compare the body.
    let copies_are_recognized =
        !matches!(new.provider, Provider::Generic | Provider::Cli) && !new.body.is_empty();
    let is_copy = |known: &SyncRequest| {
        (known.provider, &known.source, &known.body) == (new.provider, &new.source, &new.body)
    };
    let copy = requests.values().find(|known| copies_are_recognized && is_copy(&known.value));
    match copy {
        Some(known) => Decision::Repeat(Box::new(repeated(&known.value, new))),
        None => Decision::Write { remove: oldest(requests, new.provider) },
    }
}

fn repeated(known: &SyncRequest, new: &SyncRequest) -> SyncRequest {
    SyncRequest {
        repeated_at: Some(new.received_at),
        repeats: known.repeats.saturating_add(1),
        by: new.by.clone(),
        peer: new.peer.clone(),
        ..known.clone()
    }
}

/// The oldest requests to remove for one more of `provider`; webhooks and the command line count separately.
fn oldest(requests: &Table<String, SyncRequest>, provider: Provider) -> Vec<Key> {
    let is_cli = |provider| provider == Provider::Cli;
    let limit = if is_cli(provider) { CLI_REQUESTS_MAX } else { WEBHOOK_REQUESTS_MAX };
    let alike = requests.iter().filter(|(_, known)| is_cli(known.value.provider) == is_cli(provider));
    let mut alike: Vec<(Timestamp, &String)> = alike.map(|(id, known)| (known.value.last_at(), id)).collect();
    let over = (alike.len() + 1).saturating_sub(limit);
    alike.sort_unstable();
    alike.into_iter().take(over.min(REMOVED_MAX)).map(|(_, id)| Key::Request(id.clone())).collect()
}

/// Id of a request: source, provider, and the provider's id, or else the body and minute.
pub(super) fn id(new: &SyncRequest, own: Option<&str>) -> String {
    let rest = match own {
        Some(own) => own.replace(' ', "_"),
        None => {
            let minute = new.received_at.as_second().div_euclid(60);
            format!("{}-{minute}", new.body.get(..16).unwrap_or("empty"))
        }
    };
    let mut id = format!("{}-{}-{rest}", new.source, new.provider);
    id.truncate(REQUEST_ID_MAX);
    id
}
