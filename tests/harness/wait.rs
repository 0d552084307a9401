//! Bounded waits for conditions. No other code of the tests sleeps, except for the moments of faults.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Interval between two checks of a condition: short compared with anything that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Duration of `seconds`.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Repeats `look` until it succeeds and returns its result; fails with the last error
/// after `within`.
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if start.elapsed() >= within {
            bail!("not within {within:?}: {what}; last seen: {seen:#}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Repeats `look` for the whole of `during`; fails at the first failing check. For
/// things that must *not* happen, where no event marks the end of the wait.
pub fn holds(what: &str, during: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < during {
        if let Err(error) = look() {
            bail!("did not hold, after {:?}: {what}: {error:#}", start.elapsed());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_observation() {
        let mut looks = 0;
        let result: Result<()> = eventually("never", Duration::from_millis(120), || {
            looks += 1;
            bail!("look {looks}")
        });
        let text = result.unwrap_err().to_string();
        assert!(text.contains("last seen: look") && looks >= 2, "{text}");
    }
}
