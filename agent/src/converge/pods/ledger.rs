//! What tasks have under way and what went wrong: shared by the loop and its tasks, gone with the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use schema::control::Nudge;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::facts::{Busy, Ends, Exited, Memory, Pulling, Slot, Trouble, Uid};

/// How soon something is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// 1, 2, 4, … 60 s: a bridge that is not there yet, an engine that restarts.
    Soon,
    /// 10, 20, 40, … 300 s, as Kubernetes backs image pulls off.
    Image,
    /// 5, 10, 20, 40, 60 s: a process that can't be killed, and an engine that waits for it each time.
    Kill,
}

impl Retry {
    /// Delay after this many failures in a row, the first being 1.
    pub fn delay(self, failures: u32) -> SignedDuration {
        let (first, max) = match self {
            Retry::Soon => (1, 60),
            Retry::Image => (10, 300),
            Retry::Kill => (5, 60),
        };
        let doubled = first << failures.saturating_sub(1).min(10);
        SignedDuration::from_secs(doubled.min(max))
    }
}

/// The shared memory.
#[derive(Debug, Clone)]
pub struct Ledger {
    memory: Arc<Mutex<Memory>>,
    nudge: Nudge,
    /// A stop has ended.
    stopped: watch::Sender<()>,
    /// Docker ids of containers whose preStop hook is done.
    hooked: Arc<Mutex<BTreeSet<String>>>,
}

