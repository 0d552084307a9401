//! Images that Minik8s itself pulled, with the time each was last found in use: kept on disk, because Docker knows
//! neither. Other images are never removed. A pull is recorded before it begins, so that the image counts as ours
//! even if the agent ends before the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};
use schema::control::{DiskRecord, lock};
use serde::{Deserialize, Serialize};

/// Maximum number of images remembered; beyond it, the longest unused are forgotten, and so stay on the node.
const IMAGES_MAX: usize = 1_000;
/// Minimum difference from the use on disk for a write: the time only orders images.
const WRITTEN_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// An image that Minik8s pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledImage {
    pub references: BTreeSet<String>,
    /// Time when it was last found in use, or pulled.
    pub last_used: Timestamp,
}

/// Images by content id.
pub type PulledImages = BTreeMap<String, PulledImage>;

/// References that are or were being pulled, with the content ids that were on the node before.
pub type PendingPulls = BTreeMap<String, BTreeSet<String>>;

#[derive(Debug, Default)]
struct State {
    images: PulledImages,
    begun: PendingPulls,
    /// Number of pulls in progress, by reference.
    running: BTreeMap<String, u32>,
    wanted: Option<BTreeSet<String>>,
    /// Images as written last.
    written: PulledImages,
}

/// The book, shared by pulls and the images loop.
#[derive(Debug)]
pub struct ImageBook {
    pulled: DiskRecord,
    begun: DiskRecord,
    state: Mutex<State>,
    /// Held by the only writer of the files.
    writing: tokio::sync::Mutex<()>,
}

