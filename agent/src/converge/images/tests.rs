//! The choice of images to remove: a table, and the loop on an in-memory engine and disk.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::super::shared::image_store::{PendingPulls, PulledImage};
use super::plan::{CollectReason, KeepReason, plan};
use super::*;
use crate::worlds::docker::{FakeDocker, ImageFacts, StoredImage};
use crate::worlds::host::{DiskUsage, FakeDisk};

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_second(1_900_000_000 + minutes * 60).unwrap()
}

fn image(id: &str, tag: &str, size_bytes: u64) -> StoredImage {
    let tags = if tag.is_empty() { Vec::new() } else { vec![tag.to_owned()] };
    StoredImage { id: id.into(), tags, digests: vec![format!("reg.example/{id}@sha256:{id}")], size_bytes }
}

fn pulled(reference: &str, minutes: i64) -> PulledImage {
    PulledImage { references: BTreeSet::from([reference.to_owned()]), last_used: at(minutes), logins: None }
}

/// A disk of 1,000 bytes, 900 of them in use; images a, b and c are ours and unused since minutes 1, 2 and 3,
/// `theirs`
/// is the operator's. The time is minute 10.
fn full() -> Observed {
    Observed {
        thresholds: Thresholds { high_percent: 85, low_percent: 80 },
        disk: DiskUsage { used_bytes: 900, free_bytes: 100 },
        images: vec![
            image("c", "reg.example/c:1", 60),
            image("b", "reg.example/b:1", 60),
            image("a", "reg.example/a:1", 60),
            image("theirs", "busybox:1", 60),
        ],
        in_use: BTreeSet::new(),
        wanted: Some(BTreeSet::new()),
        pulled: [
            ("a".to_owned(), pulled("reg.example/a:1", 1)),
            ("b".to_owned(), pulled("reg.example/b:1", 2)),
            ("c".to_owned(), pulled("reg.example/c:1", 3)),
        ]
        .into(),
        interrupted: PendingPulls::new(),
    }
}

fn removed(observed: &Observed) -> Vec<String> {
    plan(observed, at(10)).remove.into_iter().map(|r| r.references.join("+")).collect()
}

fn kept(observed: &Observed, id: &str) -> Option<KeepReason> {
    plan(observed, at(10)).keep.into_iter().find(|(kept, _)| kept == id).map(|(_, why)| why)
}

// Red without the sort in plan.rs, and when `freed >= *to_free` is never true.
#[test]
fn the_longest_unused_go_first_and_no_more_than_needed() {
    let observed = full();
    assert_eq!(plan(&observed, at(10)).why, CollectReason::Full(100));
    assert_eq!(removed(&observed), ["reg.example/a:1", "reg.example/b:1"]);
    assert_eq!(kept(&observed, "c"), Some(KeepReason::NotNeeded));
    assert!(!plan(&observed, at(10)).is_insufficient);
}

// Red when the images of `observed.images` are removed without a check of `observed.pulled`.
#[test]
fn an_operators_image_is_never_touched_however_full_the_disk() {
    let mut observed = full();
    observed.thresholds = Thresholds { high_percent: 1, low_percent: 0 };
    assert_eq!(removed(&observed).len(), 3);
    assert!(plan(&observed, at(10)).is_insufficient, "and it says that it did not help");
    observed.pulled.clear();
    assert_eq!(removed(&observed), [""; 0]);
}

