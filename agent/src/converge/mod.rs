//! The loops of a node, one folder per kind of thing converged: observe, plan, act, report.

pub mod clients;
pub mod dns;
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
pub mod usage;
