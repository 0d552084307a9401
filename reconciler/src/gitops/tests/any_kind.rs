//! Properties of plans over objects of every kind: only content counts, a second plan after applying is
//! empty, and a file that can't be read removes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use schema::arbitrary::arbitrary_object_of;
use schema::codec;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::{Table, VersionedValue};

use super::kit::Files;
use super::proofs::{applied, ends_between_documents, generator, situation, without_place};
use super::rounds;
use crate::git::CommitMeta;
use crate::gitops::load::truncated::is_truncated;
use crate::gitops::plan::{Act, PlanInput, Step, StepReason, SyncPlan, plan};
use crate::gitops::review::plan_hash;
use schema::manifest::load_file as parse;

/// Broken files per round in a plain `cargo test`.
const BREAKS: u64 = 10;

/// Kind, content seed and file number of each member, by the number in its name.
type Fleet = BTreeMap<u8, (usize, u64, u8)>;

fn fleet() -> impl Strategy<Value = Fleet> {
    proptest::collection::btree_map(0_u8..20, (0..Kind::ALL.len(), any::<u64>(), 0_u8..5), 0..12)
}

/// The documents of one member, valid alone and together. Only one Cluster object may exist.
fn documents(name: u8, kind: usize, seed: u64) -> Vec<String> {
    let text = match Kind::ALL[kind] {
        Kind::Cluster if name != 0 => arbitrary_object_of(Kind::Job, &format!("x{name}"), seed),
        kind => arbitrary_object_of(kind, &format!("x{name}"), seed),
    };
    text.split("---\n").map(str::to_owned).collect()
}

/// Every document in the file that `file_of` chooses, given member, file number and position.
fn laid_out(fleet: &Fleet, file_of: impl Fn(u8, u8, usize) -> String, reverse: bool) -> Files {
    let mut placed = Vec::new();
    for (name, (kind, seed, file)) in fleet {
        for (position, text) in documents(*name, *kind, *seed).into_iter().enumerate() {
            placed.push((file_of(*name, *file, position), text));
        }
    }
    if reverse {
        placed.reverse();
    }
    let mut files = Files::new();
    for (file, text) in placed {
        let all = files.entry(file).or_default();
        all.push_str("---\n");
        all.push_str(&text);
    }
    files
}

fn by_file(fleet: &Fleet) -> Files {
    laid_out(fleet, |_, file, _| format!("apps/{file}.yaml"), false)
}

/// Live objects after a round trip through etcd.
fn through_json(live: &Table<ObjectRef, Object>) -> Table<ObjectRef, Object> {
    let again = |stored: &VersionedValue<Object>| VersionedValue {
        value: codec::decode(&codec::encode(&stored.value).unwrap()).unwrap(),
        ..stored.clone()
    };
    live.iter().map(|(object, stored)| (object.clone(), Arc::new(again(stored)))).collect()
}

fn first(files: &Files) -> Table<ObjectRef, Object> {
    let none = Table::new();
    let plan = plan(&situation(files, &none));
    assert!(plan.quarantined.is_empty(), "{:#?}", plan.quarantined);
    through_json(&applied(&none, &plan.steps))
}

