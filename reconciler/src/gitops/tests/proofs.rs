//! Properties: plans depend on content alone, and every path ends at the last commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};
use schema::object::Object;
use schema::snapshot::{Table, VersionedValue};

use super::kit::{Cluster, Files, Repo, many, pod};
use crate::git::CommitMeta;
use crate::gitops::check::CommitLimits;
use crate::gitops::load::Manifests;
use crate::gitops::load::truncated::is_truncated;
use crate::gitops::plan::{Act, PlanInput, Step, plan};
use crate::gitops::prune::Lineage;
use schema::manifest::load_file as parse;

const IMAGES: [&str; 3] = ["one", "two", "three"];

fn load(files: &Files) -> Manifests {
    files
        .iter()
        .map(|(path, text)| (Arc::from(path.as_str()), Arc::new(parse(path, text.as_bytes()))))
        .collect()
}

pub(super) fn situation(files: &Files, live: &Table<schema::meta::ObjectRef, Object>) -> PlanInput {
    let commit = CommitMeta {
        id: "c0ffee".into(),
        author: "Ada <ada@example.org>".into(),
        subject: "x".into(),
        committed_at: jiff::Timestamp::UNIX_EPOCH,
        allows_prune: true,
    };
    PlanInput {
        source: "main".into(),
        commit: Arc::new(commit),
        manifests: load(files),
        live: live.clone(),
        malformed: std::collections::BTreeSet::new(),
        lineage: Lineage::default(),
        held: None,
        revision: 0,
        lost: BTreeMap::new(),
        limits: CommitLimits::default(),
        service_cidr: None,
        incomplete: None,
    }
}

/// Content of etcd after the steps.
pub(super) fn applied(
    live: &Table<schema::meta::ObjectRef, Object>,
    steps: &[Step],
) -> Table<schema::meta::ObjectRef, Object> {
    let mut live = live.clone();
    for step in steps {
        match &step.act {
            Act::Create(object) | Act::Update(object) | Act::Replace(object) => {
                let versioned =
                    VersionedValue { value: (**object).clone(), create_revision: 1, mod_revision: 1 };
                live.insert(step.object.clone(), Arc::new(versioned));
            }
            Act::Delete => drop(live.remove(&step.object)),
        }
    }
    live
}

/// Steps without the position of their document.
pub(super) fn without_place(steps: &[Step]) -> Vec<String> {
    let shown = |step: &Step| {
        let act = match &step.act {
            Act::Create(object) => format!("create {}", object.hash),
            Act::Update(object) => format!("update {}", object.hash),
            Act::Replace(object) => format!("replace {}", object.hash),
            Act::Delete => "delete".to_owned(),
        };
        format!("{} {act} {:?}", step.object, step.precondition)
    };
    steps.iter().map(shown).collect()
}

/// Image and file number of each pod, by the number in its name.
fn fleet() -> impl Strategy<Value = BTreeMap<u8, (usize, u8)>> {
    proptest::collection::btree_map(0_u8..30, (0..IMAGES.len(), 0_u8..6), 0..25)
}

