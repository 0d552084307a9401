//! Builds and pushes images, removes unneeded ones, and reports the outcome.

use std::fs;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{Next, lock};
use schema::kinds::Kind;
use schema::kinds::cluster::cluster_reference;
use schema::kinds::function::{Runtime, image_hash};
use schema::meta::NamespacedName;
use schema::records::{BuildOrder, EventType};
use schema::store::events::EventDraft;
use tokio::time::timeout;

use super::base::bases;
use super::context::{Content, tar};
use super::plan::{BuildsPlan, Failure, Observed, RUNTIME_FILES, Removal, runtime};
use super::{BuildsLoop, disk, python};
use crate::worlds::docker::{BuildSecret, ImageBuild};
use crate::worlds::registry::NotDeleted;

/// End of Docker's error about a step that was killed by SIGKILL, as the kernel does when memory runs out.
const KILLED: &str = "returned a non-zero code: 137";
/// Part of the error about the step in which pip installs packages.
const PIP_STEP: &str = " install --no-cache-dir ";
/// CPU of one step of a build: one core.
const CPU_QUOTA_US: i32 = 100_000;
/// Maximum size of a build's log in bytes.
const LOG_MAX_BYTES: usize = 1 << 20;
/// Maximum number of lines from a log's end in the reason of a failure, and of their bytes.
const WHY_LINES: usize = 20;
const WHY_BYTES: usize = 2000;

/// Output of a build, on disk and for the reason of a failure.
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

    /// Returns the last lines.
    fn end(&self) -> String {
        let lines: Vec<&str> = self.text.lines().filter(|line| !line.trim().is_empty()).collect();
        let end = lines[lines.len().saturating_sub(WHY_LINES)..].join("\n");
        let from = (0..=end.len()).find(|at| end.is_char_boundary(*at) && end.len() - at <= WHY_BYTES);
        end[from.unwrap_or_default()..].to_owned()
    }
}

