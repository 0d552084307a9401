//! Preconditions for starting `minik8s serve`, least effect first. Each failure is one line.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use nix::unistd::{Gid, Group, chown};
use schema::control::spare_from_oom_killer;
use schema::store::StoreError;
use schema::store::election::CandidateInfo;
use schema::store::etcd::{Access, LazyStore};
use schema::trust::TrustReader;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::trust::InitialTrust;
use crate::config::{DEFAULT_SOCKET, ServeConfig};
use crate::git::{SourceConfig, identity_file};
use crate::listener::{Listening, LocalSocket, PublicCertificate};
use crate::state_dir::StateDirLock;
use crate::trust::{self, OwnTrust, RemovedError, TrustSettings};
use crate::webhooks::WebhookTls;
use crate::{crypt, git, gitops, state_dir, webhooks};

/// Longest wait for etcd at startup: it is often started at the same time.
const ETCD_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct StartupResources {
    /// Listeners of the API: for certified callers, and for users of this machine.
    pub(super) api: [Listening; 2],
    /// The listener for webhooks, and the file with their secret.
    pub(super) hooks: Option<(Listening, PathBuf)>,
    pub(super) etcd: Arc<LazyStore>,
    pub(super) state_dir: StateDirLock,
    pub(super) trust: InitialTrust,
    /// The candidate for election.
    pub(super) candidate: CandidateInfo,
}

/// Checks the preconditions. If the state directory was in use before, an unreachable etcd is not a user error.
pub(super) async fn prepare(config: &ServeConfig) -> anyhow::Result<StartupResources> {
    let listener = listen("--listen", config.listen).await?;
    let hooks = match &config.webhooks {
        None => None,
        Some(hooks) => {
            webhooks::read_secrets(&hooks.secret_file)?;
            Some((listen("--webhook-listen", hooks.listen).await?, hooks))
        }
    };
    let has_served = identity_file(&config.state_dir).exists();
    // Before anything is written: a first start may name a wrong etcd or a wrong repository.
    if !has_served {
        reach_etcd(&config.etcd.endpoints).await?;
    }
    check_state_dir(&config.own_dir())?;
    check_sources(config).await?;
    let state_dir = StateDirLock::take(&config.own_dir())?;
    state_dir::close(&config.state_dir, &["reconciler"]);
    let candidate = standing(config);
    // Before etcd, which may know this reconciler by its certificate.
    let settings = trust_settings(config, candidate.api.as_deref());
    let own = open_trust(config, &settings)?;
    let reader = own.keeper.reader();
    let hooks = match hooks {
        None => None,
        Some((listener, hooks)) => {
            Some((with_tls(listener, hooks.tls.as_ref(), &reader)?, hooks.secret_file.clone()))
        }
    };
    let access = Access { prefers_first: config.owns_etcd, ..config.etcd.clone() };
    let etcd = open_store(access, has_served).await?;
    spare_from_oom_killer();
    let recipient = load_identity(config)?;
    log_address(config, candidate.api.as_deref());
    let trust = InitialTrust { own, settings, api: candidate.api.clone(), recipient };
    let api = [Listening::Tcp(listener, Some(reader)), Listening::Unix(open_socket(config).await?)];
    Ok(StartupResources { api, hooks, etcd, state_dir, trust, candidate })
}

fn trust_settings(config: &ServeConfig, api: Option<&str>) -> TrustSettings {
    TrustSettings {
        name: config.name.clone(),
        addresses: trust::server_addresses(config.listen.ip(), api.map(|url| git::host_and_port(url).0)),
        authority_days: config.authority_days,
        certificate_lifetime: config.certificate_lifetime,
    }
}

/// Opens the own certificates, creates the authority at the first start, and renews the certificate of an own etcd.
fn open_trust(config: &ServeConfig, settings: &TrustSettings) -> anyhow::Result<OwnTrust> {
    // `up` gives its private etcd certificates by itself.
    if !config.owns_etcd {
        trust::check_upgraded(&config.state_dir)?;
    }
    let now = Timestamp::now();
    let opened = trust::open(&config.state_dir, settings, now).and_then(|own| {
        // After a week off, nobody could read etcd to renew it later.
        if config.owns_etcd {
            trust::renew_etcd(&config.state_dir, settings.certificate_lifetime, now)?;
        }
        Ok(own)
    });
    let help = "see docs/operations.md";
    let failed = |error| anyhow!("cannot use this reconciler's certificates: {error}; {help}");
    let own = opened.map_err(failed)?;
    if own.is_removed().map_err(failed)? {
        return Err(RemovedError.into());
    }
    Ok(own)
}