/// Steps other than following a document to its new place.
fn changes(plan: &SyncPlan) -> Vec<String> {
    let more = |step: &&Step| !matches!(step.why, StepReason::Moved { .. });
    without_place(&plan.steps.iter().filter(more).cloned().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_plan_after_its_apply_is_empty_for_every_kind(before in fleet(), after in fleet()) {
        let live = first(&by_file(&before));
        let next = situation(&by_file(&after), &live);
        let decided = plan(&next);
        prop_assert!(decided.quarantined.is_empty(), "{:#?}", decided.quarantined);
        let live = through_json(&applied(&live, &decided.steps));
        let last = plan(&PlanInput { live: live.clone(), ..next });
        prop_assert!(last.steps.is_empty(), "{:?}", without_place(&last.steps));
        prop_assert_eq!(last.unchanged as usize, live.len());
        let wanted: usize = after.iter().map(|(n, (kind, seed, _))| documents(*n, *kind, *seed).len()).sum();
        prop_assert_eq!(live.len(), wanted);
    }

    #[test]
    fn a_plan_of_any_kinds_does_not_depend_on_files_and_their_order(before in fleet(), after in fleet()) {
        let live = first(&by_file(&before));
        let layouts = [
            by_file(&after),
            laid_out(&after, |_, file, _| format!("apps/{file}.yaml"), true),
            laid_out(&after, |name, _, _| format!("deep/{name}/all.yaml"), false),
            laid_out(&after, |name, _, position| format!("{}/{name}.yml", 9 - position), true),
            laid_out(&after, |_, _, _| "all.yaml".to_owned(), false),
            laid_out(&after, |_, _, _| "all.yaml".to_owned(), true),
        ];
        let plans: Vec<SyncPlan> = layouts.iter().map(|files| plan(&situation(files, &live))).collect();
        for other in &plans {
            prop_assert!(other.quarantined.is_empty(), "{:#?}", other.quarantined);
            prop_assert_eq!(changes(&plans[0]), changes(other));
            prop_assert_eq!(plan_hash(&plans[0], &live), plan_hash(other, &live));
            prop_assert_eq!(&plans[0].prune, &other.prune);
        }
    }
}

/// Breaks the text at one byte; the result may still be a text with the same meaning.
fn wound(text: &str, at: usize, random: &mut impl FnMut(u32) -> u32) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    match random(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.remove(at)),
        2 => bytes.insert(at, b"\0\x07\t{}[]\"'\xff"[random(10) as usize]),
        3 => bytes[at] = u8::try_from(random(256)).unwrap(),
        4 => bytes[at] ^= 1 << random(8),
        _ => drop(bytes.splice(at..at, *b"\n\t- }{")),
    }
    bytes
}

#[test]
fn a_file_of_any_kind_broken_at_any_byte_by_any_hand_removes_nothing() {
    let from = super::from_environment("MINIK8S_SEED").unwrap_or(1);
    let (mut broken, mut cut, mut removed, mut kinds) = (0, 0, 0, BTreeSet::new());
    let seeds = BREAKS * rounds(60);
    for seed in from..from + seeds {
        let mut random = generator(seed);
        let members: Fleet = (0..4)
            .map(|n| (n, (random(Kind::ALL.len() as u32) as usize, u64::from(random(u32::MAX)), n / 2)))
            .collect();
        let mut loaded = situation(&by_file(&members), &Table::new());
        let live = first(&by_file(&members));
        let file = format!("apps/{}.yaml", random(2));
        let Some(text) = by_file(&members).remove(&file) else { continue };
        let at = random(u32::try_from(text.len()).unwrap()) as usize;
        let bytes = wound(&text, at, &mut random);
        let mut parsed = parse(&file, &bytes);
        parsed.is_truncated = is_truncated(&bytes, text.as_bytes());
        cut += usize::from(parsed.is_truncated && !parsed.has_errors());
        if let Some(kept) = std::str::from_utf8(&bytes).ok().filter(|kept| text.starts_with(kept)) {
            let is_whole = kept.len() == text.len() || ends_between_documents(&text, kept.len());
            assert_eq!(parsed.is_truncated, !is_whole, "MINIK8S_SEED={seed}, byte {at}");
        }
        // A changed byte can make another valid file, as a person could: the reviewer sees it.
        if parsed.is_manifest && !parsed.has_errors() && !parsed.is_truncated {
            continue;
        }
        broken += 1;
        kinds.extend(members.values().filter(|member| member.2.to_string() == file[5..6]).map(|m| m.0));
        loaded.live = live;
        loaded.manifests.insert(Arc::from(file.as_str()), Arc::new(parsed));
        for allows_prune in [false, true] {
            loaded.commit = Arc::new(CommitMeta { allows_prune, ..(*loaded.commit).clone() });
            let steps = plan(&loaded).steps;
            removed += steps.iter().filter(|step| matches!(step.act, Act::Delete)).count();
            assert_eq!(
                removed,
                0,
                "MINIK8S_SEED={seed}, byte {at}: {:?}\n{}",
                without_place(&steps),
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    assert!(broken * 3 > seeds, "only {broken} of {seeds} files were broken");
    assert!(cut > 0, "no file was cut short and valid");
    assert_eq!(kinds.len(), Kind::ALL.len(), "{kinds:?}");
}
