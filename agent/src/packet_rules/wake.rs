//! Wakes the loops that write packet rules as soon as another program has changed one.
//!
//! If the kernel counts changes, querying the count takes microseconds, while reading the rules of 1,000 services
//! takes a second: the count reveals a flush long before the next full read.

use std::sync::Arc;
use std::time::Duration;

use schema::control::Nudge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::worlds::iptables::Iptables;

/// Interval at which the count is queried.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Interval at which the query is retried if there is no count: then only the full read remains.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// Nudges all of these after each change of rules that this agent's loops did not make in their own chains, until
/// `shutdown`.
pub async fn on_change(iptables: Arc<dyn Iptables>, nudges: Vec<Nudge>, shutdown: CancellationToken) {
    let ask = async {
        let mut known = None;
        loop {
            let now = iptables.generation().await;
            if now.is_some() && known.is_some() && now != known {
                nudges.iter().for_each(Nudge::nudge);
            }
            known = now.or(known);
            sleep(if now.is_some() { ASK_EVERY } else { TRY_EVERY }).await;
        }
    };
    // Cancel-safe: nothing is held across the wait.
    let _: Option<()> = shutdown.run_until_cancelled(ask).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::iptables::FakeIptables;

    // Seen red with a nudge at every query of the count, and with the count forgotten once it was unavailable.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_heard_of_within_a_second_and_nothing_else_is() {
        let iptables = Arc::new(FakeIptables::default());
        let (nudge, nudged) = Nudge::new();
        let shutdown = CancellationToken::new();
        let ending = tokio::spawn(on_change(Arc::clone(&iptables) as _, vec![nudge], shutdown.clone()));
        let heard = async |seconds: u64| {
            tokio::time::timeout(Duration::from_secs(seconds), nudged.wait()).await.is_ok()
        };
        assert!(!heard(60).await, "where nothing counts nothing is heard of");
        iptables.rules().generation = Some(7);
        assert!(!heard(60).await, "a first count is no change");
        for generation in [8, 20, 3] {
            iptables.rules().generation = Some(generation);
            assert!(heard(1).await, "{generation}");
            assert!(!heard(60).await, "{generation} wakes once");
        }
        iptables.rules().generation = None;
        assert!(!heard(60).await);
        iptables.rules().generation = Some(4);
        assert!(heard(11).await, "who could not ask hears of it later");
        assert_eq!(iptables.rules().saves, 0, "no rule is read for this");
        shutdown.cancel();
        ending.await.unwrap();
    }
}
