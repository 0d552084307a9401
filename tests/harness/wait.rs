//! Bounded waits for conditions. No other code of the tests sleeps, except for the moments of faults and the pace of
//! benches.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Shortest and longest pause between two checks of a condition: short compared with anything that is waited for.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Returns the pause after a check. Most checks start processes, and four stories share two cores: the pause is twice as
/// long as the check, and longer in a long wait.
fn pause(check: Duration, waited: Duration) -> Duration {
    (check * 2).max(waited / 20).clamp(PAUSE.0, PAUSE.1)
}

/// Duration of `seconds`.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Repeats `look` until it succeeds and returns its result; fails with the last error
/// after `within`.
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        let seen = match look() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if start.elapsed() >= within {
            bail!("not within {within:?}: {what}; last seen: {seen:#}");
        }
        std::thread::sleep(pause(began.elapsed(), start.elapsed()));
    }
}

/// Repeats `look` for the whole of `during`; fails at the first failing check. For
/// things that must *not* happen, where no event marks the end of the wait.
pub fn holds(what: &str, during: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < during {
        let began = Instant::now();
        if let Err(error) = look() {
            bail!("did not hold, after {:?}: {what}: {error:#}", start.elapsed());
        }
        std::thread::sleep(pause(began.elapsed(), Duration::ZERO));
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
