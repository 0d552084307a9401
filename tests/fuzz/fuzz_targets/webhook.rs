//! Fuzz target: see webhook_checks.rs.

#![no_main]

#[path = "../webhook_checks.rs"]
mod checks;
#[path = "../webhooks.rs"]
mod webhooks;

/// Stands in for the reconciler's module: the references that a source follows do not depend on requests.
#[allow(dead_code)]
mod git {
    pub(crate) enum Reference {
        Branch(String),
        Commit(String),
    }

    impl Reference {
        pub(crate) fn full_name(&self) -> String {
            let (Reference::Branch(name) | Reference::Commit(name)) = self;
            format!("refs/heads/{name}")
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::webhook(bytes));
