//! Decides which image to build or push next, which to remove, and the report. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::function::{image_hash, registry_image, split_registry_image};
use schema::records::{BuildOrder, NodeImage, NodeImageState, RegistryCopy};

use super::python::own_bases;
use crate::worlds::docker::StoredImage;

/// Delay before a failed build, push or removal is retried: first, and maximum.
const RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(10), SignedDuration::from_secs(300));
/// Maximum number of concurrent builds, so that a slow one holds up no other.
const BUILDS_MAX: usize = 2;
/// Prefix of an additional name by which an instance claims an image: several instances on one machine share images.
const CLAIM_PREFIX: &str = "minik8s.local/instance-";

/// Prefix of the names of the base images of Python functions.
const BASE_PREFIX: &str = "minik8s.local/python";

/// Reported images, by the hash in their name.
pub type ImageReports = BTreeMap<String, Arc<NodeImage>>;

/// A failed build, push or removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    pub at: Timestamp,
    pub attempts: u32,
    /// Package index that was used.
    pub package_index: Option<String>,
}

impl Failure {
    fn retry_at(&self) -> Timestamp {
        let doubled = 1_i32 << self.attempts.saturating_sub(1).min(10);
        let wait = RETRY.0.checked_mul(doubled).unwrap_or(RETRY.1).min(RETRY.1);
        self.at.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}

/// Observed state of the builds loop.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Name of this Minik8s instance on the machine.
    pub instance: String,
    /// Time for which an image that no function needs stays, for a push back to it.
    pub retention: SignedDuration,
    /// Builds ordered from this node, by hash.
    pub orders: BTreeMap<String, BuildOrder>,
    /// Hashes of the builds in progress.
    pub running: BTreeSet<String>,
    /// Existing images of functions, by hash.
    pub images: BTreeMap<String, StoredImage>,
    /// Existing base images of Python functions, of this version and of others, by name.
    pub bases: BTreeMap<String, StoredImage>,
    /// Time of the last write to each build's log, by hash.
    pub logs: BTreeMap<String, Timestamp>,
    pub failed: BTreeMap<String, Failure>,
    /// Address of the cluster's registry.
    pub registry: Option<String>,
    /// Hashes of the images that the registry lacks and this node must push, as the first node that has them.
    pub to_push: BTreeSet<String>,
    pub push_failed: BTreeMap<String, Failure>,
    /// Failed removals of images from the registry, by hash.
    pub removal_failed: BTreeMap<String, Failure>,
    /// Hashes of the images that functions and pods of this node need; `None` while that is not known.
    pub needed: Option<BTreeSet<String>>,
    /// Time since when each unneeded image has not been needed.
    pub unneeded_since: BTreeMap<String, Timestamp>,
}

/// An image to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub hash: String,
    /// Repositories in registries with the digest there, because this node pushed it.
    pub pushed: Vec<(String, String)>,
    /// Local names to remove, in this order.
    pub names: Vec<String>,
}

/// Plan of the builds loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildsPlan {
    /// Builds to begin, by hash.
    pub build: Vec<(String, BuildOrder)>,
    /// Hash of an image, its name, and its name in the registry.
    pub push: Option<(String, String, String)>,
    /// Names of images, and the claims to add to them.
    pub claim: Vec<(String, String)>,
    /// Images to remove. At most one that was pushed: an unavailable registry is slow to respond.
    pub remove: Vec<Removal>,
    /// Hashes of builds whose logs and other leftovers are removed.
    pub remove_logs: Vec<String>,
    pub reported: ImageReports,
    /// Time since when existing images have not been needed.
    pub unneeded_since: BTreeMap<String, Timestamp>,
    pub again_at: Option<Timestamp>,
}

