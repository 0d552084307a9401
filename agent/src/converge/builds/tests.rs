//! What is built, retried, reported and removed.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use schema::codec::hex;
use schema::files::{BlobKind, BlobRef};
use schema::kinds::function::RUNTIME_VERSION;
use schema::meta::NamespacedName;
use schema::records::{BuildOrder, NodeImageState};
use sha2::{Digest as _, Sha256};

use super::plan::{Failure, Observed, of_functions, plan};
use super::python::{BASE_SCRIPT, Bases, SHIM, dockerfile};
use crate::worlds::docker::StoredImage;

const HASH: &str = "0123456789abcdef0123456789abcdef";

fn reference() -> String {
    format!("minik8s.local/function:{HASH}")
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_900_000_000 + seconds)
}

fn order() -> BuildOrder {
    let source = BlobRef {
        digest: "a".repeat(64),
        size: 1,
        kind: BlobKind::Folder,
        texts: Vec::new(),
        source: String::new(),
    };
    BuildOrder {
        reference: reference(),
        function: NamespacedName::new("default", "hello"),
        path: "functions/hello".to_owned(),
        source,
        runtime: None,
        base: None,
        package_index: None,
    }
}

fn stored() -> StoredImage {
    StoredImage { id: "sha256:1".to_owned(), tags: vec![reference()], digests: Vec::new(), size_bytes: 7 }
}

fn ordered() -> Observed {
    Observed { orders: [(HASH.to_owned(), order())].into(), ..Observed::default() }
}

#[test]
fn what_is_ordered_is_built_and_what_is_here_is_reported() {
    let plan_of = |observed: &Observed| plan(observed, at(0));
    assert_eq!(plan_of(&ordered()).build.map(|(hash, _)| hash).as_deref(), Some(HASH));
    assert_eq!(plan_of(&ordered()).reported[HASH].state, NodeImageState::Building);
    let other = StoredImage { tags: vec!["busybox:1".to_owned()], ..stored() };
    let built = Observed { images: of_functions(vec![stored(), other]), ..ordered() };
    let plan = plan_of(&built);
    assert!(plan.build.is_none() && plan.reported.len() == 1, "{plan:?}");
    let state = NodeImageState::Ready { id: "sha256:1".to_owned(), size: 7 };
    assert_eq!(plan.reported[HASH].state, state);
}

// Seen red with a retry at once, and with none.
#[test]
fn a_build_that_failed_is_tried_again_later_and_later() {
    let failed = |attempts| {
        let failure = Failure { why: "no".to_owned(), at: at(0), attempts };
        Observed { failed: [(HASH.to_owned(), failure)].into(), ..ordered() }
    };
    for (attempts, wait) in [(1, 10), (2, 20), (3, 40), (6, 300), (60, 300)] {
        let early = plan(&failed(attempts), at(wait - 1));
        assert!(early.build.is_none() && early.again_at == Some(at(wait)), "{attempts}: {early:?}");
        assert!(matches!(early.reported[HASH].state, NodeImageState::Failed { .. }));
        assert!(plan(&failed(attempts), at(wait)).build.is_some(), "{attempts}");
    }
}

// Seen red without `needed` and without the wait.
#[test]
fn an_image_that_nothing_needs_goes_after_a_while() {
    let with = |needed: Option<BTreeSet<String>>, since: Option<i64>| Observed {
        images: of_functions(vec![stored()]),
        needed,
        unneeded_since: since.map(|since| (HASH.to_owned(), at(since))).into_iter().collect(),
        ..Observed::default()
    };
    let removes = |observed: &Observed| plan(observed, at(0)).remove.len();
    assert_eq!(removes(&with(None, Some(-10_000))), 0, "what is needed is not known");
    assert_eq!(removes(&with(Some([HASH.to_owned()].into()), Some(-10_000))), 0);
    assert_eq!(removes(&with(Some(BTreeSet::new()), None)), 0);
    assert_eq!(removes(&with(Some(BTreeSet::new()), Some(-599))), 0);
    assert_eq!(removes(&with(Some(BTreeSet::new()), Some(-600))), 1);
}

#[test]
fn packages_come_from_wheels_first_then_from_the_named_index() {
    let bases = Bases { runtime: "base:1".to_owned(), packages: "pip:1".to_owned() };
    let dir = tempfile::tempdir().unwrap();
    let of = |order: &BuildOrder, folder: &Path| dockerfile(&bases, order, folder);
    let (plain, network) = of(&order(), dir.path());
    assert!(!network && plain.starts_with("FROM base:1\n") && !plain.contains("pip"), "{plain}");
    std::fs::write(dir.path().join("requirements.txt"), "six\n").unwrap();
    let named = BuildOrder { package_index: Some("http://index.lan/simple".to_owned()), ..order() };
    let (text, network) = of(&named, dir.path());
    assert!(network && text.contains(r#""--index-url","http://index.lan/simple""#), "{text}");
    std::fs::create_dir(dir.path().join("wheels")).unwrap();
    let (text, network) = of(&named, dir.path());
    assert!(!network && text.contains(r#""--no-index","--find-links","/build/wheels""#), "{text}");
    assert!(text.contains("FROM pip:1 AS packages\n") && text.contains("COPY --from=packages"), "{text}");
}

/// Images are named by what they are made of: a change of the program in them, or of their base, goes with another
/// [`RUNTIME_VERSION`] and the new digest here.
#[test]
fn the_program_in_each_image_has_its_version() {
    let digest = hex(&Sha256::digest(format!("{SHIM}{BASE_SCRIPT}")));
    assert_eq!((RUNTIME_VERSION, &digest[..16]), (3, "e120f19dc9fb978f"));
}
