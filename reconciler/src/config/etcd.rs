//! Flags of `serve` for etcd: its addresses, how it knows this reconciler, and its upkeep.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use schema::quantity::Memory;
use schema::store::etcd::Access;
use schema::trust::{TlsFiles, TrustDir};
use serde::{Deserialize, Serialize};

use super::{ConfigError, is_http};
use crate::git::host_and_port;

/// Default address of the private etcd of `minik8s up`.
pub const DEFAULT_ETCD: &str = "https://127.0.0.1:7079";

/// Smallest quota that may be given: a cluster of a few pods with ten minutes of history.
const ETCD_QUOTA_MIN: u64 = 16 << 20;

/// Access to etcd.
#[derive(Debug, Clone, Args)]
pub struct EtcdAccessArgs {
    /// etcd's client addresses; http:// only for an etcd on this machine
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL", default_value = DEFAULT_ETCD, value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// etcd user, if etcd knows its users by passwords
    #[arg(long, env = "MINIK8S_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password
    #[arg(long, env = "MINIK8S_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// File with the authorities (PEM) of an etcd that does not trust the cluster's own [default: the cluster's]
    #[arg(long, env = "MINIK8S_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// File with the certificate (PEM) to show to that etcd [default: this reconciler's]
    #[arg(long, env = "MINIK8S_ETCD_CERT", value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    pub etcd_cert: Option<PathBuf>,
    /// File with the key of that certificate
    #[arg(long, env = "MINIK8S_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// The cluster's own etcd, whose authentication the leader turns on; `up` sets it
    #[arg(long, env = "MINIK8S_OWN_ETCD", hide = true)]
    pub own_etcd: bool,
}

impl EtcdAccessArgs {
    /// Returns addresses, login and certificates. `own` has the certificates of this reconciler.
    pub(super) fn access(self, own: &TrustDir) -> Result<Access, ConfigError> {
        let endpoints = endpoints(self.etcd)?;
        let own = own.tls_files();
        let files = match self.etcd_ca {
            None => own,
            Some(authorities) => TlsFiles {
                authorities,
                certificate: self.etcd_cert.unwrap_or(own.certificate),
                key: self.etcd_key.unwrap_or(own.key),
                is_own: false,
            },
        };
        let is_tls = endpoints.iter().any(|url| url.starts_with("https://"));
        let access = Access::new(endpoints, self.etcd_user, self.etcd_password_file);
        Ok(access.with_tls(is_tls.then_some(files)))
    }
}

fn endpoints(etcd: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let etcd: Vec<String> =
        etcd.into_iter().map(|url| url.trim().to_owned()).filter(|u| !u.is_empty()).collect();
    let wrong = |url: &str, why: &str, help: String| Err(ConfigError::new("--etcd", url, why, help));
    if etcd.is_empty() {
        return wrong("", "names no endpoint", format!("for example {DEFAULT_ETCD}"));
    }
    if let Some(url) = etcd.iter().find(|url| !is_http(url)) {
        let help = format!("write it as {DEFAULT_ETCD}");
        return wrong(url, "is not an http:// or https:// address", help);
    }
    if let Some(url) = etcd.iter().find(|url| !url.starts_with("https://") && !is_on_loopback(url)) {
        let help = "give this etcd certificates and write https://, see docs/operations.md";
        return wrong(url, "is another machine without encryption", help.to_owned());
    }
    Ok(etcd)
}

fn is_on_loopback(url: &str) -> bool {
    let (host, _) = host_and_port(url);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Upkeep of etcd.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdUpkeepArgs {
    /// Let the leader compact and defragment this etcd. The private etcd of `up` is always maintained; for another
    /// one, `minik8s-agent doctor` prints what to run
    #[arg(long, env = "MINIK8S_ETCD_UPKEEP")]
    pub etcd_upkeep: bool,
    /// etcd's --quota-backend-bytes: needed if its metrics can't be read; `up` gives it to its private etcd
    #[arg(long, env = "MINIK8S_ETCD_QUOTA", value_name = "QUANTITY")]
    pub etcd_quota: Option<String>,
}

impl EtcdUpkeepArgs {
    /// Returns the quota in bytes.
    ///
    /// # Errors
    /// It is no quantity of at least 16 MiB.
    pub fn quota_bytes(&self) -> Result<Option<u64>, ConfigError> {
        let Some(given) = &self.etcd_quota else { return Ok(None) };
        let (flag, help) = ("--etcd-quota", "give 16Mi or more, for example 8Gi");
        match given.parse::<Memory>() {
            Ok(quota) if quota.bytes >= ETCD_QUOTA_MIN => Ok(Some(quota.bytes)),
            Ok(_) => Err(ConfigError::new(flag, given, "is too small for a cluster", help)),
            Err(error) => Err(ConfigError::new(flag, given, error.to_string(), help)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        access: EtcdAccessArgs,
    }

    fn own() -> TrustDir {
        TrustDir::new("/var/lib/minik8s/reconciler/pki")
    }

    fn access(flags: &[&str]) -> Result<Access, String> {
        let cli = Cli::try_parse_from(["minik8s"].iter().chain(flags)).map_err(|error| error.to_string())?;
        cli.access.access(&own()).map_err(|error| error.to_string())
    }

    #[test]
    fn etcd_is_the_clusters_own_unless_an_authority_is_given() {
        let by_default = access(&[]).unwrap();
        assert_eq!(by_default.endpoints, [DEFAULT_ETCD]);
        assert_eq!(by_default.tls, Some(own().tls_files()));
        let url = ["--etcd", "https://etcd.lan:2379", "--etcd-ca", "/ca.pem"];
        let with_own_certificate = access(&url).unwrap().tls.unwrap();
        let of_own = own().tls_files();
        assert_eq!(with_own_certificate, TlsFiles { authorities: "/ca.pem".into(), is_own: false, ..of_own });
        let files = [&url[..], &["--etcd-cert", "/c.pem", "--etcd-key", "/k.pem"]].concat();
        let files = access(&files).unwrap().tls.unwrap();
        assert_eq!((files.certificate, files.key), ("/c.pem".into(), "/k.pem".into()));
        assert!(access(&["--etcd-cert", "/c.pem", "--etcd-key", "/k.pem"]).is_err(), "without an authority");
        assert!(access(&["--etcd-ca", "/ca.pem", "--etcd-cert", "/c.pem"]).is_err(), "without a key");
    }

    #[test]
    fn an_etcd_in_clear_is_on_this_machine() {
        for url in ["http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379", "http://127.9.9.9"]
        {
            assert_eq!(access(&["--etcd", url]).unwrap(), Access::anonymous(&[url.to_owned()]), "{url}");
        }
        for url in [
            "http://10.0.0.1:2379",
            "http://etcd.lan:2379",
            "http://localhost.lan",
            "http://127.0.0.1@10.0.0.1",
        ] {
            let error = access(&["--etcd", &format!("https://127.0.0.1:2379,{url}")]).unwrap_err();
            assert!(
                error.starts_with(&format!("--etcd {url}: is another machine without encryption;")),
                "{error}"
            );
        }
    }
}
