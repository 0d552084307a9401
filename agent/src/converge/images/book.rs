//! The images that Minik8s itself pulled, with when each was last seen in use: kept on disk, because
//! Docker tells neither. What is not in here is never removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Most images remembered; beyond, those longest unused are forgotten, and so stay on the node.
const IMAGES_MAX: usize = 1_000;
/// A use that is not newer than the one on disk by this much is not written: it only orders images.
const WRITTEN_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// An image that Minik8s pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledImage {
    /// The references by which it was pulled.
    pub references: BTreeSet<String>,
    /// When it was last seen in use, or pulled.
    pub last_used: Timestamp,
}

/// Images by content id.
pub type PulledImages = BTreeMap<String, PulledImage>;

#[derive(Debug, Default)]
struct State {
    images: PulledImages,
    wanted: Option<BTreeSet<String>>,
    /// As written last.
    written: PulledImages,
}

/// The book. Pulls and the images loop share it.
#[derive(Debug)]
pub struct ImageBook {
    path: PathBuf,
    state: Mutex<State>,
    /// One writer of the file at a time.
    writing: tokio::sync::Mutex<()>,
}

impl ImageBook {
    /// Reads `<agent_dir>/images.json`. A file that can't be read is an empty book: then nothing is
    /// removed that was pulled before.
    pub fn open(agent_dir: &Path) -> Arc<Self> {
        let path = agent_dir.join("images.json");
        let images: PulledImages = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "the list of pulled images can't be read; those images stay");
                PulledImages::new()
            }),
            Err(_) => PulledImages::new(),
        };
        let state = State { written: images.clone(), images, wanted: None };
        Arc::new(Self { path, state: Mutex::new(state), writing: tokio::sync::Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in it.
    pub fn images(&self) -> PulledImages {
        self.lock().images.clone()
    }

    /// References of all pods that are wanted; none while that is not known.
    pub fn wanted(&self) -> Option<BTreeSet<String>> {
        self.lock().wanted.clone()
    }

    /// Says which images are wanted.
    pub fn set_wanted(&self, wanted: Option<BTreeSet<String>>) {
        self.lock().wanted = wanted;
    }

    /// An image that was not on the node has been pulled.
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

    /// These were seen in use now; these are not on the node any more.
    pub async fn note_seen(
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
        let (path, copy) = (self.path.clone(), images.clone());
        let written = tokio::task::spawn_blocking(move || write(&path, &copy)).await;
        match written.map_err(std::io::Error::other).and_then(|done| done) {
            Ok(()) => self.lock().written = images,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot write the list of pulled images");
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

/// Beside it first: a crash leaves the former file or the new one.
fn write(path: &Path, images: &PulledImages) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec_pretty(images)?)?;
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
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
        book.note_seen(&BTreeSet::new(), &BTreeSet::from(["sha256:2".into()]), Timestamp::now()).await;
        let again = ImageBook::open(dir.path()).images();
        assert_eq!(again.keys().collect::<Vec<_>>(), ["sha256:1"]);
        assert_eq!(again["sha256:1"].references, BTreeSet::from(["app:1".to_owned(), "app:2".into()]));
        fs::write(dir.path().join("images.json"), "garbage").unwrap();
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
