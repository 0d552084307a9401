//! Settings of the agent: validated flags with defaults filled in. Reads nothing but the hostname, and what joining
//! wrote: the node's certificate and the addresses of the cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::rr::Name;
use jiff::SignedDuration;
use schema::names::{HostNames, is_host_name};
use schema::quantity::Memory;
use schema::store::etcd::Access;
use schema::trust::{Identity, JoinToken, NAME_MAX, Role, TlsFiles, TokenError, TrustDir};

use crate::args::{
    DEFAULT_ETCD, DnsArguments, EtcdLoginArguments, JoinArguments, MachineArguments, ResetArguments,
    RunArguments,
};
use crate::cluster::{ClusterAddresses, is_encrypted, is_encrypted_or_local};
use crate::converge::builds::BuildLimits;
use crate::converge::dns::{DnsSettings, resolv};
use crate::converge::images::Thresholds;
use crate::converge::network::Vxlan;
use crate::converge::pods::ContainerLimits;
use crate::worlds::docker::LogLimits;

/// File of the node's age identity in the agent's own directory.
pub(crate) const AGE_IDENTITY: &str = "age-identity.txt";

/// Longest instance name: link and chain names contain it, and the kernel limits their length.
const INSTANCE_MAX: usize = 6;

/// Settings of a Minik8s instance on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineConfig {
    /// Absolute path of the directory that holds `agent/`.
    pub state_dir: PathBuf,
    pub instance: String,
    pub docker: String,
}

impl MachineConfig {
    /// The agent's own directory.
    pub fn agent_dir(&self) -> PathBuf {
        self.state_dir.join("agent")
    }

    /// The node's key and certificates.
    pub fn pki(&self) -> TrustDir {
        TrustDir::new(self.agent_dir().join("pki"))
    }

    /// Addresses that this node last learned from the cluster.
    fn known_addresses(&self) -> ClusterAddresses {
        let dir = self.agent_dir();
        // A state directory that is none is reported when it is locked.
        if !dir.is_dir() {
            return ClusterAddresses::default();
        }
        let known = ClusterAddresses::file(&dir).read_or_warn("the addresses of the cluster");
        known.unwrap_or_default()
    }

    /// Identity under which this node has joined; `None` if it has not, or its certificate can't be read.
    fn identity(&self) -> Option<Identity> {
        self.pki().certificate().ok()?.identity().ok()
    }
}

/// Settings of `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub machine: MachineConfig,
    pub etcd: Access,
    /// Addresses given by flags.
    pub given: ClusterAddresses,
    /// Addresses learned from the cluster.
    pub known: ClusterAddresses,
    pub node: String,
    pub listen: SocketAddr,
    /// Names by which pages may address the gateway of functions.
    pub hosts: HostNames,
    pub functions_listen: SocketAddr,
    pub node_ip: Option<IpAddr>,
    pub vxlan: Vxlan,
    pub container_limits: ContainerLimits,
    /// File with the node's own restrictions on pods.
    pub pod_security: Option<PathBuf>,
    pub image_gc: Thresholds,
    /// Time to keep function images that no function needs.
    pub function_image_retention: SignedDuration,
    pub build_limits: BuildLimits,
    pub age_identity: PathBuf,
    pub dns: DnsSettings,
}

impl Config {
    /// Addresses to begin with.
    pub fn addresses(&self) -> ClusterAddresses {
        let etcd = ClusterAddresses { etcd: self.etcd.endpoints.clone(), ..ClusterAddresses::default() };
        etcd.or(&self.given).or(&self.known)
    }
}

/// Settings of `join`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinConfig {
    pub machine: MachineConfig,
    pub identity: Identity,
    pub age_identity: PathBuf,
    /// URLs of reconcilers.
    pub urls: Vec<String>,
    pub token: JoinToken,
}

/// A node that leaves the cluster for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeavingNode {
    /// URLs of reconcilers, any of which removes it.
    pub reconcilers: Vec<String>,
}

/// An invalid flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {why}")]
pub struct ConfigError {
    pub flag: &'static str,
    pub value: String,
    pub why: String,
}