impl schema::control::Plan for BuildsPlan {
    fn is_empty(&self) -> bool {
        let removes = !(self.remove.is_empty() && self.remove_logs.is_empty());
        self.build.is_empty() && self.push.is_none() && self.claim.is_empty() && !removes
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// Selects the images of functions, by hash.
pub fn select_function_images(images: Vec<StoredImage>) -> BTreeMap<String, StoredImage> {
    let named = |image: &StoredImage| image.tags.iter().find_map(|tag| image_hash(tag)).map(str::to_owned);
    images.into_iter().filter_map(|image| Some((named(&image)?, image))).collect()
}

/// Selects the base images of Python functions, by name.
pub fn select_base_images(images: &[StoredImage]) -> BTreeMap<String, StoredImage> {
    let named = |image: &StoredImage| image.tags.iter().find(|tag| tag.starts_with(BASE_PREFIX)).cloned();
    images.iter().filter_map(|image| Some((named(image)?, image.clone()))).collect()
}

/// Returns the names to remove of a base image, with the instance or when it makes another one. While another
/// instance needs the image, only the claim is removed.
pub fn base_image_removal(instance: &str, name: &str, image: &StoredImage) -> Option<Removal> {
    let own = claim_of_base(instance, name)?;
    let mut names: Vec<String> = image.tags.iter().filter(|tag| **tag == own).cloned().collect();
    if !image.tags.iter().any(|tag| is_claim(tag) && *tag != own) {
        names.extend(image.tags.iter().filter(|tag| tag.starts_with(BASE_PREFIX)).cloned());
    }
    (!names.is_empty()).then(|| Removal { hash: name.to_owned(), pushed: Vec::new(), names })
}

/// Returns the claim on a base image: `minik8s.local/python-pip:0123` is claimed as `…:python-pip-0123`.
fn claim_of_base(instance: &str, name: &str) -> Option<String> {
    let (_, kind) = name.split_once('/')?;
    Some(claim(instance, &kind.replace(':', "-")))
}

/// True if this name of an image is a claim of an instance.
pub fn is_claim(name: &str) -> bool {
    name.starts_with(CLAIM_PREFIX)
}

/// Returns the name by which an instance claims an image.
fn claim(instance: &str, hash: &str) -> String {
    format!("{CLAIM_PREFIX}{instance}:{hash}")
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> BuildsPlan {
    let mut plan = BuildsPlan::default();
    for (hash, image) in &observed.images {
        plan.plan_image(observed, hash, image, now);
    }
    for (hash, order) in observed.orders.iter().filter(|(hash, _)| !observed.images.contains_key(*hash)) {
        // With another index it may be built immediately.
        let failed = observed.failed.get(hash).filter(|it| it.package_index == order.package_index);
        let retry_at = failed.map(Failure::retry_at).filter(|at| *at > now);
        let state = match (failed, retry_at) {
            (Some(Failure { why, at, attempts, .. }), retry_at) => {
                plan.schedule_retry(retry_at);
                NodeImageState::Failed { why: why.clone(), at: *at, attempts: *attempts }
            }
            (None, _) => NodeImageState::Building,
        };
        let reference = order.reference.clone();
        plan.reported.insert(hash.clone(), Arc::new(NodeImage { reference, state, registry: None }));
        let runs = observed.running.contains(hash);
        if retry_at.is_none() && !runs && observed.running.len() + plan.build.len() < BUILDS_MAX {
            plan.build.push((hash.clone(), order.clone()));
        }
    }
    let Some(needed) = &observed.needed else { return plan };
    plan.plan_bases(observed, now);
    plan.plan_logs(observed, needed, now);
    for (hash, image) in &observed.images {
        let own = claim(&observed.instance, hash);
        if needed.contains(hash) || observed.orders.contains_key(hash) {
            if !image.tags.contains(&own)
                && let Some(name) = image.tags.first()
            {
                plan.claim.push((name.clone(), own));
            }
            continue;
        }
        let Some(removal) = removal(hash, image, &own) else { continue };
        plan.remove_in_time(observed, removal, now);
    }
    if !plan.build.is_empty() || !observed.running.is_empty() || plan.push.is_some() {
        // These take minutes, and an unneeded image may be needed by then, or be what a build continues from: removals
        // are planned afterwards.
        plan.remove.clear();
        plan.remove_logs.clear();
    }
    plan
}

impl BuildsPlan {
    fn schedule_retry(&mut self, at: Option<Timestamp>) {
        self.again_at = self.again_at.into_iter().chain(at).min();
    }

    /// Removes an image once nothing has needed it for a while.
    fn remove_in_time(&mut self, observed: &Observed, removal: Removal, now: Timestamp) {
        let since = observed.unneeded_since.get(&removal.hash).copied().unwrap_or(now);
        self.unneeded_since.insert(removal.hash.clone(), since);
        if !self.retention_is_over(observed, since, now) {
            return;
        }
        let retry_at = observed.removal_failed.get(&removal.hash).map(Failure::retry_at);
        let retry_at = retry_at.filter(|at| *at > now);
        self.schedule_retry(retry_at);
        let asks_registry = |removal: &Removal| !removal.pushed.is_empty();
        let waits = asks_registry(&removal) && self.remove.iter().any(asks_registry);
        if retry_at.is_none() && !waits {
            self.remove.push(removal);
        }
    }

    /// True if the retention time that began then is over; else schedules a run at its end.
    fn retention_is_over(&mut self, observed: &Observed, since: Timestamp, now: Timestamp) -> bool {
        let goes_at = since.checked_add(observed.retention).unwrap_or(Timestamp::MAX);
        if goes_at > now {
            self.schedule_retry(Some(goes_at));
        }
        goes_at <= now
    }

    /// Claims the images that this version builds on, and removes those of other versions.
    fn plan_bases(&mut self, observed: &Observed, now: Timestamp) {
        let own = own_bases();
        for (name, image) in &observed.bases {
            let Some(claimed) = claim_of_base(&observed.instance, name) else { continue };
            if [&own.runtime, &own.packages].contains(&name) {
                if !image.tags.contains(&claimed) {
                    self.claim.push((name.clone(), claimed));
                }
            } else if let Some(removal) = base_image_removal(&observed.instance, name, image) {
                self.remove_in_time(observed, removal, now);
            }
        }
    }

    /// Removes old logs. A log stays with its image, or while its build is ordered, such as one that failed.
    fn plan_logs(&mut self, observed: &Observed, needed: &BTreeSet<String>, now: Timestamp) {
        let is_needed = |hash: &String| {
            needed.contains(hash) || observed.orders.contains_key(hash) || observed.images.contains_key(hash)
        };
        for (hash, written) in observed.logs.iter().filter(|(hash, _)| !is_needed(hash)) {
            if self.retention_is_over(observed, *written, now) {
                self.remove_logs.push(hash.clone());
            }
        }
    }

    /// Reports an existing image, and pushes it if that is this node's job.
    fn plan_image(&mut self, observed: &Observed, hash: &str, image: &StoredImage, now: Timestamp) {
        let Some(reference) = image.tags.iter().find(|tag| image_hash(tag) == Some(hash)) else { return };
        let is_ordered = observed.orders.contains_key(hash);
        let target = observed.registry.as_deref().map(|address| registry_image(address, hash));
        let digest = target.as_deref().and_then(|target| pushed_digest(image, target));
        let registry = match (digest, observed.push_failed.get(hash)) {
            (Some(digest), _) => Some(RegistryCopy::Pushed { digest: digest.to_owned() }),
            (None, Some(failure)) => Some(RegistryCopy::Failed { why: failure.why.clone() }),
            (None, None) => None,
        };
        let is_missing = digest.is_none() && (is_ordered || observed.to_push.contains(hash));
        let registry = registry.filter(|_| target.is_some() && (digest.is_some() || is_missing));
        let mut state = NodeImageState::Ready { id: image.id.clone(), size: image.size_bytes };
        if let Some(target) = target.filter(|_| is_missing) {
            // Announced only after the push: otherwise each node would pull it from here and none from the registry.
            if is_ordered && registry.is_none() {
                state = NodeImageState::Building;
            }
            let retry_at = observed.push_failed.get(hash).map(Failure::retry_at).filter(|at| *at > now);
            self.schedule_retry(retry_at);
            if retry_at.is_none() && self.push.is_none() {
                self.push = Some((hash.to_owned(), reference.clone(), target));
            }
        }
        let image = NodeImage { reference: reference.clone(), state, registry };
        self.reported.insert(hash.to_owned(), Arc::new(image));
    }
}

/// Returns the digest of an image in the registry of `target`, if this node pushed it there. Docker records that at
/// the end of a push, so an interrupted one is repeated.
fn pushed_digest<'i>(image: &'i StoredImage, target: &str) -> Option<&'i str> {
    let (repository, _) = split_registry_image(target)?;
    let is_there = image.tags.iter().any(|tag| tag == target);
    let of_repository =
        |digest: &&String| digest.strip_prefix(repository).is_some_and(|rest| rest.starts_with('@'));
    image.digests.iter().find(of_repository).filter(|_| is_there).map(String::as_str)
}

/// Returns the removal of an image together with the instance.
pub fn instance_removal(instance: &str, hash: &str, image: &StoredImage) -> Option<Removal> {
    removal(hash, image, &claim(instance, hash))
}

/// Returns the removal of an image that this instance does not need. While another one needs it, only the claim is
/// removed. Names that others gave it stay.
fn removal(hash: &str, image: &StoredImage, own: &str) -> Option<Removal> {
    let mut names: Vec<String> = image.tags.iter().filter(|tag| *tag == own).cloned().collect();
    let is_claimed = |tag: &String| is_claim(tag) && tag != own;
    let mut pushed = Vec::new();
    if !image.tags.iter().any(is_claimed) {
        for tag in &image.tags {
            let Some((repository, _)) = split_registry_image(tag).filter(|(_, of)| *of == hash) else {
                continue;
            };
            let digests = image.digests.iter().filter_map(|digest| digest.split_once('@'));
            let there = digests.filter(|(of, _)| *of == repository);
            pushed.extend(there.map(|(repository, digest)| (repository.to_owned(), digest.to_owned())));
            names.push(tag.clone());
        }
        names.extend(image.tags.iter().filter(|tag| image_hash(tag) == Some(hash)).cloned());
    }
    (!names.is_empty()).then(|| Removal { hash: hash.to_owned(), pushed, names })
}
