//! The fuzz targets of `tests/fuzz` without a fuzzer: the seeds, and `MINIK8S_FUZZ_ROUNDS` random mutations of them,
//! always the same ones.

use std::path::Path;

use schema::arbitrary::Chance;

#[path = "../../tests/fuzz/checks.rs"]
mod checks;

/// Mutations that a plain `cargo test` tries: about two seconds of a debug build.
const ROUNDS: usize = 300;

/// Size of the largest input: larger inputs are only slower.
const BYTES_MAX: usize = 16 * 1024;

/// Significant words, so that mutations get past the first check.
const WORDS: &[&str] = &[
    "\n",
    "  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "|",
    "&a ",
    "*a",
    "<<: ",
    "---\n",
    "null",
    "~",
    "true",
    "no",
    "0644",
    "1e999",
    "-1",
    "99999999999999999999",
    "$.a",
    "$$",
    "States.ALL",
    "type: ",
    "Task",
    "Map",
    "spec:\n",
    "kind: Workflow\n",
    "definition: |\n",
    "workflowNodes:\n",
    "nodes",
    "Iterator",
    "NumericNotEquals",
];

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/seeds");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of seeds")
        .map(|file| file.expect("an entry of the folder").path())
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a seed")).collect()
}

fn change(bytes: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    let at = chance.index(bytes.len() + 1);
    let line = |bytes: &[u8], at: usize| {
        let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |found| found + 1);
        let end =
            bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |found| at + found + 1);
        start..end
    };
    match chance.index(6) {
        0 if at < bytes.len() => bytes[at] = chance.index(256) as u8,
        1 => {
            let end = (at + chance.index(16)).min(bytes.len());
            drop(bytes.drain(at..end));
        }
        2 => drop(bytes.drain(line(bytes, at))),
        3 => {
            let copied = bytes[line(bytes, at)].to_vec();
            bytes.splice(at..at, copied);
        }
        4 => {
            let from = chance.index(other.len());
            let copied = other[line(other, from)].to_vec();
            let start = line(bytes, at).start;
            bytes.splice(start..start, copied);
        }
        _ => {
            let word = WORDS[chance.index(WORDS.len())];
            bytes.splice(at..at, word.bytes());
        }
    }
    bytes.truncate(BYTES_MAX);
}

#[test]
fn the_seeds_of_the_fuzzer_load() {
    let seeds = seeds();
    assert!(seeds.len() >= 8);
    for seed in seeds {
        let loads = |path| {
            let loaded = schema::manifest::load_file(path, &seed);
            !loaded.documents.is_empty() && !loaded.has_errors()
        };
        assert!(loads("a.yaml") || loads("a.json"), "{}", String::from_utf8_lossy(&seed));
    }
}

#[test]
fn what_must_hold_for_any_bytes_holds_for_changed_seeds() {
    let rounds =
        std::env::var("MINIK8S_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let (seeds, mut chance) = (seeds(), Chance::new(0x6d69_6e69_6b38_7331));
    for seed in &seeds {
        checks::manifest_load(seed);
        checks::dialects(seed);
    }
    for round in 0..rounds {
        let mut bytes = seeds[chance.index(seeds.len())].clone();
        let other = &seeds[chance.index(seeds.len())];
        for _ in 0..=chance.index(4) {
            change(&mut bytes, other, &mut chance);
        }
        let outcome = std::panic::catch_unwind(|| {
            checks::manifest_load(&bytes);
            checks::dialects(&bytes);
        });
        assert!(outcome.is_ok(), "round {round}:\n{}", String::from_utf8_lossy(&bytes));
    }
}
