//! Limit on calls per minute and namespace through this node: the Cluster object's `functions.callsPerMinute`. A
//! minute begins with a call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schema::control::lock;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Minute {
    began: Instant,
    calls: u32,
}

/// Counters by namespace, shared by all calls of the node.
#[derive(Debug, Clone, Default)]
pub(super) struct Rates(Arc<Mutex<HashMap<String, Minute>>>);

impl Rates {
    /// Counts a call, or returns the seconds until the next minute begins.
    pub(super) fn count(&self, namespace: &str, most: u32, now: Instant) -> Result<(), u32> {
        // Each change is complete before anything can panic.
        let mut minutes = lock(&self.0);
        minutes.retain(|_, minute| now.duration_since(minute.began) < MINUTE);
        let first = || Minute { began: now, calls: 0 };
        let minute = minutes.entry(namespace.to_owned()).or_insert_with(first);
        if minute.calls >= most {
            let rest = MINUTE.saturating_sub(now.duration_since(minute.began));
            return Err(u32::try_from(rest.as_secs() + 1).unwrap_or(u32::MAX));
        }
        minute.calls += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_its_calls_and_a_new_minute_has_new_ones() {
        let (rates, began) = (Rates::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(rates.count("a", 2, at(0)), Ok(()));
        assert_eq!(rates.count("a", 2, at(30)), Ok(()));
        assert_eq!(rates.count("a", 2, at(40)), Err(21));
        assert_eq!(rates.count("b", 2, at(40)), Ok(()));
        assert_eq!(rates.count("a", 2, at(60)), Ok(()));
        assert_eq!(rates.count("a", 1, at(61)), Err(60), "a smaller bound counts at once");
    }
}
