//! Builds and pushes images, removes unneeded ones, and reports the outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use reqwest::Url;
use schema::control::{Next, lock};
use schema::kinds::Kind;
use schema::kinds::cluster::cluster_reference;
use schema::kinds::function::{DOCKERFILE, Runtime, detect_runtime, image_hash, is_python_file};
use schema::meta::NamespacedName;
use schema::records::{BuildOrder, EventType};
use schema::store::events::EventDraft;
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::pin::RESOLVE_MAX;
use super::plan::{BuildsPlan, Observed, Removal};
use super::python::{ContextPart, bases, tar};
use super::{BuildOutcome, BuildsDeps, BuildsLoop, failed_again, log_dir, log_path, pin, python};
use crate::metrics::METRICS;
use crate::names;
use crate::packet_rules::chain::Names;
use crate::worlds::docker::{BuildSecret, Docker, EngineNetwork, ImageBuild, StoredImage};
use crate::worlds::host::{Disk, DiskUsage};
use crate::worlds::registry::DeletionFailure;

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
        let said = &without_colors(said);
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

/// True if a Python module is in the folder or below it. Links to folders are not followed.
fn holds_python(folder: &Path) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match is_folder {
            true => holds_python(&entry.path()),
            false => is_python_file(&entry.file_name().to_string_lossy()),
        }
    })
}

/// Returns the Dockerfile of a folder, which a link may not take from elsewhere on the node.
fn dockerfile_text(folder: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("cannot read the Dockerfile: {error}");
    let root = folder.canonicalize().map_err(failed)?;
    let path = folder.join("Dockerfile").canonicalize().map_err(failed)?;
    if !path.starts_with(root) {
        return Err("the Dockerfile is a link that leads out of the folder; put the file there".to_owned());
    }
    fs::read_to_string(path).map_err(failed)
}

/// Removes the colors that Docker's builder adds to the standard error of a step.
fn without_colors(said: &str) -> String {
    let mut parts = said.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
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
                tracing::debug!(image, %error, "function image not tagged");
            }
        }
        let mut is_again = plan.push.is_some();
        for (hash, order) in plan.build {
            self.begin_build(hash, order);
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
                Err(DeletionFailure::Unavailable(why)) => {
                    tracing::warn!(
                        repository,
                        digest,
                        error = why,
                        "image not deleted in the registry; it is tried again"
                    );
                    let failure = failed_again(self.removal_failed.get(&removal.hash), why);
                    self.removal_failed.insert(removal.hash, failure);
                    return false;
                }
                Err(DeletionFailure::Refused(why)) => {
                    let message = format!(
                        "image {repository}@{digest}, which no function needs, stays in the registry: {why}; delete it there"
                    );
                    self.deps.record_node_event("ImageStaysInRegistry", message);
                }
            }
        }
        for name in &removal.names {
            if let Err(error) = self.deps.docker.remove_image(name).await {
                tracing::debug!(image = name, %error, "function image not removed");
            }
        }
        tracing::info!(images = ?removal.names, "function image removed");
        self.unneeded_since.remove(&removal.hash);
        self.remove_logs(&[removal.hash]).await;
        true
    }

    async fn push(&mut self, hash: String, reference: &str, target: &str) {
        let began = std::time::Instant::now();
        match self.deps.registry.push(reference, target).await {
            Ok(()) => {
                tracing::info!(image = target, took = ?began.elapsed(), "function image pushed");
                self.push_failed.remove(&hash);
            }
            Err(why) => {
                tracing::warn!(image = target, error = why, "function image not pushed; it is tried again");
                self.deps.record_node_event("PushFailed", why.clone());
                let failure = failed_again(self.push_failed.get(&hash), why);
                self.push_failed.insert(hash, failure);
            }
        }
    }
}

impl BuildsDeps {
    /// Builds an image, with a log on the disk.
    pub(super) async fn build(&self, hash: &str, order: &BuildOrder) -> BuildOutcome {
        let path = log_path(&self.state_dir, hash);
        let _ = path.parent().map(fs::create_dir_all);
        let log = Mutex::new(BuildLog { file: fs::File::create(&path).ok(), text: String::new() });
        let said = |text: &str| lock(&log).add(text);
        let began = std::time::Instant::now();
        let limits = self.limits;
        let building = timeout(limits.time, self.build_now(order, &said));
        let mut snapshot = self.snapshot.clone();
        let key = (self.node.clone(), hash.to_owned());
        let taken_back = async {
            // No function needs it any longer.
            while snapshot.current().builds.contains_key(&key) {
                snapshot.changed().await;
            }
        };
        // Cancel-safe: a build that is no longer wanted, or fills the disk, ends at the engine, too.
        let done = tokio::select! {
            done = building => done.unwrap_or_else(|_| Err(format!("the build took longer than {:?}", limits.time))),
            why = wait_until_full(self.docker.as_ref(), self.disk.as_ref(), limits.disk_bytes) => Err(why),
            () = taken_back => return BuildOutcome::Withdrawn,
        };
        METRICS.builds.count(done.is_ok(), began.elapsed());
        let object = order.function.of_kind(Kind::Function);
        match done {
            Ok(()) => {
                tracing::info!(%object, image = order.reference, took = ?began.elapsed(), "function image built");
                let message = format!("image {} was built in {:.1?}", order.reference, began.elapsed());
                self.record_event(order, EventType::Normal, "Built", message);
                BuildOutcome::Built
            }
            Err(why) => {
                lock(&log).add(&format!("{why}\n"));
                let why = lock(&log).end();
                tracing::warn!(%object, took = ?began.elapsed(), error = why, "function image not built");
                self.record_event(order, EventType::Warning, "BuildFailed", why.clone());
                BuildOutcome::Failed { why, package_index: order.package_index.clone() }
            }
        }
    }

