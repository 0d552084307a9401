//! Builds an image, removes those that nothing needs, and reports both.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::lock;
use schema::kinds::function::{Runtime, image_hash};
use schema::records::{BuildOrder, EventType};
use schema::store::events::EventDraft;
use tokio::time::timeout;

use super::base::bases;
use super::context::{Content, tar};
use super::plan::{BuildsPlan, Failure, Observed};
use super::{BuildsLoop, python};
use crate::worlds::docker::ImageBuild;

/// Longest time for one build.
const BUILD_MAX: Duration = Duration::from_secs(900);
/// Memory of one step of a build.
const MEMORY_BYTES: i32 = 1 << 30;
/// CPU of one step of a build: one core.
const CPU_QUOTA_US: i32 = 100_000;
/// Bytes of a build's log that are kept.
const LOG_MAX_BYTES: usize = 1 << 20;
/// Lines of a log's end that go into the reason of a failure, and their bytes.
const WHY_LINES: usize = 20;
const WHY_BYTES: usize = 2000;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// There is something to look at at once.
    pub again: bool,
    pub again_at: Option<Timestamp>,
}

/// What a build says, on disk and for the reason of a failure.
struct BuildLog {
    file: Option<fs::File>,
    text: String,
}

impl BuildLog {
    fn add(&mut self, said: &str) {
        let said = &without_colours(said);
        if self.text.len() + said.len() <= LOG_MAX_BYTES {
            self.text.push_str(said);
            if let Some(file) = &mut self.file {
                let _ = file.write_all(said.as_bytes());
            }
        }
    }

    /// Its last lines.
    fn end(&self) -> String {
        let lines: Vec<&str> = self.text.lines().filter(|line| !line.trim().is_empty()).collect();
        let end = lines[lines.len().saturating_sub(WHY_LINES)..].join("\n");
        let from = (0..=end.len()).find(|at| end.is_char_boundary(*at) && end.len() - at <= WHY_BYTES);
        end[from.unwrap_or_default()..].to_owned()
    }
}

/// Docker's builder paints what a step writes to standard error.
fn without_colours(said: &str) -> String {
    let mut parts = said.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

impl BuildsLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: BuildsPlan) -> Outcome {
        self.reports.send_replace(Some(plan.reported));
        self.unneeded_since = plan.unneeded_since;
        self.failed.retain(|hash, _| observed.orders.contains_key(hash));
        let mut outcome = Outcome { again: false, again_at: plan.again_at };
        for (hash, tags) in plan.remove {
            for tag in tags {
                if let Err(error) = self.deps.docker.remove_image(&tag).await {
                    tracing::debug!(hash, %error, "an image of a function stays");
                }
            }
            self.unneeded_since.remove(&hash);
            let _ = fs::remove_file(self.log_path(&hash));
            outcome.again = true;
        }
        if let Some((hash, order)) = plan.build {
            self.build(&hash, &order).await;
            outcome.again = true;
        }
        outcome
    }

    async fn build(&mut self, hash: &str, order: &BuildOrder) {
        tracing::info!(function = %order.function, image = order.reference, "builds an image");
        let path = self.log_path(hash);
        let _ = path.parent().map(fs::create_dir_all);
        let log = Mutex::new(BuildLog { file: fs::File::create(&path).ok(), text: String::new() });
        let said = |text: &str| lock(&log).add(text);
        let began = std::time::Instant::now();
        let building = timeout(BUILD_MAX, self.build_now(order, &said));
        let mut snapshot = self.deps.snapshot.clone();
        let key = (self.deps.node.clone(), hash.to_owned());
        let taken_back = async {
            // No function needs it any more.
            while snapshot.current().builds.contains_key(&key) {
                snapshot.changed().await;
            }
        };
        // Cancel-safe: a build that is not wanted ends at the engine, too.
        let done = tokio::select! {
            done = building => done.unwrap_or_else(|_| Err(format!("the build took longer than {BUILD_MAX:?}"))),
            () = taken_back => return,
        };
        match done {
            Ok(()) => {
                self.failed.remove(hash);
                let message = format!("image {} was built in {:.1?}", order.reference, began.elapsed());
                self.tell(order, EventType::Normal, "Built", message);
            }
            Err(why) => {
                lock(&log).add(&format!("{why}\n"));
                let why = lock(&log).end();
                tracing::warn!(function = %order.function, why, "an image can't be built");
                let attempts = self.failed.get(hash).map_or(0, |failed| failed.attempts) + 1;
                self.tell(order, EventType::Warning, "BuildFailed", why.clone());
                self.failed.insert(hash.to_owned(), Failure { why, at: Timestamp::now(), attempts });
            }
        }
    }

    async fn build_now(
        &self,
        order: &BuildOrder,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), String> {
        let deps = &self.deps;
        deps.files.ensure(&order.path, &order.source).await.map_err(|error| error.to_string())?;
        let folder = deps.files.folder(&order.source);
        let (parts, network) = match runtime(order, &folder)? {
            Runtime::Dockerfile => (vec![Content::Folder { path: "", folder }], true),
            Runtime::Python => {
                let scratch = deps.state_dir.join("agent");
                let bases = bases(deps.docker.as_ref(), order.base.as_deref(), &scratch, log).await?;
                let (dockerfile, network) = python::dockerfile(&bases, order, &folder);
                (python::content(&dockerfile, &folder), network)
            }
        };
        let context =
            tokio::task::spawn_blocking(move || tar(&parts)).await.map_err(|error| error.to_string())?;
        let context = context.map_err(|error| format!("cannot read the function's folder: {error}"))?;
        let hash = image_hash(&order.reference).unwrap_or_default().to_owned();
        let build = ImageBuild {
            reference: order.reference.clone(),
            context: context.into(),
            dockerfile: "Dockerfile".to_owned(),
            network,
            memory_bytes: MEMORY_BYTES,
            cpu_quota_us: CPU_QUOTA_US,
            labels: [("minik8s.io/function-image".to_owned(), hash)].into(),
        };
        deps.docker.build(build, log).await.map_err(|error| {
            let help = if network && order.package_index.is_none() {
                "; if this node reaches no package index, put the wheels into a `wheels` folder beside requirements.txt, \
                 or name an index in the Cluster object's functions.packageIndex"
            } else {
                ""
            };
            format!("{error}{help}")
        })
    }

    fn tell(&self, order: &BuildOrder, kind: EventType, reason: &str, message: String) {
        self.deps.events.record(EventDraft {
            kind,
            object_kind: "Function".to_owned(),
            namespace: order.function.namespace.clone(),
            name: order.function.name.clone(),
            reason: reason.to_owned(),
            message,
        });
    }
}

/// How the folder becomes an image, by what it holds unless the manifest says.
fn runtime(order: &BuildOrder, folder: &Path) -> Result<Runtime, String> {
    let has = |name: &str| folder.join(name).is_file();
    let (docker, python) = (has("Dockerfile"), has("main.py") || has("func.py"));
    let path = &order.path;
    match (order.runtime, docker, python) {
        (Some(Runtime::Dockerfile), true, _) | (None, true, _) => Ok(Runtime::Dockerfile),
        (Some(Runtime::Python), _, _) | (None, false, true) => Ok(Runtime::Python),
        (Some(Runtime::Dockerfile), false, _) => Err(format!("{path} holds no Dockerfile")),
        (None, false, false) => Err(format!("{path} holds neither main.py nor func.py nor a Dockerfile")),
    }
}
