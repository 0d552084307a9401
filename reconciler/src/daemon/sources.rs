//! Several source loops behind one door: whoever asks to look now wakes all of them.

use futures::StreamExt as _;
use futures::stream::SelectAll;
use schema::control::{LastRun, Nudge, Nudged};
use tokio::sync::watch;

/// Passes a nudge on to every source, and the newest run of any source to `newest`. Never returns.
pub(super) async fn fan_out(
    asked: Nudged,
    sources: Vec<Nudge>,
    runs: Vec<watch::Receiver<Option<LastRun>>>,
    newest: watch::Sender<Option<LastRun>>,
) {
    let mut runs: SelectAll<_> = runs.into_iter().map(|run| Box::pin(changes(run))).collect();
    let nudging = async {
        loop {
            asked.wait().await;
            sources.iter().for_each(Nudge::nudge);
        }
    };
    let showing = async {
        while let Some(run) = runs.next().await {
            // Nobody may be looking; the value is kept for who does.
            newest.send_replace(Some(run));
        }
    };
    tokio::join!(nudging, showing);
}

/// Each run as it ends.
fn changes(runs: watch::Receiver<Option<LastRun>>) -> impl futures::Stream<Item = LastRun> {
    futures::stream::unfold(runs, |mut runs| async move {
        loop {
            runs.changed().await.ok()?;
            let run = runs.borrow_and_update().clone();
            if let Some(run) = run {
                return Some((run, runs));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_nudge_wakes_every_source() {
        let (ask, asked) = Nudge::new();
        let (nudges, ends): (Vec<_>, Vec<_>) = (0..3).map(|_| Nudge::new()).unzip();
        let (newest, _seen) = watch::channel(None);
        let fanned = tokio::spawn(fan_out(asked, nudges, Vec::new(), newest));
        ask.nudge();
        for end in &ends {
            end.wait().await;
        }
        fanned.abort();
    }
}
