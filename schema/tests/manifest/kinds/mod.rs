//! Manifests of kinds other than Pod.

mod autoscalers;
mod compute;
mod compute_bad;
mod config_maps;
mod daemon_sets;
mod dns;
mod replica_sets;
mod services;