fn laid_out(fleet: &BTreeMap<u8, (usize, u8)>, file_of: impl Fn(u8, u8) -> String, reverse: bool) -> Files {
    let mut documents: Vec<_> = fleet.iter().collect();
    if reverse {
        documents.reverse();
    }
    let mut files = Files::new();
    for (name, (image, file)) in documents {
        let text = files.entry(file_of(*name, *file)).or_default();
        text.push_str("---\n");
        text.push_str(&pod(&format!("p{name}"), IMAGES[*image]));
    }
    files
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_plan_after_its_apply_is_empty(before in fleet(), after in fleet()) {
        let shared = |_, file| format!("apps/{file}.yaml");
        let none = Table::new();
        let first = plan(&situation(&laid_out(&before, shared, false), &none));
        let live = applied(&none, &first.steps);
        let next = situation(&laid_out(&after, shared, false), &live);
        let live = applied(&live, &plan(&next).steps);
        let last = plan(&PlanInput { live: live.clone(), ..next });
        prop_assert!(last.steps.is_empty(), "{:?}", without_place(&last.steps));
        prop_assert_eq!(live.len(), after.len());
        prop_assert_eq!(last.unchanged as usize, after.len());
    }

    #[test]
    fn a_plan_does_not_depend_on_files_and_their_order(before in fleet(), after in fleet()) {
        let none = Table::new();
        let live = applied(&none, &plan(&situation(&laid_out(&before, |_, f| format!("{f}.yaml"), false), &none)).steps);
        let layouts = [
            laid_out(&after, |_, file| format!("{file}.yaml"), false),
            laid_out(&after, |_, file| format!("{file}.yaml"), true),
            laid_out(&after, |name, _| format!("deep/{name}/pod.yaml"), false),
            laid_out(&after, |_, _| "all.yaml".to_owned(), true),
        ];
        let plans: Vec<_> = layouts.iter().map(|files| plan(&situation(files, &live))).collect();
        // Where only the position differs, the step is an update of the position alone.
        let changes = |steps: &[Step]| {
            let place_only = |step: &&Step| !matches!(step.why, crate::gitops::plan::StepReason::Moved { .. });
            without_place(&steps.iter().filter(place_only).cloned().collect::<Vec<_>>())
        };
        for other in &plans[1..] {
            prop_assert_eq!(changes(&plans[0].steps), changes(&other.steps));
        }
        let mut kinds: Vec<_> = plans[0].steps.iter().map(|step| matches!(step.act, Act::Delete)).collect();
        prop_assert!(kinds.is_sorted(), "removals are last");
        kinds.dedup();
    }

    #[test]
    fn a_file_broken_at_any_byte_removes_nothing(at in 0_usize..100, how in 0_usize..4, victim in 0_usize..6) {
        let fleet: BTreeMap<u8, (usize, u8)> = (0..12).map(|n| (n, (0, n % 6))).collect();
        let mut files = laid_out(&fleet, |name, _| format!("{name}.yaml"), false);
        let none = Table::new();
        let live = applied(&none, &plan(&situation(&files, &none)).steps);
        let text = files.values_mut().nth(victim).unwrap();
        let at = at.min(text.len());
        match how {
            0 => text.truncate(at),
            1 => text.insert(at, '\0'),
            2 => text.insert(at, '\u{7}'),
            _ => text.insert_str(at, "\n\t- }{"),
        }
        let mut cut = situation(&files, &live);
        cut.commit = Arc::new(CommitMeta { allows_prune: false, ..(*cut.commit).clone() });
        let steps = plan(&cut).steps;
        let removed: Vec<_> = steps.iter().filter(|step| matches!(step.act, Act::Delete)).collect();
        // A name cut in two is another name: the only break that makes a valid rename. It needs the
        // whole rest of the manifest after it, so these breaks can't produce it.
        prop_assert!(removed.is_empty(), "{:?} of {:?}", without_place(&steps), files.values().nth(victim));
    }
}

/// Makes one random commit.
fn edit(repo: &mut Repo, random: &mut impl FnMut(u32) -> u32) {
    let name = format!("p{}", random(12));
    let home = repo
        .files
        .iter()
        .find(|(_, text)| text.contains(&format!("name: {name}\n")))
        .map(|(path, _)| path.clone());
    let image = IMAGES[random(3) as usize];
    match (random(6), home) {
        (0, Some(path)) if repo.files.len() > 4 => drop(repo.remove(&path)),
        (1, Some(path)) => {
            let text = repo.files.remove(&path).unwrap();
            repo.set(&format!("moved/{}/{name}.yaml", random(3)), text);
        }
        (2, Some(path)) => drop(repo.set(&path, format!("# {}\n{}", random(9), pod(&name, image)))),
        (_, Some(path)) => drop(repo.set(&path, pod(&name, image))),
        (_, None) => drop(repo.set(&format!("apps/{name}.yaml"), pod(&name, image))),
    }
}

/// A small generator (xorshift), so that a failure is reported by its seed.
pub(in crate::gitops) fn generator(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 33).unwrap() % below
    }
}

async fn store_is_the_commit(repo: &Repo, cluster: &Cluster, hint: &str) {
    let mut wanted = BTreeMap::new();
    for (path, text) in &repo.files {
        for draft in parse(path, text.as_bytes()).documents {
            wanted.insert(draft.reference.name.clone(), (draft.hash, path.clone(), draft.line));
        }
    }
    let objects = cluster.objects().await.into_iter();
    let found: BTreeMap<_, _> = objects
        .map(|(name, object)| (name, (object.hash, object.provenance.file, object.provenance.line)))
        .collect();
    assert_eq!(found, wanted, "{hint}");
}

#[tokio::test]
async fn a_walk_of_random_commits_ends_at_the_last() {
    let mut random = generator(7);
    let mut repo = Repo::new(super::kit::pods(many(6)));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let mut applied = 1;
    for step in 0..200 {
        edit(&mut repo, &mut random);
        repo.commit(&format!("Step {step}"));
        match random(8) {
            0 => continue,
            1 => cluster.restart(),
            _ => {}
        }
        cluster.settle().await;
        applied += 1;
        store_is_the_commit(&repo, &cluster, &format!("step {step}")).await;
    }
    repo.commit("Last");
    cluster.settle().await;
    store_is_the_commit(&repo, &cluster, "the end").await;
    let revisions = cluster.revisions().await;
    assert_eq!(revisions.len(), 100, "the newest hundred are kept");
    assert_eq!(revisions.last().unwrap().sequence, applied + 1);
}

/// Combines every kind of change, larger than one transaction.
fn big_change(repo: &mut Repo) {
    for n in 0..300 {
        match n % 3 {
            0 => drop(repo.set(&format!("q{n}.yaml"), pod(&format!("q{n}"), "two"))),
            1 if n < 60 => drop(repo.remove(&format!("q{n}.yaml"))),
            _ => {}
        }
    }
    for n in 300..350 {
        repo.set(&format!("q{n}.yaml"), pod(&format!("q{n}"), "one"));
    }
    repo.commit("Big");
}

