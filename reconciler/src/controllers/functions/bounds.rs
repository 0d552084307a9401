//! Bounds of a function's size, and scaling to zero: the manifest's limits on the decider's number.

use jiff::SignedDuration;
use schema::kinds::function::FunctionSpec;

/// Bounds set by a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// `minScale`.
    pub least: u32,
    /// `maxScale`.
    pub most: u32,
    /// `scaleToZeroAfterSeconds`.
    pub zero_after: SignedDuration,
}

impl Bounds {
    /// Returns the bounds of a function after [`FunctionSpec::with_defaults`].
    pub fn of(function: &FunctionSpec) -> Self {
        let zero_after = function.scale_to_zero_after_seconds.unwrap_or_default();
        Self {
            least: function.min_scale,
            most: function.max_scale.unwrap_or(u32::MAX),
            zero_after: SignedDuration::from_secs(zero_after.into()),
        }
    }

    /// Returns the number of replicas that should follow `before`. `idle` is the time since the last call, `None`
    /// while a call is in the function; `decided` is the decider's number, `None` while it has no data.
    ///
    /// Only the time without a call decides on zero, whatever the windows still hold; until then one replica stays.
    /// A call that finds no replica gets one immediately, without waiting for the decider.
    pub fn wanted(&self, decided: Option<u32>, before: u32, idle: Option<SignedDuration>) -> u32 {
        let sleeps = idle.is_some_and(|idle| before == 0 || idle >= self.zero_after);
        if sleeps && self.least == 0 {
            return 0;
        }
        let least = self.least.max(1);
        decided.unwrap_or(before).min(self.most).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(least: u32, decided: Option<u32>, before: u32, idle: Option<i64>) -> u32 {
        let bounds = Bounds { least, most: 10, zero_after: SignedDuration::from_secs(30) };
        bounds.wanted(decided, before, idle.map(SignedDuration::from_secs))
    }

    #[test]
    fn the_last_replica_goes_after_the_time_without_a_call() {
        for (idle, replicas) in [(None, 1), (Some(0), 1), (Some(29), 1), (Some(30), 0), (Some(31), 0)] {
            assert_eq!(wanted(0, Some(0), 1, idle), replicas, "{idle:?}");
        }
        assert_eq!(wanted(0, Some(7), 7, Some(30)), 0, "panic holds none of them");
        assert_eq!(wanted(0, None, 7, Some(30)), 0);
        assert_eq!(wanted(0, Some(3), 0, Some(1)), 0, "nothing wakes it but a call");
    }

    #[test]
    fn a_call_wakes_one_replica() {
        assert_eq!(wanted(0, None, 0, None), 1);
        assert_eq!(wanted(0, Some(4), 0, None), 4);
    }

    #[test]
    fn the_bounds_of_the_manifest_hold() {
        assert_eq!(wanted(2, Some(0), 5, Some(99)), 2, "with minScale it never sleeps");
        assert_eq!(wanted(2, None, 0, Some(99)), 2);
        assert_eq!(wanted(0, Some(99), 5, None), 10);
        assert_eq!(wanted(0, None, 5, Some(3)), 5, "without data it stays as it is");
    }
}
