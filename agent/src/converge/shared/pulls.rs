//! Image pulls: one per image and login on the node regardless of the number of waiting containers, a few at a
//! time, canceled when the last waiter leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use schema::control::lock;
use schema::kinds::function::image_hash;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::converge::shared::image_store::ImageBook;
use crate::metrics::METRICS;
use crate::worlds::docker::{Docker, DockerError, ImageFacts, PullProgress, RegistryLogin};
use crate::worlds::peers::ImageSource;

/// Maximum number of concurrent pulls.
pub(crate) const PULLS: usize = 3;

/// A successful pull.
#[derive(Debug, Clone)]
pub struct PullSummary {
    /// Duration of the pull, without the wait for its turn.
    pub took: Duration,
    /// Bytes on disk, including layers shared with other images.
    pub size_bytes: u64,
}

pub(crate) type PullFuture = BoxFuture<'static, Result<PullSummary, DockerError>>;

/// The image and the logins: a login that fails must not fail those who have a better one.
type PullKey = (String, Vec<RegistryLogin>);

/// Pulls in progress. The last waiter that leaves drops the pull, which ends it at the engine.
#[derive(Clone)]
pub struct Pulls {
    docker: Arc<dyn Docker>,
    book: Arc<ImageBook>,
    /// Source of function images.
    peers: Arc<dyn ImageSource>,
    turns: Arc<Semaphore>,
    running: Arc<Mutex<BTreeMap<PullKey, SharedPull>>>,
}

struct SharedPull {
    pull: WeakShared<PullFuture>,
    progress: watch::Receiver<Option<String>>,
}

/// A waiter's handle on a pull.
pub(crate) struct PullHandle {
    pub(crate) pull: Shared<PullFuture>,
    /// Progress, worded to follow a colon; `None` before its turn.
    pub(crate) progress: watch::Receiver<Option<String>>,
}

impl Pulls {
    /// Creates a set without pulls.
    pub fn new(docker: Arc<dyn Docker>, book: Arc<ImageBook>, peers: Arc<dyn ImageSource>) -> Self {
        Self { docker, book, peers, turns: Arc::new(Semaphore::new(PULLS)), running: Arc::default() }
    }

    pub(crate) fn join(&self, image: &str, logins: Vec<RegistryLogin>) -> PullHandle {
        let mut running = lock(&self.running);
        running.retain(|_, running| running.pull.upgrade().is_some());
        let key = (image.to_owned(), logins);
        if let Some(there) = running.get(&key)
            && let Some(pull) = there.pull.upgrade()
        {
            return PullHandle { pull, progress: there.progress.clone() };
        }
        let (shown, progress) = watch::channel(None);
        let pull = self.clone().fetch(key.clone(), shown).boxed().shared();
        if let Some(weak) = pull.downgrade() {
            running.insert(key, SharedPull { pull: weak, progress: progress.clone() });
        }
        PullHandle { pull, progress }
    }

    async fn fetch(
        self,
        (image, logins): PullKey,
        shown: watch::Sender<Option<String>>,
    ) -> Result<PullSummary, DockerError> {
        // Fair: first come, first served. The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let began = Instant::now();
        let before: BTreeSet<String> = self.docker.images().await?.into_iter().map(|row| row.id).collect();
        let begun = self.book.begin_pull(&image, before.clone()).await;
        let done = self.fetch_now(&image, &logins, shown).await;
        METRICS.pulls.count(done.is_ok(), began.elapsed());
        // An image that existed before is someone else's, even if the registry has the same one.
        if let Ok((facts, login)) = &done
            && !facts.id.is_empty()
            && (!before.contains(&facts.id) || self.book.knows(&facts.id))
        {
            let logins = login.as_ref().map(|login| BTreeSet::from([login.fingerprint()]));
            self.book.note_pulled(facts.id.clone(), image, logins).await;
        }
        begun.end().await;
        Ok(PullSummary { took: began.elapsed(), size_bytes: done?.0.size_bytes })
    }

    /// Brings the image; returns it with the login that it came by.
    async fn fetch_now(
        &self,
        image: &str,
        logins: &[RegistryLogin],
        shown: watch::Sender<Option<String>>,
    ) -> Result<(ImageFacts, Option<RegistryLogin>), DockerError> {
        if image_hash(image).is_some() {
            shown.send_replace(Some("coming from the cluster's registry or another node".to_owned()));
            self.peers.fetch_image(image).await?;
            return Ok((self.docker.image(image).await?.unwrap_or_default(), None));
        }
        let (progress, mut news) = watch::channel(PullProgress::default());
        shown.send_replace(Some(PullProgress::default().to_string()));
        let pulling = self.try_logins(image, logins, &progress);
        let showing = async {
            while news.changed().await.is_ok() {
                shown.send_replace(Some(news.borrow_and_update().to_string()));
            }
            std::future::pending::<()>().await;
        };
        // Cancel-safe: both end together.
        let login = tokio::select! {
            done = pulling => done?,
            () = showing => None,
        };
        Ok((self.docker.image(image).await?.unwrap_or_default(), login))
    }

