//! Simulated runs.