fn wrong<T>(flag: &'static str, value: impl Into<String>, why: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { flag, value: value.into(), why: why.into() })
}

impl MachineArguments {
    /// Validates the flags.
    pub fn check(&self) -> Result<MachineConfig, ConfigError> {
        let instance = self.instance.clone();
        let starts_right = instance.starts_with(|c: char| c.is_ascii_lowercase());
        let consists_right = instance.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !starts_right || !consists_right || instance.len() > INSTANCE_MAX {
            let why = "give a lower-case letter and at most five letters or digits, for example mk8s";
            return wrong("--instance", instance, why);
        }
        let state_dir = std::path::absolute(&self.state_dir)
            .or_else(|error| wrong("--state-dir", self.state_dir.display().to_string(), error.to_string()))?;
        if state_dir.parent().is_none() {
            return wrong("--state-dir", "/", "give it a separate directory, for example /var/lib/minik8s");
        }
        let path = self.docker.strip_prefix("unix://").unwrap_or(&self.docker);
        if !path.starts_with('/') {
            let why = "only local sockets are supported, for example unix:///var/run/docker.sock";
            return wrong("--docker", &self.docker, why);
        }
        Ok(MachineConfig { state_dir, instance, docker: format!("unix://{path}") })
    }
}

impl EtcdLoginArguments {
    /// Returns the access to etcd, by the node's own certificate unless flags name another one.
    fn access(&self, endpoints: Vec<String>, own: &TrustDir) -> Access {
        let Self { etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key } = self.clone();
        let own = own.tls_files();
        let tls = match etcd_ca {
            None => own,
            Some(authorities) => TlsFiles {
                authorities,
                certificate: etcd_cert.unwrap_or(own.certificate),
                key: etcd_key.unwrap_or(own.key),
                is_own: false,
            },
        };
        Access::new(endpoints, etcd_user, etcd_password_file).with_tls(Some(tls))
    }
}

/// Returns the URLs without spaces around them, if etcd may be reached there.
fn etcd_urls(flag: &'static str, given: &[String]) -> Result<Vec<String>, ConfigError> {
    let why =
        "give URLs with https, for example https://10.0.0.1:7079; http is for etcd on this machine only";
    urls(flag, given, is_encrypted_or_local, why)
}

fn reconciler_urls(flag: &'static str, given: &[String]) -> Result<Vec<String>, ConfigError> {
    urls(flag, given, is_encrypted, "give URLs with https, for example https://10.0.0.1:7070")
}

fn urls(
    flag: &'static str,
    given: &[String],
    is_allowed: fn(&str) -> bool,
    why: &str,
) -> Result<Vec<String>, ConfigError> {
    let urls: Vec<String> = given.iter().map(|url| url.trim().to_owned()).collect();
    match urls.iter().find(|url| !is_allowed(url)) {
        Some(bad) => wrong(flag, bad, why),
        None => Ok(urls),
    }
}

impl RunArguments {
    /// Validates the flags.
    pub fn check(&self) -> Result<Config, ConfigError> {
        let given = ClusterAddresses {
            etcd: etcd_urls("--etcd", &self.etcd)?,
            reconcilers: reconciler_urls("--reconciler", &self.reconciler)?,
        };
        let machine = self.machine.check()?;
        let known = machine.known_addresses();
        let default = ClusterAddresses { etcd: vec![DEFAULT_ETCD.to_owned()], ..ClusterAddresses::default() };
        let etcd = given.or(&known).or(&default).etcd;
        Ok(Config {
            age_identity: self.age_identity(&machine),
            dns: self.dns.check()?,
            etcd: self.etcd_login.access(etcd, &machine.pki()),
            node: node_name(self.node.as_deref(), &machine)?,
            machine,
            given,
            known,
            listen: self.listen,
            hosts: self.hosts()?,
            functions_listen: self.functions_listen,
            node_ip: self.node_ip,
            vxlan: Vxlan { vni: self.vxlan_vni, port: self.vxlan_port },
            container_limits: self.container_limits()?,
            pod_security: self.pod_security.clone(),
            image_gc: self.thresholds()?,
            function_image_retention: SignedDuration::from_secs(self.function_image_keep_seconds.into()),
            build_limits: self.build_limits()?,
        })
    }
}

