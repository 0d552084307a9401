//! Preconditions for starting `minik8s serve`, least effect first. Each failure is one line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use schema::store::etcd::{Access, LazyStore};
use schema::store::{SharedStore, StoreError};
use tokio::net::TcpListener;

use crate::config::{ServeConfig, identity_file};
use crate::git::{self, SourceConfig};
use crate::state_dir::StateDirLock;
use crate::{crypt, gitops, webhooks};

/// Longest wait for etcd at startup: it is often started at the same time.
const ETCD_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Ground {
    pub(super) listener: TcpListener,
    /// The listener for webhooks, and the file with their secret.
    pub(super) hooks: Option<(TcpListener, PathBuf)>,
    pub(super) store: SharedStore,
    pub(super) state_dir: StateDirLock,
}

/// Checks the preconditions. If the state directory was in use before, an unreachable etcd is not a user error.
pub(super) async fn prepare(config: &ServeConfig) -> anyhow::Result<Ground> {
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
    look_ahead(config).await?;
    let state_dir = StateDirLock::take(&config.own_dir())?;
    if config.sources.iter().any(|source| source.credentials.sealed.is_some()) {
        let file = identity_file(&config.state_dir);
        let what = "This reconciler's age identity: it decrypts credentials of sources.";
        let recipient = crypt::ensure_identity(&file, what)?;
        tracing::info!(%recipient, "sources' credentials are decrypted with this reconciler's age identity");
    }
    Ok(Ground { listener, hooks, store, state_dir })
}

/// Reports mistakes in flags early. One of several repositories may be unreachable: its status shows that.
async fn look_ahead(config: &ServeConfig) -> anyhow::Result<()> {
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
            tracing::warn!("{error}; this reconciler goes on as soon as it answers");
        }
        Err(error @ StoreError::Connect { .. }) => {
            bail!("{error}; start etcd there, or give --etcd its address")
        }
        Err(error) => bail!("{error}; look at etcd's log"),
    }
    Ok(Arc::new(store))
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
    fn a_state_directory_that_cannot_be_written_is_one_line() {
        let line = check_state_dir(Path::new("/proc/nowhere/reconciler")).unwrap_err().to_string();
        assert_eq!(
            line,
            "cannot write to the state directory /proc/nowhere/reconciler: no such file or directory; \
             give --state-dir a directory that this user may write"
        );
    }
}