#[test]
fn what_is_used_wanted_young_or_named_by_others_stays() {
    let everything = || {
        let mut observed = full();
        observed.thresholds.low_percent = 0;
        observed
    };
    let mut observed = everything();
    observed.in_use.insert("a".into());
    assert_eq!(kept(&observed, "a"), Some(KeepReason::InUse));
    assert_eq!(plan(&observed, at(10)).used, BTreeSet::from(["a".to_owned()]));
    for reference in ["reg.example/a:1", "reg.example/a@sha256:a", "reg.example/a:9@sha256:a"] {
        let mut observed = everything();
        observed.wanted = Some(BTreeSet::from([reference.to_owned()]));
        assert_eq!(kept(&observed, "a"), Some(KeepReason::Wanted), "{reference}");
    }
    let mut observed = everything();
    observed.pulled.insert("a".into(), pulled("reg.example/a:1", 9));
    assert_eq!(kept(&observed, "a"), Some(KeepReason::Young));
    let mut observed = everything();
    observed.images[2].tags.push("operators/own:1".into());
    assert_eq!(kept(&observed, "a"), Some(KeepReason::NamedByOthers));
    let mut observed = everything();
    observed.images[2].tags = vec![crate::worlds::pause::image_reference()];
    assert_eq!(kept(&observed, "a"), Some(KeepReason::Pause));
}

#[test]
fn an_image_whose_tag_moved_on_goes_by_its_id() {
    let mut observed = full();
    observed.images[2].tags.clear();
    assert_eq!(removed(&observed)[0], "a");
}

#[test]
fn nothing_goes_when_off_when_there_is_room_and_while_nobody_knows_what_is_wanted() {
    for (thresholds, used_bytes, known, why) in [
        (Thresholds { high_percent: 100, low_percent: 80 }, 1000, true, CollectReason::Off),
        (Thresholds { high_percent: 85, low_percent: 80 }, 840, true, CollectReason::Room),
        (Thresholds { high_percent: 85, low_percent: 80 }, 900, false, CollectReason::WantedUnknown),
    ] {
        let mut observed = full();
        observed.thresholds = thresholds;
        observed.disk = DiskUsage { used_bytes, free_bytes: 1000 - used_bytes };
        observed.wanted = known.then(BTreeSet::new);
        let plan = plan(&observed, at(10));
        assert_eq!((plan.why, plan.remove.len()), (why, 0));
    }
}

// Seen red without the check of the images present before.
#[test]
fn what_a_pull_brought_that_was_cut_off_is_ours_unless_it_was_there_before() {
    let mut observed = full();
    let there = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    observed.interrupted = [
        // Docker's own name for docker.io/library/busybox:1.
        ("docker.io/library/busybox:1".to_owned(), there(&["a"])),
        ("reg.example/b:1".to_owned(), there(&["b"])),
        ("reg.example/never-came:1".to_owned(), there(&[])),
    ]
    .into();
    let brought = plan(&observed, at(10)).brought;
    assert_eq!(brought, [("theirs".to_owned(), "docker.io/library/busybox:1".to_owned())]);
}

#[test]
fn what_is_not_on_the_node_any_more_is_forgotten() {
    let mut observed = full();
    observed.images.remove(0);
    assert_eq!(plan(&observed, at(10)).gone, BTreeSet::from(["c".to_owned()]));
}

#[tokio::test]
async fn the_loop_removes_what_it_pulled_and_remembers_that() {
    let state = tempfile::tempdir().unwrap();
    let book = ImageBook::open(state.path());
    let docker = Arc::new(FakeDocker::with_images(&["theirs:1"]));
    let ours = ImageFacts { id: "sha256:ours:1".into(), size_bytes: 500, ..ImageFacts::default() };
    docker.engine().images.insert("ours:1".into(), ours);
    book.note_pulled("sha256:ours:1".into(), "ours:1".into(), None).await;
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
    let Ok(Observation::Ready(observed)) = images.observe().await else { panic!("ready") };
    let later = Timestamp::now() + SignedDuration::from_mins(3);
    assert!(ImagesLoop::plan(&observed, Timestamp::now()).remove.is_empty(), "too young");
    let outcome = images.act(&observed, ImagesLoop::plan(&observed, later)).await;
    images.report(observed, outcome).await.unwrap();
    assert_eq!(docker.engine().images.keys().collect::<Vec<_>>(), ["theirs:1"]);
    assert!(ImageBook::open(state.path()).images().is_empty());
}
