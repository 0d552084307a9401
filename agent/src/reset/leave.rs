//! Leaving the cluster for good: a reconciler deletes the node's keys in etcd and revokes its certificate, so that its
//! pods run elsewhere and its range is free. Requested once no container and no rule is left: a pod that is no longer
//! bound to this node starts on another one, and must not run here by then.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use reqwest::StatusCode;
use schema::trust::Credentials;
use tokio::time::{Instant, sleep};

use crate::cluster::ClusterAddresses;
use crate::config::{LeavingNode, MachineConfig};
use crate::converge::node::HEARTBEAT_TTL;
use crate::converge::trust::{NodeTrust, TrustSettings};
use crate::worlds::admission::{Admission, OnRefusal, RealAdmission, Refusal, ask_in_turn, clock};

/// Longest life of the heartbeat of an agent that was just stopped, with time for etcd to end its lease.
const HEARTBEAT_MAX: Duration = HEARTBEAT_TTL.saturating_add(Duration::from_secs(5));

/// Pause before the request is repeated while the heartbeat is there.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Loads the node's certificate, renewed if it has ended, and checks that a reconciler answers.
pub(super) async fn prepare(
    machine: &MachineConfig,
    leaving: &LeavingNode,
) -> anyhow::Result<Arc<Credentials>> {
    let (dir, reconcilers) = (machine.pki(), &leaving.reconcilers);
    ensure!(
        dir.is_filled(),
        "this node is in no cluster, as it has no certificate; run reset without --leave"
    );
    ensure!(!reconcilers.is_empty(), "cannot leave: no reconciler is known; give --reconciler its URL");
    let node = dir.certificate()?.identity()?.name().to_owned();
    let used = ClusterAddresses { reconcilers: reconcilers.clone(), ..ClusterAddresses::default() };
    let settings = TrustSettings {
        node,
        dir,
        given: used.clone(),
        known: used.clone(),
        used,
        file: ClusterAddresses::file(&machine.agent_dir()),
    };
    let mut trust = NodeTrust::open(settings, Arc::new(RealAdmission))?;
    if trust.has_ended(Timestamp::now())? {
        trust.renew().await.context("cannot leave with a certificate that has ended")?;
    }
    let own = trust.credentials();
    if let Err(failed) = ask_in_turn(reconcilers, OnRefusal::GoOn, |url| clock(url, &own)).await {
        bail!("cannot leave: {failed}; start a reconciler, or give --reconciler its URL");
    }
    Ok(own)
}

/// Asks the reconcilers to remove this node, again until its last heartbeat has ended.
pub(super) async fn leave(
    admission: &dyn Admission,
    own: &Credentials,
    reconcilers: &[String],
) -> anyhow::Result<()> {
    let deadline = Instant::now() + HEARTBEAT_MAX;
    loop {
        match ask(admission, own, reconcilers).await {
            Err(LeaveRefusal { is_alive: true, .. }) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
            Err(LeaveRefusal { is_alive: true, why }) => bail!("{why}"),
            Err(LeaveRefusal { why, .. }) => {
                bail!(
                    "{why} (if Git marks the node as gone, or it has left already, run reset without --leave)"
                )
            }
            Ok(()) => return Ok(()),
        }
    }
}

/// Reason why the node is still in the cluster.
struct LeaveRefusal {
    /// Set if its heartbeat is there.
    is_alive: bool,
    why: String,
}

/// Asks the first reconciler that can be reached.
async fn ask(
    admission: &dyn Admission,
    own: &Credentials,
    reconcilers: &[String],
) -> Result<(), LeaveRefusal> {
    let asked = ask_in_turn(reconcilers, OnRefusal::Stop, |url| admission.leave(url, own)).await;
    asked.map(|_| ()).map_err(|failed| match &failed.refusal {
        Some(Refusal { url, status, why }) => {
            LeaveRefusal { is_alive: *status == StatusCode::CONFLICT, why: format!("{url} refuses: {why}") }
        }
        None => LeaveRefusal { is_alive: false, why: failed.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use schema::control::lock;
    use schema::testing::{authority, enroll};
    use schema::trust::TrustDir;

    use super::*;
    use crate::worlds::admission::FakeAdmission;

    /// Leaves at two reconcilers that answer so; returns the outcome and the number of requests.
    async fn left(refusals: Vec<StatusCode>) -> (Result<(), String>, usize) {
        let root = tempfile::tempdir().unwrap();
        let dir = TrustDir::new(root.path().join("pki"));
        enroll(&dir, &authority(), "node-n1", (Timestamp::now(), jiff::SignedDuration::from_hours(1)));
        let own = Credentials::load(&dir).unwrap();
        let admission = FakeAdmission::default();
        lock(&admission.refusals).extend(refusals);
        let urls = ["https://r:1", "https://r:2"].map(str::to_owned);
        let left = leave(&admission, &own, &urls).await.map_err(|error| error.to_string());
        let asked = lock(&admission.asked).len();
        (left, asked)
    }

    // Would fail without the wait.
    #[tokio::test(start_paused = true)]
    async fn an_agent_that_was_just_stopped_is_waited_for_and_one_that_runs_stays() {
        let begun = Instant::now();
        assert_eq!(left(vec![StatusCode::CONFLICT; 30]).await, (Ok(()), 31));
        assert!(begun.elapsed() >= HEARTBEAT_TTL);
        let begun = Instant::now();
        let (stays, _) = left(vec![StatusCode::CONFLICT; 1_000]).await;
        assert!(stays.unwrap_err().starts_with("https://r:1 refuses: it answered 409"));
        assert!(begun.elapsed() >= HEARTBEAT_MAX && begun.elapsed() < HEARTBEAT_MAX + HEARTBEAT_TTL);
    }

    #[tokio::test]
    async fn a_refusal_is_final_and_a_reconciler_in_trouble_is_not() {
        let trouble = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(left(vec![trouble]).await, (Ok(()), 2));
        let (nobody, asked) = left(vec![trouble; 2]).await;
        let why = nobody.unwrap_err();
        assert!(
            asked == 2 && why.contains("https://r:1: it answered 503") && why.contains("https://r:2: "),
            "{why}"
        );
        let (refused, asked) = left(vec![StatusCode::FORBIDDEN]).await;
        let why = refused.unwrap_err();
        assert!(asked == 1 && why.contains("403") && why.contains("without --leave"), "{why}");
    }
}
