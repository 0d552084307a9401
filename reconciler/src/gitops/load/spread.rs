//! Parallel work on all cores: parsing and hashing 10,000 manifests would otherwise keep one core busy while a push
//! waits.
//!
//! One thread feeds the others: only one may use a repository, and reading loose objects takes as long as parsing
//! them. Decides nothing; results keep the order of the feed.

use std::sync::{Mutex, mpsc};
use std::{iter, thread};

use schema::control::lock;

/// Least number of items per thread that is worth starting it.
const PER_THREAD_MIN: usize = 64;
const THREADS_MAX: usize = 8;
/// Items that a thread takes at a time: few enough that all threads end at about the same time.
const PART: usize = 16;

/// Applies `work` to each item of `feed`, which has at most `expected`. All of them may be in memory at the same
/// time.
pub(in crate::gitops) fn spread<T: Send, R: Send>(
    expected: usize,
    feed: impl Iterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (queue, parts) = mpsc::channel::<(usize, Vec<T>)>();
    let parts = Mutex::new(parts);
    // The lock is also held while waiting: the next thread could only wait as well.
    let next = || lock(&parts).recv().ok();
    let done = |(number, part): (usize, Vec<T>)| (number, part.into_iter().map(&work).collect::<Vec<R>>());
    let help = || iter::from_fn(next).map(done).collect::<Vec<_>>();
    let mut results = thread::scope(|scope| {
        let helpers = 1..cores.min(expected / PER_THREAD_MIN);
        let helpers: Vec<_> = helpers.map(|_| scope.spawn(help)).collect();
        let mut feed = feed.fuse();
        let next_part = || Some(feed.by_ref().take(PART).collect()).filter(|part: &Vec<T>| !part.is_empty());
        for part in iter::from_fn(next_part).enumerate() {
            queue.send(part).expect("the receiver lives longer");
        }
        drop(queue);
        let mut results = help();
        for helper in helpers {
            results.extend(helper.join().expect("the work does not panic"));
        }
        results
    });
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().flat_map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_feed_for_any_number_of_items() {
        for count in [0, 1, PART, 10 * PER_THREAD_MIN + 1] {
            let doubled: Vec<usize> = (0..count).map(|number| 2 * number).collect();
            assert_eq!(spread(count, 0..count, |number| 2 * number), doubled);
        }
    }

    #[test]
    fn a_feed_that_ends_early_is_not_asked_again() {
        let (mut asked, expected) = (0, 10 * PER_THREAD_MIN);
        let feed = iter::from_fn(|| {
            asked += 1;
            (asked <= PART).then_some(asked)
        });
        assert_eq!(spread(expected, feed, |number| number).len(), PART);
        assert_eq!(asked, PART + 1);
    }
}
