//! What is random in a run follows from its id and from how often it asked, so that a replay gives the same.

use std::cell::Cell;

use sha2::{Digest as _, Sha256};

/// Draws of one run.
pub(super) struct Random<'a> {
    run: &'a str,
    draws: Cell<u64>,
}

impl<'a> Random<'a> {
    /// Of a run that has drawn so often.
    pub(super) fn new(run: &'a str, draws: u64) -> Self {
        Self { run, draws: Cell::new(draws) }
    }

    /// How often it has drawn.
    pub(super) fn draws(&self) -> u64 {
        self.draws.get()
    }

    /// 16 bytes that no other draw gives.
    pub(super) fn bytes(&self) -> [u8; 16] {
        self.draws.set(self.draws.get() + 1);
        hash(&[self.run.as_bytes(), &self.draws.get().to_be_bytes()])
    }

    /// A number.
    pub(super) fn number(&self) -> u64 {
        first(self.bytes())
    }

    /// From 0 to 1, without 1.
    pub(super) fn unit(&self) -> f64 {
        // The 53 bits that a double holds.
        #[allow(clippy::cast_precision_loss, reason = "a double holds 53 bits")]
        let bits = (self.number() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

/// The number that a seed gives, always the same.
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
