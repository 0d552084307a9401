//! The fuzz target `webhook` of `tests/fuzz` without a fuzzer: its seeds, and as many random changes of
//! them as `MINIK8S_FUZZ_ROUNDS` says, always the same ones.

use std::path::Path;

use crate::webhooks::provider::SCHEMES;

#[path = "../../../../tests/fuzz/webhook_checks.rs"]
mod checks;

/// Changes of seeds that a plain `cargo test` tries.
const ROUNDS: usize = 300;

/// Words that mean something here, so that changes get past the first check.
const WORDS: &[&str] = &[
    "\n",
    "\n\n",
    ": ",
    ",",
    " ",
    "sha256=",
    "sha512=",
    "v1,",
    "v1,AAAA",
    "webhook-id: a\n",
    "webhook-timestamp: -9223372036854775808\n",
    "webhook-timestamp: 1700000301\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "null",
    "1e999",
    "\"ref\":",
    "\"ref_type\":\"branch\"",
    "\"after\":[]",
    "refs/heads/",
    "\u{fffd}",
];

/// xorshift64*: small, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound.max(1)
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/requests");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn change(bytes: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    let at = chance.below(bytes.len() + 1);
    let end = (at + chance.below(24)).min(bytes.len());
    match chance.below(6) {
        0 if at < bytes.len() => bytes[at] = chance.below(256) as u8,
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copied = bytes[at..end].to_vec();
            bytes.splice(at..at, copied);
        }
        3 => {
            let from = chance.below(other.len());
            let copied = other[from..(from + chance.below(80)).min(other.len())].to_vec();
            bytes.splice(at..at, copied);
        }
        4 => {
            let (header, _) = SCHEMES[chance.below(SCHEMES.len())];
            bytes.splice(0..0, format!("{header}: ").into_bytes());
        }
        _ => drop(bytes.splice(at..at, WORDS[chance.below(WORDS.len())].bytes())),
    }
}

#[test]
fn every_seed_of_the_fuzzer_is_an_authentic_request() {
    let seeds = seeds();
    assert!(seeds.len() >= SCHEMES.len());
    for seed in &seeds {
        assert!(checks::accepts(seed), "{}", String::from_utf8_lossy(seed));
    }
}

#[test]
fn what_must_hold_for_any_request_holds_for_changed_seeds() {
    let rounds =
        std::env::var("MINIK8S_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let (seeds, mut chance) = (seeds(), Chance(0x6d69_6e69_6b38_7332));
    seeds.iter().for_each(|seed| checks::webhook(seed));
    for round in 0..rounds {
        let mut bytes = seeds[chance.below(seeds.len())].clone();
        let other = &seeds[chance.below(seeds.len())];
        for _ in 0..=chance.below(4) {
            change(&mut bytes, other, &mut chance);
        }
        let outcome = std::panic::catch_unwind(|| checks::webhook(&bytes));
        assert!(outcome.is_ok(), "round {round}:\n{}", String::from_utf8_lossy(&bytes));
    }
}
