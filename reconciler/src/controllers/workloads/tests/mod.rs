//! Decisions of the workloads controller, on snapshots as etcd would hold them.

mod bare;
mod budgets;
mod copies;
mod daemon_sets;
mod etcd_lost;
mod field;
mod functions;
mod killed;
mod replica_sets;
mod rolling;
