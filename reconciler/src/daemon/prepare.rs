//! Preconditions for starting `minik8s serve`, least effect first. Each failure is one line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use schema::control::spare_from_oom_killer;
use schema::store::election::CandidateInfo;
use schema::store::etcd::{Access, LazyStore};
use schema::store::{SharedStore, StoreError};
use tokio::net::TcpListener;

use crate::config::ServeConfig;
use crate::git::{SourceConfig, identity_file};
use crate::metrics::METRICS;
use crate::state_dir::StateDirLock;
use crate::{crypt, git, gitops, outgoing, state_dir, webhooks};

/// Longest wait for etcd at startup: it is often started at the same time.
const ETCD_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct StartupResources {
    pub(super) listener: TcpListener,
    /// The listener for webhooks, and the file with their secret.
    pub(super) hooks: Option<(TcpListener, PathBuf)>,
    pub(super) store: SharedStore,
    pub(super) state_dir: StateDirLock,
}

/// Checks the preconditions. If the state directory was in use before, an unreachable etcd is not a user error.
pub(super) async fn prepare(config: &ServeConfig) -> anyhow::Result<StartupResources> {
    let listener = listen("--listen", config.listen).await?;
    let hooks = match &config.webhooks {
        None => None,
        Some(hooks) => {
            webhooks::read_secrets(&hooks.secret_file)?;
            Some((listen("--webhook-listen", hooks.listen).await?, hooks.secret_file.clone()))
        }
    };
    let store = open_store(&config.etcd, StateDirLock::was_taken(&config.own_dir())).await?;
    check_state_dir(&config.own_dir())?;
    check_sources(config).await?;
    let state_dir = StateDirLock::take(&config.own_dir())?;
    spare_from_oom_killer();
    state_dir::close(&config.state_dir, &["reconciler"]);
    load_identity(config)?;
    Ok(StartupResources { listener, hooks, store, state_dir })
}

/// Creates or checks this reconciler's age identity. Only sealed credentials of a source are worth not starting without
/// it.
fn load_identity(config: &ServeConfig) -> anyhow::Result<()> {
    let what = "This reconciler's age identity: it decrypts credentials of sources and of notifications.";
    match crypt::ensure_identity(&identity_file(&config.state_dir), what) {
        Ok(recipient) => {
            tracing::info!(%recipient, "age identity loaded; it decrypts credentials of sources and of notifications");
        }
        Err(error) if config.sources.iter().all(|source| source.credentials.sealed.is_none()) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "no age identity; secrets of notifications cannot be decrypted");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Reports mistakes in flags early. One of several repositories may be unreachable: its status shows that.
async fn check_sources(config: &ServeConfig) -> anyhow::Result<()> {
    for source in &config.sources {
        let checked = match config.sources.len() {
            1 => gitops::preflight(source, &config.state_dir).await,
            _ => source.check().and_then(|()| git::check_keys(source)),
        };
        checked.with_context(|| format!("source {}", source.name))?;
    }
    Ok(())
}

pub(super) fn described(source: &SourceConfig) -> String {
    format!("{}: {} {}", source.name, source.shown_url(), source.reference)
}

async fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => bail!(
            "cannot listen on {address}: {}; stop what listens there, or give {flag} another address",
            text_of(&error)
        ),
    }
}

/// Opens etcd. A first start reports a wrong `--etcd` immediately; later ones wait, because etcd may take long to
/// come back.
async fn open_store(access: &Access, has_served: bool) -> anyhow::Result<SharedStore> {
    let store = LazyStore::new(access.clone());
    match store.connect(ETCD_PATIENCE).await {
        Ok(()) => {}
        Err(error @ StoreError::Connect { .. }) if has_served => {
            tracing::warn!(%error, "etcd not reached; this reconciler continues as soon as it answers");
        }
        Err(error @ StoreError::Connect { .. }) => {
            bail!("{error}; start etcd there, or give --etcd its address")
        }
        Err(error) => bail!("{error}; see etcd's log"),
    }
    Ok(METRICS.store.metered(Arc::new(store)))
}

