//! Decides which image is built next, which go, and what is reported. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::function::image_hash;
use schema::records::{BuildOrder, NodeImage, NodeImageState};

use crate::worlds::docker::StoredImage;

/// Between two tries of a build that failed: first, and at most.
const RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(10), SignedDuration::from_secs(300));
/// How long an image stays that no function needs, for a push back to it.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

/// Images by the hash in their name, as they are reported.
pub type Reported = BTreeMap<String, Arc<NodeImage>>;

/// A build that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    pub at: Timestamp,
    pub attempts: u32,
}

impl Failure {
    fn retry_at(&self) -> Timestamp {
        let doubled = 1_i32 << self.attempts.saturating_sub(1).min(10);
        let wait = RETRY.0.checked_mul(doubled).unwrap_or(RETRY.1).min(RETRY.1);
        self.at.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}

/// What the loop saw.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// What this node is to build, by hash.
    pub orders: BTreeMap<String, BuildOrder>,
    /// Images of functions that are here, by hash.
    pub images: BTreeMap<String, StoredImage>,
    pub failed: BTreeMap<String, Failure>,
    /// Hashes of the images that functions and pods of this node need; none while that is not known.
    pub needed: Option<BTreeSet<String>>,
    /// Since when images that are not needed have not been.
    pub unneeded_since: BTreeMap<String, Timestamp>,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildsPlan {
    pub build: Option<(String, BuildOrder)>,
    /// Hashes and tags of images to remove.
    pub remove: Vec<(String, Vec<String>)>,
    pub reported: Reported,
    /// Since when images are not needed that are here.
    pub unneeded_since: BTreeMap<String, Timestamp>,
    pub again_at: Option<Timestamp>,
}

impl schema::control::Plan for BuildsPlan {
    fn is_empty(&self) -> bool {
        self.build.is_none() && self.remove.is_empty()
    }
}

/// The hashes of images of functions among these.
pub fn of_functions(images: Vec<StoredImage>) -> BTreeMap<String, StoredImage> {
    let named = |image: &StoredImage| image.tags.iter().find_map(|tag| image_hash(tag)).map(str::to_owned);
    images.into_iter().filter_map(|image| Some((named(&image)?, image))).collect()
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> BuildsPlan {
    let mut plan = BuildsPlan::default();
    for (hash, image) in &observed.images {
        let Some(reference) = image.tags.iter().find(|tag| image_hash(tag) == Some(hash)) else { continue };
        let state = NodeImageState::Ready { id: image.id.clone(), size: image.size_bytes };
        plan.reported.insert(hash.clone(), Arc::new(NodeImage { reference: reference.clone(), state }));
    }
    for (hash, order) in observed.orders.iter().filter(|(hash, _)| !observed.images.contains_key(*hash)) {
        let failed = observed.failed.get(hash);
        let retry_at = failed.map(Failure::retry_at).filter(|at| *at > now);
        let state = match (failed, retry_at) {
            (Some(Failure { why, at, attempts }), retry_at) => {
                plan.again_at = plan.again_at.into_iter().chain(retry_at).min();
                NodeImageState::Failed { why: why.clone(), at: *at, attempts: *attempts }
            }
            (None, _) => NodeImageState::Building,
        };
        let reference = order.reference.clone();
        plan.reported.insert(hash.clone(), Arc::new(NodeImage { reference, state }));
        if retry_at.is_none() && plan.build.is_none() {
            plan.build = Some((hash.clone(), order.clone()));
        }
    }
    let Some(needed) = &observed.needed else { return plan };
    for (hash, image) in &observed.images {
        if needed.contains(hash) || observed.orders.contains_key(hash) {
            continue;
        }
        let since = observed.unneeded_since.get(hash).copied().unwrap_or(now);
        plan.unneeded_since.insert(hash.clone(), since);
        let goes_at = since.checked_add(KEPT).unwrap_or(Timestamp::MAX);
        if goes_at <= now {
            // Other names of the same image are their owners'.
            let own = image.tags.iter().filter(|tag| image_hash(tag) == Some(hash)).cloned();
            plan.remove.push((hash.clone(), own.collect()));
        } else {
            plan.again_at = plan.again_at.into_iter().chain([goes_at]).min();
        }
    }
    plan
}
