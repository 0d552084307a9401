//! What to do with a request: write it down, count it as a repetition, or nothing. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::records::{CLI_DELIVERIES_MAX, DELIVERIES_MAX, DELIVERY_ID_MAX, Delivery, Provider};
use schema::snapshot::{Snapshot, Table};

/// Most old receipts that one write removes with it.
const REMOVED_MAX: usize = 100;

/// What to do with a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// It is new: write it, and remove the oldest.
    Write { remove: Vec<String> },
    /// It was there before under this id: that receipt counts it and waits for an answer again.
    Repeat { id: String },
    /// The provider sent the very same delivery again: all is done already.
    Duplicate { id: String },
}

/// Decides on `new`, which has the id that [`id`] gives it.
pub(super) fn decide(deliveries: &Table<String, Delivery>, new: &Delivery, has_own_id: bool) -> Decision {
    if let Some(known) = deliveries.get(&new.id) {
        return again(&known.value, new, has_own_id);
    }
    // The provider's id is not signed: whoever heard a request once can send it again under any
    // other. Its body tells.
    let copies_are_told = !matches!(new.provider, Provider::Generic | Provider::Cli) && !new.body.is_empty();
    let is_copy = |known: &Delivery| {
        (known.provider, &known.source, &known.body) == (new.provider, &new.source, &new.body)
    };
    let copy = deliveries.values().find(|known| copies_are_told && is_copy(&known.value));
    match copy {
        Some(known) => Decision::Repeat { id: known.value.id.clone() },
        None => Decision::Write { remove: oldest(deliveries, new.provider) },
    }
}

/// Decides on `new` when a receipt of its id is there.
pub(super) fn again(known: &Delivery, new: &Delivery, has_own_id: bool) -> Decision {
    let id = known.id.clone();
    match has_own_id && known.body == new.body {
        true => Decision::Duplicate { id },
        // Without an id of its own it may be another one that looks the same.
        false => Decision::Repeat { id },
    }
}

/// The receipt of a request that came again.
pub(super) fn repeated(known: &Delivery, new: &Delivery) -> Delivery {
    Delivery {
        repeated_at: Some(new.received_at),
        repeats: known.repeats.saturating_add(1),
        by: new.by.clone(),
        peer: new.peer.clone(),
        answer: None,
        ..known.clone()
    }
}

/// The oldest receipts, so many that one more of `provider` fits. Those of webhooks and those of the
/// command line are counted apart.
fn oldest(deliveries: &Table<String, Delivery>, provider: Provider) -> Vec<String> {
    let is_cli = |provider| provider == Provider::Cli;
    let limit = if is_cli(provider) { CLI_DELIVERIES_MAX } else { DELIVERIES_MAX };
    let alike = deliveries.iter().filter(|(_, known)| is_cli(known.value.provider) == is_cli(provider));
    let mut alike: Vec<(Timestamp, &String)> = alike.map(|(id, known)| (known.value.last_at(), id)).collect();
    let over = (alike.len() + 1).saturating_sub(limit);
    alike.sort_unstable();
    alike.into_iter().take(over.min(REMOVED_MAX)).map(|(_, id)| id.clone()).collect()
}

/// The id of a request's receipt: source, provider, and the provider's id; without one, its body
/// and minute.
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
    /// When it began, by this process's clock.
    pub(super) began: Timestamp,
    /// When it was over.
    pub(super) over: Timestamp,
    /// Its plan had steps.
    pub(super) wrote: bool,
}

/// Receipts that wait, by id: the revision of their last write, and when this process saw them.
pub(super) type Waiting = BTreeMap<String, (i64, Timestamp)>;

/// Takes in what waits in the snapshot at `now`. Gives the sources to look at because of what was not
/// there before; those that this process took in itself are looked at already.
pub(super) fn notice(
    waiting: &mut Waiting,
    snapshot: &Snapshot,
    identity: &str,
    now: Timestamp,
) -> Vec<String> {
    let mut sources = Vec::new();
    waiting.retain(|id, _| snapshot.deliveries.get(id).is_some_and(|known| known.value.waits()));
    for (id, known) in snapshot.deliveries.iter().filter(|(_, known)| known.value.waits()) {
        let delivery = &known.value;
        if waiting.get(id).is_some_and(|(revision, _)| *revision == known.mod_revision) {
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

/// The receipts of `source` that a look answers: those seen before it began.
pub(super) fn answered<'a>(
    waiting: &'a Waiting,
    snapshot: &'a Snapshot,
    source: &'a str,
    look: Look,
) -> impl Iterator<Item = (&'a Delivery, i64)> {
    waiting.iter().filter(move |(_, (_, seen))| *seen <= look.began).filter_map(move |(id, (revision, _))| {
        let known = snapshot.deliveries.get(id)?;
        let same = known.mod_revision == *revision && known.value.source == source;
        same.then_some((&known.value, *revision))
    })
}