fn check_state_dir(dir: &Path) -> anyhow::Result<()> {
    let checked = std::fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
    match checked {
        Ok(_) => Ok(()),
        Err(error) => bail!(
            "cannot write to the state directory {}: {}; give --state-dir a directory that this user may write",
            dir.display(),
            text_of(&error)
        ),
    }
}

/// Text of a system error without the path that `tempfile` and others add.
fn text_of(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_lowercase(),
        None => error.kind().to_string(),
    }
}

// Finds the address at which agents reach this reconciler's API. Queries the kernel's routes, and sends nothing.

/// Port of etcd for a URL without one. Any would do: only the route matters.
const ETCD_PORT: u16 = 2379;
/// Remote addresses: reserved for documentation, so the route to them is the default route.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The candidate for election, with the address at which agents reach it.
pub(super) fn standing(config: &ServeConfig) -> CandidateInfo {
    let api = config.advertise.clone().or_else(|| {
        let own = reachable_address(config.listen, &config.etcd.endpoints, source_address_to)?;
        Some(outgoing::url(SocketAddr::new(own, config.listen.port()), ""))
    });
    match &api {
        Some(api) => tracing::info!(api, "API address for agents determined"),
        None => tracing::warn!(
            listen = %config.listen,
            "no API address known that agents can reach: they get no files and secrets while this reconciler leads; \
             give --advertise"
        ),
    }
    CandidateInfo { id: config.name.clone(), api }
}

/// The address that other nodes can use. `way` returns this machine's own address on the route to another.
fn reachable_address(
    listen: SocketAddr,
    etcd: &[String],
    way: impl Fn(SocketAddr) -> Option<IpAddr>,
) -> Option<IpAddr> {
    let ways = || etcd.iter().filter_map(|url| etcd_at(url)).flat_map(resolved).filter_map(&way);
    let is_reached = |own: &IpAddr| listen.is_ipv6() || own.is_ipv4();
    if !listen.ip().is_unspecified() {
        // Agents may be on other machines if they share an etcd on another machine.
        let is_own = !listen.ip().is_loopback() || ways().all(|own| own.is_loopback());
        return is_own.then(|| listen.ip());
    }
    let (near, far): (Vec<IpAddr>, Vec<IpAddr>) = ways().filter(is_reached).partition(IpAddr::is_loopback);
    let default_route = || FAR_AWAY.iter().filter_map(|there| way(SocketAddr::new(*there, ETCD_PORT)));
    // An etcd on this machine tells nothing about the route of others.
    far.into_iter()
        .next()
        .or_else(|| default_route().find(|own| is_reached(own) && !own.is_loopback()))
        .or_else(|| near.into_iter().next())
}

