//! Work on all cores: parsing and hashing 10,000 manifests would otherwise keep one core busy while a push waits.
//!
//! One thread feeds the others: only the one that opened a repository may read it, and reading takes as long as parsing.
//! Decides nothing; results come in the order of the feed.

use std::sync::mpsc::{TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Fewer items per thread than this are not worth starting it.
const PER_THREAD_MIN: usize = 64;
const THREADS_MAX: usize = 8;
/// Items that a thread takes at once: few enough that all threads end at about the same time.
const PART: usize = 16;
/// Parts that wait for a thread; with so many, the feeding one works as well.
const WAITING_MAX: usize = 4;

/// Does `work` on each item of `feed`, of which about `expected` are there. Takes from `feed` only as fast as the work
/// goes on, so that few items exist at once.
pub(in crate::gitops) fn spread<T: Send, R: Send>(
    expected: usize,
    feed: impl Iterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let threads = cores.min(expected / PER_THREAD_MIN).max(1);
    if threads == 1 {
        return feed.map(work).collect();
    }
    let (queue, waiting) = sync_channel::<(usize, Vec<T>)>(WAITING_MAX);
    let waiting = Mutex::new(waiting);
    let done = |(number, part): (usize, Vec<T>)| (number, part.into_iter().map(&work).collect::<Vec<R>>());
    let help = || {
        let mut parts = Vec::new();
        loop {
            // Held while waiting, too: the next thread could only wait as well.
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(part) = next else { return parts };
            parts.push(done(part));
        }
    };
    let mut parts = thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(help)).collect();
        let (mut parts, mut feed) = (Vec::new(), feed.fuse());
        for number in 0.. {
            let part: Vec<T> = feed.by_ref().take(PART).collect();
            if part.is_empty() {
                break;
            }
            if let Err(TrySendError::Full(part) | TrySendError::Disconnected(part)) =
                queue.try_send((number, part))
            {
                parts.push(done(part));
            }
        }
        drop(queue);
        parts.extend(help());
        for helper in helpers {
            parts.extend(helper.join().expect("the work does not panic"));
        }
        parts
    });
    parts.sort_unstable_by_key(|(number, _)| *number);
    parts.into_iter().flat_map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_feed_however_many_there_are() {
        for count in [0, 1, PART, 10 * PER_THREAD_MIN + 1] {
            let doubled: Vec<usize> = (0..count).map(|number| 2 * number).collect();
            assert_eq!(spread(count, 0..count, |number| 2 * number), doubled);
        }
    }

    #[test]
    fn a_feed_that_ends_early_is_not_asked_again() {
        let (mut asked, expected) = (0, 10 * PER_THREAD_MIN);
        let feed = std::iter::from_fn(|| {
            asked += 1;
            (asked <= PART).then_some(asked)
        });
        assert_eq!(spread(expected, feed, |number| number).len(), PART);
        assert_eq!(asked, PART + 1);
    }
}
