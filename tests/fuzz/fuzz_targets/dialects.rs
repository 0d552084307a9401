//! Fuzz target: see `dialects` in checks.rs.

#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::dialects(bytes));
