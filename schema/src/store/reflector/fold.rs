//! Folds lists and watch events into a snapshot: pure, `(state, input) -> state`.
//!
//! A list does not replace the snapshot, it is compared with it: only keys that differ change, so no reader ever
//! observes a snapshot without a key that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::snapshot::{Change, Snapshot};
use crate::store::{KeyValue, Listing, WatchBatch, WatchEvent};

/// Input from the store.
#[derive(Debug)]
pub(super) enum Input {
    /// Complete list below the prefix with this number.
    Listed(usize, Listing),
    /// Changes below the prefix with this number since then.
    Changed(usize, WatchBatch),
}

/// Snapshot so far, and a fingerprint of each key in it.
#[derive(Debug)]
pub(super) struct Fold {
    snapshot: Snapshot,
    /// By number of the prefix. `None` if not listed yet.
    fingerprints: Vec<Option<BTreeMap<String, Fingerprint>>>,
    /// Newest observed revision, by number of the prefix.
    revisions: Vec<i64>,
    /// By number of the prefix: true if it was listed before etcd was recreated, and not since.
    outdated: Vec<bool>,
    /// Number of times that etcd was found to have been recreated.
    made_anew: u64,
}

/// Enough of a value to recognize it. Revisions alone are not enough: a recreated etcd counts from 1, and may be at
/// the same number with another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    create_revision: i64,
    mod_revision: i64,
    digest: u64,
}

impl Fold {
    /// Creates an empty snapshot that waits for the first list of this many prefixes.
    pub(super) fn new(prefixes: usize) -> Self {
        let snapshot = Snapshot { synced: prefixes == 0, ..Snapshot::default() };
        Self {
            snapshot,
            fingerprints: vec![None; prefixes],
            revisions: vec![0; prefixes],
            outdated: vec![false; prefixes],
            made_anew: 0,
        }
    }

    /// Returns the number of times that etcd was found to have been recreated. Each time every prefix must be
    /// listed again, even if it was just listed: its list may be older.
    pub(super) fn recreations(&self) -> u64 {
        self.made_anew
    }

    /// Returns the snapshot so far.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Folds in an input. Returns true if readers should be notified.
    pub(super) fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Listed(prefix, listing) => self.listed(prefix, listing),
            Input::Changed(prefix, batch) => self.changed(prefix, batch),
        }
    }

    fn listed(&mut self, prefix: usize, listing: Listing) -> bool {
        let mut before = self.fingerprints[prefix].take().unwrap_or_default();
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
        // The keys left over no longer exist.
        for (key, _) in before {
            self.snapshot.apply(&Change::Delete { key });
            touched = true;
        }
        self.fingerprints[prefix] = Some(now);
        // Down as well as up: a recreated etcd counts from 1. A new revision is news in itself: a reader may wait
        // for the revision of its own write, which another writer has undone since.
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
        let synced = self.fingerprints.iter().all(Option::is_some) && !self.outdated.contains(&true);
        let newly_synced = synced && !self.snapshot.synced;
        self.snapshot.synced = synced;
        touched || newly_synced || moved_on
    }

    fn changed(&mut self, prefix: usize, batch: WatchBatch) -> bool {
        // A watch begins where a list ended; without a list there is nothing to change.
        let Some(seen) = self.fingerprints[prefix].as_mut() else { return false };
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

/// Removes prefixes below another one: no key may be folded twice.
pub(super) fn without_nested(prefixes: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    // In sorted order, a prefix comes right before everything below it.
    for prefix in prefixes.into_iter().collect::<BTreeSet<_>>() {
        if !kept.last().is_some_and(|shorter| prefix.starts_with(shorter.as_str())) {
            kept.push(prefix);
        }
    }
    kept
}
