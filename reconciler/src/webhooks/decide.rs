//! What to do with a request: write it down, count it as a repetition, or nothing. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{CLI_DELIVERIES_MAX, DELIVERIES_MAX, DELIVERY_ID_MAX, Delivery, Provider};
use schema::snapshot::{Snapshot, Table};

/// Most old requests, and most answers to requests that are gone, that one write removes with it.
const REMOVED_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// It is new: write it, and remove the oldest.
    Write { remove: Vec<Key> },
    /// It was there before: that one counts it and waits for an answer again.
    Repeat(Box<Delivery>),
    /// The provider sent the very same delivery again: all is done already.
    Duplicate { id: String },
}

/// Decides on `new`, which has the id that [`id`] gives it; `known` is the request of that id.
pub(super) fn decide(
    requests: &Table<String, Delivery>,
    known: Option<&Delivery>,
    new: &Delivery,
    has_own_id: bool,
) -> Decision {
    if let Some(known) = known {
        return match has_own_id && known.body == new.body {
            true => Decision::Duplicate { id: new.id.clone() },
            // Without the sender's id it may be another one that looks the same.
            false => Decision::Repeat(Box::new(repeated(known, new))),
        };
    }
    // The provider's id is not signed, so a replayed request may have any. Its body is compared.
    let copies_are_told = !matches!(new.provider, Provider::Generic | Provider::Cli) && !new.body.is_empty();
    let is_copy = |known: &Delivery| {
        (known.provider, &known.source, &known.body) == (new.provider, &new.source, &new.body)
    };
    let copy = requests.values().find(|known| copies_are_told && is_copy(&known.value));
    match copy {
        Some(known) => Decision::Repeat(Box::new(repeated(&known.value, new))),
        None => Decision::Write { remove: oldest(requests, new.provider) },
    }
}

fn repeated(known: &Delivery, new: &Delivery) -> Delivery {
    Delivery {
        repeated_at: Some(new.received_at),
        repeats: known.repeats.saturating_add(1),
        by: new.by.clone(),
        peer: new.peer.clone(),
        ..known.clone()
    }
}

/// The oldest requests that must go for one more of `provider`; webhooks and the command line count apart.
fn oldest(requests: &Table<String, Delivery>, provider: Provider) -> Vec<Key> {
    let is_cli = |provider| provider == Provider::Cli;
    let limit = if is_cli(provider) { CLI_DELIVERIES_MAX } else { DELIVERIES_MAX };
    let alike = requests.iter().filter(|(_, known)| is_cli(known.value.provider) == is_cli(provider));
    let mut alike: Vec<(Timestamp, &String)> = alike.map(|(id, known)| (known.value.last_at(), id)).collect();
    let over = (alike.len() + 1).saturating_sub(limit);
    alike.sort_unstable();
    alike.into_iter().take(over.min(REMOVED_MAX)).map(|(_, id)| Key::Request(id.clone())).collect()
}

/// The id of a receipt: source, provider, and the provider's id, or else the body and minute.
pub(super) fn id(new: &Delivery, own: Option<&str>) -> String {
    let rest = match own {
        Some(own) => own.replace(' ', "_"),
        None => {
            let minute = new.received_at.as_second().div_euclid(60);
            format!("{}-{minute}", new.body.get(..16).unwrap_or("empty"))
        }
    };
    let mut id = format!("{}-{}-{rest}", new.source, new.provider);
    id.truncate(DELIVERY_ID_MAX);
    id
}

/// A run of a source's loop that looked at the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) began: Timestamp,
    pub(super) over: Timestamp,
    /// Its plan had steps.
    pub(super) wrote: bool,
}

/// Requests that wait, by id: the revision of their last write, and when this process saw them.
pub(super) type Waiting = BTreeMap<String, (i64, Timestamp)>;

/// Notes what waits in the snapshot at `now`. Gives the sources to look at, without those of this process's own requests.
pub(super) fn notice(
    waiting: &mut Waiting,
    snapshot: &Snapshot,
    identity: &str,
    now: Timestamp,
) -> Vec<String> {
    let mut sources = Vec::new();
    let mut before = std::mem::take(waiting);
    for (id, known) in snapshot.waiting_requests() {
        let delivery = &known.value;
        if let Some(same) = before.remove(id).filter(|(revision, _)| *revision == known.mod_revision) {
            waiting.insert(id.clone(), same);
            continue;
        }
        let own = delivery.by == identity;
        let seen = if own { delivery.last_at() } else { now };
        waiting.insert(id.clone(), (known.mod_revision, seen));
        if !own && !sources.contains(&delivery.source) {
            sources.push(delivery.source.clone());
        }
    }
    sources
}

/// The requests of `source` that a look answers: those seen before it began.
pub(super) fn answered<'a>(
    waiting: &'a Waiting,
    snapshot: &'a Snapshot,
    source: &'a str,
    look: Look,
) -> impl Iterator<Item = (&'a Delivery, i64)> {
    waiting.iter().filter(move |(_, (_, seen))| *seen <= look.began).filter_map(move |(id, (revision, _))| {
        let known = snapshot.requests.get(id)?;
        let same = known.mod_revision == *revision && known.value.source == source;
        same.then_some((&known.value, *revision))
    })
}

/// Answers to requests that are gone, with the revisions of their last writes.
pub(super) fn orphans(snapshot: &Snapshot) -> Vec<(Key, i64)> {
    let gone = snapshot.answers.iter().filter(|(id, _)| !snapshot.requests.contains_key(*id));
    gone.take(REMOVED_MAX).map(|(id, answer)| (Key::Answer(id.clone()), answer.mod_revision)).collect()
}