fn etcd_at(url: &str) -> Option<(String, u16)> {
    let (host, port) = git::host_and_port(url);
    let port = port.map_or(Some(ETCD_PORT), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn resolved((host, port): (String, u16)) -> Vec<SocketAddr> {
    (host.as_str(), port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// This machine's own address on the route to `there`.
fn source_address_to(there: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::ServeArgs;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// Error with which the daemon refuses to start with these flags.
    async fn refused(flags: &[&str]) -> String {
        let always = ["minik8s", "--repo", "/nowhere/cluster.git", "--log-level", "error"];
        let cli = Cli::parse_from(always.iter().chain(flags));
        let config = ServeConfig::try_from(cli.serve).unwrap();
        let error = Box::pin(prepare(&config)).await.err().expect("it does not start");
        let line = format!("{error:#}");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    fn free_port() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_one_line_and_comes_before_anything_else() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let line = refused(&["--listen", &address, "--state-dir", "/proc/nowhere"]).await;
        assert_eq!(
            line,
            format!(
                "cannot listen on {address}: address already in use; \
                 stop what listens there, or give --listen another address"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_etcd_that_is_dead_is_one_line_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let etcd = format!("http://{}", free_port());
        let line =
            refused(&["--listen", "127.0.0.1:0", "--etcd", &etcd, "--state-dir", state.to_str().unwrap()])
                .await;
        assert!(line.starts_with(&format!("cannot connect to etcd at {etcd}: ")), "{line}");
        assert!(line.ends_with("; start etcd there, or give --etcd its address"), "{line}");
        assert!(!state.exists());
    }

    #[test]
    fn a_damaged_identity_keeps_only_clusters_with_sealed_sources_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let flags =
            ["minik8s", "--repo", "/nowhere/cluster.git", "--state-dir", dir.path().to_str().unwrap()];
        let mut config = ServeConfig::try_from(Cli::parse_from(flags).serve).unwrap();
        let file = identity_file(dir.path());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "damaged\n").unwrap();
        assert!(load_identity(&config).is_ok());
        let home = Box::new(config.sources[0].clone());
        let sealed = git::SealedCredentials { home, mirror: dir.path().to_owned(), identity: file };
        config.sources[0].credentials.sealed = Some(sealed);
        assert!(load_identity(&config).is_err());
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_one_line() {
        let line = check_state_dir(Path::new("/proc/nowhere/reconciler")).unwrap_err().to_string();
        assert_eq!(
            line,
            "cannot write to the state directory /proc/nowhere/reconciler: no such file or directory; \
             give --state-dir a directory that this user may write"
        );
    }
}

#[cfg(test)]
mod advertise_tests {
    use super::*;

    /// Routes of a machine at 10.0.0.5 and fd00::5 in its own networks, with a default route unless it is alone.
    fn way(alone: bool) -> impl Fn(SocketAddr) -> Option<IpAddr> {
        move |there| match there.ip() {
            ip if ip.is_loopback() => Some(ip),
            IpAddr::V4(ip) if ip.octets()[0] == 10 || !alone => Some("10.0.0.5".parse().unwrap()),
            IpAddr::V6(ip) if ip.segments()[0] == 0xfd00 => Some("fd00::5".parse().unwrap()),
            _ => None,
        }
    }

    #[test]
    fn what_others_cannot_use_is_not_published() {
        for (listen, etcd, alone, expected) in [
            ("0.0.0.0:7070", "http://127.0.0.1:2379", false, Some("10.0.0.5")),
            ("[::]:7070", "http://[::1]:2379", false, Some("10.0.0.5")),
            ("0.0.0.0:7070", "http://127.0.0.1:2379", true, Some("127.0.0.1")),
            ("0.0.0.0:7070", "http://10.0.0.9", true, Some("10.0.0.5")),
            ("0.0.0.0:7070", "http://192.0.2.7:2379,https://10.0.0.9:2379/", true, Some("10.0.0.5")),
            ("[::]:7070", "http://[fd00::9]:2379", true, Some("fd00::5")),
            ("0.0.0.0:7070", "http://[fd00::9]:2379", true, None),
            ("127.0.0.1:7070", "http://127.0.0.1:2379", false, Some("127.0.0.1")),
            ("127.0.0.1:7070", "http://10.0.0.9:2379", false, None),
            ("10.0.0.5:7070", "http://127.0.0.1:2379", false, Some("10.0.0.5")),
        ] {
            let etcd: Vec<String> = etcd.split(',').map(str::to_owned).collect();
            let found = reachable_address(listen.parse().unwrap(), &etcd, way(alone));
            assert_eq!(found, expected.map(|ip| ip.parse().unwrap()), "{listen} {etcd:?} alone: {alone}");
        }
    }

    #[test]
    fn a_url_has_a_host_with_or_without_port() {
        for (url, host, port) in [
            ("http://etcd.lan:2379", "etcd.lan", 2379),
            ("https://[fd00::9]", "fd00::9", 2379),
            ("https://[fd00::9]:99/x", "fd00::9", 99),
            ("http://user:pw@10.0.0.9:1", "10.0.0.9", 1),
        ] {
            assert_eq!(etcd_at(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(etcd_at("http://"), None);
    }
}