impl RunArguments {
    fn age_identity(&self, machine: &MachineConfig) -> PathBuf {
        let own = || machine.agent_dir().join(AGE_IDENTITY);
        self.age_identity.clone().unwrap_or_else(own)
    }
}

impl JoinArguments {
    /// Validates the flags, those for the run that follows included.
    pub fn check(&self) -> Result<JoinConfig, ConfigError> {
        let Config { machine, node, age_identity, .. } = self.run.check()?;
        let urls = reconciler_urls("URL", &self.urls)?;
        // Not shown, because it may hold a secret all the same.
        let wrong_token = |error: TokenError| wrong("--token", "***", error.to_string());
        let token: JoinToken = self.token.parse().or_else(wrong_token)?;
        let identity = identity_of(&node)?;
        Ok(JoinConfig { machine, identity, age_identity, urls, token })
    }
}

impl ResetArguments {
    /// Validates the flags; returns the instance to reset and the node that leaves, if any.
    pub fn check(&self) -> Result<(MachineConfig, Option<LeavingNode>), ConfigError> {
        let machine = self.machine.check()?;
        let reconcilers = reconciler_urls("--reconciler", &self.reconciler)?;
        let given = ClusterAddresses { reconcilers, ..ClusterAddresses::default() };
        let leaving =
            self.leave.then(|| LeavingNode { reconcilers: given.or(&machine.known_addresses()).reconcilers });
        Ok((machine, leaving))
    }
}

/// Longest zone name: the names of services, ports and hosts are prepended to it.
const DOMAIN_MAX: usize = 100;

fn domain(given: &str) -> Result<Name, ConfigError> {
    let text = given.trim_end_matches('.').to_ascii_lowercase();
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let right = |label: &str| !label.is_empty() && label.len() <= 63 && label.chars().all(allowed);
    match Name::from_ascii(format!("{text}.")) {
        Ok(name) if text.len() <= DOMAIN_MAX && text.split('.').all(right) => Ok(name),
        _ => {
            let why = "give a DNS name of at most 100 characters, for example cluster.local";
            wrong("--cluster-domain", given, why)
        }
    }
}

impl DnsArguments {
    fn check(&self) -> Result<DnsSettings, ConfigError> {
        let domain = self.cluster_domain.as_deref().map(domain).transpose()?;
        let mut upstream: Vec<SocketAddr> = Vec::new();
        for text in self.dns_upstream.iter().map(|text| text.trim()) {
            let port = |address: IpAddr| SocketAddr::new(address, resolv::PORT);
            let Some(address) = text.parse().ok().or_else(|| text.parse().ok().map(port)) else {
                let why = "give addresses, for example 192.0.2.53 or 192.0.2.53:5353";
                return wrong("--dns-upstream", text, why);
            };
            if !upstream.contains(&address) {
                upstream.push(address);
            }
        }
        let resolv_conf = std::path::absolute(&self.resolv_conf).or_else(|error| {
            wrong("--resolv-conf", self.resolv_conf.display().to_string(), error.to_string())
        })?;
        Ok(DnsSettings { domain, upstream, node_dns: self.node_dns, resolv_conf })
    }
}

/// Smallest log file. A line of Docker's log may take 16 KiB; a file that can't hold one would be no log.
const LOG_MIN_BYTES: u64 = 64 << 10;

/// Minimum and maximum memory of a build step: Docker's parameter has 32 bits.
const BUILD_MEMORY: (u64, u64) = (16 << 20, i32::MAX as u64);

impl RunArguments {
    fn hosts(&self) -> Result<HostNames, ConfigError> {
        match self.allow_host.iter().find(|name| !is_host_name(name)) {
            Some(bad) => {
                wrong("--allow-host", bad, "give a name without scheme and port, for example node1.lan")
            }
            None => Ok(HostNames::new(self.allow_host.clone())),
        }
    }

