//! The reconciler: Git to etcd, controllers over etcd, and the read-only API and CLI on top.

pub mod api;
pub mod args;
pub mod blobs;
pub mod cli;
pub mod config;
pub mod controllers;
mod crypt;
pub mod daemon;
pub mod diagnostics;
pub mod git;
pub mod gitops;
mod guarded_writes;
mod last_known;
mod listener;
pub mod metrics;
pub mod notifications;
mod outgoing;
pub mod simulate;
pub mod state_dir;
mod text_file;
mod trust;
pub mod upkeep;
pub mod view;
pub mod webhooks;
pub mod workflows;
