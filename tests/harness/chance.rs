//! Number of rounds of a story, and its random choices: seeded, so that a failure can be replayed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of rounds that a story plays: `few` in a check; in a soak `MINIK8S_ROUNDS`, but at most
/// `full`.
pub fn rounds(few: usize, full: usize) -> usize {
    from_env("MINIK8S_ROUNDS").map_or(few, |rounds: usize| rounds.min(full))
}

/// Seeded random choices.
#[derive(Debug)]
pub struct Chance(StdRng);

impl Chance {
    /// Uses the seed in `MINIK8S_SEED`, or one from the clock, and prints it.
    pub fn of(story: &str) -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        let seed = from_env("MINIK8S_SEED").unwrap_or_else(clock);
        println!("{story}: MINIK8S_SEED={seed}");
        Self(StdRng::seed_from_u64(seed))
    }

    /// Random number from 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }

    /// Lets a random time below `end` pass: the moment of a fault, never a wait for a condition.
    pub fn moment(&mut self, end: Duration) {
        let share = self.0.random_range(0.0..1.0);
        std::thread::sleep(end.mul_f64(share));
    }

    /// Random element of `choices`.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> Result<&'a T> {
        let index = usize::try_from(self.below(choices.len() as u64))?;
        choices.get(index).context("there is nothing to choose from")
    }
}

fn from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}
