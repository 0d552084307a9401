//! Images that Minik8s itself pulled, with the time each was last found in use and the logins that they came by: kept
//! on disk, because Docker knows none of it. Other images are never removed, and are open to all pods. A pull is
//! recorded before it begins, so that the image counts as ours even if the agent ends before the answer; until its
//! login is known, nobody may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};
use schema::control::{DiskRecord, lock};
use schema::image::ImageName;
use serde::{Deserialize, Serialize};

use crate::worlds::docker::RegistryLogin;

/// Maximum number of images remembered; beyond it, the longest unused are forgotten, and so stay on the node. Images
/// that need a login are remembered while they are on the node.
const IMAGES_MAX: usize = 1_000;
/// Minimum difference from the use on disk for a write: the time only orders images.
const WRITTEN_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// An image that Minik8s pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledImage {
    pub references: BTreeSet<String>,
    /// Time when it was last found in use, or pulled.
    pub last_used: Timestamp,
    /// Fingerprints of the logins that pulled it; `None` if it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logins: Option<BTreeSet<String>>,
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
            // Whether it needs a login shows the next pull.
            self.note_pulled(id.clone(), reference.clone(), Some(BTreeSet::new())).await;
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

    /// Records a pulled image that was not on the node before, or that is known already. `logins`: fingerprints of
    /// those that pulled it, `None` if it came without one.
    pub async fn note_pulled(
        self: &Arc<Self>,
        id: String,
        reference: String,
        logins: Option<BTreeSet<String>>,
    ) {
        {
            let mut state = self.lock();
            let now = Timestamp::now();
            let image = state.images.entry(id).or_insert_with(|| PulledImage {
                references: BTreeSet::new(),
                last_used: now,
                logins: logins.clone(),
            });
            image.last_used = now;
            image.references.insert(reference);
            image.logins = image.logins.take().zip(logins).map(|(mut all, new)| {
                all.extend(new);
                all
            });
        }
        self.save().await;
    }

    /// True if the image is recorded.
    pub fn knows(&self, id: &str) -> bool {
        self.lock().images.contains_key(id)
    }

    /// True if some image on the node may need a login; otherwise [`ImageBook::may_use`] is true for all.
    pub fn guards_any(&self) -> bool {
        let state = self.lock();
        !state.begun.is_empty() || state.images.values().any(|image| image.logins.is_some())
    }

    /// True if whoever has these logins may use the image with this id, found on the node under `reference`: an image
    /// that a login pulled is for those who have the same login.
    pub fn may_use(&self, reference: &str, id: &str, logins: &[RegistryLogin]) -> bool {
        let state = self.lock();
        match state.images.get(id) {
            Some(PulledImage { logins: Some(by), .. }) => {
                logins.iter().any(|login| by.contains(&login.fingerprint()))
            }
            Some(PulledImage { logins: None, .. }) => true,
            None => {
                let name = ImageName::parse(reference);
                !state.begun.iter().any(|(of, there)| ImageName::parse(of) == name && !there.contains(id))
            }
        }
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
                let open = state.images.iter().filter(|(_, image)| image.logins.is_none());
                let oldest = open.min_by_key(|(_, image)| image.last_used);
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
                    || there.logins != image.logins
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
        book.note_pulled("sha256:1".into(), "app:1".into(), None).await;
        book.note_pulled("sha256:1".into(), "app:2".into(), None).await;
        book.note_pulled("sha256:2".into(), "app:3".into(), None).await;
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
                let image = PulledImage { references: BTreeSet::new(), last_used, logins: None };
                state.images.insert(format!("sha256:{n}"), image);
            }
        }
        book.save().await;
        let images = book.images();
        assert_eq!(images.len(), IMAGES_MAX);
        assert!(!images.contains_key("sha256:0"));
    }

    // Seen red without the comparison of fingerprints, and with `logins` left out of `worth_writing`.
    #[tokio::test]
    async fn an_image_that_came_by_a_login_is_for_those_who_have_it_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let login = |password: &str| RegistryLogin {
            server: "h".into(),
            username: "kim".into(),
            password: password.into(),
            ..RegistryLogin::default()
        };
        let (kim, other) = ([login("one")], [login("two")]);
        let by = |login: &RegistryLogin| Some(BTreeSet::from([login.fingerprint()]));
        let book = ImageBook::open(dir.path());
        assert!(!book.guards_any() && book.may_use("h/app:1", "sha256:loaded", &[]), "nobody pulled it");
        book.note_pulled("sha256:1".into(), "h/app:1".into(), by(&kim[0])).await;
        for book in [&book, &ImageBook::open(dir.path())] {
            assert!(book.guards_any() && book.may_use("h/app:1", "sha256:1", &kim));
            for wrong in [&other[..], &[]] {
                assert!(
                    !book.may_use("h/app:1", "sha256:1", wrong) && !book.may_use("x:1", "sha256:1", wrong)
                );
            }
        }
        book.note_pulled("sha256:1".into(), "h/app:1".into(), by(&other[0])).await;
        let again = ImageBook::open(dir.path());
        assert!(again.may_use("h/app:1", "sha256:1", &kim) && again.may_use("h/app:1", "sha256:1", &other));
        again.note_pulled("sha256:1".into(), "h/app:1".into(), None).await;
        assert!(
            ImageBook::open(dir.path()).may_use("h/app:1", "sha256:1", &[]),
            "the registry gives it to all"
        );
    }

    // Seen red without the check of pulls that have begun, and with images of interrupted pulls open to all.
    #[tokio::test]
    async fn nobody_uses_what_a_pull_brings_before_its_login_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let book = ImageBook::open(dir.path());
        let pull = book.begin_pull("h/app:1", ["sha256:old".to_owned()].into()).await;
        assert!(book.guards_any() && !book.may_use("h/app:1", "sha256:new", &[]));
        assert!(book.may_use("h/app:1", "sha256:old", &[]) && book.may_use("h/other:1", "sha256:new", &[]));
        drop(pull);
        let again = ImageBook::open(dir.path());
        assert!(!again.may_use("h/app:1", "sha256:new", &[]));
        let cut_off = again.interrupted_pulls();
        again.resolve_interrupted(&[("sha256:new".to_owned(), "h/app:1".to_owned())], &cut_off).await;
        assert!(!again.may_use("h/app:1", "sha256:new", &[]));
        again.note_pulled("sha256:new".into(), "h/app:1".into(), None).await;
        assert!(again.may_use("h/app:1", "sha256:new", &[]) && !again.guards_any());
    }
}
