//! Builds, retries, reports and removals of function images.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::archive::Archive;
use schema::codec::hex;
use schema::content_refs::{BlobKind, BlobRef};
use schema::control::{Loop as _, Nudge, Observation};
use schema::kinds::cluster::{FunctionDefaults, Registry};
use schema::kinds::function::RUNTIME_VERSION;
use schema::meta::NamespacedName;
use schema::records::{BuildOrder, ClusterSettings, NodeImageState, RegistryCopy};
use schema::snapshot::Snapshot;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::testing::versioned;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::super::shared::image_store::ImageBook;
use super::super::shared::node_network;
use super::super::shared::pulls::Pulls;
use super::plan::{BuildsPlan, Failure, Observed, Removal, plan, select_base_images, select_function_images};
use super::python::{BASE_SCRIPT, BaseImages, SHIM, dockerfile, netrc_word, own_bases};
use super::{BuildLimits, BuildsDeps, BuildsLoop};
use crate::catalog::Catalog;
use crate::files::{Keys, PodFiles};
use crate::worlds::blobs::BlobSource;
use crate::worlds::docker::{DockerError, FakeDocker, Fault, ImageFacts, StoredImage};
use crate::worlds::host::{DiskUsage, FakeDisk};
use crate::worlds::peers::NoPeers;
use crate::worlds::registry::ClusterRegistry;

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
    assert_eq!(plan_of(&ordered()).build, [(HASH.to_owned(), order())]);
    assert_eq!(plan_of(&ordered()).reported[HASH].state, NodeImageState::Building);
    let other = StoredImage { tags: vec!["busybox:1".to_owned()], ..stored() };
    let built = Observed { images: select_function_images(vec![stored(), other]), ..ordered() };
    let plan = plan_of(&built);
    assert!(plan.build.is_empty() && plan.reported.len() == 1, "{plan:?}");
    let state = NodeImageState::Ready { id: "sha256:1".to_owned(), size: 7 };
    assert_eq!(plan.reported[HASH].state, state);
}

fn failure(since: i64) -> Failure {
    Failure { why: "no".to_owned(), at: at(since), attempts: 1, package_index: None }
}

// Seen red with an immediate retry, and with no retry.
#[test]
fn a_build_that_failed_is_tried_again_later_and_later() {
    let failed = |attempts| {
        let failure = Failure { attempts, ..failure(0) };
        Observed { failed: [(HASH.to_owned(), failure)].into(), ..ordered() }
    };
    for (attempts, wait) in [(1, 10), (2, 20), (3, 40), (6, 300), (60, 300)] {
        let early = plan(&failed(attempts), at(wait - 1));
        assert!(early.build.is_empty() && early.again_at == Some(at(wait)), "{attempts}: {early:?}");
        assert!(matches!(early.reported[HASH].state, NodeImageState::Failed { .. }));
        assert!(!plan(&failed(attempts), at(wait)).build.is_empty(), "{attempts}");
    }
    let mut mended = failed(60);
    mended.orders.get_mut(HASH).unwrap().package_index = Some("http://192.0.2.1/simple".to_owned());
    assert!(!plan(&mended, at(1)).build.is_empty(), "the cluster names another index since then");
}

