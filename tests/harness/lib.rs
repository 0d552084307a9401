//! A real cluster on one machine: real Git, etcd, Docker, kernel and both daemons.
//!
//! Everything that a cluster creates is named after its [`Slot`], so clusters can run side by side and next to a
//! quickstart, and the leftovers of a killed test run are swept when the slot is taken again.

mod binaries;
mod browser;
mod capture;
mod chance;
mod clients;
mod cluster;
mod cut_proxy;
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
mod http_server;
mod image;
mod listing;
pub mod manifests;
mod names;
mod net_world;
mod node;
mod outside;
mod process;
mod prometheus;
mod registry;
mod remote;
mod secrets;
mod slot;
mod slurm;
mod sweep;
mod timeline;
mod tls;
mod tokens;
mod trust;
mod udp;
mod units;
mod up_cluster;
mod vip;
mod wait;

pub use anyhow::{Context, Error, Result, bail, ensure};
pub use binaries::{agent_binary, minik8s_binary};
pub use browser::{Browser, Look, axe};
pub use capture::Capture;
pub use chance::{Chance, rounds};
pub use clients::{Clients, Target};
pub use cluster::{Cluster, ClusterOptions, PodView, RepoAccess, Where};
pub use cut_proxy::CutProxy;
pub use docker_world::{ContainerView, DockerWorld};
pub use etcd::{Etcd, EtcdChange, EtcdKey};
pub use faults::BadLink;
pub use forge::{Forge, ForgeComment, ForgeKind};
pub use git_http::GitHttp;
pub use git_repo::{Change, GitRepo};
pub use git_ssh::GitSsh;
pub use http::{
    KeptConnection, anonymous_get, anonymous_post, http_get, http_post, http_post_body, served_issuer,
    tls_connect, tls_connect_as_nobody, tls_get, tls_post_body,
};
pub use http_proxy::HttpProxy;
pub use http_server::{HttpAnswer, HttpRequest, HttpServer};
pub use image::{IMAGE, IMAGE_TWO, ensure_images, ensure_python};
pub use listing::Listing;
pub use names::{Said, Upstream, dig};
pub use net_world::{NetWorld, netns_of};
pub use node::Node;
pub use outside::Outside;
pub use process::{Daemon, Outcome, outcome, run};
pub use prometheus::{Prometheus, Sampled};
pub use registry::{Gate, Registry, RegistryOptions};
pub use remote::Remote;
pub use secrets::{encrypted, encrypted_to, recipient, recipient_of, sealed};
pub use slot::Slot;
pub use slurm::Slurm;
pub use timeline::{Happened, Moment, Timeline, most_at_once};
pub use tls::HttpsServer;
pub use tokens::{PrintedToken, node_is_ready, request_token};
pub use trust::{Trust, tls_acceptor};
pub use udp::{UDP_PORT, UdpClient, UdpServer};
pub use units::{NotifySocket, Unit};
pub use up_cluster::UpCluster;
pub use vip::{service_address, vip};
pub use wait::{eventually, holds, secs};
