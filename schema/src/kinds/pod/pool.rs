//! Shared allocations for equal pod specs.
//!
//! A bare pod's spec is in its document, its object, its pod record and its binding; a replica set's spec is in all
//! of its pods. 10,000 separate copies of each take more memory than everything else. A shared spec is never
//! changed, so readers notice no difference.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, Weak};

use super::PodSpec;
use crate::kinds::Resource;
use crate::mutex::lock;

/// Number of entries below which nothing is swept.
const SWEEP_MIN: usize = 1024;

static PODS: Mutex<Option<Pool<PodSpec>>> = Mutex::new(None);

/// Returns the spec known under `hash` if it is equal; otherwise registers `spec` and returns it.
pub fn share_pod(hash: &str, spec: Arc<PodSpec>) -> Arc<PodSpec> {
    let mut pods = lock(&PODS);
    pods.get_or_insert_default().share(hash, spec)
}

/// Same as [`share_pod`] for a resource of any kind. Other kinds are few and not shared.
pub fn share(hash: &str, resource: Resource) -> Resource {
    match resource {
        Resource::Pod(spec) => Resource::Pod(share_pod(hash, spec)),
        other => other,
    }
}

/// Values by the hash of their hash. Equality decides, so a wrong hash only costs memory.
#[derive(Debug)]
struct Pool<T> {
    known: HashMap<u64, Weak<T>>,
    sweep_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), sweep_at: SWEEP_MIN }
    }
}

impl<T: PartialEq> Pool<T> {
    fn share(&mut self, hash: &str, value: Arc<T>) -> Arc<T> {
        let mut hasher = DefaultHasher::new();
        hash.hash(&mut hasher);
        let key = hasher.finish();
        if let Some(known) = self.known.get(&key).and_then(Weak::upgrade).filter(|known| *known == value) {
            return known;
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, value| value.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(SWEEP_MIN);
        }
        self.known.insert(key, Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_a_wrong_hash_shares_nothing() {
        let mut pool = Pool::default();
        let first = pool.share("a", Arc::new(1));
        assert!(Arc::ptr_eq(&first, &pool.share("a", Arc::new(1))));
        assert_eq!(*pool.share("a", Arc::new(2)), 2);
        assert_eq!(*first, 1);
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let mut pool = Pool::default();
        for number in 0..10 * SWEEP_MIN {
            pool.share(&number.to_string(), Arc::new(number));
        }
        assert!(pool.known.len() <= SWEEP_MIN, "{}", pool.known.len());
    }
}
