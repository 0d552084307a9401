//! Decides which images to remove when the disk is full: only those that Minik8s pulled, no container uses and no
//! pod wants, the longest unused first, until enough would be free.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use schema::image::ImageName;

use crate::converge::shared::image_store::{PendingPulls, PulledImages};
use crate::worlds::docker::StoredImage;
use crate::worlds::host::DiskUsage;
use crate::worlds::pause::IMAGE_REPOSITORY;

/// Minimum time that an image must be unused before it is removed, as in Kubernetes.
const AGE_MIN: SignedDuration = SignedDuration::from_mins(2);

/// Thresholds for the removal of images, in percent of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Images are removed from here on; 100 means never.
    pub high_percent: u8,
    pub low_percent: u8,
}

/// Observed state of the images loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub thresholds: Thresholds,
    pub disk: DiskUsage,
    pub images: Vec<StoredImage>,
    /// Content ids of the images of all containers.
    pub in_use: BTreeSet<String>,
    /// References of all wanted pods; `None` while that is not known.
    pub wanted: Option<BTreeSet<String>>,
    pub pulled: PulledImages,
    /// Interrupted pulls, such as by an agent that ended.
    pub interrupted: PendingPulls,
}

/// An image to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub id: String,
    /// References to remove in turn: the tags, or the id of an untagged image.
    pub references: Vec<String>,
    /// Size, including layers shared with others.
    pub size_bytes: u64,
}

/// Reason why an image pulled by Minik8s stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepReason {
    InUse,
    Wanted,
    Young,
    /// Carries a name that Minik8s did not give it.
    NamedByOthers,
    Pause,
    /// Enough is free without it.
    NotNeeded,
}

/// Reason why there is something to remove, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectReason {
    /// The threshold is 100.
    Off,
    Room,
    /// The wanted pods are not known yet.
    WantedUnknown,
    /// This many bytes should become free.
    Full(u64),
}

impl fmt::Display for CollectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectReason::Off => f.write_str("image garbage collection is off"),
            CollectReason::Room => f.write_str("the disk has room"),
            CollectReason::WantedUnknown => f.write_str("etcd has not been listed yet"),
            CollectReason::Full(bytes) => write!(f, "{} MiB to free", bytes.div_ceil(1 << 20)),
        }
    }
}

/// Plan of the images loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagesPlan {
    pub why: CollectReason,
    pub remove: Vec<Removal>,
    /// Images pulled by Minik8s that stay, with the reason; only when the disk is full.
    pub keep: Vec<(String, KeepReason)>,
    pub used: BTreeSet<String>,
    pub gone: BTreeSet<String>,
    /// Content id and reference of images that came with interrupted pulls: they are ours.
    pub brought: Vec<(String, String)>,
    /// True if everything in `remove` frees less than it should.
    pub is_insufficient: bool,
}

impl schema::control::Plan for ImagesPlan {
    fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.gone.is_empty() && self.used.is_empty() && self.brought.is_empty()
    }
}

/// Plans the removal of images.
pub fn plan(observed: &Observed, now: Timestamp) -> ImagesPlan {
    let here: BTreeSet<&str> = observed.images.iter().map(|image| image.id.as_str()).collect();
    let ours = observed.pulled.keys();
    let mut plan = ImagesPlan {
        why: why(observed),
        remove: Vec::new(),
        keep: Vec::new(),
        used: ours.clone().filter(|id| observed.in_use.contains(*id)).cloned().collect(),
        gone: ours.filter(|id| !here.contains(id.as_str())).cloned().collect(),
        brought: recovered(observed),
        is_insufficient: false,
    };
    let (CollectReason::Full(to_free), Some(wanted)) = (&plan.why, &observed.wanted) else { return plan };
    let wanted: BTreeSet<ImageName> = wanted.iter().map(|reference| ImageName::parse(reference)).collect();
    let mut candidates = Vec::new();
    for image in &observed.images {
        let Some(pulled) = observed.pulled.get(&image.id) else { continue };
        match keep(observed, image, &wanted, now) {
            Some(why) => plan.keep.push((image.id.clone(), why)),
            None => candidates.push((pulled.last_used, image)),
        }
    }
    candidates.sort_by(|(a, one), (b, other)| (a, &one.id).cmp(&(b, &other.id)));
    let mut freed: u64 = 0;
    for (_, image) in candidates {
        if freed >= *to_free {
            plan.keep.push((image.id.clone(), KeepReason::NotNeeded));
            continue;
        }
        freed = freed.saturating_add(image.size_bytes);
        let references = if image.tags.is_empty() { vec![image.id.clone()] } else { image.tags.clone() };
        plan.remove.push(Removal { id: image.id.clone(), references, size_bytes: image.size_bytes });
    }
    plan.is_insufficient = freed < *to_free;
    plan
}

/// Returns images with a name that was being pulled, which were not on the node before under any name.
fn recovered(observed: &Observed) -> Vec<(String, String)> {
    let found = observed.interrupted.iter().flat_map(|(reference, there)| {
        let wanted = ImageName::parse(reference);
        let of_name = move |image: &&StoredImage| {
            image.tags.iter().chain(&image.digests).any(|name| ImageName::parse(name) == wanted)
        };
        let new = observed.images.iter().filter(|image| !there.contains(&image.id)).filter(of_name);
        new.map(|image| (image.id.clone(), reference.clone()))
    });
    found.collect()
}

fn why(observed: &Observed) -> CollectReason {
    let Thresholds { high_percent, low_percent } = observed.thresholds;
    if high_percent >= 100 {
        return CollectReason::Off;
    }
    if observed.disk.percent() < high_percent {
        return CollectReason::Room;
    }
    if observed.wanted.is_none() {
        return CollectReason::WantedUnknown;
    }
    let target = u128::from(observed.disk.total_bytes()) * u128::from(low_percent) / 100;
    let target = u64::try_from(target).unwrap_or(u64::MAX);
    CollectReason::Full(observed.disk.used_bytes.saturating_sub(target))
}

fn keep(
    observed: &Observed,
    image: &StoredImage,
    wanted: &BTreeSet<ImageName>,
    now: Timestamp,
) -> Option<KeepReason> {
    let pulled = observed.pulled.get(&image.id)?;
    let names = || image.tags.iter().chain(&image.digests).map(|name| ImageName::parse(name));
    let pulled_as: BTreeSet<ImageName> = pulled.references.iter().map(|r| ImageName::parse(r)).collect();
    let is_pause = |tag: &String| tag.rsplit_once(':').is_some_and(|(name, _)| name == IMAGE_REPOSITORY);
    if image.tags.iter().any(is_pause) {
        Some(KeepReason::Pause)
    } else if observed.in_use.contains(&image.id) {
        Some(KeepReason::InUse)
    } else if names().any(|name| wanted.contains(&name)) {
        Some(KeepReason::Wanted)
    } else if image.tags.iter().any(|tag| !pulled_as.contains(&ImageName::parse(tag))) {
        Some(KeepReason::NamedByOthers)
    } else if now.duration_since(pulled.last_used) < AGE_MIN {
        Some(KeepReason::Young)
    } else {
        None
    }
}