    fn container_limits(&self) -> Result<ContainerLimits, ConfigError> {
        let (size, files) = (&self.container_log_max_size, self.container_log_max_files);
        let max_bytes = match size.parse::<Memory>() {
            Ok(size) if size.bytes >= LOG_MIN_BYTES => size.bytes,
            Ok(_) => return wrong("--container-log-max-size", size, "give 64Ki or more, for example 10Mi"),
            Err(error) => return wrong("--container-log-max-size", size, error.to_string()),
        };
        if files < 2 {
            let why = "give 2 or more, as in Kubernetes: with one, each rotation would lose the whole log";
            return wrong("--container-log-max-files", files.to_string(), why);
        }
        let pids = match self.pod_pids_limit {
            -1 => 0,
            pids if pids > 0 => pids,
            other => {
                let why = "give the maximum number of processes and threads, or -1 for no limit";
                return wrong("--pod-pids-limit", other.to_string(), why);
            }
        };
        Ok(ContainerLimits { pids, log: LogLimits { max_bytes, max_files: files } })
    }

    fn build_limits(&self) -> Result<BuildLimits, ConfigError> {
        let bytes = |flag, given: &String, (least, most): (u64, u64), why| match given.parse::<Memory>() {
            Ok(given) if (least..=most).contains(&given.bytes) => Ok(given.bytes),
            Ok(_) => wrong(flag, given, why),
            Err(error) => wrong(flag, given, error.to_string()),
        };
        let memory = "give at least 16Mi and less than 2Gi, the limit of Docker's builder";
        let disk = "give 1Mi or more, for example 8Gi";
        Ok(BuildLimits {
            time: Duration::from_secs(self.build_timeout_seconds.into()),
            memory_bytes: bytes("--build-memory", &self.build_memory, BUILD_MEMORY, memory)?,
            disk_bytes: bytes("--build-disk", &self.build_disk, (1 << 20, u64::MAX), disk)?,
        })
    }

    fn thresholds(&self) -> Result<Thresholds, ConfigError> {
        let (high_percent, low_percent) = (self.image_gc_high, self.image_gc_low);
        if !(1..=100).contains(&high_percent) {
            let why = "give a percentage from 1 to 100; 100 disables the removal of images";
            return wrong("--image-gc-high", high_percent.to_string(), why);
        }
        if low_percent >= high_percent {
            let why = format!("give less than --image-gc-high, which is {high_percent}");
            return wrong("--image-gc-low", low_percent.to_string(), why);
        }
        Ok(Thresholds { high_percent, low_percent })
    }
}

/// Returns the name of the node: the given one, else that under which it joined, else the host's.
fn node_name(given: Option<&str>, machine: &MachineConfig) -> Result<String, ConfigError> {
    let joined = || Some(machine.identity()?.node()?.to_owned());
    let name = match given.map(str::to_owned).or_else(joined) {
        Some(name) => name,
        // Hostnames may contain capitals; node names are lower-case.
        None => match nix::unistd::gethostname() {
            Ok(name) => name.to_string_lossy().to_ascii_lowercase(),
            Err(error) => {
                return wrong("--node", "", format!("the host's name can't be read ({error}); give one"));
            }
        },
    };
    identity_of(&name).map(|_| name)
}

