//! Membership of the cluster: tokens by which machines join, nodes that are added over SSH, reconcilers that join, people
//! with a certificate, and the authority that vouches for all.

pub(super) mod join;
pub(super) mod node;
pub(super) mod remove;
pub(super) mod rotate;
pub(super) mod token;
pub(super) mod user;
