//! Reader of the kernel's rules for a loop with chains among them.
//!
//! Reading all rules of a large cluster takes a second of CPU. If the kernel counts changes, rules are read only
//! when another program has changed some, and the loop may note its own writes without a read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

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
        if !self.is_of(generation) {
            self.overdue.get_or_insert(begun);
        }
        self.read_again = (!due_in.is_zero() && !self.is_of(generation)).then_some(due_in);
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
        let wait = match self.is_of(generation) {
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

    fn is_of(&self, generation: Option<u32>) -> bool {
        generation.is_some() && generation == self.generation
    }
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