/// Returns the identity of a node, whose name must fit into a certificate.
fn identity_of(node: &str) -> Result<Identity, ConfigError> {
    Identity::new(Role::Node, node).or_else(|_| {
        let why =
            format!("give at most {NAME_MAX} lower-case letters, digits, `-` and `.`, for example node1");
        wrong("--node", node, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser as _;
    use schema::kinds::cluster::ClusterDns;
    use schema::testing::{authority, enroll};

    fn check(flags: &[&str]) -> Result<Config, String> {
        let words = ["minik8s-agent", "run"].iter().chain(flags);
        let arguments = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Run(run) = arguments.command else { panic!("run was given") };
        run.check().map_err(|error| error.to_string())
    }

    #[test]
    fn the_contracts_flags_are_understood() {
        let flags = "--etcd https://a:1,https://b:2 --node n1 --state-dir /tmp/x --instance ab1 --docker /run/d.sock \
                     --listen 127.0.0.1:9 --node-ip 192.0.2.1";
        let config = check(&flags.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!(config.etcd.endpoints, ["https://a:1", "https://b:2"]);
        assert_eq!((config.node.as_str(), config.machine.instance.as_str()), ("n1", "ab1"));
        assert_eq!(config.machine.docker, "unix:///run/d.sock");
        assert_eq!(config.machine.agent_dir(), PathBuf::from("/tmp/x/agent"));
        assert_eq!(config.image_gc, Thresholds { high_percent: 85, low_percent: 80 });
    }

    #[test]
    fn container_limits_are_the_kubelets_unless_given() {
        let limits = check(&[]).unwrap().container_limits;
        assert_eq!((limits.pids, limits.log.max_bytes, limits.log.max_files), (4096, 10 << 20, 5));
        let flags = "--pod-pids-limit -1 --container-log-max-size 1Mi --container-log-max-files 2";
        let limits = check(&flags.split_whitespace().collect::<Vec<_>>()).unwrap().container_limits;
        assert_eq!((limits.pids, limits.log.max_bytes, limits.log.max_files), (0, 1 << 20, 2));
    }

    #[test]
    fn zone_and_upstreams_are_the_flags_then_the_clusters() {
        let mini = ClusterDns { zone: "mini.lan".to_owned(), upstreams: vec!["192.0.2.9".to_owned()] };
        let dns = check(&[]).unwrap().dns;
        assert_eq!(
            (dns.domain_text(&mini).as_str(), dns.upstream(&mini), dns.node_dns),
            ("mini.lan", vec!["192.0.2.9:53".parse().unwrap()], false)
        );
        assert_eq!(dns.domain_text(&ClusterDns::default()), "cluster.local");
        let flags = "--cluster-domain K8S.Example. --dns-upstream 192.0.2.1,[2001:db8::1]:5353,192.0.2.1:53 --node-dns";
        let dns = check(&flags.split_whitespace().collect::<Vec<_>>()).unwrap().dns;
        let upstream: Vec<String> = dns.upstream(&mini).iter().map(ToString::to_string).collect();
        assert_eq!((dns.domain_text(&mini).as_str(), dns.node_dns), ("k8s.example", true));
        assert_eq!(upstream, ["192.0.2.1:53", "[2001:db8::1]:5353"]);
    }

    #[test]
    fn wrong_flags_say_what_to_give() {
        for (flags, part) in [
            (["--instance", "Mk"], "lower-case letter"),
            (["--instance", "toolong"], "lower-case letter"),
            (["--instance", "1a"], "lower-case letter"),
            (["--node", "a/b"], "lower-case letters"),
            (["--node", "a-"], "lower-case letters"),
            (["--node", "a123456789b123456789c123456789d123456789e123456789f123"], "at most 53"),
            (["--etcd", "127.0.0.1:1"], "give URLs"),
            (["--etcd", "http://10.0.0.1:1"], "http is for etcd on this machine only"),
            (["--reconciler", "127.0.0.1:1"], "give URLs"),
            (["--reconciler", "http://127.0.0.1:1"], "give URLs with https"),
            (["--allow-host", "node1.lan:7071"], "without scheme and port"),
            (["--docker", "tcp://1.2.3.4:1"], "only local sockets"),
            (["--state-dir", "/"], "separate directory"),
            (["--pod-pids-limit", "0"], "-1 for no limit"),
            (["--container-log-max-size", "ten"], "not a quantity"),
            (["--container-log-max-size", "1Ki"], "64Ki or more"),
            (["--container-log-max-files", "1"], "2 or more"),
            (["--image-gc-high", "0"], "from 1 to 100"),
            (["--image-gc-high", "101"], "from 1 to 100"),
            (["--cluster-domain", "a..b"], "for example cluster.local"),
            (["--cluster-domain", "a_b"], "for example cluster.local"),
            (["--dns-upstream", "192.0.2.1:x"], "192.0.2.53:5353"),
            (["--build-memory", "2Gi"], "less than 2Gi"),
            (["--build-disk", "much"], "not a quantity"),
            (["--image-gc-low", "85"], "less than --image-gc-high, which is 85"),
        ] {
            let error = check(&flags).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{flags:?}: {error}");
        }
    }

    fn join(flags: &[&str]) -> Result<JoinConfig, String> {
        let words = ["minik8s-agent", "join"].iter().chain(flags);
        let arguments = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Join(join) = arguments.command else { panic!("join was given") };
        join.check().map_err(|error| error.to_string())
    }

    #[test]
    fn a_join_takes_the_printed_command_and_the_flags_of_run() {
        let token = JoinToken::create(&"ab".repeat(32)).unwrap();
        let text = token.to_string();
        let flags = ["https://r1:7070,https://r2:7070", "--token", &text, "--node", "n1", "--node-dns"];
        let config = join(&flags).unwrap();
        assert_eq!(config.urls, ["https://r1:7070", "https://r2:7070"]);
        assert_eq!((config.identity.to_string().as_str(), config.token), ("node-n1", token));
        for (flags, part) in [
            (["http://127.0.0.1:7070", "--token", &text], "give URLs with https"),
            (["https://r1:7070", "--token", "secret"], "ID.SECRET.PIN"),
        ] {
            let error = join(&flags).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_joining_wrote_stands_in_for_flags() {
        let dir = tempfile::tempdir().unwrap();
        let machine = MachineArguments {
            state_dir: dir.path().to_owned(),
            instance: "mk8s".to_owned(),
            docker: crate::args::DEFAULT_DOCKER.to_owned(),
        };
        let machine = machine.check().unwrap();
        let validity = (jiff::Timestamp::now(), SignedDuration::from_hours(1));
        enroll(&machine.pki(), &authority(), "node-n7", validity);
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        let known = ClusterAddresses { etcd: urls(&["https://e:1"]), reconcilers: urls(&["https://r:1"]) };
        ClusterAddresses::file(&machine.agent_dir()).write(&known).unwrap();

        let state_dir = dir.path().to_str().unwrap();
        let config = check(&["--state-dir", state_dir]).unwrap();
        assert_eq!((config.node.as_str(), config.addresses()), ("n7", known));
        assert_eq!(config.etcd.tls, Some(machine.pki().tls_files()));
        let config = check(&["--state-dir", state_dir, "--etcd", "http://127.0.0.1:1"]).unwrap();
        let wanted =
            ClusterAddresses { etcd: urls(&["http://127.0.0.1:1"]), reconcilers: urls(&["https://r:1"]) };
        assert_eq!(config.addresses(), wanted);
        let files = ["--etcd-ca", "a", "--etcd-cert", "c", "--etcd-key", "k"];
        let tls = check(&files).unwrap().etcd.tls.unwrap();
        assert!(!tls.is_own && tls.key == std::path::Path::new("k"));
        let tls = check(&["--state-dir", state_dir, "--etcd-ca", "a"]).unwrap().etcd.tls.unwrap();
        let own = TlsFiles { authorities: "a".into(), is_own: false, ..machine.pki().tls_files() };
        assert_eq!(tls, own);
        assert!(check(&["--etcd-cert", "c", "--etcd-key", "k"]).is_err(), "without an authority");
        assert!(check(&["--etcd-ca", "a", "--etcd-key", "k"]).is_err(), "without a certificate");

        let reset = |flags: &[&str]| {
            let words = ["minik8s-agent", "reset", "--state-dir", state_dir];
            let arguments = Arguments::try_parse_from(words.iter().chain(flags)).unwrap();
            let Command::Reset(reset) = arguments.command else { panic!("reset was given") };
            reset.check().map(|(_, leaving)| leaving.map(|leaving| leaving.reconcilers))
        };
        assert_eq!(reset(&[]), Ok(None));
        assert_eq!(reset(&["--leave"]), Ok(Some(urls(&["https://r:1"]))));
        let other = ["--leave", "--reconciler", "https://r:2"];
        assert_eq!(reset(&other), Ok(Some(urls(&["https://r:2"]))));
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }
}
