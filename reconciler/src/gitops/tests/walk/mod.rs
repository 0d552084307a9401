//! A walk of random commits on a real etcd: whatever is committed, and whenever the process dies,
//! no wanted object is removed, and in the end etcd matches the last commit.
//!
//! `MINIK8S_ROUNDS` is the number of commits, `MINIK8S_SEED` the seed of the walk; failures name both.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::manifest::{DraftObject, load_file};
use schema::meta::ObjectRef;
use schema::object::Object;

use super::kit::{Files, Repo};
use super::proofs::generator;
use super::{from_environment, rounds};

mod fleet;
mod site;
#[path = "../../../../../schema/tests/support/mod.rs"]
mod support;

use fleet::Fleet;
use site::Site;

/// Commits of a walk in a plain `cargo test`.
const COMMITS: u64 = 60;

/// Content of a file for one object; nothing here comes from a plan.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    draft: Arc<DraftObject>,
    file: String,
    line: u32,
}

/// Reads the files of a commit, each content once.
#[derive(Default)]
struct Reader {
    read: BTreeMap<String, (String, Vec<(ObjectRef, Wanted)>)>,
}

impl Reader {
    fn wanted(&mut self, files: &Files, skip: &[String]) -> BTreeMap<ObjectRef, Wanted> {
        let mut all = BTreeMap::new();
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".yaml") && !skip.contains(path)) {
            if self.read.get(path).is_none_or(|(before, _)| before != text) {
                let documents = load_file(path, text.as_bytes()).documents.into_iter();
                let wanted = documents.map(|document| {
                    let (draft, line) = (document.object, document.line);
                    (draft.reference(), Wanted { draft, file: path.clone(), line })
                });
                self.read.insert(path.clone(), (text.clone(), wanted.collect()));
            }
            all.extend(self.read[path].1.iter().cloned());
        }
        all
    }
}

/// Describes the difference between etcd and the file; `None` if they agree.
fn difference(object: &Object, wanted: &Wanted) -> Option<String> {
    let from = &object.provenance;
    let same = object.resource == wanted.draft.resource
        && object.metadata == wanted.draft.metadata
        && object.api_version == wanted.draft.api_version
        && object.hash == wanted.draft.hash()
        && (&from.file, from.line) == (&wanted.file, wanted.line)
        && from.source == "main";
    (!same).then(|| format!("etcd has {object:#?}\nwanted {wanted:#?}"))
}

/// Counts of events: a walk without events proves nothing.
#[derive(Debug, Default)]
struct Met {
    looks: u32,
    restarts: u32,
    kills: u32,
    removed: usize,
    held: u32,
    broken: u32,
    released: u32,
    histories: u32,
}

struct Walk {
    repo: Repo,
    fleet: Fleet,
    site: Site,
    reader: Reader,
    /// Content of etcd at the last check.
    before: BTreeMap<ObjectRef, Object>,
    met: Met,
}

impl Walk {
    async fn begin(seed: u64) -> Self {
        let fleet = Fleet::new(generator(seed));
        let repo = Repo::new(fleet.files());
        let site = Site::new(repo.config(), repo.state()).await;
        let (reader, met) = (Reader::default(), Met::default());
        let mut walk = Self { repo, fleet, site, reader, before: BTreeMap::new(), met };
        walk.look("the first commit").await;
        walk
    }

    fn commit(&mut self, step: u64) {
        self.fleet.edit();
        self.repo.files = self.fleet.files();
        let released = self.fleet.below(12) == 0;
        let trailer = if released { "\n\nMinik8s-Allow-Prune: true" } else { "" };
        self.met.released += u32::from(released);
        let message = format!("Step {step}{trailer}");
        if self.fleet.below(80) == 0 {
            self.met.histories += 1;
            self.repo.commit_orphan(&message);
        } else {
            self.repo.commit(&message);
        }
    }

