//! Work on all cores: parsing and hashing 10,000 manifests would otherwise keep one core busy while a push waits.
//!
//! Decides nothing; results come in the order of the items.

use std::thread;

/// Fewer items per thread than this are not worth starting it.
const PER_THREAD_MIN: usize = 64;
const THREADS_MAX: usize = 8;

/// Does `work` on each of the items.
pub(in crate::gitops) fn spread<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let size = items.len().div_ceil(cores).max(PER_THREAD_MIN);
    let done = |part: &[T]| part.iter().map(&work).collect::<Vec<R>>();
    let mut parts = items.chunks(size);
    let own = parts.next().unwrap_or_default();
    thread::scope(|scope| {
        let helpers: Vec<_> = parts.map(|part| scope.spawn(|| done(part))).collect();
        let mut results = done(own);
        for helper in helpers {
            results.extend(helper.join().expect("the work does not panic"));
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items_for_any_number_of_them() {
        for count in [0, 1, PER_THREAD_MIN, 10 * PER_THREAD_MIN + 1] {
            let items: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = items.iter().map(|number| 2 * number).collect();
            assert_eq!(spread(&items, |number| 2 * number), doubled);
        }
    }
}