/// Adds the certificate of `--webhook-tls` to the listener for webhooks.
fn with_tls(listener: TcpListener, tls: Option<&WebhookTls>, own: &TrustReader) -> anyhow::Result<Listening> {
    Ok(match tls {
        None => Listening::Tcp(listener, None),
        Some(WebhookTls::Cluster) => Listening::Tcp(listener, Some(own.clone())),
        Some(WebhookTls::File(file)) => {
            let certificate = PublicCertificate::new(file.clone());
            certificate.context().map_err(|error| {
                anyhow!(
                    "cannot use the certificate in {}: {error}; give --webhook-tls a PEM file with a certificate, \
                     those between it and its authority, and its key",
                    file.display()
                )
            })?;
            Listening::Public(listener, certificate)
        }
    })
}

/// Creates or checks this reconciler's age identity; returns its recipient. Only sealed credentials of a source are worth
/// not starting without it.
fn load_identity(config: &ServeConfig) -> anyhow::Result<Option<String>> {
    let what = "This reconciler's age identity: it decrypts credentials of sources and of notifications.";
    match crypt::ensure_identity(&identity_file(&config.state_dir), what) {
        Ok(recipient) => {
            tracing::info!(%recipient, "age identity loaded; it decrypts credentials of sources and of notifications");
            Ok(Some(recipient))
        }
        Err(error) if config.sources.iter().all(|source| source.credentials.sealed.is_none()) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "no age identity; secrets of notifications cannot be decrypted");
            Ok(None)
        }
        Err(error) => Err(error),
    }
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

/// Pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest time to connect to a member of etcd, without a word to it.
const REACH_MAX: Duration = Duration::from_secs(2);

