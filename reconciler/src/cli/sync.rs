//! `minik8s sync`: requests a sync now; with `--wait`, waits for its end. `minik8s etcd defrag` likewise.

use std::time::Duration;

use schema::records::{EtcdMember, SourceState, mib};
use tokio::time::Instant;

use super::client::Client;
use super::error::CliError;
use super::output::{write_lines, write_out};
use crate::args::{DefragArgs, SyncArgs};
use crate::view::{ClusterStatus, DefragAccepted, EtcdView, RequestView, SourceView, SyncAccepted, short};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time until the reconciler that wrote a request reads it back.
const REQUEST_SEEN_MAX: Duration = Duration::from_secs(5);

pub(super) async fn run(args: &SyncArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let query: Vec<(&str, &str)> = args.source.as_deref().map(|name| ("source", name)).into_iter().collect();
    let accepted: SyncAccepted = client.post(&["sync"], &query).await?;
    if !args.wait {
        return write_out("the reconciler is fetching the repository\n");
    }
    let asked =
        PendingSync { client: &client, deadline: Instant::now() + args.timeout, timeout: args.timeout };
    match (&accepted.note, accepted.requests.as_slice()) {
        // etcd is unavailable: only the loop of this reconciler can be observed.
        (Some(note), _) => asked.wait_for_loop(accepted.at, note).await?,
        (None, ids) => {
            for id in ids {
                asked.wait_for_answer(id).await?;
            }
        }
    }
    let status: ClusterStatus = client.get(&["status"], &[]).await?;
    let named = |source: &&SourceView| args.source.as_ref().is_none_or(|name| *name == source.status.name);
    status.sources.iter().filter(named).try_for_each(|source| write_lines(&line(source)))?;
    let whys: Vec<String> = status.sources.iter().filter(named).filter_map(incomplete_reason).collect();
    if whys.is_empty() { Ok(()) } else { Err(CliError::NotReached(whys.join("; "))) }
}

/// Reason that the observed commit is not fully applied; `None` if it is.
fn incomplete_reason(source: &SourceView) -> Option<String> {
    let (name, status) = (&source.status.name, &source.status);
    let what = match status.state {
        SourceState::Synced => return None,
        _ if status.error.is_some() || status.applied_commit.is_none() => "is not applied",
        // Objects that wait for others count as well: they are not written yet.
        _ => "is applied in part",
    };
    let commit = status.observed_commit.as_deref().map_or("the commit", short);
    let more = source.problems.len().saturating_sub(1);
    let first = source.problems.first().map_or("see 'minik8s status'", String::as_str);
    let more = if more > 0 { format!(" (and {more} more; see 'minik8s status')") } else { String::new() };
    Some(format!("source {name}: {commit} {what}: {first}{more}"))
}

struct PendingSync<'a> {
    client: &'a Client,
    deadline: Instant,
    timeout: Duration,
}

impl PendingSync<'_> {
    /// Waits until the leader has answered the request.
    async fn wait_for_answer(&self, id: &str) -> Result<(), CliError> {
        let seen_by = Instant::now() + REQUEST_SEEN_MAX;
        loop {
            let why = match self.client.get::<RequestView>(&["requests", id], &[]).await {
                Ok(request) if request.status != "Waiting" => return Ok(()),
                // The source reports the reason, and a failed sync completes the request.
                Ok(request) if self.has_failed(&request).await? => return Ok(()),
                Ok(request) => request.why,
                Err(CliError::Refused { status: 404, .. }) if Instant::now() < seen_by => String::new(),
                Err(error) => return Err(error),
            };
            self.pause(&why).await?;
        }
    }

    /// True if a sync since the request has failed for the source.
    async fn has_failed(&self, request: &RequestView) -> Result<bool, CliError> {
        let status: ClusterStatus = self.client.get(&["status"], &[]).await?;
        let ran = status
            .last_sync
            .is_some_and(|run| run.started_at >= request.request.received_at && run.error.is_none());
        let source = status.sources.iter().find(|source| source.status.name == request.request.source);
        Ok(ran && source.is_some_and(|source| source.status.error.is_some()))
    }

    async fn wait_for_loop(&self, at: jiff::Timestamp, note: &str) -> Result<(), CliError> {
        loop {
            let status: ClusterStatus = self.client.get(&["status"], &[]).await?;
            if let Some(run) = status.last_sync.filter(|run| run.started_at >= at) {
                return match run.error {
                    None => Ok(()),
                    Some(error) => Err(CliError::NotReached(format!("the sync failed: {error}"))),
                };
            }
            self.pause(note).await?;
        }
    }

    async fn pause(&self, why: &str) -> Result<(), CliError> {
        if Instant::now() >= self.deadline {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            let seconds = self.timeout.as_secs_f64();
            return Err(CliError::NotReached(format!("the sync did not end within {seconds}s{why}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        Ok(())
    }
}

fn line(source: &SourceView) -> String {
    let name = &source.status.name;
    match &source.status.applied_commit {
        Some(commit) => format!("source {name}: {:?} at commit {}\n", source.status.state, short(commit)),
        None => format!("source {name}: no commit is applied yet\n"),
    }
}

/// Requests a defragmentation, waits for its end, and prints what became of the members.
pub(super) async fn defrag(args: &DefragArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let deadline = Instant::now() + args.timeout;
    let before: EtcdView = client.get(&["etcd"], &[]).await?;
    let accepted: DefragAccepted = client.post(&["etcd", "defrag"], &[]).await?;
    let is_done = |etcd: &EtcdView| match accepted.revision {
        0 => etcd.answered_at.is_some_and(|at| at >= accepted.at),
        revision => etcd.answered_revision >= revision,
    };
    let etcd = loop {
        let etcd: EtcdView = client.get(&["etcd"], &[]).await?;
        if is_done(&etcd) {
            break etcd;
        }
        if Instant::now() >= deadline {
            let why = etcd.problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
            let seconds = args.timeout.as_secs_f64();
            return Err(CliError::NotReached(format!("etcd was not defragmented within {seconds}s{why}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    for member in &etcd.members {
        let former = before.members.iter().find(|former| former.id == member.id);
        let former = former.map_or(0, |former| former.size_bytes);
        let (label, size) = (member.label(), mib(member.size_bytes));
        write_lines(&format!("member {label}: {size}, before {}\n", mib(former)))?;
    }
    let failed = |member: &&EtcdMember| member.is_full() || member.error.is_some();
    match etcd.members.iter().find(failed) {
        Some(_) => Err(CliError::NotReached(etcd.problems.join("; "))),
        None => Ok(()),
    }
}