impl Ledger {
    /// An empty one; changes of it nudge the loop.
    pub fn new(nudge: Nudge) -> Self {
        Self { memory: Arc::default(), nudge, stopped: watch::Sender::new(()), hooked: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy to plan on.
    pub fn snapshot(&self) -> Memory {
        self.lock().clone()
    }

    /// How containers of pods that are taken away ended, by pod.
    pub fn ends(&self) -> BTreeMap<Uid, Ends> {
        self.lock().ends.clone()
    }

    /// The link of a pod is whole, both ends of it; or it may not be, and has to be looked at.
    pub fn note_link(&self, uid: &str, whole: bool) {
        let mut memory = self.lock();
        if whole {
            memory.linked.insert(uid.to_owned());
        } else {
            memory.linked.remove(uid);
        }
    }

    /// Remembers the address given out last.
    pub fn set_last_address(&self, address: Option<std::net::Ipv4Addr>) {
        self.lock().last_address = address;
    }

    /// A task begins; it counts as under way until the guard is dropped.
    pub fn begin(&self, uid: Uid, busy: Busy) -> InFlight {
        self.lock().busy.insert(uid.clone(), busy);
        InFlight { ledger: self.clone(), what: What::Task(uid) }
    }

    /// A pull begins; it counts as under way until the guard is dropped.
    pub fn begin_pull(&self, slot: Slot, cancel: CancellationToken) -> InFlight {
        self.lock().pulling.insert(slot.clone(), Pulling { progress: String::new(), cancel });
        InFlight { ledger: self.clone(), what: What::Pull(slot) }
    }

    /// How far a pull is.
    pub fn note_progress(&self, slot: &Slot, progress: String) {
        if let Some(pulling) = self.lock().pulling.get_mut(slot) {
            pulling.progress = progress;
        }
        self.nudge.nudge();
    }

    /// A container is being stopped until the guard is dropped. Two never stop it side by side: who
    /// comes second waits.
    pub async fn begin_stop(&self, id: &str) -> InFlight {
        loop {
            let mut stopped = self.stopped.subscribe();
            if let Some(stopping) = self.try_begin_stop(id) {
                return stopping;
            }
            // Never closed: this ledger has the other end.
            let _ = stopped.changed().await;
        }
    }

    /// The same at once, unless somebody stops it already.
    pub fn try_begin_stop(&self, id: &str) -> Option<InFlight> {
        let first = self.lock().stopping.insert(id.to_owned());
        first.then(|| InFlight { ledger: self.clone(), what: What::Stop(id.to_owned()) })
    }

    /// Its preStop hook was run to its end.
    pub fn is_hooked(&self, id: &str) -> bool {
        self.hooked.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Its preStop hook is done, and is not run again.
    pub fn note_hooked(&self, id: &str) {
        self.hooked.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
    }

    /// It was stopped (no message), or it could not be and is tried again later.
    pub fn note_kill(&self, id: &str, failed: Option<String>) {
        note(&mut self.lock().unkilled, id, failed, Retry::Kill);
    }

    /// A dead container was removed (no message), or it could not be and is tried again later.
    pub fn note_removal(&self, id: &str, failed: Option<String>) {
        note(&mut self.lock().unremoved, id, failed, Retry::Soon);
    }

    /// How a container ended of a pod that is taken away: it is gone before everybody has seen that.
    pub fn note_end(&self, uid: &str, id: &str, end: Exited) {
        self.lock().ends.entry(uid.to_owned()).or_default().insert(id.to_owned(), end);
    }

    /// Forgets containers that are no more.
    pub fn forget_containers_but(&self, keep: &BTreeSet<&str>) {
        let mut memory = self.lock();
        memory.unkilled.retain(|id, _| keep.contains(id.as_str()));
        memory.unremoved.retain(|id, _| keep.contains(id.as_str()));
        drop(memory);
        let mut hooked = self.hooked.lock().unwrap_or_else(PoisonError::into_inner);
        hooked.retain(|id| keep.contains(id.as_str()));
    }

    /// The image was not there at the start. False if it had been fetched for this very start: then
    /// it must not be fetched again at once, or it would be for ever.
    pub fn note_missing(&self, slot: &Slot, attempt: u32) -> bool {
        let mut memory = self.lock();
        memory.missing.insert(slot.clone());
        let fetched = memory.pulled.get(slot) == Some(&attempt);
        if fetched {
            memory.pulled.remove(slot);
        }
        !fetched
    }

    /// The image is there for this start. Earlier failures count until the start succeeds.
    pub fn note_pulled(&self, slot: Slot, attempt: u32) {
        let mut memory = self.lock();
        memory.missing.remove(&slot);
        memory.pulled.insert(slot, attempt);
    }

    /// All is well again.
    pub fn clear(&self, slot: &Slot) {
        let mut memory = self.lock();
        memory.trouble.remove(slot);
        memory.missing.remove(slot);
    }

    /// It did not work; it is tried again later.
    pub fn fail(&self, slot: Slot, reason: &str, message: String, retry: Retry) {
        let now = Timestamp::now();
        let mut memory = self.lock();
        let mut trouble = Trouble { reason: reason.to_owned(), message, failures: 1, at: now, retry_at: now };
        // A removal does not go on with the count of what could not be made.
        let in_a_row = |former: &&Trouble| former.is_of_removal() == trouble.is_of_removal();
        if let Some(former) = memory.trouble.get(&slot).filter(in_a_row) {
            trouble.failures = former.failures.saturating_add(1);
        }
        trouble.retry_at = now.checked_add(retry.delay(trouble.failures)).unwrap_or(now);
        memory.trouble.insert(slot, trouble);
    }

    /// Forgets pods that are neither wanted nor there.
    pub fn forget_all_but(&self, keep: impl Fn(&str) -> bool) {
        let mut memory = self.lock();
        memory.trouble.retain(|(uid, _), _| keep(uid));
        memory.pulled.retain(|(uid, _), _| keep(uid));
        memory.missing.retain(|(uid, _)| keep(uid));
        memory.linked.retain(|uid| keep(uid));
        memory.ends.retain(|uid, _| keep(uid));
    }
}

/// What became of something that is done to one container.
fn note(list: &mut BTreeMap<String, Trouble>, id: &str, failed: Option<String>, retry: Retry) {
    let now = Timestamp::now();
    let Some(message) = failed else {
        list.remove(id);
        return;
    };
    let failures = list.get(id).map_or(1, |t| t.failures.saturating_add(1));
    let retry_at = now.checked_add(retry.delay(failures)).unwrap_or(now);
    let reason = "FailedKillPod".to_owned();
    list.insert(id.to_owned(), Trouble { reason, message, failures, at: now, retry_at });
}

#[derive(Debug)]
enum What {
    Task(Uid),
    Pull(Slot),
    Stop(String),
}

/// Work under way. Dropping it, also by a cut-off or a panic, ends it and nudges the loop.
#[derive(Debug)]
pub struct InFlight {
    ledger: Ledger,
    what: What,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        {
            let mut memory = self.ledger.lock();
            match &self.what {
                What::Task(uid) => {
                    memory.busy.remove(uid);
                }
                What::Pull(slot) => {
                    memory.pulling.remove(slot);
                }
                What::Stop(id) => {
                    memory.stopping.remove(id);
                    self.ledger.stopped.send_replace(());
                }
            }
        }
        self.ledger.nudge.nudge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kill_that_fails_is_tried_ever_later_and_nobody_stops_twice_at_once() {
        let ledger = Ledger::new(Nudge::new().0);
        let stopping = ledger.try_begin_stop("c").expect("nobody else");
        assert!(ledger.try_begin_stop("c").is_none());
        for seconds in [5, 10, 20, 40, 60, 60] {
            ledger.note_kill("c", Some("no exit event".into()));
            let trouble = ledger.snapshot().unkilled["c"].clone();
            assert_eq!(trouble.retry_at.duration_since(trouble.at).as_secs(), seconds);
        }
        ledger.note_hooked("c");
        ledger.forget_containers_but(&["c"].into());
        assert!(ledger.is_hooked("c") && ledger.snapshot().unkilled.contains_key("c"));
        ledger.forget_containers_but(&BTreeSet::new());
        assert!(!ledger.is_hooked("c") && ledger.snapshot().unkilled.is_empty());
        drop(stopping);
        let _again = ledger.begin_stop("c").await;
    }

    // Seen red with a count that goes on.
    #[test]
    fn a_removal_that_fails_is_tried_again_soon_however_often_the_creation_failed() {
        let ledger = Ledger::new(Nudge::new().0);
        let slot: Slot = ("uid".into(), String::new());
        for (reason, failures) in [
            ("ContainerCreating", 1),
            ("CreateContainerConfigError", 2),
            ("Terminating", 1),
            ("Terminating", 2),
        ] {
            ledger.fail(slot.clone(), reason, "so".into(), Retry::Soon);
            assert_eq!(ledger.snapshot().trouble[&slot].failures, failures, "{reason}");
        }
    }

    #[test]
    fn an_image_that_is_fetched_and_still_missing_is_fetched_again_ever_later() {
        let ledger = Ledger::new(Nudge::new().0);
        let slot: Slot = ("uid".into(), "web".into());
        assert!(ledger.note_missing(&slot, 0), "nobody has fetched it yet");
        for failures in 1..=3 {
            ledger.note_pulled(slot.clone(), 0);
            assert!(!ledger.note_missing(&slot, 0));
            ledger.fail(slot.clone(), "ErrImagePull", "of another name".into(), Retry::Image);
            assert_eq!(ledger.snapshot().trouble[&slot].failures, failures);
            assert!(ledger.snapshot().pulled.is_empty(), "with imagePullPolicy Always it is fetched again");
        }
        ledger.note_pulled(slot.clone(), 0);
        assert!(ledger.note_missing(&slot, 1), "a later start may find it removed");
        ledger.clear(&slot);
        assert!(ledger.snapshot().trouble.is_empty());
    }
}