// Seen red without `needed` and without the wait.
#[test]
fn an_image_that_nothing_needs_goes_after_a_while() {
    let with = |needed: Option<BTreeSet<String>>, since: Option<i64>| Observed {
        images: select_function_images(vec![stored()]),
        needed,
        retention: SignedDuration::from_mins(10),
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

// Seen red with removals planned during a build.
#[test]
fn nothing_is_removed_beside_a_build() {
    let other = "fedcba9876543210fedcba9876543210";
    let with = |orders| Observed {
        orders,
        images: select_function_images(vec![StoredImage {
            tags: vec![format!("minik8s.local/function:{other}")],
            ..stored()
        }]),
        needed: Some(BTreeSet::new()),
        retention: SignedDuration::from_mins(10),
        unneeded_since: [(other.to_owned(), at(-600))].into(),
        logs: [("0".repeat(32), at(-600))].into(),
        ..Observed::default()
    };
    let due = |observed: &Observed| {
        let plan = plan(observed, at(0));
        (!plan.build.is_empty(), plan.remove.len(), plan.remove_logs.len())
    };
    assert_eq!(due(&with(BTreeMap::new())), (false, 1, 1));
    assert_eq!(due(&with(ordered().orders)), (true, 0, 0), "it takes minutes");
    let running = Observed { running: [HASH.to_owned()].into(), ..with(ordered().orders) };
    assert_eq!(due(&running), (false, 0, 0), "it continues from what others left");
}

// Seen red with one build at a time, and with `running` not counted.
#[test]
fn two_images_are_built_at_once() {
    let hashes: Vec<String> = ["a", "b", "c"].map(|digit| digit.repeat(32)).to_vec();
    let orders: BTreeMap<_, _> = hashes.iter().map(|hash| (hash.clone(), order())).collect();
    let begins = |running: &[usize]| {
        let running = running.iter().map(|at| hashes[*at].clone()).collect();
        let plan = plan(&Observed { orders: orders.clone(), running, ..Observed::default() }, at(0));
        assert_eq!(plan.reported.len(), 3);
        plan.build.into_iter().map(|(hash, _)| hash).collect::<Vec<_>>()
    };
    assert_eq!(begins(&[]), hashes[..2]);
    assert_eq!(begins(&[0]), hashes[1..2]);
    assert_eq!(begins(&[0, 1]), [""; 0]);
    assert_eq!(begins(&[1]), hashes[..1]);
}

const TARGET: &str = "r.lan:5000/team/function:0123456789abcdef0123456789abcdef";

fn pushed() -> StoredImage {
    let tags = vec![reference(), TARGET.to_owned()];
    StoredImage { tags, digests: vec!["r.lan:5000/team/function@sha256:2".to_owned()], ..stored() }
}

// Seen red with all of them in one plan, and with only the first one, however often it failed.
#[test]
fn a_registry_is_asked_to_delete_one_image_at_a_time() {
    let of = |first: char, pushed: bool| {
        let hash = format!("{first}{}", &HASH[1..]);
        let mut tags = vec![format!("minik8s.local/function:{hash}")];
        if pushed {
            tags.push(format!("r.lan:5000/team/function:{hash}"));
        }
        StoredImage { tags, digests: vec!["r.lan:5000/team/function@sha256:2".to_owned()], ..stored() }
    };
    let images = select_function_images(vec![of('a', true), of('b', true), of('c', false)]);
    let unneeded_since = images.keys().map(|hash| (hash.clone(), at(-1))).collect();
    let needed = Some(BTreeSet::new());
    let seen = Observed { images, needed, unneeded_since, ..Observed::default() };
    let goes = plan(&seen, at(0)).remove;
    assert_eq!(goes.iter().map(|removal| removal.pushed.len()).collect::<Vec<_>>(), [1, 0], "{goes:?}");
    let removal_failed = [(goes[0].hash.clone(), failure(0))].into();
    let next = plan(&Observed { removal_failed, ..seen }, at(1));
    assert_eq!((next.remove.len(), next.again_at), (2, Some(at(10))));
    assert!(next.remove[0].pushed.len() == 1 && next.remove[0].hash != goes[0].hash, "{next:?}");
}

// Seen red with an image reported ready before the push.
#[test]
fn what_is_built_is_pushed_before_others_learn_of_it_and_a_push_that_fails_keeps_it_from_nobody() {
    let here = |image: StoredImage, to_push: bool, failed: Option<i64>| Observed {
        images: select_function_images(vec![image]),
        registry: Some("r.lan:5000/team".to_owned()),
        to_push: to_push.then(|| HASH.to_owned()).into_iter().collect(),
        push_failed: failed.map(|since| (HASH.to_owned(), failure(since))).into_iter().collect(),
        ..Observed::default()
    };
    let push = Some((HASH.to_owned(), reference(), TARGET.to_owned()));
    let built = Observed { orders: ordered().orders, ..here(stored(), false, None) };
    let first = plan(&built, at(0));
    assert_eq!((first.push, &first.reported[HASH].state), (push.clone(), &NodeImageState::Building));
    let failed = Observed { orders: ordered().orders, ..here(stored(), false, Some(0)) };
    let waits = plan(&failed, at(9));
    assert!(waits.push.is_none() && waits.again_at == Some(at(10)), "{waits:?}");
    assert!(matches!(waits.reported[HASH].state, NodeImageState::Ready { .. }), "{waits:?}");
    assert_eq!(waits.reported[HASH].registry, Some(RegistryCopy::Failed { why: "no".to_owned() }));
    assert_eq!(plan(&failed, at(10)).push, push);
    let done = plan(&Observed { orders: ordered().orders, ..here(pushed(), false, Some(0)) }, at(10));
    let digest = "r.lan:5000/team/function@sha256:2".to_owned();
    assert_eq!((done.push, &done.reported[HASH].registry), (None, &Some(RegistryCopy::Pushed { digest })));
    // An interrupted push left the name but no digest.
    let cut_off = StoredImage { digests: Vec::new(), ..pushed() };
    assert_eq!(plan(&here(cut_off, true, None), at(0)).push, push);
    // Another node holds the image in the registry, or must push it.
    assert_eq!(plan(&here(stored(), false, None), at(0)).push, None);
}

// Seen red with the names of images that another instance claims removed too.
#[test]
fn an_instance_takes_an_image_from_no_other_one_and_what_it_pushed_from_the_registry() {
    let own = format!("minik8s.local/instance-mk8s:{HASH}");
    let other = format!("minik8s.local/instance-two:{HASH}");
    let with = |tags: &[&String], needed: bool| {
        let mut image = pushed();
        image.tags.extend(tags.iter().map(|tag| (*tag).clone()));
        Observed {
            instance: "mk8s".to_owned(),
            images: select_function_images(vec![image]),
            needed: Some(needed.then(|| HASH.to_owned()).into_iter().collect()),
            ..Observed::default()
        }
    };
    assert_eq!(plan(&with(&[], true), at(0)).claim, [(reference(), own.clone())]);
    assert_eq!(plan(&with(&[&own], true), at(0)).claim, []);
    let alone = plan(&with(&[&own], false), at(0)).remove;
    let there = ("r.lan:5000/team/function".to_owned(), "sha256:2".to_owned());
    let names = vec![own.clone(), TARGET.to_owned(), reference()];
    assert_eq!(alone, [Removal { hash: HASH.to_owned(), pushed: vec![there], names }]);
    let both = plan(&with(&[&own, &other], false), at(0)).remove;
    assert_eq!(both, [Removal { hash: HASH.to_owned(), pushed: Vec::new(), names: vec![own] }]);
    assert_eq!(plan(&with(&[&other], false), at(0)).remove, []);
}

#[test]
fn a_base_of_another_version_goes_unless_an_instance_claims_it() {
    let current = own_bases().packages;
    let claim = |instance: &str, name: &str| {
        format!("minik8s.local/instance-{instance}:{}", name.split_once('/').unwrap().1.replace(':', "-"))
    };
    let base = |name: &str, claims: &[&str]| {
        let tags = std::iter::once(name.to_owned()).chain(claims.iter().map(|by| claim(by, name)));
        StoredImage { tags: tags.collect(), ..stored() }
    };
    let former = "minik8s.local/python:0123456789ab";
    let with = |images: &[StoredImage]| Observed {
        instance: "mk8s".to_owned(),
        bases: select_base_images(images),
        needed: Some(BTreeSet::new()),
        ..Observed::default()
    };
    let first = plan(&with(&[base(&current, &[])]), at(0));
    assert_eq!((first.claim, first.remove), (vec![(current.clone(), claim("mk8s", &current))], vec![]));
    let known = plan(&with(&[base(&current, &["mk8s"]), base(former, &["mk8s"])]), at(0));
    let names = vec![claim("mk8s", former), former.to_owned()];
    assert_eq!((known.claim, known.remove[0].names.clone()), (vec![], names));
    let others = plan(&with(&[base(former, &["mk8s", "two"])]), at(0));
    assert_eq!(others.remove[0].names, [claim("mk8s", former)]);
    assert_eq!(plan(&with(&[base(former, &["two"])]), at(0)).remove, []);
    let kept = Observed { retention: SignedDuration::from_mins(10), ..with(&[base(former, &[])]) };
    assert_eq!(plan(&kept, at(0)).remove, []);
}

#[test]
fn the_log_of_a_build_goes_when_neither_its_image_nor_its_order_is_there() {
    let with = |written: i64| Observed {
        logs: [(HASH.to_owned(), at(written))].into(),
        retention: SignedDuration::from_mins(10),
        needed: Some(BTreeSet::new()),
        ..Observed::default()
    };
    let removes = |observed: &Observed| plan(observed, at(0)).remove_logs.len();
    assert_eq!((removes(&with(-600)), removes(&with(-599))), (1, 0));
    assert_eq!(plan(&with(-599), at(0)).again_at, Some(at(1)));
    assert_eq!(removes(&Observed { needed: None, ..with(-600) }), 0);
    assert_eq!(removes(&Observed { orders: ordered().orders, ..with(-600) }), 0, "it may have failed");
    assert_eq!(removes(&Observed { images: select_function_images(vec![stored()]), ..with(-600) }), 0);
}

#[test]
fn packages_come_from_wheels_first_then_from_the_named_index() {
    let bases = BaseImages { runtime: "base:1".to_owned(), packages: "pip:1".to_owned() };
    let dir = tempfile::tempdir().unwrap();
    let of = |order: &BuildOrder, folder: &Path| dockerfile(&bases, order, folder, false);
    let (plain, network) = of(&order(), dir.path());
    assert!(!network && plain.starts_with("FROM base:1\n") && !plain.contains("pip"), "{plain}");
    fs::write(dir.path().join("requirements.txt"), "six\n").unwrap();
    // Seen red with `--no-index` here.
    let (text, network) = of(&order(), dir.path());
    assert!(network && text.contains("\"install\"") && !text.contains("index"), "pip's default: {text}");
    let named = BuildOrder { package_index: Some("http://index.lan/simple".to_owned()), ..order() };
    let (text, network) = of(&named, dir.path());
    let index = r#""--index-url","http://index.lan/simple","--trusted-host","index.lan""#;
    assert!(network && text.contains(index), "{text}");
    let (text, _) = dockerfile(&bases, &named, dir.path(), true);
    assert!(text.contains("/dev/shm/netrc") && text.contains(index), "{text}");
    fs::create_dir(dir.path().join("wheels")).unwrap();
    let (text, network) = of(&named, dir.path());
    assert!(!network && text.contains(r#""--no-index","--find-links","/build/wheels""#), "{text}");
    assert!(text.contains("FROM pip:1 AS packages\n") && text.contains("COPY --from=packages"), "{text}");
}

/// Blob source that returns this archive for every digest.
struct Gives(Vec<u8>);

#[async_trait]
impl BlobSource for Gives {
    async fn fetch(&self, _: &str, _: u64, mut to: fs::File) -> Result<(), String> {
        to.write_all(&self.0).map_err(|error| error.to_string())
    }
}

/// Files of a folder with Python code and packages.
const PACKAGED: [(&str, &str); 2] =
    [("main.py", "def main(params): return {}\n"), ("requirements.txt", "six\n")];

/// A loop with nothing to do, in a cluster with these settings, whose agent fetches this folder, and the folder's
/// reference.
struct Rig {
    builds: BuildsLoop,
    source: BlobRef,
    book: Arc<ImageBook>,
    settings: watch::Sender<Arc<Catalog>>,
    _state: tempfile::TempDir,
}

fn rig(
    docker: &Arc<FakeDocker>,
    folder: &[(&str, &str)],
    functions: FunctionDefaults,
    orders: &[&str],
) -> Rig {
    let state = tempfile::tempdir().unwrap();
    let mut archive = Archive::new(Vec::new());
    for (path, text) in folder {
        archive.file(path, false, text.len() as u64, text.as_bytes()).unwrap();
    }
    let made = archive.finish().unwrap();
    let source = BlobRef { digest: made.digest, size: made.size, ..order().source };
    let keys = Keys::open_or_without(&state.path().join("age.txt"));
    let files = Arc::new(PodFiles::new(state.path(), Arc::new(Gives(made.writer)), keys));
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    for hash in orders {
        snapshot.builds.insert(("n1".to_owned(), (*hash).to_owned()), versioned(order()));
    }
    let mut catalog = Catalog::default();
    catalog.settings.spec.functions = functions;
    let (settings, catalog) = watch::channel(Arc::new(catalog));
    let (network, confinement) = node_network::channel();
    confinement.in_place.send_replace(Some(Arc::default()));
    let disk = FakeDisk::default();
    disk.set(DiskUsage { used_bytes: 0, free_bytes: 1 << 40 });
    let book = ImageBook::open(state.path());
    let deps = BuildsDeps {
        node: "n1".to_owned(),
        state_dir: state.path().to_owned(),
        instance: "mk8s".to_owned(),
        retention: SignedDuration::from_mins(10),
        limits: BuildLimits { time: Duration::from_secs(60), memory_bytes: 1 << 30, disk_bytes: 1 << 30 },
        mtu: 1500,
        network,
        docker: docker.clone(),
        disk: Arc::new(disk),
        registry: Arc::new(ClusterRegistry::new(docker.clone(), Arc::clone(&files), catalog.clone())),
        pulls: Pulls::new(docker.clone(), Arc::clone(&book), Arc::new(NoPeers)),
        nudge: Nudge::default(),
        files,
        snapshot: SnapshotReader::fixed(snapshot),
        catalog,
        events: EventRecorder::disabled(),
    };
    Rig { builds: BuildsLoop::new(deps, watch::channel(None).0), source, book, settings, _state: state }
}

// Seen red without `note_registry`.
#[tokio::test]
async fn what_another_registry_or_login_refused_is_tried_again_immediately() {
    let mut rig = rig(&Arc::new(FakeDocker::default()), &PACKAGED, FunctionDefaults::default(), &[]);
    let file = order().source;
    type Edit<'a> = &'a dyn Fn(&mut ClusterSettings);
    let changes: [(Edit<'_>, bool); 4] = [
        (&|_| {}, false),
        (&|settings| drop(settings.logins.insert("login".to_owned(), file.clone())), true),
        (&|settings| settings.spec.registry = Some(Registry::default()), true),
        (&|settings| settings.generation += 1, false),
    ];
    for (number, (change, is_forgotten)) in changes.into_iter().enumerate() {
        rig.builds.push_failed.insert(HASH.to_owned(), failure(0));
        rig.settings.send_modify(|catalog| change(&mut Arc::make_mut(catalog).settings));
        let Observation::Ready(observed) = rig.builds.observe().await.unwrap() else { panic!("not ready") };
        assert_eq!(observed.push_failed.is_empty(), is_forgotten, "change {number}");
    }
}

/// Builds `order` in this loop. Returns the reason of a failure.
async fn build_in(rig: &mut Rig, order: BuildOrder) -> Option<String> {
    let order = BuildOrder { source: rig.source.clone(), ..order };
    let plan = BuildsPlan { build: vec![(HASH.to_owned(), order)], ..BuildsPlan::default() };
    rig.builds.carry_out(&ordered(), plan).await;
    while rig.builds.tasks.join_next().await.is_some() {}
    rig.builds.note_finished();
    assert!(rig.builds.building.is_empty());
    rig.builds.failed.get(HASH).map(|failure| failure.why.clone())
}

/// Builds `order` from a folder with packages, in a cluster without a package index.
async fn build(docker: &Arc<FakeDocker>, order: BuildOrder) -> Option<String> {
    build_in(&mut rig(docker, &PACKAGED, FunctionDefaults::default(), &[HASH]), order).await
}

/// Builds from a folder with this Dockerfile.
async fn dock(docker: &Arc<FakeDocker>, text: &str, registries: &[&str]) -> Option<String> {
    let registries = registries.iter().map(|one| (*one).to_owned()).collect();
    let functions = FunctionDefaults { registries, ..FunctionDefaults::default() };
    build_in(&mut rig(docker, &[("Dockerfile", text)], functions, &[HASH]), order()).await
}

/// Returns the last Dockerfile that the engine got.
fn last_dockerfile(docker: &FakeDocker) -> String {
    let context = docker.engine().builds.last().expect("a build").context.clone();
    let mut found = String::new();
    for entry in tar::Archive::new(&*context).entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().as_os_str() == "Dockerfile" {
            found.clear();
            entry.read_to_string(&mut found).unwrap();
        }
    }
    found
}

// Seen red with the folder's own Dockerfile in the context.
#[tokio::test]
async fn the_builder_gets_the_ids_of_images_that_were_checked() {
    let docker = Arc::new(FakeDocker::with_images(&["here:1"]));
    let labels = [("minik8s.io/uid".to_owned(), "1".to_owned())].into();
    let labelled = ImageFacts { id: "sha256:labelled".to_owned(), labels, ..ImageFacts::default() };
    docker.engine().images.insert("labelled:1".to_owned(), labelled);
    docker.engine().registry.insert("r.lan/team/app:1".to_owned());
    let text = "FROM here:1 AS a\nFROM labelled:1\nCOPY --from=r.lan/team/app:1 /x /x\n";
    assert_eq!(dock(&docker, text, &["r.lan/team"]).await, None);
    let empty = crate::names::LABELS.map(|label| format!("{label}=\"\"")).join(" ");
    assert_eq!(
        last_dockerfile(&docker),
        format!(
            "FROM sha256:here:1 AS a\nFROM sha256:labelled\nLABEL {empty}\nCOPY --from=sha256:r.lan/team/app:1 /x /x\n"
        )
    );
    let build = docker.engine().builds[0].clone();
    assert_eq!(build.cgroup.as_deref(), Some("mk8s_builds"));
    assert_eq!(docker.engine().pulls_begun, [("r.lan/team/app:1".to_owned(), None)]);
}

// Seen red without the check of addresses, of the list of registries, and of triggers, together.
#[tokio::test]
async fn what_a_dockerfile_may_not_reach_is_named_and_nothing_is_fetched() {
    let docker = Arc::new(FakeDocker::default());
    let triggers = ImageFacts { has_triggers: true, ..ImageFacts::default() };
    docker.engine().images.insert("triggers:1".to_owned(), triggers);
    docker.engine().registry.extend(["127.0.0.1:5000/a", "quay.io/a"].map(str::to_owned));
    for (text, registries, says) in [
        (
            "FROM 127.0.0.1:5000/a\n",
            &[][..],
            "127.0.0.1, which is this node or no public address; list it in functions.registries",
        ),
        ("FROM scratch\nCOPY --from=localhost:5000/a /x /x\n", &[], "no public address"),
        ("FROM quay.io/a\n", &["r.lan"], "builds may pull from r.lan (functions.registries"),
        ("FROM triggers:1\n", &[], "has ONBUILD instructions"),
        ("FROM scratch\nADD http://127.0.0.1/ /x\n", &[], "Dockerfile:2: ADD would fetch http://127.0.0.1/"),
    ] {
        let why = dock(&docker, text, registries).await.expect(text);
        assert!(why.contains(says), "{text}: {why}");
    }
    assert!(docker.engine().builds.is_empty() && docker.engine().pulls_begun.is_empty());
    assert_eq!(dock(&docker, "FROM 127.0.0.1:5000/a\n", &["127.0.0.1:5000"]).await, None);
}

// Seen red with `may_use` not asked: the build succeeds.
#[tokio::test]
async fn a_build_uses_no_image_that_a_pods_login_pulled() {
    let docker = Arc::new(FakeDocker::with_images(&["r.lan/private:1", "r.lan/open:1"]));
    docker.engine().registry.extend(["r.lan/private:1", "r.lan/open:1"].map(str::to_owned));
    docker.engine().logins.insert("r.lan/private:1".to_owned(), "kim".to_owned());
    let functions = FunctionDefaults { registries: vec!["r.lan".to_owned()], ..FunctionDefaults::default() };
    let of = |image: &str| [("Dockerfile", format!("FROM {image}\n"))];
    for (image, is_private) in [("r.lan/private:1", true), ("r.lan/open:1", false)] {
        let [(name, text)] = of(image);
        let mut rig = rig(&docker, &[(name, &text)], functions.clone(), &[HASH]);
        let by = Some(["another".to_owned()].into());
        rig.book.note_pulled(format!("sha256:{image}"), image.to_owned(), by).await;
        let why = build_in(&mut rig, order()).await;
        let says = "builds have no login but that of the cluster's registry";
        assert_eq!(why.as_ref().is_some_and(|why| why.contains(says)), is_private, "{image}: {why:?}");
    }
}

// With builds awaited in `carry_out` the second one never begins.
#[tokio::test]
async fn a_build_whose_base_is_slow_holds_up_no_other() {
    let docker = Arc::new(FakeDocker::with_images(&["here:1"]));
    docker.engine().registry.insert("slow:1".to_owned());
    docker.engine().hold_pulls = true;
    let slow = "b".repeat(32);
    let mut rig = rig(&docker, &PACKAGED, FunctionDefaults::default(), &[HASH, &slow]);
    let on = |base: &str| BuildOrder { base: Some(base.to_owned()), source: rig.source.clone(), ..order() };
    let plan = BuildsPlan {
        build: vec![(slow.clone(), on("slow:1")), (HASH.to_owned(), on("here:1"))],
        ..BuildsPlan::default()
    };
    rig.builds.carry_out(&ordered(), plan).await;
    rig.builds.tasks.join_next().await.unwrap().unwrap();
    rig.builds.note_finished();
    assert_eq!(docker.engine().builds.len(), 1);
    assert!(rig.builds.failed.is_empty() && rig.builds.building.iter().eq([&slow]));
}

// Seen red with the node's own base for every build.
#[tokio::test]
async fn what_is_built_on_is_the_base_that_the_cluster_names_or_else_the_nodes_own() {
    let BaseImages { runtime, packages } = own_bases();
    for (base, wanted) in [(Some("base:1"), ["base:1", "base:1"]), (None, [&*packages, &*runtime])] {
        let docker = Arc::new(FakeDocker::with_images(&[&runtime, &packages]));
        // The Cluster object names it, so it may come from anywhere.
        docker.engine().registry.insert("base:1".to_owned());
        let order = BuildOrder { base: base.map(str::to_owned), ..order() };
        assert_eq!(build(&docker, order).await, None);
        let engine = docker.engine();
        let context = String::from_utf8_lossy(&engine.builds[0].context);
        let bases: Vec<&str> =
            context.lines().filter_map(|line| line.split_once("FROM ")).map(|it| it.1).collect();
        let (first, second) = (format!("sha256:{} AS packages", wanted[0]), format!("sha256:{}", wanted[1]));
        assert_eq!(bases[..2], [first, second]);
    }
}

// Seen red without the help text for the step in which pip installs packages.
#[tokio::test]
async fn where_pip_finds_no_packages_the_failure_says_where_to_name_an_index() {
    let why = async |command: &str| {
        let docker = Arc::new(FakeDocker::with_images(&["base:1"]));
        let message = format!("The command '{command}' returned a non-zero code: 1");
        let error = DockerError::Refused { act: "to build an image", status: 0, message };
        // The first call creates the network.
        docker.engine().fault = Some(Fault::Fail { call: 2, error });
        build(&docker, BuildOrder { base: Some("base:1".to_owned()), ..order() }).await.unwrap()
    };
    let of_pip =
        why("python3 -m pip install --no-cache-dir --target /packages -r /build/requirements.txt").await;
    let help =
        "name one in the Cluster object's functions.packageIndex, or put the wheels into a `wheels` folder";
    assert!(of_pip.contains("returned a non-zero code: 1") && of_pip.contains(help), "{of_pip}");
    let of_another = why("python3 -c import compileall").await;
    assert!(!of_another.contains("packageIndex") && !of_another.contains("wheels"), "{of_another}");
}

// Seen red with every ASCII word.
#[test]
fn a_login_for_the_index_is_a_word_that_every_python_reads_alike() {
    assert_eq!(netrc_word(b" s3cret#'$\n").as_deref(), Some("s3cret#'$"));
    for other in ["", " ", "two words", r"a\b", "\"ab", "a\"b", "schl\u{fc}ssel", "a\u{0}b"] {
        assert_eq!(netrc_word(other.as_bytes()), None, "{other:?}");
    }
}

/// Image names derive from their content: a change to the program in the images, or to their base, needs another
/// [`RUNTIME_VERSION`] and the new digest here.
#[test]
fn the_program_in_each_image_has_its_version() {
    let digest = hex(&Sha256::digest(format!("{SHIM}{BASE_SCRIPT}")));
    assert_eq!((RUNTIME_VERSION, &digest[..16]), (6, "8fbf71d667c77e71"));
}