    async fn build_now(
        &self,
        order: &BuildOrder,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), String> {
        self.files.ensure(&order.path, &order.source).await.map_err(|error| error.to_string())?;
        let folder = self.files.folder(&order.source);
        let mut secret = None;
        let (has_dockerfile, has_python) = (folder.join(DOCKERFILE).is_file(), holds_python(&folder));
        let (parts, needs_network) =
            match detect_runtime(&order.path, order.runtime, has_dockerfile, has_python)? {
                Runtime::Dockerfile => {
                    let pinned = self.pinned(&pin::parse(&dockerfile_text(&folder)?)?, None, log).await?;
                    let dockerfile = ContextPart::Text { path: "Dockerfile", text: pinned };
                    // The later one of two files takes the other's place.
                    (vec![ContextPart::Folder { path: "", folder }, dockerfile], true)
                }
                Runtime::Python => {
                    let scratch = self.state_dir.join("agent");
                    let bases = bases(self.docker.as_ref(), order.base.as_deref(), &scratch, log).await?;
                    secret = self.index_login(order).await?;
                    let (dockerfile, network) = python::dockerfile(&bases, order, &folder, secret.is_some());
                    let pinned = self.pinned(&pin::parse(&dockerfile)?, order.base.as_deref(), log).await?;
                    (python::content(&pinned, &folder), network)
                }
            };
        let context =
            tokio::task::spawn_blocking(move || tar(&parts)).await.map_err(|error| error.to_string())?;
        let context = context.map_err(|error| format!("cannot read the function's folder: {error}"))?;
        let network = match needs_network {
            true => Some(self.confined_network(order.package_index.as_deref()).await?),
            false => None,
        };
        // The index stays reachable until the end.
        let (network, _index) = network.unzip();
        let hash = image_hash(&order.reference).unwrap_or_default().to_owned();
        let build = ImageBuild {
            reference: order.reference.clone(),
            context: context.into(),
            dockerfile: "Dockerfile".to_owned(),
            network,
            memory_bytes: i32::try_from(self.limits.memory_bytes).unwrap_or(i32::MAX),
            cpu_quota_us: CPU_QUOTA_US,
            cgroup: Some(names::build_cgroup(&self.instance)),
            labels: [("minik8s.io/function-image".to_owned(), hash)].into(),
            secret,
        };
        let error = match self.docker.build(build, log).await {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        let help = if error.ends_with(KILLED) {
            let mib = self.limits.memory_bytes >> 20;
            format!("; it was killed: a build may use {mib} MiB of memory (--build-memory of the agent)")
        } else if needs_network && error.contains(PIP_STEP) {
            let index = match &order.package_index {
                Some(index) => format!("if this node cannot reach {index},"),
                None => "if this node cannot reach a package index, name one in the Cluster object's functions.packageIndex, or"
                    .to_owned(),
            };
            format!("; {index} put the wheels into a `wheels` folder next to requirements.txt")
        } else {
            String::new()
        };
        Err(format!("{error}{help}"))
    }

    /// Returns pip's login for the index, as a line of a netrc file.
    async fn index_login(&self, order: &BuildOrder) -> Result<Option<BuildSecret>, String> {
        let settings = self.catalog.borrow().settings.clone();
        let (Some(index), Some(secret)) =
            (&order.package_index, &settings.spec.functions.package_index_login)
        else {
            return Ok(None);
        };
        let namespace = cluster_reference().namespace;
        let values = self.files.secret_values(&settings.logins, &namespace, &secret.name).await;
        let values = values.map_err(|error| error.to_string())?;
        let value = |key: &str| {
            let named = || format!("key {key} of secret {}, for the package index,", secret.name);
            let value = values.get(key).ok_or_else(|| format!("{} is missing", named()))?;
            python::netrc_word(value).ok_or_else(|| {
                format!(
                    "{} must be one ASCII word without backslashes and double quotes, which pip reads in different \
                     ways; choose another",
                    named()
                )
            })
        };
        let (user, password) = (value("username")?, value("password")?);
        let host = python::index_host(index);
        Ok(Some(BuildSecret(format!("machine {host} login {user} password {password}\n"))))
    }

    fn record_node_event(&self, reason: &str, message: String) {
        let node = NamespacedName::new("", &self.node);
        self.events.record(EventDraft::about(EventType::Warning, Kind::Node, &node, reason, message));
    }

    fn record_event(&self, order: &BuildOrder, kind: EventType, reason: &str, message: String) {
        self.events.record(EventDraft::about(kind, Kind::Function, &order.function, reason, message));
    }
}

// Watches Docker's disk during a build: Docker limits a build's memory and CPU, but not its writes.

/// Interval between checks. At 1 GB/s a build is stopped 2 GB late.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Bytes that a build must leave free for the pods of the node.
const FREE_MIN: u64 = 1 << 30;

/// Returns the reason once a build must be stopped because the disk fills. Never returns if the disk can't be read.
pub(super) async fn wait_until_full(docker: &dyn Docker, disk: &dyn Disk, growth_max: u64) -> String {
    let Ok(root) = docker.data_root().await else { return std::future::pending().await };
    let Ok(at_first) = disk.usage(&root).await else { return std::future::pending().await };
    loop {
        if let Ok(now) = disk.usage(&root).await
            && let Some(why) = problem(at_first, now, growth_max)
        {
            return format!("the build was stopped: {why} on the disk of {}", root.display());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns the problem with a disk, compared to its usage `before`.
fn problem(before: DiskUsage, now: DiskUsage, growth_max: u64) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    let grown = now.used_bytes.saturating_sub(before.used_bytes);
    if grown > growth_max {
        // Others write, too.
        return Some(format!(
            "{} MiB were written since it began, more than {} MiB,",
            mib(grown),
            mib(growth_max)
        ));
    }
    let is_low = now.free_bytes < FREE_MIN;
    is_low.then(|| format!("{} MiB are left, less than {} MiB,", mib(now.free_bytes), mib(FREE_MIN)))
}

// Network of builds: a Docker bridge for this instance alone, which builds get only once the rules are in place
// that keep them from the cluster and this node.

impl BuildsDeps {
    /// Returns the network's name, once its rules are in place, and the index that they let through while it lives.
    pub(super) async fn confined_network(
        &self,
        index: Option<&str>,
    ) -> Result<(String, Arc<BTreeSet<SocketAddrV4>>), String> {
        let index = addresses(index).await?;
        let index = self.network.until_confined(index).await?;
        let names = Names::for_instance(&self.instance);
        let network = EngineNetwork {
            name: names.build_network,
            bridge: names.build_bridge,
            mtu: self.mtu,
            instance: self.instance.clone(),
        };
        self.docker.ensure_network(&network).await.map_err(|error| error.to_string())?;
        Ok((network.name, index))
    }
}

/// Resolves the addresses of an index, which builds must reach even inside the cluster.
async fn addresses(index: Option<&str>) -> Result<BTreeSet<SocketAddrV4>, String> {
    let url: Option<Url> = index.and_then(|index| index.parse().ok());
    let at = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    let Some((host, port)) = at else { return Ok(BTreeSet::new()) };
    let refused = |why: String| {
        format!(
            "cannot resolve {host}, the host of the package index: {why}; correct functions.packageIndex of the Cluster object or \
             this node's DNS, or put the wheels into a `wheels` folder next to requirements.txt"
        )
    };
    let found = match timeout(RESOLVE_MAX, lookup_host((host, port))).await {
        Ok(found) => found.map_err(|error| refused(error.to_string()))?,
        Err(_) => return Err(refused(format!("no answer within {RESOLVE_MAX:?}"))),
    };
    let of_four = |address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    };
    Ok(found.filter_map(of_four).collect())
}

// Leftovers of builds in addition to their images: logs, and images without a name, such as stages that the image
// does not descend from. Docker's builder reuses these for the next build, so they stay as long as the log of a
// build names them.

/// Prefix with which Docker's builder logs the image that a step produced.
const MADE: &str = " ---> ";
/// Digits of an image's id in a log.
const ID_DIGITS: usize = 12;

impl BuildsLoop {
    /// Returns the existing logs, by hash, with the time of their last write.
    pub(super) fn logs(&self) -> BTreeMap<String, Timestamp> {
        let files = fs::read_dir(log_dir(&self.deps.state_dir)).into_iter().flatten().flatten();
        let logs = files.filter_map(|file| {
            let hash = file.file_name().to_str()?.strip_suffix(".log")?.to_owned();
            let written = file.metadata().ok()?.modified().ok()?;
            Some((hash, Timestamp::try_from(written).ok()?))
        });
        logs.collect()
    }

    /// Removes logs, and the unnamed images that no other log names.
    pub(super) async fn remove_logs(&self, hashes: &[String]) {
        let made_by =
            |hash: &String| image_ids_in(&fs::read_to_string(self.log_path(hash)).unwrap_or_default());
        let (gone, kept): (Vec<_>, Vec<_>) = self.logs().into_keys().partition(|hash| hashes.contains(hash));
        let kept: BTreeSet<String> = kept.iter().flat_map(made_by).collect();
        let gone_ids: BTreeSet<String> =
            gone.iter().flat_map(made_by).filter(|id| !kept.contains(id)).collect();
        if !gone_ids.is_empty() {
            // Images that can't be listed stay, until the disk's own limits apply.
            let images = self.deps.docker.images().await.unwrap_or_default();
            for id in nameless(&images, &gone_ids) {
                if let Err(error) = self.deps.docker.remove_image(id).await {
                    tracing::debug!(image = id, %error, "leftover image of a build not removed");
                }
            }
        }
        for hash in gone {
            let _ = fs::remove_file(self.log_path(&hash));
        }
    }
}

/// Returns the id prefixes of images that the steps of a build produced, or reused.
fn image_ids_in(log: &str) -> BTreeSet<String> {
    let ids = log.lines().filter_map(|line| line.strip_prefix(MADE));
    let is_id = |id: &&str| id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    ids.filter(is_id).map(str::to_owned).collect()
}

/// Returns the images that have no name and one of these ids. A function prints anything, so a log may name any
/// image: one with a name belongs to somebody.
fn nameless<'i>(images: &'i [StoredImage], ids: &BTreeSet<String>) -> Vec<&'i str> {
    let is_one = |image: &&StoredImage| {
        let digits = image.id.strip_prefix("sha256:").and_then(|id| id.get(..ID_DIGITS));
        image.tags.is_empty() && digits.is_some_and(|digits| ids.contains(digits))
    };
    images.iter().filter(is_one).map(|image| image.id.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::docker::FakeDocker;
    use crate::worlds::host::FakeDisk;

    // Seen red without `is_low`.
    #[tokio::test(start_paused = true)]
    async fn a_build_that_fills_the_disk_is_stopped() {
        let of = |used: u64, free: u64| DiskUsage { used_bytes: used << 30, free_bytes: free << 30 };
        for (after, says) in [(of(19, 41), "9216 MiB were written since"), (of(12, 0), "0 MiB are left")] {
            let (docker, disk) = (FakeDocker::default(), FakeDisk::default());
            disk.set(of(10, 50));
            let watch = wait_until_full(&docker, &disk, 8 << 30);
            tokio::pin!(watch);
            let quiet = timeout(Duration::from_secs(60), &mut watch).await;
            assert!(quiet.is_err(), "{quiet:?}");
            disk.set(after);
            let why = timeout(Duration::from_secs(60), &mut watch).await.unwrap();
            assert!(why.contains(says), "{why}");
        }
    }
}

#[cfg(test)]
mod confine_tests {
    use super::*;

