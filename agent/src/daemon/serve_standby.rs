//! `minik8s-agent standby`: waits for the agent that started it to end, serves in its place, and hands over to the
//! next one.

use std::fs::Permissions;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use schema::control::{Row, Runtime};
use schema::trust::TrustKeeper;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::NamesDeps;
use crate::catalog::CatalogDisk;
use crate::config::Config;
use crate::converge::functions;
use crate::converge::functions::Functions;
use crate::desired::known_subnet;
use crate::standby::{Handover, Role, SOCKET, Sockets, address, wire};
use crate::worlds::netlink::RealNetlink;
use crate::{daemon, locks};

/// Interval at which to check that some agent can still end this process.
const LOOK: Duration = Duration::from_millis(500);

/// Time after which a live agent that has not requested the sockets never will: its version does not support it.
const UNASKED_MAX: Duration = Duration::from_secs(30);

/// Longest time for the next agent to start its own standby process.
const TAKEN_MAX: Duration = Duration::from_secs(15);

/// Interval at which to check for a renewed certificate.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Waits for the agent's end, serves, hands over.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let sockets = tokio::task::spawn_blocking(wait).await?.context("cannot wait for the agent's end")?;
    if sockets.is_empty() {
        bail!("standby is started by the agent itself; start 'minik8s-agent run'");
    }
    tracing::warn!(
        "agent ended; names, hosts and calls are served from its last known state until it is back"
    );
    let copies = sockets.iter().map(|(role, socket)| Ok((*role, Arc::new(socket.try_clone()?))));
    let held = copies.collect::<io::Result<Sockets>>()?;
    let agent_dir = config.machine.agent_dir();
    // A node without a range has never answered.
    let Some(subnet) = known_subnet(&agent_dir) else { return Ok(()) };
    let (_, known) = CatalogDisk::open(&agent_dir);
    let (_subnets, subnet) = watch::channel(Some(subnet));
    let (_catalogs, catalog) = watch::channel(Arc::new(known.unwrap_or_default()));
    let names = NamesDeps { subnet, catalog, handover: Handover::from_sockets(sockets) };
    let netlink = Arc::new(RealNetlink::open(&config.machine.instance)?);
    let mut runtime = Runtime::new();
    let _pods = daemon::wire_dns(&mut runtime, &config, netlink, &names);
    let own = names.subnet.borrow().clone();
    let functions = Functions::from_last_known(names.catalog.clone(), own.as_ref());
    let functions = functions.addressed_as(config.hosts.clone());
    let (at, handover, token) = (config.functions_listen, names.handover.clone(), runtime.token());
    let keeper = TrustKeeper::open(config.machine.pki())
        .inspect_err(|error| tracing::warn!(%error, "calls over TLS not served while no agent runs"));
    let trust = keeper.as_ref().ok().map(TrustKeeper::reader);
    if let Ok(keeper) = keeper {
        runtime.follow("certificate", Row::every(RELOAD_INTERVAL), reload_if_changed(keeper));
    }
    let of_calls = functions.clone();
    let calls =
        async move { functions::serve_inherited(of_calls, handover, (at, own.as_ref()), trust, token).await };
    runtime.task("functions server", calls);
    daemon::wire_gateway(&mut runtime, &config.node, names, Arc::new(functions));
    let token = runtime.token();
    runtime.task("next agent", end_with_next(agent_dir, held, token));
    runtime.run_until_signal().await?;
    Ok(())
}

/// Returns the step that reads own certificate and authorities again once the file with the certificate has changed.
fn reload_if_changed(keeper: TrustKeeper) -> impl FnMut() + Send {
    let modified = |keeper: &TrustKeeper| -> Option<SystemTime> {
        std::fs::metadata(keeper.dir().certificate_file()).and_then(|file| file.modified()).ok()
    };
    let mut last = modified(&keeper);
    move || {
        let newest = modified(&keeper);
        if newest == last {
            return;
        }
        match keeper.reload() {
            Ok(()) => last = newest,
            Err(error) => tracing::warn!(%error, "renewed certificate not read; the former one stays"),
        }
    }
}

/// Receives the sockets and waits until the agent's end of the channel is closed.
fn wait() -> io::Result<Vec<(Role, OwnedFd)>> {
    let mut channel = io::stdin();
    let sockets = wire::receive(&channel)?;
    let mut nothing = [0; 1];
    // Nothing is ever sent.
    while !sockets.is_empty() && channel.read(&mut nothing)? > 0 {}
    Ok(sockets)
}

/// Gives the sockets to the next agent, or ends when the agent's directory disappears.
async fn end_with_next(agent_dir: PathBuf, held: Sockets, token: CancellationToken) -> io::Result<()> {
    let path = agent_dir.join(SOCKET);
    while !token.is_cancelled() {
        let _ = std::fs::remove_file(&path);
        let listener = {
            let (_dir, short) = address(&agent_dir)?;
            UnixListener::bind(short)?
        };
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let stream = tokio::select! {
            // Cancel-safe: a connection that is not returned stays in the kernel's queue.
            accepted = listener.accept() => accepted?.0,
            // Cancel-safe: its timers start again.
            why = no_agent_left(&agent_dir, &path) => {
                tracing::info!(why, "standby process ending");
                let _ = std::fs::remove_file(&path);
                break;
            }
            // Cancel-safe: the token stays cancelled.
            () = token.cancelled() => break,
        };
        // Before the answer: the next agent's own process may listen here right after.
        drop(listener);
        let _ = std::fs::remove_file(&path);
        let given = tokio::time::timeout(TAKEN_MAX, give(stream, &held)).await;
        match given.unwrap_or_else(|late| Err(late.into())) {
            Ok(()) => break,
            Err(error) => tracing::info!(%error, "sockets requested by an agent that did not take them"),
        }
    }
    // Both serve for a moment: no packet waits for the end of one.
    token.cancel();
    Ok(())
}

/// Sends the sockets and waits for the acknowledgement: a process that ends before it leaves them to us.
async fn give(mut stream: UnixStream, held: &Sockets) -> io::Result<()> {
    wire::send(&stream, held)?;
    let mut taken = [0; 1];
    stream.read_exact(&mut taken).await.map(drop)
}

/// Returns, once it is certain, the reason why no agent will ever request the sockets.
async fn no_agent_left(agent_dir: &Path, path: &Path) -> &'static str {
    let mut lives_since = None;
    loop {
        tokio::time::sleep(LOOK).await;
        if path.symlink_metadata().is_err() {
            return "the agent's directory is gone";
        }
        lives_since = locks::is_held(agent_dir).then(|| lives_since.unwrap_or_else(Instant::now));
        if lives_since.is_some_and(|since: Instant| since.elapsed() > UNASKED_MAX) {
            return "an agent is running but does not take over";
        }
    }
}