    /// Runs the loop, and checks etcd.
    async fn look(&mut self, hint: &str) {
        match self.fleet.below(10) {
            0 => {
                self.met.restarts += 1;
                self.site.restart();
            }
            1 | 2 => {
                self.met.kills += 1;
                let waits = 1 + self.fleet.below(40);
                self.site.killed(waits).await;
            }
            3 if self.fleet.below(4) == 0 => self.site.restart_elsewhere(),
            _ => {}
        }
        self.site.settle(hint).await;
        self.met.looks += 1;
        self.check(hint).await;
    }

    async fn check(&mut self, hint: &str) {
        let (objects, status) = (self.site.objects().await, self.site.status().await);
        let hint = format!("{hint}: {:?}\n{status:#?}", self.fleet.done);
        let meant = self.fleet.meant();
        let gone: Vec<&ObjectRef> = self.before.keys().filter(|old| !objects.contains_key(old)).collect();
        let wrong: Vec<&&ObjectRef> = gone.iter().filter(|object| meant.contains(object)).collect();
        assert!(wrong.is_empty(), "{hint}\nremoved, although somebody wants them: {wrong:?}");
        assert!(gone.is_empty() || !self.fleet.is_broken(), "{hint}\nremoved beside a broken file: {gone:?}");
        let quarantined: Vec<String> = status.quarantined.iter().map(|file| file.file.clone()).collect();
        assert_eq!(!quarantined.is_empty(), self.fleet.is_broken(), "{hint}");
        let wanted = self.reader.wanted(&self.repo.files, &quarantined);
        for (object, wanted) in &wanted {
            let Some(found) = objects.get(object) else { panic!("{hint}\n{object} is not in etcd") };
            let difference = difference(found, wanted);
            assert!(difference.is_none(), "{hint}\n{}", difference.unwrap());
        }
        if !self.fleet.is_broken() && status.held_prune.is_none() {
            let extra: Vec<&ObjectRef> =
                objects.keys().filter(|object| !wanted.contains_key(object)).collect();
            assert!(extra.is_empty(), "{hint}\nnobody wants {extra:?}, and nothing is held");
        }
        self.met.removed += gone.len();
        self.met.held += u32::from(status.held_prune.is_some());
        self.met.broken += u32::from(self.fleet.is_broken());
        self.before = objects;
    }

    /// Repairs and releases everything: etcd must match the commit exactly.
    async fn end(&mut self, hint: &str) {
        self.fleet.repair_all();
        self.repo.files = self.fleet.files();
        let commit = self.repo.commit("Last\n\nMinik8s-Allow-Prune: true");
        self.look(hint).await;
        assert_eq!(self.site.status().await.applied_commit, Some(commit), "{hint}");
        let wanted = self.reader.wanted(&self.repo.files, &[]);
        let objects = self.site.objects().await;
        let names = |keys: Vec<&ObjectRef>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(objects.keys().collect()), names(wanted.keys().collect()), "{hint}");
        let differences: Vec<_> =
            wanted.iter().filter_map(|(object, wanted)| difference(&objects[object], wanted)).collect();
        assert!(differences.is_empty(), "{hint}\n{}", differences.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_of_random_commits_on_a_real_etcd_loses_nothing_and_ends_at_the_last() {
    let (commits, seed) = (rounds(COMMITS), from_environment("MINIK8S_SEED").unwrap_or(1));
    let named = |what: &str| format!("MINIK8S_SEED={seed} MINIK8S_ROUNDS={commits}, {what}");
    let mut walk = Walk::begin(seed).await;
    for step in 1..=commits {
        walk.commit(step);
        // Sometimes several commits come between two runs.
        if walk.fleet.below(8) > 0 {
            walk.look(&named(&format!("commit {step}"))).await;
        }
    }
    walk.end(&named("the end")).await;
    println!("seed {seed}: {commits} commits, {} objects at the end, {:?}", walk.before.len(), walk.met);
    let Met { kills, removed, held, broken, released, .. } = walk.met;
    assert!(kills > 0 && removed > 0 && held > 0 && broken > 0 && released > 0, "{}", named("a dull walk"));
}
