//! Reads the kernel's rules for a loop that has chains among them.
//!
//! All rules of a large cluster take a second of CPU to read. Where the kernel counts their changes they are
//! read when somebody else has changed some, and what the loop writes itself it may note without a read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::worlds::iptables::{Iptables, IptablesError};

/// All rules are read this often though nothing says that they changed: should the count be wrong,
/// they are right again within this time.
const AUDIT: Duration = Duration::from_secs(60);

/// An audit of very many rules comes later: one hundredth of a core is enough for it.
const AUDIT_SHARE: u32 = 100;

/// Between two reads that others cause by changing rules without end: a quarter of a core at most.
const READ_SHARE: u32 = 3;
/// But not more than this, which with the rules of 1,000 services is a third of a core: what others flush is
/// back within 5 s.
const READ_WAIT_MAX: Duration = Duration::from_secs(2);

/// A read waits this long at most for a change that the loop wants to write: it is written by what is known.
const OVERDUE_MAX: Duration = Duration::from_secs(1);

/// What is known of the kernel's rules: a `T` is made of the text of `iptables-save`.
pub struct RulesReader<T> {
    iptables: Arc<dyn Iptables>,
    parse: Box<dyn Fn(&str) -> T + Send + Sync>,
    /// What is there; none when that is not known.
    present: Option<Arc<T>>,
    /// The kernel's count at which that was so.
    generation: Option<u32>,
    /// When all was read, and how long it took.
    last: Option<(Instant, Duration)>,
    /// Since when it is known that others have changed something, or may have.
    overdue: Option<Instant>,
    read_again: Option<Duration>,
}

impl<T> RulesReader<T> {
    /// A reader that has read nothing yet.
    pub fn new(iptables: Arc<dyn Iptables>, parse: impl Fn(&str) -> T + Send + Sync + 'static) -> Self {
        let parse = Box::new(parse);
        Self { iptables, parse, present: None, generation: None, last: None, overdue: None, read_again: None }
    }

    /// What is there; `changed`: there is something to write that should not wait for a read.
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

    /// Reads all rules; `generation` is the kernel's count of before: should somebody have changed a
    /// rule meanwhile, it shows the next time.
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

    /// What was just written, as it is printed; `written_at` is the kernel's count that we left. None if somebody
    /// changed rules since, or they can't be read.
    pub async fn read_back(&mut self, written_at: Option<u32>) -> Option<Arc<T>> {
        let printed = self.read_all(written_at).await.ok()?;
        (self.iptables.generation().await == written_at).then_some(printed)
    }

    /// Somebody changed rules, and they are read after this time.
    pub fn read_again(&self) -> Option<Duration> {
        self.read_again
    }

    /// The kernel's count at which the rules were as they are known.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// What is there is not known any more.
    pub fn forget(&mut self) {
        self.present = None;
    }

    /// The rules are known without a read, at this count of the kernel; none: at a count that is not known.
    pub fn note(&mut self, present: T, generation: Option<u32>) {
        self.present = Some(Arc::new(present));
        self.generation = generation;
    }

    /// In which time all rules are to be read, if the kernel's count is this.
    fn due_in(&self, generation: Option<u32>, now: Instant) -> Duration {
        let (Some(_), Some((at, took))) = (&self.present, self.last) else { return Duration::ZERO };
        let wait = match self.is_of(generation) {
            true => AUDIT.max(took * AUDIT_SHARE),
            false => READ_WAIT_MAX.min(took * READ_SHARE),
        };
        wait.saturating_sub(now.duration_since(at))
    }

    /// A change may be written before the read that is due: should somebody have taken away what it leads
    /// to, the read that follows shows it.
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
