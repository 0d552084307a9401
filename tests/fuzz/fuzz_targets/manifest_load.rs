//! Fuzz target: see `manifest_load` in checks.rs.

#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::manifest_load(bytes));
