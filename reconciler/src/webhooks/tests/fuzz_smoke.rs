//! The fuzz target `webhook` of `tests/fuzz` without a fuzzer: its seeds, and `MINIK8S_FUZZ_ROUNDS`
//! reproducible random changes of them.

use std::path::Path;

use schema::arbitrary::Chance;

use crate::webhooks::provider::SCHEMES;

#[path = "../../../../tests/fuzz/webhook_checks.rs"]
mod checks;

/// Changes of seeds tried by a plain `cargo test`.
const ROUNDS: usize = 300;

/// Words with a meaning here, so that changes get past the first check.
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

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/requests");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn change(bytes: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    let at = chance.index(bytes.len() + 1);
    let end = (at + chance.index(24)).min(bytes.len());
    match chance.index(6) {
        0 if at < bytes.len() => bytes[at] = chance.index(256) as u8,
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copied = bytes[at..end].to_vec();
            bytes.splice(at..at, copied);
        }
        3 => {
            let from = chance.index(other.len());
            let copied = other[from..(from + chance.index(80)).min(other.len())].to_vec();
            bytes.splice(at..at, copied);
        }
        4 => {
            let (header, _) = SCHEMES[chance.index(SCHEMES.len())];
            bytes.splice(0..0, format!("{header}: ").into_bytes());
        }
        _ => drop(bytes.splice(at..at, WORDS[chance.index(WORDS.len())].bytes())),
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
    let (seeds, mut chance) = (seeds(), Chance::new(0x6d69_6e69_6b38_7332));
    seeds.iter().for_each(|seed| checks::webhook(seed));
    for round in 0..rounds {
        let mut bytes = seeds[chance.index(seeds.len())].clone();
        let other = &seeds[chance.index(seeds.len())];
        for _ in 0..=chance.index(4) {
            change(&mut bytes, other, &mut chance);
        }
        let outcome = std::panic::catch_unwind(|| checks::webhook(&bytes));
        assert!(outcome.is_ok(), "round {round}:\n{}", String::from_utf8_lossy(&bytes));
    }
}
