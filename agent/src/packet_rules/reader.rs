//! Reader of the kernel's rules for a loop with chains among them.
//!
//! Reading all rules of a large cluster takes a second of CPU. If the kernel counts changes, rules are read only
//! when another program has changed some, and the loop may note its own writes without a read.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use schema::control::Nudge;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::worlds::iptables::{Iptables, IptablesError};

/// Interval at which all rules are read without any sign of a change: should the count be wrong, the state is right
/// again within this time.
const AUDIT: Duration = Duration::from_secs(60);

/// Multiple of a read's duration between two audits, so that very many rules take at most one hundredth of a core.
const AUDIT_SHARE: u32 = 100;

/// Multiple of a read's duration between two reads while others change rules continuously: a quarter of a core at
/// most.
const READ_SHARE: u32 = 3;
/// Longest delay of a read, which with the rules of 1,000 services is a third of a core: rules that others flush
/// are back within 5 s.
const READ_WAIT_MAX: Duration = Duration::from_secs(2);

/// Longest time for which a pending write takes precedence over a read that is due: it is based on the known state.
const OVERDUE_MAX: Duration = Duration::from_secs(1);

/// Known state of the kernel's rules: a `T` parsed from the text of `iptables-save`.
pub struct RulesReader<T> {
    iptables: Arc<dyn Iptables>,
    parse: Box<dyn Fn(&str) -> T + Send + Sync>,
    /// Existing rules; `None` if unknown.
    present: Option<Arc<T>>,
    /// Kernel's count for that state.
    generation: Option<u32>,
    /// Time and duration of the last full read.
    last: Option<(Instant, Duration)>,
    /// Time since which others have, or may have, changed rules.
    overdue: Option<Instant>,
    read_again: Option<Duration>,
}

impl<T> RulesReader<T> {
    /// Creates a reader that has read nothing yet.
    pub fn new(iptables: Arc<dyn Iptables>, parse: impl Fn(&str) -> T + Send + Sync + 'static) -> Self {
        let parse = Box::new(parse);
        Self { iptables, parse, present: None, generation: None, last: None, overdue: None, read_again: None }
    }

    /// Returns the existing rules; `changed`: there is something to write that should not wait for a read.
    pub async fn read(&mut self, changed: bool) -> Result<Arc<T>, IptablesError> {
        let generation = self.iptables.generation().await;
        let begun = Instant::now();
        let due_in = self.due_in(generation, begun);
        if !self.is_current(generation) {
            self.overdue.get_or_insert(begun);
        }
        self.read_again = (!due_in.is_zero() && !self.is_current(generation)).then_some(due_in);
        if let Some(known) = self.present.clone() {
            if !due_in.is_zero() {
                return Ok(known);
            }
            if changed && generation.is_some() && self.may_wait(begun) {
                self.read_again = Some(Duration::ZERO);
                return Ok(known);
            }
        }
        self.read_all(generation).await
    }

    /// Reads all rules; `generation` is the kernel's count from before the read: should another program change a
    /// rule meanwhile, the next check detects it.
    pub async fn read_all(&mut self, generation: Option<u32>) -> Result<Arc<T>, IptablesError> {
        let begun = Instant::now();
        let text = self.iptables.save().await?;
        let present = Arc::new((self.parse)(&text));
        let ended = Instant::now();
        self.present = Some(Arc::clone(&present));
        self.generation = generation;
        self.last = Some((ended, ended.duration_since(begun)));
        self.overdue = None;
        Ok(present)
    }

    /// Reads back the rules just written; `written_at` is the kernel's count after our write. `None` if another
    /// program has changed rules since, or the read fails.
    pub async fn read_back(&mut self, written_at: Option<u32>) -> Option<Arc<T>> {
        let printed = self.read_all(written_at).await.ok()?;
        (self.iptables.generation().await == written_at).then_some(printed)
    }

    /// Returns the time until the read that a foreign change requires.
    pub fn read_again(&self) -> Option<Duration> {
        self.read_again
    }