/// Removes the colors that Docker's builder adds to the standard error of a step.
fn without_colours(said: &str) -> String {
    let mut parts = said.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

/// Counts one more failure of a push or a removal.
fn failed_again(before: Option<&Failure>, why: String) -> Failure {
    let attempts = before.map_or(0, |failed| failed.attempts) + 1;
    Failure { why, at: Timestamp::now(), attempts, package_index: None }
}

impl BuildsLoop {
    pub(super) async fn carry_out(&mut self, observed: &Observed, plan: BuildsPlan) -> Next {
        self.reports.send_replace(Some(plan.reported));
        self.unneeded_since = plan.unneeded_since;
        self.failed.retain(|hash, _| observed.orders.contains_key(hash));
        self.push_failed.retain(|hash, _| observed.images.contains_key(hash));
        self.removal_failed.retain(|hash, _| observed.images.contains_key(hash));
        for (image, name) in plan.claim {
            if let Err(error) = self.deps.docker.tag(&image, &name).await {
                tracing::debug!(image, %error, "could not tag an image of a function");
            }
        }
        let mut is_again = plan.build.is_some() || plan.push.is_some();
        if let Some((hash, order)) = plan.build {
            self.build(&hash, &order).await;
        }
        if let Some((hash, reference, target)) = plan.push {
            self.push(hash, &reference, &target).await;
        }
        for removal in plan.remove {
            is_again |= self.remove(removal).await;
        }
        if !plan.remove_logs.is_empty() {
            self.remove_logs(&plan.remove_logs).await;
        }
        // The outcome may allow the next step.
        if is_again { Next::After(Duration::ZERO) } else { Next::Interval }
    }

    /// Removes an image, from the registry first: only its local names record the copy there. Returns true if it is
    /// gone.
    async fn remove(&mut self, removal: Removal) -> bool {
        for (repository, digest) in &removal.pushed {
            match self.deps.registry.delete(repository, digest).await {
                Ok(()) => {}
                Err(NotDeleted::Unavailable(why)) => {
                    tracing::warn!(repository, digest, why, "could not delete an image in the registry yet");
                    let failure = failed_again(self.removal_failed.get(&removal.hash), why);
                    self.removal_failed.insert(removal.hash, failure);
                    return false;
                }
                Err(NotDeleted::Refused(why)) => {
                    let message = format!(
                        "image {repository}@{digest}, which no function needs, stays in the registry: {why}; delete it there"
                    );
                    self.record_node_event("ImageStaysInRegistry", message);
                }
            }
        }
        for name in &removal.names {
            if let Err(error) = self.deps.docker.remove_image(name).await {
                tracing::debug!(name, %error, "an image of a function stays");
            }
        }
        self.unneeded_since.remove(&removal.hash);
        self.remove_logs(&[removal.hash]).await;
        true
    }

    async fn push(&mut self, hash: String, reference: &str, target: &str) {
        match self.deps.registry.push(reference, target).await {
            Ok(()) => {
                tracing::info!(target, "pushed an image");
                self.push_failed.remove(&hash);
            }
            Err(why) => {
                tracing::warn!(target, why, "an image can't be pushed");
                self.record_node_event("PushFailed", why.clone());
                let failure = failed_again(self.push_failed.get(&hash), why);
                self.push_failed.insert(hash, failure);
            }
        }
    }

    async fn build(&mut self, hash: &str, order: &BuildOrder) {
        tracing::info!(function = %order.function, image = order.reference, "builds an image");
        let path = self.log_path(hash);
        let _ = path.parent().map(fs::create_dir_all);
        let log = Mutex::new(BuildLog { file: fs::File::create(&path).ok(), text: String::new() });
        let said = |text: &str| lock(&log).add(text);
        let began = std::time::Instant::now();
        let limits = self.deps.limits;
        let building = timeout(limits.time, self.build_now(order, &said));
        let mut snapshot = self.deps.snapshot.clone();
        let key = (self.deps.node.clone(), hash.to_owned());
        let taken_back = async {
            // No function needs it any longer.
            while snapshot.current().builds.contains_key(&key) {
                snapshot.changed().await;
            }
        };
        // Cancel-safe: a build that is no longer wanted, or fills the disk, ends at the engine, too.
        let done = tokio::select! {
            done = building => done.unwrap_or_else(|_| Err(format!("the build took longer than {:?}", limits.time))),
            why = disk::filled(self.deps.docker.as_ref(), self.deps.disk.as_ref(), limits.disk_bytes) => Err(why),
            () = taken_back => return,
        };
        match done {
            Ok(()) => {
                self.failed.remove(hash);
                let message = format!("image {} was built in {:.1?}", order.reference, began.elapsed());
                self.record_event(order, EventType::Normal, "Built", message);
            }
            Err(why) => {
                lock(&log).add(&format!("{why}\n"));
                let why = lock(&log).end();
                tracing::warn!(function = %order.function, why, "an image can't be built");
                let attempts = self.failed.get(hash).map_or(0, |failed| failed.attempts) + 1;
                self.record_event(order, EventType::Warning, "BuildFailed", why.clone());
                let package_index = order.package_index.clone();
                let failure = Failure { why, at: Timestamp::now(), attempts, package_index };
                self.failed.insert(hash.to_owned(), failure);
            }
        }
    }

    async fn build_now(
        &self,
        order: &BuildOrder,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), String> {
        self.deps.files.ensure(&order.path, &order.source).await.map_err(|error| error.to_string())?;
        let folder = self.deps.files.folder(&order.source);
        let mut secret = None;
        let files: Vec<&str> = RUNTIME_FILES.into_iter().filter(|name| folder.join(name).is_file()).collect();
        let (parts, needs_network) = match runtime(order, &files)? {
            Runtime::Dockerfile => (vec![Content::Folder { path: "", folder }], true),
            Runtime::Python => {
                let scratch = self.deps.state_dir.join("agent");
                let bases = bases(self.deps.docker.as_ref(), order.base.as_deref(), &scratch, log).await?;
                secret = self.index_login(order).await?;
                let (dockerfile, network) = python::dockerfile(&bases, order, &folder, secret.is_some());
                (python::content(&dockerfile, &folder), network)
            }
        };
        let context =
            tokio::task::spawn_blocking(move || tar(&parts)).await.map_err(|error| error.to_string())?;
        let context = context.map_err(|error| format!("cannot read the function's folder: {error}"))?;
        let network = match needs_network {
            true => Some(self.confined_network(order.package_index.as_deref()).await?),
            false => None,
        };
        let hash = image_hash(&order.reference).unwrap_or_default().to_owned();
        let build = ImageBuild {
            reference: order.reference.clone(),
            context: context.into(),
            dockerfile: "Dockerfile".to_owned(),
            network,
            memory_bytes: i32::try_from(self.deps.limits.memory_bytes).unwrap_or(i32::MAX),
            cpu_quota_us: CPU_QUOTA_US,
            labels: [("minik8s.io/function-image".to_owned(), hash)].into(),
            secret,
        };
        let error = match self.deps.docker.build(build, log).await {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        let help = if error.ends_with(KILLED) {
            let mib = self.deps.limits.memory_bytes >> 20;
            format!("; it was killed: a build may use {mib} MiB of memory (--build-memory of the agent)")
        } else if needs_network && error.contains(PIP_STEP) {
            let index = match &order.package_index {
                Some(index) => format!("if this node does not reach {index},"),
                None => "if this node reaches no package index, name one in the Cluster object's functions.packageIndex, or"
                    .to_owned(),
            };
            format!("; {index} put the wheels into a `wheels` folder beside requirements.txt")
        } else {
            String::new()
        };
        Err(format!("{error}{help}"))
    }

    /// Returns pip's login for the index, as a line of a netrc file.
    async fn index_login(&self, order: &BuildOrder) -> Result<Option<BuildSecret>, String> {
        let settings = self.deps.catalog.borrow().settings.clone();
        let (Some(index), Some(secret)) =
            (&order.package_index, &settings.spec.functions.package_index_login)
        else {
            return Ok(None);
        };
        let namespace = cluster_reference().namespace;
        let values = self.deps.files.secret_values(&settings.logins, &namespace, &secret.name).await;
        let values = values.map_err(|error| error.to_string())?;
        let value = |key: &str| {
            let named = || format!("key {key} of secret {}, for the package index,", secret.name);
            let value = values.get(key).ok_or_else(|| format!("{} is not there", named()))?;
            python::netrc_word(value).ok_or_else(|| {
                format!(
                    "{} is not one word of ASCII without backslashes and double quotes, which pip reads in different \
                     ways; choose another",
                    named()
                )
            })
        };
        let (user, password) = (value("username")?, value("password")?);
        let host = python::host_of(index);
        Ok(Some(BuildSecret(format!("machine {host} login {user} password {password}\n"))))
    }

    fn record_node_event(&self, reason: &str, message: String) {
        let node = NamespacedName::new("", &self.deps.node);
        self.deps.events.record(EventDraft::of(EventType::Warning, Kind::Node, &node, reason, message));
    }

    fn record_event(&self, order: &BuildOrder, kind: EventType, reason: &str, message: String) {
        self.deps.events.record(EventDraft::of(kind, Kind::Function, &order.function, reason, message));
    }
}
