//! Who makes content now: one per digest, and few at all. Blocking.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Archives that are made or verified at once, at most: libgit2 holds each of their files in memory whole.
const AT_ONCE_MAX: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Turns {
    under_way: Mutex<BTreeSet<String>>,
    ended: Condvar,
}

/// One, until it is dropped.
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    digest: String,
}

impl Turns {
    /// Waits until this digest is free and there is room.
    pub(super) fn take(&self, digest: &str) -> Turn<'_> {
        let waits =
            |under_way: &mut BTreeSet<String>| under_way.len() >= AT_ONCE_MAX || under_way.contains(digest);
        let waited = self.ended.wait_while(self.under_way(), waits);
        waited.unwrap_or_else(PoisonError::into_inner).insert(digest.to_owned());
        Turn { turns: self, digest: digest.to_owned() }
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Nothing panics while it is held.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.under_way().remove(&self.digest);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_at_a_digest_and_few_at_all() {
        let (turns, all) = (Turns::default(), AtomicUsize::new(0));
        let each = [(); 3].map(|()| AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..12 {
                let (turns, all, at) = (&turns, &all, &each[thread % 3]);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let _turn = turns.take(&(thread % 3).to_string());
                        assert_eq!(at.fetch_add(1, Ordering::SeqCst), 0, "two at one digest");
                        assert!(all.fetch_add(1, Ordering::SeqCst) < AT_ONCE_MAX, "too many at once");
                        std::thread::yield_now();
                        all.fetch_sub(1, Ordering::SeqCst);
                        at.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(turns.under_way().is_empty());
    }
}