/// Checks that something listens at an address of etcd.
async fn reach_etcd(endpoints: &[String]) -> anyhow::Result<()> {
    let deadline = Instant::now() + ETCD_PATIENCE;
    loop {
        let mut why = String::new();
        for (host, port) in endpoints.iter().filter_map(|url| etcd_at(url)) {
            match timeout(REACH_MAX, TcpStream::connect((host.as_str(), port))).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => why = format!("no answer within {REACH_MAX:?}"),
            }
        }
        if Instant::now() > deadline {
            let all = endpoints.join(",");
            bail!("cannot connect to etcd at {all}: {why}; start etcd there, or give --etcd its address")
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Opens etcd. A first start reports a wrong `--etcd` immediately; later ones wait, because etcd may take long to
/// come back.
async fn open_store(access: Access, has_served: bool) -> anyhow::Result<Arc<LazyStore>> {
    let store = LazyStore::new(access);
    let deadline = Instant::now() + ETCD_PATIENCE;
    let mut connected = store.connect(ETCD_PATIENCE).await;
    // The leader may be making the user of this reconciler.
    while matches!(connected, Err(StoreError::Denied { .. })) && Instant::now() < deadline {
        sleep(RETRY_PAUSE).await;
        connected = store.connect(ETCD_PATIENCE).await;
    }
    match connected {
        Ok(()) => {}
        Err(error @ StoreError::Denied { .. }) if has_served => {
            tracing::warn!(%error, "etcd does not know this reconciler; it continues once the leader has made its user");
        }
        Err(error @ StoreError::Denied { .. }) => bail!(
            "{error}: etcd does not know this reconciler; let it join ('minik8s token create --reconciler NAME' on another \
             one), or make its user with what 'minik8s trust etcd-users' prints"
        ),
        Err(error @ StoreError::Connect { .. }) if has_served => {
            tracing::warn!(%error, "etcd not reached; this reconciler continues as soon as it answers");
        }
        Err(error @ StoreError::Connect { .. }) => {
            bail!("{error}; start etcd there, or give --etcd its address")
        }
        Err(error) => bail!("{error}; see etcd's log"),
    }
    Ok(Arc::new(store))
}

// The socket of the API, for users of this machine.

/// Group whose members may use the socket.
const SOCKET_GROUP: &str = "minik8s";
const SOCKET_MODE: u32 = 0o660;

async fn open_socket(config: &ServeConfig) -> anyhow::Result<LocalSocket> {
    if let Some(path) = &config.socket {
        return bind_socket(path).await;
    }
    let first = bind_socket(Path::new(DEFAULT_SOCKET)).await;
    match first {
        Ok(socket) => Ok(socket),
        Err(error) => {
            let own = config.own_dir().join("api.sock");
            tracing::info!(%error, socket = %own.display(), "the API's socket is in the state directory");
            bind_socket(&own).await
        }
    }
}

/// Binds a socket, in place of one whose process is dead.
async fn bind_socket(path: &Path) -> anyhow::Result<LocalSocket> {
    let failed = |error: io::Error| {
        let why = text_of(&error);
        anyhow!("cannot listen on the socket {}: {why}; give --socket another path", path.display())
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!("{} is no socket; give --socket another path", path.display());
        }
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            _ => bail!(
                "another reconciler listens on the socket {}; stop it, or give --socket another path",
                path.display()
            ),
        }
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let group = give_to_group(path);
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    Ok(LocalSocket::new(listener, path.to_owned(), group))
}

/// Gives the socket to its group; `None` if there is no such group, or this user may not.
fn give_to_group(path: &Path) -> Option<Gid> {
    let group = Group::from_name(SOCKET_GROUP).ok().flatten()?.gid;
    match chown(path, None, Some(group)) {
        Ok(()) => Some(group),
        Err(error) => {
            tracing::warn!(%error, socket = %path.display(), "the group {SOCKET_GROUP} cannot use the API's socket");
            None
        }
    }
}

fn check_state_dir(dir: &Path) -> anyhow::Result<()> {
    let checked = fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
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
fn text_of(error: &io::Error) -> String {
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
fn standing(config: &ServeConfig) -> CandidateInfo {
    let api = config.advertise.clone().or_else(|| {
        let own = reachable_address(config.listen, &config.etcd.endpoints, source_address_to)?;
        Some(format!("https://{}", SocketAddr::new(own, config.listen.port())))
    });
    CandidateInfo { id: config.name.clone(), api }
}

fn log_address(config: &ServeConfig, api: Option<&str>) {
    match api {
        Some(api) => tracing::info!(api, "API address for agents determined"),
        None => tracing::warn!(
            listen = %config.listen,
            "no API address known that agents can reach: they get no files and secrets while this reconciler leads; \
             give --advertise"
        ),
    }
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

    /// A first start makes the certificates, and still does not count as a start that succeeded.
    #[tokio::test(start_paused = true)]
    async fn an_etcd_that_is_dead_is_one_line_until_a_start_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let etcd = format!("http://{}", free_port());
        for _ in 0..2 {
            let flags = ["--listen", "127.0.0.1:0", "--etcd", &etcd, "--state-dir", state.to_str().unwrap()];
            let line = refused(&flags).await;
            assert!(line.starts_with(&format!("cannot connect to etcd at {etcd}: ")), "{line}");
            assert!(line.ends_with("; start etcd there, or give --etcd its address"), "{line}");
        }
    }

    #[tokio::test]
    async fn the_socket_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("api.sock");
        let first = bind_socket(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        let error = bind_socket(&path).await.err().unwrap().to_string();
        assert!(error.starts_with("another reconciler listens on the socket "), "{error}");
        drop(first);
        assert!(!path.exists());
        // The listener of a process that was killed leaves its file behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists() && bind_socket(&path).await.is_ok());
        fs::write(&path, "a file").unwrap();
        let error = bind_socket(&path).await.err().unwrap().to_string();
        assert!(error.contains(" is no socket; "), "{error}");
        assert!(fs::read(&path).is_ok());
    }

    #[test]
    fn a_damaged_identity_keeps_only_clusters_with_sealed_sources_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let flags =
            ["minik8s", "--repo", "/nowhere/cluster.git", "--state-dir", dir.path().to_str().unwrap()];
        let mut config = ServeConfig::try_from(Cli::parse_from(flags).serve).unwrap();
        let file = identity_file(dir.path());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "damaged\n").unwrap();
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