#[tokio::test]
async fn a_crash_at_any_write_converges_with_one_revision_per_commit() {
    let files = (0..300).map(|n| (format!("q{n}.yaml"), pod(&format!("q{n}"), "one")));
    for lost in [false, true] {
        let mut crashed_at_all = 0;
        for at in 0..12 {
            let mut repo = Repo::new(files.clone().collect());
            let mut cluster = Cluster::new(&repo).await;
            cluster.settle().await;
            big_change(&mut repo);
            cluster.crash_after(at, lost);
            let crashed = cluster.run().await.error.is_some();
            cluster.heal();
            crashed_at_all += u32::from(crashed);
            cluster.restart();
            cluster.settle().await;
            let hint = format!("crash at write {at}, its answer lost: {lost}");
            store_is_the_commit(&repo, &cluster, &hint).await;
            let revisions: Vec<_> =
                cluster.revisions().await.iter().map(|revision| revision.sequence).collect();
            assert_eq!(revisions, [1, 2], "{hint}");
            if !crashed {
                break;
            }
        }
        assert!(crashed_at_all >= 4, "the change takes {crashed_at_all} writes only");
    }
}

#[test]
fn the_generator_is_no_constant() -> Result<(), TestCaseError> {
    let mut random = generator(7);
    let drawn: std::collections::BTreeSet<u32> = (0..100).map(|_| random(12)).collect();
    prop_assert!(drawn.len() == 12);
    Ok(())
}

/// The manifests of `sample-repo`, which has every kind.
fn sample() -> Files {
    fn walk(dir: &std::path::Path, root: &std::path::Path, files: &mut Files) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                walk(&path, root, files);
            } else if name.ends_with(".yaml") || name.ends_with(".json") {
                files.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("sample-repo");
    let mut files = Files::new();
    walk(&root, &root, &mut files);
    files
}

#[test]
fn the_sample_is_applied_once_and_then_as_it_should_be() {
    let (files, none) = (sample(), Table::new());
    let first = plan(&situation(&files, &none));
    assert!(first.quarantined.is_empty(), "{:?}", first.quarantined);
    let kinds: std::collections::BTreeSet<_> = first.steps.iter().map(|step| step.object.kind).collect();
    assert_eq!(kinds.len(), schema::kinds::Kind::ALL.len(), "{kinds:?}");
    let again = plan(&situation(&files, &applied(&none, &first.steps)));
    assert!(again.steps.is_empty(), "{:?}", without_place(&again.steps));
}

/// True if a text cut at `at` ends between two of its documents, as a person would leave it.
pub(super) fn ends_between_documents(text: &str, at: usize) -> bool {
    let (kept, gone) = text.split_at(at);
    let separates = |line: &str| line == "---" || line == "..." || line.starts_with("--- ");
    let mut rest = gone.lines();
    // Rest of the line that contains the cut.
    if !kept.is_empty() && !kept.ends_with('\n') && !rest.next().is_none_or(str::is_empty) {
        return false;
    }
    let next = rest.map(str::trim_end).find(|line| !line.is_empty() && !line.starts_with('#'));
    kept.trim_end().lines().next_back().is_some_and(separates) || next.is_none_or(separates)
}

proptest! {
    #![proptest_config(Config { cases: 128, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_file_of_any_kind_broken_at_any_byte_removes_nothing(
        victim in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        how in 0_usize..4,
    ) {
        let (mut files, none) = (sample(), Table::new());
        let live = applied(&none, &plan(&situation(&files, &none)).steps);
        let victim = victim.index(files.len());
        let text = files.values_mut().nth(victim).unwrap();
        let at = (0..=at.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let before = text.clone();
        match how {
            0 => text.truncate(at),
            1 => text.insert(at, '\0'),
            2 => text.insert(at, '\u{7}'),
            _ => text.insert_str(at, "\n\t- }{"),
        }
        let after = text.clone();
        let path: Arc<str> = Arc::from(files.keys().nth(victim).unwrap().as_str());
        let mut cut = situation(&files, &live);
        let mut file = (*cut.manifests[&path]).clone();
        file.is_truncated = is_truncated(after.as_bytes(), before.as_bytes());
        if how == 0 {
            prop_assert_eq!(file.is_truncated, !ends_between_documents(&before, at));
        }
        // Cut between two documents, a file is intact: the rest was removed on purpose.
        prop_assume!(how != 0 || !ends_between_documents(&before, at));
        cut.manifests.insert(path, Arc::new(file));
        cut.commit = Arc::new(CommitMeta { allows_prune: false, ..(*cut.commit).clone() });
        let steps = plan(&cut).steps;
        let removed: Vec<_> = steps.iter().filter(|step| matches!(step.act, Act::Delete)).collect();
        prop_assert!(removed.is_empty(), "{:?}", without_place(&steps));
    }
}
