//! Membership of the cluster: tokens by which machines join, nodes that are added over SSH, reconcilers that join, people
//! with a certificate, and the authority that vouches for all.

pub(super) mod join;
pub(super) mod node;
pub(super) mod remove;
pub(super) mod rotate;
pub(super) mod token;
pub(super) mod user;

use reqwest::Url;

use super::output::note;
use super::server::is_loopback;

/// Warns of reconcilers that no other machine can reach.
fn warn_if_local(urls: &[String]) {
    if urls.iter().all(|url| url.parse::<Url>().is_ok_and(|url| is_loopback(&url))) {
        note(&format!(
            "other machines cannot reach {}: run 'minik8s down --keep-pods', and 'minik8s up --advertise ADDRESS' (or give \
             'minik8s serve' a --listen that they reach)",
            urls.join(", ")
        ));
    }
}
