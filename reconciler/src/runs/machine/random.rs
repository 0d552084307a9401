//! Random values of a run: they follow from its id and the number of draws, so that a replay gives the same.

use std::cell::Cell;

use sha2::{Digest as _, Sha256};

/// Random source of one run.
pub(super) struct Random<'a> {
    run: &'a str,
    draws: Cell<u64>,
}

impl<'a> Random<'a> {
    /// Creates the source of a run after `draws` draws.
    pub(super) fn new(run: &'a str, draws: u64) -> Self {
        Self { run, draws: Cell::new(draws) }
    }

    /// Returns the number of draws.
    pub(super) fn draws(&self) -> u64 {
        self.draws.get()
    }

    /// Returns 16 bytes that no other draw gives.
    pub(super) fn bytes(&self) -> [u8; 16] {
        self.draws.set(self.draws.get() + 1);
        hash(&[self.run.as_bytes(), &self.draws.get().to_be_bytes()])
    }

    pub(super) fn number(&self) -> u64 {
        first(self.bytes())
    }

    /// Returns a number from 0 up to, but excluding, 1.
    pub(super) fn unit(&self) -> f64 {
        // The 53 bits that a double holds.
        #[allow(clippy::cast_precision_loss, reason = "a double holds 53 bits")]
        let bits = (self.number() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

/// Returns the number of a seed, always the same.
pub(super) fn seeded(seed: i64) -> u64 {
    first(hash(&[b"seed", &seed.to_be_bytes()]))
}

fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
        hasher.update([0]);
    }
    let digest = hasher.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes
}

fn first(bytes: [u8; 16]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}