impl ImageBook {
    /// Reads `<agent_dir>/images.json` and `pulls.json`. A file that can't be read counts as empty: then no image
    /// pulled before is removed.
    pub fn open(agent_dir: &Path) -> Arc<Self> {
        let record = |name| DiskRecord::new(agent_dir.join(name));
        let (pulled, begun) = (record("images.json"), record("pulls.json"));
        let images: PulledImages =
            pulled.read_or_warn("the list of pulled images; those images stay").unwrap_or_default();
        let begun_before = begun.read_or_warn("which images are being pulled").unwrap_or_default();
        let state = State { written: images.clone(), images, begun: begun_before, ..State::default() };
        Arc::new(Self { pulled, begun, state: Mutex::new(state), writing: tokio::sync::Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn images(&self) -> PulledImages {
        self.lock().images.clone()
    }

    /// Returns the references of all wanted pods; `None` while that is not known.
    pub fn wanted(&self) -> Option<BTreeSet<String>> {
        self.lock().wanted.clone()
    }

    pub fn set_wanted(&self, wanted: Option<BTreeSet<String>>) {
        self.lock().wanted = wanted;
    }

    /// Records that a pull is about to begin, with these images on the node.
    pub async fn begin_pull(self: &Arc<Self>, reference: &str, there: BTreeSet<String>) -> PendingPull {
        let begun = PendingPull { book: Arc::clone(self), reference: reference.to_owned() };
        {
            let mut state = self.lock();
            // The first of concurrent pulls, or the one before an interruption, found the original images.
            state.begun.entry(reference.to_owned()).or_insert(there);
            *state.running.entry(reference.to_owned()).or_default() += 1;
        }
        self.save_begun().await;
        begun
    }

    /// Returns interrupted pulls, whose images are unknown.
    pub fn interrupted_pulls(&self) -> PendingPulls {
        let state = self.lock();
        let cut_off = state.begun.iter().filter(|(reference, _)| !state.running.contains_key(*reference));
        cut_off.map(|(reference, there)| (reference.clone(), there.clone())).collect()
    }

    /// Records the images that came with these interrupted pulls.
    pub async fn resolve_interrupted(self: &Arc<Self>, brought: &[(String, String)], pulls: &PendingPulls) {
        if pulls.is_empty() {
            return;
        }
        for (id, reference) in brought {
            self.note_pulled(id.clone(), reference.clone()).await;
        }
        {
            let state = &mut *self.lock();
            state.begun.retain(|reference, _| {
                !pulls.contains_key(reference) || state.running.contains_key(reference)
            });
        }
        self.save_begun().await;
    }

    async fn save_begun(&self) {
        let _one = self.writing.lock().await;
        let (record, begun) = (self.begun.clone(), self.lock().begun.clone());
        let written = tokio::task::spawn_blocking(move || record.write(&begun)).await;
        if let Err(error) = written.map_err(std::io::Error::other).and_then(|done| done) {
            tracing::warn!(path = %self.begun.path().display(), %error, "record of pulls under way not written");
        }
    }

    /// Records a pulled image that was not on the node before.
    pub async fn note_pulled(self: &Arc<Self>, id: String, reference: String) {
        {
            let mut state = self.lock();
            let now = Timestamp::now();
            let image = state
                .images
                .entry(id)
                .or_insert_with(|| PulledImage { references: BTreeSet::new(), last_used: now });
            image.last_used = now;
            image.references.insert(reference);
        }
        self.save().await;
    }

    /// Records images found in use now, and forgets those that are gone from the node.
    pub async fn note_usage(
        self: &Arc<Self>,
        used: &BTreeSet<String>,
        gone: &BTreeSet<String>,
        now: Timestamp,
    ) {
        {
            let mut state = self.lock();
            state.images.retain(|id, _| !gone.contains(id));
            for id in used {
                if let Some(image) = state.images.get_mut(id) {
                    image.last_used = now;
                }
            }
        }
        self.save().await;
    }

    async fn save(self: &Arc<Self>) {
        let _one = self.writing.lock().await;
        let images = {
            let mut state = self.lock();
            while state.images.len() > IMAGES_MAX {
                let oldest = state.images.iter().min_by_key(|(_, image)| image.last_used);
                let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
                state.images.remove(&oldest);
            }
            if !worth_writing(&state.images, &state.written) {
                return;
            }
            state.images.clone()
        };
        let (record, copy) = (self.pulled.clone(), images.clone());
        let written = tokio::task::spawn_blocking(move || record.write(&copy)).await;
        match written.map_err(std::io::Error::other).and_then(|done| done) {
            Ok(()) => self.lock().written = images,
            Err(error) => {
                tracing::warn!(path = %self.pulled.path().display(), %error, "record of pulled images not written");
            }
        }
    }
}

fn worth_writing(now: &PulledImages, written: &PulledImages) -> bool {
    now.len() != written.len()
        || now.iter().any(|(id, image)| {
            written.get(id).is_none_or(|there| {
                there.references != image.references
                    || image.last_used.duration_since(there.last_used) >= WRITTEN_EVERY
            })
        })
}

/// A pull in progress. Dropped without [`PendingPull::end`], it was interrupted.
#[derive(Debug)]
pub struct PendingPull {
    book: Arc<ImageBook>,
    reference: String,
}

impl PendingPull {
    /// Ends the pull: its image is recorded, or there is none.
    pub async fn end(self) {
        let book = Arc::clone(&self.book);
        {
            let mut state = book.lock();
            if state.running.get(&self.reference) == Some(&1) {
                state.begun.remove(&self.reference);
            }
        }
        drop(self);
        book.save_begun().await;
    }
}

impl Drop for PendingPull {
    fn drop(&mut self) {
        let mut state = self.book.lock();
        if let Some(running) = state.running.get_mut(&self.reference) {
            *running -= 1;
        }
        state.running.retain(|_, running| *running > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_book_survives_a_restart_and_garbage_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let book = ImageBook::open(dir.path());
        book.note_pulled("sha256:1".into(), "app:1".into()).await;
        book.note_pulled("sha256:1".into(), "app:2".into()).await;
        book.note_pulled("sha256:2".into(), "app:3".into()).await;
        book.note_usage(&BTreeSet::new(), &BTreeSet::from(["sha256:2".into()]), Timestamp::now()).await;
        let again = ImageBook::open(dir.path()).images();
        assert_eq!(again.keys().collect::<Vec<_>>(), ["sha256:1"]);
        assert_eq!(again["sha256:1"].references, BTreeSet::from(["app:1".to_owned(), "app:2".into()]));
        std::fs::write(dir.path().join("images.json"), "garbage").unwrap();
        assert!(ImageBook::open(dir.path()).images().is_empty());
    }

    #[tokio::test]
    async fn the_book_is_bounded_and_forgets_the_longest_unused() {
        let dir = tempfile::tempdir().unwrap();
        let book = ImageBook::open(dir.path());
        {
            let mut state = book.lock();
            for n in 0..=IMAGES_MAX {
                let last_used = Timestamp::from_second(i64::try_from(n).unwrap()).unwrap();
                let image = PulledImage { references: BTreeSet::new(), last_used };
                state.images.insert(format!("sha256:{n}"), image);
            }
        }
        book.save().await;
        let images = book.images();
        assert_eq!(images.len(), IMAGES_MAX);
        assert!(!images.contains_key("sha256:0"));
    }
}