    #[tokio::test]
    async fn an_index_that_has_no_address_is_named_before_pip_is_asked() {
        assert_eq!(addresses(None).await, Ok(BTreeSet::new()));
        let known = addresses(Some("http://192.0.2.1:3141/simple")).await;
        assert_eq!(known, Ok(["192.0.2.1:3141".parse().unwrap()].into()));
        let why = addresses(Some("https://index.invalid/simple")).await.unwrap_err();
        assert!(why.starts_with("cannot resolve index.invalid") && why.contains("`wheels`"), "{why}");
    }
}

#[cfg(test)]
mod leftovers_tests {
    use super::*;

    #[test]
    fn what_steps_made_and_nobody_named_goes_with_the_log() {
        let log = "Step 1/3 : FROM base AS packages\n ---> 0123456789ab\nStep 2/3 : RUN pip\n ---> Running in ffff\n\
                   said ---> aaaaaaaaaaaa\n ---> bbbbbbbbbbbb\nSuccessfully built cccccccccccc\n";
        let made = image_ids_in(log);
        assert_eq!(made.iter().map(String::as_str).collect::<Vec<_>>(), ["0123456789ab", "bbbbbbbbbbbb"]);
        let image = |id: &str, tags: &[&str]| StoredImage {
            id: format!("sha256:{id}{}", "0".repeat(52)),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..StoredImage::default()
        };
        let images =
            [image("0123456789ab", &["base"]), image("bbbbbbbbbbbb", &[]), image("dddddddddddd", &[])];
        assert_eq!(nameless(&images, &made), [images[1].id.as_str()]);
    }
}
