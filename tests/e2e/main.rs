//! The stories: each pushes to Git and watches the world (containers, packets, processes, etcd),
//! on a cluster of its own. One file per story, one program for all.

mod agent_offline;
mod broken_file;
mod change_pod;
mod churn;
mod ci_review;
mod cli;
mod crash_moments;
mod crash_rounds;
mod dangerous_commits;
mod docker_restart;
mod etcd_lost;
mod fail_static;
mod forbidden;
mod git_https;
mod git_ssh;
mod harness_itself;
mod heal;
mod images;
mod inside;
mod plan_server;
mod probes;
mod push_pod;
mod remove_pod;
mod rename_file;
mod repo_files;
mod restarts;
mod safe_git;
mod serving;
mod signed_commits;
mod two_reconcilers;
mod two_sources;
mod up_down;
mod usage;
mod webhook;
mod wrong_inputs;
