//! The stories: each pushes to Git and watches the world (containers, packets, processes, etcd),
//! on a cluster of its own. One file per story, one program for all.

mod agent_offline;
mod broken_file;
mod change_pod;
mod cli;
mod crash_rounds;
mod docker_restart;
mod etcd_lost;
mod harness_itself;
mod heal;
mod push_pod;
mod remove_pod;
mod rename_file;
mod safe_git;
mod two_reconcilers;
mod up_down;
mod wrong_inputs;
