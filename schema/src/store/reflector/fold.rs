//! Lists and watch events folded into a snapshot: pure, `(state, input) -> state`.
//!
//! A list does not replace, it is compared: only keys that differ are touched, so no reader ever
//! sees a snapshot in which a key that exists is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::snapshot::{Change, Snapshot};
use crate::store::{KeyValue, Listing, WatchBatch, WatchEvent};

/// One thing heard of the store.
#[derive(Debug)]
pub(super) enum Input {
    /// All that lies below the prefix with this number.
    Listed(usize, Listing),
    /// What changed below the prefix with this number since.
    Changed(usize, WatchBatch),
}

/// The snapshot so far, and what of each key is already in it.
#[derive(Debug)]
pub(super) struct Fold {
    snapshot: Snapshot,
    /// By number of the prefix. `None`: not listed yet.
    seen: Vec<Option<BTreeMap<String, Fingerprint>>>,
    /// Newest revision heard of, by number of the prefix.
    revisions: Vec<i64>,
    /// By number of the prefix: it was listed before etcd was made anew, and not since.
    outdated: Vec<bool>,
    /// How often etcd was found to have been made anew.
    made_anew: u64,
}

/// Enough of a value to know it again. Revisions alone do not do: an etcd that was made anew
/// counts from 1, and may be at the same number with another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    create_revision: i64,
    mod_revision: i64,
    digest: u64,
}

impl Fold {
    /// An empty snapshot that waits for the first list of this many prefixes.
    pub(super) fn new(prefixes: usize) -> Self {
        let snapshot = Snapshot { synced: prefixes == 0, ..Snapshot::default() };
        Self {
            snapshot,
            seen: vec![None; prefixes],
            revisions: vec![0; prefixes],
            outdated: vec![false; prefixes],
            made_anew: 0,
        }
    }

    /// How often etcd was found to have been made anew. Each time all prefixes have to be listed again, those too that
    /// were listed a moment ago: their lists may be older.
    pub(super) fn made_anew(&self) -> u64 {
        self.made_anew
    }

    /// The snapshot so far.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Takes one input in. Says whether readers should hear of it.
    pub(super) fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Listed(prefix, listing) => self.listed(prefix, listing),
            Input::Changed(prefix, batch) => self.changed(prefix, batch),
        }
    }

    fn listed(&mut self, prefix: usize, listing: Listing) -> bool {
        let mut before = self.seen[prefix].take().unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut touched = false;
        for item in listing.items {
            let seen = Fingerprint::of(&item);
            let known = before.remove(&item.key) == Some(seen);
            now.insert(item.key.clone(), seen);
            if !known {
                self.snapshot.apply(&item.into());
                touched = true;
            }
        }
        // What is left of before is no more.
        for (key, _) in before {
            self.snapshot.apply(&Change::Delete { key });
            touched = true;
        }
        self.seen[prefix] = Some(now);
        // Down as well as up: an etcd that was made anew counts from 1. News by itself: a reader may
        // wait for the revision of a write of its own that another one has undone since.
        let moved_on = self.revisions[prefix] != listing.revision;
        // Half of one etcd and half of another is no snapshot: no loop may plan on it.
        let made_anew = listing.revision < self.revisions[prefix] && !self.outdated[prefix];
        if made_anew {
            self.outdated.fill(true);
            self.made_anew += 1;
        }
        self.outdated[prefix] = false;
        self.revisions[prefix] = listing.revision;
        self.snapshot.revision = self.newest_revision();
        let synced = self.seen.iter().all(Option::is_some) && !self.outdated.contains(&true);
        let newly_synced = synced && !self.snapshot.synced;
        self.snapshot.synced = synced;
        touched || newly_synced || moved_on
    }

    fn changed(&mut self, prefix: usize, batch: WatchBatch) -> bool {
        // A watch begins where a list ended; without one there is nothing to change.
        let Some(seen) = self.seen[prefix].as_mut() else { return false };
        let touched = !batch.events.is_empty();
        for event in batch.events {
            let change = match event {
                WatchEvent::Put(item) => {
                    seen.insert(item.key.clone(), Fingerprint::of(&item));
                    item.into()
                }
                WatchEvent::Delete { key, .. } => {
                    seen.remove(&key);
                    Change::Delete { key }
                }
            };
            self.snapshot.apply(&change);
        }
        self.revisions[prefix] = self.revisions[prefix].max(batch.revision);
        self.snapshot.revision = self.newest_revision();
        touched
    }

    fn newest_revision(&self) -> i64 {
        self.revisions.iter().copied().max().unwrap_or_default()
    }
}

impl Fingerprint {
    fn of(item: &KeyValue) -> Self {
        let mut digest = DefaultHasher::new();
        item.value.hash(&mut digest);
        Self {
            create_revision: item.create_revision,
            mod_revision: item.mod_revision,
            digest: digest.finish(),
        }
    }
}

impl From<KeyValue> for Change {
    fn from(KeyValue { key, value, create_revision, mod_revision }: KeyValue) -> Self {
        Change::Put { key, value, create_revision, mod_revision }
    }
}

/// Prefixes without those that lie below another one: no key may be folded twice.
pub(super) fn without_nested(prefixes: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    // In order, a prefix comes right before everything that lies below it.
    for prefix in prefixes.into_iter().collect::<BTreeSet<_>>() {
        if !kept.last().is_some_and(|shorter| prefix.starts_with(shorter.as_str())) {
            kept.push(prefix);
        }
    }
    kept
}