    /// Tries each login in turn until one is not rejected, and returns it.
    async fn try_logins(
        &self,
        image: &str,
        logins: &[RegistryLogin],
        progress: &watch::Sender<PullProgress>,
    ) -> Result<Option<RegistryLogin>, DockerError> {
        let mut refused = None;
        for login in logins {
            match self.docker.pull(image, Some(login), progress).await {
                Err(error @ DockerError::LoginRefused { .. }) => refused = Some(error),
                other => return other.map(|()| Some(login.clone())),
            }
        }
        match refused {
            Some(error) => Err(error),
            None => self.docker.pull(image, None, progress).await.map(|()| None),
        }
    }

    pub(crate) fn book(&self) -> &ImageBook {
        &self.book
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use schema::control::{Loop as _, Observation};
    use schema::store::events::EventRecorder;

    use super::*;
    use crate::converge::images::{ImagesDeps, ImagesLoop, Thresholds};
    use crate::worlds::docker::{FakeDocker, Fault};
    use crate::worlds::host::{DiskUsage, FakeDisk};
    use crate::worlds::peers::NoPeers;

    struct Rig {
        docker: Arc<FakeDocker>,
        pulls: Pulls,
        book: Arc<ImageBook>,
        state: tempfile::TempDir,
    }

    fn rig(registry: &[&str], hold: bool) -> Rig {
        let docker = Arc::new(FakeDocker::default());
        docker.engine().registry = registry.iter().map(|image| (*image).to_owned()).collect();
        docker.engine().hold_pulls = hold;
        let state = tempfile::tempdir().unwrap();
        let book = ImageBook::open(state.path());
        Rig { pulls: Pulls::new(docker.clone(), Arc::clone(&book), Arc::new(NoPeers)), docker, book, state }
    }

    impl Rig {
        fn wait_for(&self, image: &str) -> tokio::task::JoinHandle<Result<PullSummary, DockerError>> {
            tokio::spawn(self.pulls.join(image, Vec::new()).pull)
        }

        /// Lets all tasks run as far as they can: there is one thread, and nothing waits for the outside except the
        /// book's writes, which happen one after another.
        async fn settle(&self) {
            for _ in 0..6 {
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                self.book.note_usage(&BTreeSet::new(), &BTreeSet::new(), Timestamp::now()).await;
            }
        }

        fn begun(&self) -> usize {
            self.docker.engine().pulls_begun.len()
        }
    }

    /// Nodes that never answer.
    struct SilentPeers;

    #[async_trait::async_trait]
    impl ImageSource for SilentPeers {
        async fn fetch_image(&self, _: &str) -> Result<(), DockerError> {
            std::future::pending().await
        }
    }

    fn login(user: &str) -> RegistryLogin {
        RegistryLogin { server: "h".into(), username: user.into(), ..RegistryLogin::default() }
    }

    // Red when `join` does not check `running`: six pulls.
    #[tokio::test]
    async fn six_waiters_of_one_image_make_one_pull() {
        let rig = rig(&["app:1"], true);
        let waiters: Vec<_> = (0..6).map(|_| rig.wait_for("app:1")).collect();
        rig.settle().await;
        assert_eq!(rig.begun(), 1);
        rig.docker.engine().pulls_released.notify_one();
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
        assert_eq!(rig.begun(), 1);
        let references = rig.book.images()["sha256:app:1"].references.clone();
        assert_eq!(references, BTreeSet::from(["app:1".to_owned()]));
        assert!(
            rig.book.interrupted_pulls().is_empty()
                && ImageBook::open(rig.state.path()).interrupted_pulls().is_empty()
        );
    }

    #[tokio::test]
    async fn the_last_waiter_that_goes_ends_the_pull() {
        let rig = rig(&["app:1"], true);
        let (one, two) = (rig.wait_for("app:1"), rig.wait_for("app:1"));
        rig.settle().await;
        one.abort();
        rig.settle().await;
        assert!(rig.docker.engine().pulls_dropped.is_empty(), "another one still waits");
        two.abort();
        rig.settle().await;
        assert_eq!(rig.docker.engine().pulls_dropped, ["app:1"]);
        // The next one starts over.
        let _three = rig.wait_for("app:1");
        rig.settle().await;
        assert_eq!(rig.begun(), 2);
    }

    // Red with more turns: five begin.
    #[tokio::test]
    async fn three_images_are_pulled_at_once_and_the_others_have_their_turn() {
        let images = ["a:1", "b:1", "c:1", "d:1", "e:1"];
        let rig = rig(&images, true);
        let waiters: Vec<_> = images.iter().map(|image| rig.wait_for(image)).collect();
        rig.settle().await;
        assert_eq!(rig.begun(), PULLS);
        for waiter in waiters {
            rig.settle().await;
            rig.docker.engine().pulls_released.notify_one();
            waiter.await.unwrap().unwrap();
        }
        let order: Vec<String> = rig.docker.engine().pulls_begun.iter().map(|(i, _)| i.clone()).collect();
        assert_eq!(order, images, "first come, first served");
    }

    // Seen red without progress for images of functions: all of them wait "for one of 3 pulls to end".
    #[tokio::test]
    async fn a_function_image_that_has_its_turn_no_longer_waits() {
        let mut rig = rig(&[], false);
        rig.pulls.peers = Arc::new(SilentPeers);
        let images = (0..=PULLS).map(|n| format!("minik8s.local/function:{n:032}"));
        let joined: Vec<PullHandle> = images.map(|image| rig.pulls.join(&image, Vec::new())).collect();
        let waiters: Vec<_> = joined.iter().map(|joined| tokio::spawn(joined.pull.clone())).collect();
        rig.settle().await;
        let begun: Vec<bool> = joined.iter().map(|joined| joined.progress.borrow().is_some()).collect();
        assert_eq!(begun, [true, true, true, false]);
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn logins_are_tried_in_order_until_one_is_not_refused() {
        let rig = rig(&["h/app:1"], false);
        rig.docker.engine().logins.insert("h/app:1".into(), "kim".into());
        let users = |rig: &Rig| -> Vec<Option<String>> {
            std::mem::take(&mut rig.docker.engine().pulls_begun).into_iter().map(|(_, user)| user).collect()
        };
        let logins = vec![login("jo"), login("kim"), login("lee")];
        rig.pulls.join("h/app:1", logins).pull.await.unwrap();
        assert_eq!(users(&rig), [Some("jo".to_owned()), Some("kim".into())]);
        let refused = rig.pulls.join("h/app:1", Vec::new()).pull.await;
        assert!(matches!(refused, Err(DockerError::LoginRefused { .. })), "{refused:?}");
        assert_eq!(users(&rig), [None]);
        let refused = rig.pulls.join("h/app:1", vec![login("jo")]).pull.await;
        assert!(matches!(refused, Err(DockerError::LoginRefused { .. })), "and not once more without");
        assert_eq!(users(&rig), [Some("jo".to_owned())]);
    }

    #[tokio::test]
    async fn an_image_that_was_there_is_not_ours() {
        let rig = rig(&["app:1"], false);
        let facts = ImageFacts { id: "sha256:app:1".into(), ..Default::default() };
        rig.docker.engine().images.insert("other:1".into(), facts);
        rig.pulls.join("app:1", Vec::new()).pull.await.unwrap();
        assert!(rig.book.images().is_empty());
    }

    // Seen red without the write in `begin_pull`, and with `pulls.json` not read: the image stays forever.
    #[tokio::test]
    async fn what_was_pulled_when_the_agent_ended_is_collected_as_any_other() {
        let Rig { docker, pulls, book, state } = rig(&["app:1"], false);
        // The image is pulled, but the answer never comes.
        docker.engine().fault = Some(Fault::Crash { call: 1 });
        let waiter = tokio::spawn(pulls.join("app:1", Vec::new()).pull);
        let crash = async {
            while !docker.has_crashed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), crash).await.expect("the pull begins");
        waiter.abort();
        let _ = waiter.await;
        drop((pulls, book));
        docker.revive();
        let book = ImageBook::open(state.path());
        assert_eq!(book.interrupted_pulls().len(), 1);
        book.set_wanted(Some(BTreeSet::new()));
        let disk = Arc::new(FakeDisk::default());
        disk.set(DiskUsage { used_bytes: 900, free_bytes: 100 });
        let mut images = ImagesLoop::new(ImagesDeps {
            node: "n1".into(),
            docker: docker.clone(),
            disk,
            book: Arc::clone(&book),
            thresholds: Thresholds { high_percent: 85, low_percent: 80 },
            events: EventRecorder::disabled(),
        });
        for later in [0, 3] {
            let Ok(Observation::Ready(observed)) = images.observe().await else { panic!("ready") };
            let plan = ImagesLoop::plan(&observed, Timestamp::now() + SignedDuration::from_mins(later));
            images.act(&observed, plan).await;
            assert!(
                book.interrupted_pulls().is_empty()
                    && ImageBook::open(state.path()).interrupted_pulls().is_empty()
            );
        }
        assert!(docker.engine().images.is_empty());
    }
}
