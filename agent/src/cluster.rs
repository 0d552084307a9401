//! Addresses of etcd and of the reconcilers, and the file with the ones that this node last learned:
//! `<state>/agent/cluster.json`.

use std::net::IpAddr;
use std::path::Path;

use reqwest::Url;
use schema::control::DiskRecord;
use serde::{Deserialize, Serialize};

/// Addresses of etcd and of the reconcilers' APIs, as URLs; also the format of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterAddresses {
    pub etcd: Vec<String>,
    pub reconcilers: Vec<String>,
}

impl ClusterAddresses {
    /// Returns the file below the agent's own directory.
    pub fn file(agent_dir: &Path) -> DiskRecord {
        DiskRecord::new(agent_dir.join("cluster.json"))
    }

    /// Takes what a reconciler or etcd names, except for URLs that would be used in clear.
    pub fn learned(etcd: &[String], reconcilers: &[String]) -> Self {
        let allowed = |urls: &[String], is_allowed: fn(&str) -> bool| -> Vec<String> {
            urls.iter().filter(|url| is_allowed(url)).cloned().collect()
        };
        Self { etcd: allowed(etcd, is_encrypted_or_local), reconcilers: allowed(reconcilers, is_encrypted) }
    }

    /// Returns these addresses, with those of `other` in place of missing ones.
    pub fn or(&self, other: &Self) -> Self {
        let first = |own: &[String], other: &[String]| match own {
            [] => other.to_vec(),
            own => own.to_vec(),
        };
        Self {
            etcd: first(&self.etcd, &other.etcd),
            reconcilers: first(&self.reconcilers, &other.reconcilers),
        }
    }
}

/// True for a URL with `https`.
pub fn is_encrypted(url: &str) -> bool {
    url.parse().is_ok_and(|url: Url| url.scheme() == "https" && url.host_str().is_some())
}

/// True for a URL with `https`, or with `http` to this machine itself.
pub fn is_encrypted_or_local(url: &str) -> bool {
    let is_local = |url: Url| {
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        url.scheme() == "http" && (host == "localhost" || is_loopback)
    };
    is_encrypted(url) || url.parse().is_ok_and(is_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_reached_in_clear() {
        for (url, encrypted, allowed) in [
            ("https://10.0.0.1:7079", true, true),
            ("https://etcd.lan", true, true),
            ("http://127.0.0.1:7079", false, true),
            ("http://[::1]:7079", false, true),
            ("http://localhost:7079", false, true),
            ("http://10.0.0.1:7079", false, false),
            ("http://127.0.0.1.evil.example:7079", false, false),
            ("http://127.0.0.1@10.0.0.1:7079", false, false),
            ("127.0.0.1:7079", false, false),
            ("ftp://127.0.0.1", false, false),
            ("", false, false),
        ] {
            assert_eq!((is_encrypted(url), is_encrypted_or_local(url)), (encrypted, allowed), "{url}");
        }
    }

    #[test]
    fn what_is_not_named_stays_as_it_was() {
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        let former = ClusterAddresses { etcd: urls(&["https://a:1"]), reconcilers: urls(&["https://r:1"]) };
        let named =
            ClusterAddresses::learned(&urls(&["http://b:1"]), &urls(&["https://s:1", "http://127.0.0.1:1"]));
        let wanted = ClusterAddresses { etcd: urls(&["https://a:1"]), reconcilers: urls(&["https://s:1"]) };
        assert_eq!(named.or(&former), wanted);
    }
}
