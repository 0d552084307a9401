//! A real cluster on one machine: real Git, etcd, Docker, kernel and both daemons.
//!
//! Everything a cluster makes is named by its [`Slot`], so clusters run side by side, beside a
//! quickstart too, and what a killed test run left is swept by the next one that takes the slot.

mod binaries;
mod chance;
mod clients;
mod cluster;
mod docker_world;
mod etcd;
mod faults;
mod forge;
mod git_http;
mod git_repo;
mod git_ssh;
pub mod hooks;
mod http;
mod http_proxy;
mod image;
mod listing;
pub mod manifests;
mod names;
mod net_world;
mod node;
mod outside;
mod process;
mod registry;
mod remote;
mod secrets;
mod slot;
mod sweep;
mod timeline;
mod tls;
mod udp;
mod vip;
mod wait;

pub use anyhow::{Context, Error, Result, bail, ensure};
pub use binaries::{agent_binary, minik8s_binary};
pub use chance::{Chance, rounds};
pub use clients::{Clients, Target};
pub use cluster::{Cluster, ClusterOptions, PodView, RepoAccess, Where};
pub use docker_world::{ContainerView, DockerWorld};
pub use etcd::{Etcd, EtcdChange, EtcdKey};
pub use faults::BadLink;
pub use forge::{Forge, ForgeComment, ForgeKind};
pub use git_http::GitHttp;
pub use git_repo::{Change, GitRepo};
pub use git_ssh::GitSsh;
pub use http::{http_get, http_post, http_post_body};
pub use http_proxy::HttpProxy;
pub use image::{IMAGE, IMAGE_TWO, ensure_images, ensure_python};
pub use listing::Listing;
pub use names::{Said, Upstream, dig};
pub use net_world::{NetWorld, netns_of};
pub use node::Node;
pub use outside::Outside;
pub use process::{Daemon, Outcome, outcome, run};
pub use registry::{Gate, Registry};
pub use remote::Remote;
pub use secrets::{encrypted, recipient, recipient_of, sealed};
pub use slot::Slot;
pub use timeline::{Happened, Moment, Timeline, most_at_once};
pub use tls::HttpsServer;
pub use udp::{UDP_PORT, UdpClient, UdpServer};
pub use vip::{service_address, vip};
pub use wait::{eventually, holds, secs};