    /// Returns the kernel's count for the known state.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Marks the existing rules as unknown.
    pub fn forget(&mut self) {
        self.present = None;
    }

    /// Sets the known state without a read, at this count of the kernel; `None` if the count is unknown.
    pub fn note(&mut self, present: T, generation: Option<u32>) {
        self.present = Some(Arc::new(present));
        self.generation = generation;
    }

    /// Returns the time until the next full read, if this is the kernel's count.
    fn due_in(&self, generation: Option<u32>, now: Instant) -> Duration {
        let (Some(_), Some((at, took))) = (&self.present, self.last) else { return Duration::ZERO };
        let wait = match self.is_current(generation) {
            true => AUDIT.max(took * AUDIT_SHARE),
            false => READ_WAIT_MAX.min(took * READ_SHARE),
        };
        wait.saturating_sub(now.duration_since(at))
    }

    /// True if a change may be written before the read that is due: should another program have removed the targets
    /// of its rules, the following read shows it.
    fn may_wait(&self, now: Instant) -> bool {
        self.overdue.is_none_or(|since| now.duration_since(since) < OVERDUE_MAX)
    }

    fn is_current(&self, generation: Option<u32>) -> bool {
        generation.is_some() && generation == self.generation
    }
}

/// Counts the times that rules are written again although nothing else is wanted: other programs had changed them.
pub struct Repairs<W> {
    /// Rules that were wanted when all of them were last in place.
    stood: Option<W>,
    counter: Counter,
}

impl<W: Clone + PartialEq> Repairs<W> {
    /// Creates a count that knows no rules yet; repairs are added to `counter`.
    pub fn new(counter: Counter) -> Self {
        Self { stood: None, counter }
    }

    /// Notes that the wanted rules are in place; `wrote`: some had to be written for that.
    pub fn note(&mut self, wanted: &W, wrote: bool) {
        if self.stood.as_ref() != Some(wanted) {
            self.stood = Some(wanted.clone());
        } else if wrote {
            self.counter.inc();
        }
    }
}

// Wakes the loops that write packet rules as soon as another program has changed one.
//
// If the kernel counts changes, querying the count takes microseconds, while reading the rules of 1,000 services
// takes a second: the count reveals a flush long before the next full read.

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

    fn reader(took_ms: u64, at: Instant) -> RulesReader<()> {
        let mut reader = RulesReader::new(Arc::new(FakeIptables::default()), |_| ());
        reader.note((), Some(7));
        reader.last = Some((at, Duration::from_millis(took_ms)));
        reader
    }

    #[test]
    fn only_what_stood_and_had_to_be_written_again_is_a_repair() {
        let counter = Counter::default();
        let mut repairs = Repairs::new(counter.clone());
        for (wanted, wrote, count) in
            [("a", true, 0), ("a", false, 0), ("a", true, 1), ("b", true, 1), ("b", true, 2), ("a", false, 2)]
        {
            repairs.note(&wanted, wrote);
            assert_eq!(counter.get(), count, "{wanted} {wrote}");
        }
    }

    #[test]
    fn all_rules_are_read_when_they_changed_or_may_have_and_else_rarely() {
        let at = Instant::now();
        let due = |took: u64, generation: Option<u32>, after_ms: u64| {
            reader(took, at).due_in(generation, at + Duration::from_millis(after_ms)).is_zero()
        };
        let fresh = RulesReader::new(Arc::new(FakeIptables::default()), |_| ());
        assert!(fresh.due_in(Some(7), at).is_zero(), "nothing is known yet");
        assert!(!due(10, Some(7), 59_000) && due(10, Some(7), 60_000), "an audit each minute");
        assert!(!due(1_100, Some(7), 100_000) && due(1_100, Some(7), 110_000), "of many rules later");
        assert!(due(10, Some(8), 30) && !due(10, Some(8), 29), "somebody changed a rule");
        assert!(due(1_100, Some(8), 2_000), "a flush of many rules is seen in less than 5 s");
        assert!(due(10, None, 3_000), "where nothing counts all is read each time");
    }
}

#[cfg(test)]
mod wake_tests {
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
