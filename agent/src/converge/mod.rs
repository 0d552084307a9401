//! The loops of a node, one folder per kind of thing converged: observe, plan, act, report.

pub mod address;
pub mod build_network;
pub mod builds;
pub mod clients;
pub mod control_plane;
pub mod dns;
pub mod function_calls;
pub mod functions;
pub mod gateway;
pub mod image_book;
pub mod images;
pub mod names;
pub mod network;
pub mod node;
pub mod node_dns;
pub mod pod_table;
pub mod pods;
pub mod services;
pub mod slurm;
pub mod usage;

/// Publishes a value and wakes its receivers, but only if it differs. Returns true if it did.
pub(crate) fn publish<T: PartialEq>(sender: &tokio::sync::watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|known| {
        let differs = *known != value;
        *known = value;
        differs
    })
}
