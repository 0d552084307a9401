//! Decision on removals: the live objects that should go, and whether they may. Pure.
//!
//! Absence is the weakest of evidence: a typo, an outage or a wrong branch all look like it. So a removal needs a
//! complete picture, and must stay in a budget or be requested by a commit's trailer.

use std::collections::BTreeMap;
use std::fmt;

use schema::kinds::cluster::PrunePolicy;
use schema::kinds::metadata::PRUNE_ANNOTATION;
use schema::meta::{ObjectMeta, ObjectRef};
use schema::object::short_commit;
use schema::violation::shortened;

use crate::git::Relation;
use schema::violation::plural;

/// True if an annotation keeps the object whatever Git says.
pub fn is_protected(metadata: &ObjectMeta) -> bool {
    metadata.annotations.get(PRUNE_ANNOTATION).is_some_and(|value| value == "false")
}

/// Limit on files named in a reason; there may be thousands.
const FILES_SHOWN_MAX: usize = 5;
/// Length at which a path is cut.
const PATH_CHARS_MAX: usize = 150;

/// Instruction for releasing a held prune, for messages.
pub const RELEASE_HELP: &str =
    "if this is intended, push a commit (it may be empty) with the trailer `Minik8s-Allow-Prune: true`";

/// Inputs of the decision.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Number of objects that the source owns.
    pub owned: usize,
    /// Removals and objects relative to the baseline of the prune that is still held.
    pub at_first_hold: Option<Share>,
    /// Objects that no document names, with the commit that set them.
    pub absent: BTreeMap<&'a ObjectRef, &'a str>,
    /// Files that can't be read.
    pub quarantined: Vec<&'a str>,
    /// Reason why the picture is incomplete, if it is.
    pub incomplete: Option<&'a str>,
    /// Number of absent objects of a lost etcd that their annotation protects.
    pub lost_protected: usize,
    /// Set if no file is meant to be a manifest.
    pub empty: bool,
    /// Set if the head commit has the trailer.
    pub released: bool,
    /// Ancestry of older commits relative to the head.
    pub lineage: &'a Lineage,
    /// Budget for removals, as applied. `None`: the prune was held by a policy that the commit has replaced in the
    /// meantime, and its own does not release it.
    pub policy: Option<PrunePolicy>,
}

/// Number of removals out of a number of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Objects that would go.
    pub removals: usize,
    /// Owned objects in total.
    pub owned: usize,
}

impl Share {
    /// Returns the reason for holding the removals; `None` if they may proceed.
    pub fn hold(self, policy: Option<&PrunePolicy>) -> Option<PruneHold> {
        let Self { removals, owned } = self;
        if removals == 0 {
            return None;
        }
        if removals >= owned {
            return Some(PruneHold::Everything { owned });
        }
        let over = |policy: &PrunePolicy| {
            let most = usize::try_from(policy.max_objects).unwrap_or(usize::MAX);
            let percent = usize::try_from(policy.max_percent).unwrap_or(usize::MAX);
            removals > most && removals.saturating_mul(100) > owned.saturating_mul(percent)
        };
        policy.is_none_or(over).then(|| PruneHold::Budget { removals, owned, policy: policy.cloned() })
    }
}

/// Ancestry of the live objects' commits relative to the head commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Newest commit whose removals were all done, if one is known.
    pub base: Option<String>,
    /// Ancestry by commit.
    pub relations: BTreeMap<String, Relation>,
    /// Set if neither the head nor any commit before it holds a manifest.
    pub is_unused: bool,
}

/// Decision on removals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Prune {
    /// Nothing is absent.
    #[default]
    Nothing,
    /// These objects go.
    Remove(Vec<ObjectRef>),
    /// These objects stay until the prune is released.
    Held { why: PruneHold, objects: Vec<ObjectRef> },
}

impl Prune {
    pub fn is_held(&self) -> bool {
        matches!(self, Prune::Held { .. })
    }
}

/// Reason for holding a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruneHold {
    /// The remote or the folder can't be read.
    Incomplete(String),
    /// Files can't be read.
    Quarantine(Vec<String>),
    /// Etcd was lost, and with it objects that only their annotation protected.
    Protected(usize),
    /// The commit holds no manifest.
    Empty,
    /// The commit has no history in common with what is applied.
    UnrelatedHistory { base: String },
    /// The source would own nothing any longer.
    Everything { owned: usize },
    /// `removals` of `owned` objects exceed the budget of `policy`, if that is known.
    Budget { removals: usize, owned: usize, policy: Option<PrunePolicy> },
}

impl fmt::Display for PruneHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PruneHold::Incomplete(why) => write!(f, "the source can't be read completely: {why}"),
            PruneHold::Quarantine(files) => {
                let shown = files.iter().take(FILES_SHOWN_MAX);
                let shown: Vec<_> = shown.map(|file| shortened(file.clone(), PATH_CHARS_MAX)).collect();
                f.write_str(&shown.join(", "))?;
                if let more @ 1.. = files.len().saturating_sub(FILES_SHOWN_MAX) {
                    write!(f, " and {more} more")?;
                }
                f.write_str(" can't be applied, so its objects are unknown; fix it")
            }
            PruneHold::Protected(count) => write!(
                f,
                "etcd was lost with {} that `{PRUNE_ANNOTATION}: \"false\"` kept and that may still run; declare what \
                 was kept in a commit again; to delete it, declare it without the annotation, then remove it",
                plural(count, "object")
            ),
            PruneHold::Empty => write!(f, "the commit holds no manifest at all; {RELEASE_HELP}"),
            PruneHold::UnrelatedHistory { base } => {
                let base = short_commit(base);
                write!(f, "the commit has no common history with the applied commit {base}; {RELEASE_HELP}")
            }
            PruneHold::Everything { owned } => {
                write!(f, "the commit would remove every object of the source ({owned}); {RELEASE_HELP}")
            }
            PruneHold::Budget { removals, owned, policy } => {
                write!(f, "the commit would remove {removals} of {owned} objects, ")?;
                match policy {
                    Some(PrunePolicy { max_objects, max_percent }) => {
                        write!(f, "more than {max_objects} and more than {max_percent} %")?;
                    }
                    None => {
                        f.write_str("more than the Cluster object allowed before this commit changed it")?;
                    }
                }
                write!(f, "; {RELEASE_HELP}")
            }
        }
    }
}

/// Decides on the removals.
pub fn prune(evidence: &Evidence<'_>) -> Prune {
    if evidence.absent.is_empty() {
        return Prune::Nothing;
    }
    let mut objects: Vec<ObjectRef> = evidence.absent.keys().map(|object| (*object).clone()).collect();
    // Removals go in reverse of how objects are applied.
    objects.reverse();
    match hold(evidence) {
        Some(why) => Prune::Held { why, objects },
        None => Prune::Remove(objects),
    }
}

fn hold(evidence: &Evidence<'_>) -> Option<PruneHold> {
    // An incomplete picture can't be released: objects absent from it are not known to be gone.
    if let Some(why) = evidence.incomplete {
        return Some(PruneHold::Incomplete(why.to_owned()));
    }
    if !evidence.quarantined.is_empty() {
        return Some(PruneHold::Quarantine(
            evidence.quarantined.iter().map(|file| (*file).to_owned()).collect(),
        ));
    }
    // A trailer never removed protected objects, either.
    if evidence.lost_protected > 0 {
        return Some(PruneHold::Protected(evidence.lost_protected));
    }
    if evidence.released {
        return None;
    }
    if evidence.empty {
        return Some(PruneHold::Empty);
    }
    if let Some(base) = unrelated(evidence) {
        return Some(PruneHold::UnrelatedHistory { base });
    }
    let now = Share { removals: evidence.absent.len(), owned: evidence.owned };
    evidence.at_first_hold.into_iter().chain([now]).find_map(|share| share.hold(evidence.policy.as_ref()))
}

/// Returns a commit without common history with the head. History is unrelated only if neither the last complete
/// commit nor the commits of the absent objects tie it to the head: so a new history with the same content is
/// accepted, and a hold lasts until it is released.
fn unrelated(evidence: &Evidence<'_>) -> Option<String> {
    let lineage = evidence.lineage;
    let related = |commit: &str| lineage.relations.get(commit) == Some(&Relation::Related);
    if lineage.base.as_deref().is_some_and(related) {
        return None;
    }
    let stranger = evidence.absent.values().find(|commit| !related(commit))?;
    Some(lineage.base.clone().unwrap_or_else(|| (*stranger).to_owned()))
}

#[cfg(test)]
mod tests {
    use schema::kinds::Kind;

    use super::*;

    fn objects(count: usize) -> Vec<ObjectRef> {
        let object = |n| ObjectRef { kind: Kind::Pod, namespace: "default".into(), name: format!("p{n:04}") };
        (0..count).map(object).collect()
    }

    fn lineage(base: Option<(&str, Relation)>, objects: Relation) -> Lineage {
        let mut relations = BTreeMap::from([("c1".to_owned(), objects)]);
        relations.extend(base.map(|(commit, relation)| (commit.to_owned(), relation)));
        Lineage { base: base.map(|(commit, _)| commit.to_owned()), relations, is_unused: false }
    }

    fn decide(owned: usize, removals: usize, change: impl FnOnce(&mut Evidence<'_>)) -> Prune {
        let objects = objects(removals);
        let absent = objects.iter().map(|object| (object, "c1")).collect();
        let lineage = lineage(None, Relation::Related);
        let (quarantined, incomplete) = (Vec::new(), None);
        let mut evidence = Evidence {
            owned,
            at_first_hold: None,
            absent,
            quarantined,
            incomplete,
            lost_protected: 0,
            empty: false,
            released: false,
            lineage: &lineage,
            policy: Some(PrunePolicy::default()),
        };
        change(&mut evidence);
        prune(&evidence)
    }

    fn goes(prune: &Prune) -> bool {
        matches!(prune, Prune::Remove(_))
    }

    #[test]
    fn the_budget_is_ten_objects_or_thirty_percent() {
        for (owned, removals, allowed) in [
            (2, 1, true),
            (20, 10, true),
            (20, 11, false),
            (36, 11, false),
            (37, 11, true),
            (100, 30, true),
            (100, 31, false),
            (10, 10, false),
            (1, 1, false),
            (10_000, 3_000, true),
            (10_000, 3_001, false),
        ] {
            assert_eq!(goes(&decide(owned, removals, |_| {})), allowed, "{removals} of {owned}");
            assert!(goes(&decide(owned, removals, |e| e.released = true)), "{removals} of {owned}, released");
        }
        assert_eq!(decide(5, 0, |_| {}), Prune::Nothing);
    }

    #[test]
    fn the_budget_is_what_the_cluster_says() {
        for (max_objects, max_percent, owned, removals, allowed) in [
            (0, 0, 100, 1, false),
            (1, 0, 100, 1, true),
            (1, 0, 100, 2, false),
            (0, 50, 100, 50, true),
            (0, 50, 100, 51, false),
            (u32::MAX, 0, 100, 99, true),
            (u32::MAX, 100, 100, 100, false),
        ] {
            let policy = PrunePolicy { max_objects, max_percent };
            let decided = decide(owned, removals, |e| e.policy = Some(policy.clone()));
            assert_eq!(goes(&decided), allowed, "{policy:?} {removals} of {owned}");
        }
        let policy = PrunePolicy { max_objects: 3, max_percent: 7 };
        let Prune::Held { why, .. } = decide(20, 4, |e| e.policy = Some(policy)) else { panic!("not held") };
        assert!(why.to_string().contains("4 of 20 objects, more than 3 and more than 7 %"), "{why}");
    }

    #[test]
    fn what_is_not_known_to_be_gone_is_not_released_either() {
        for released in [false, true] {
            let held = decide(20, 1, |e| (e.incomplete, e.released) = (Some("no answer"), released));
            assert!(matches!(held, Prune::Held { why: PruneHold::Incomplete(_), .. }), "{held:?}");
            let held = decide(20, 1, |e| (e.quarantined, e.released) = (vec!["a.yaml"], released));
            assert!(matches!(held, Prune::Held { why: PruneHold::Quarantine(_), .. }), "{held:?}");
        }
        let held = decide(20, 1, |e| e.empty = true);
        assert!(matches!(held, Prune::Held { why: PruneHold::Empty, .. }), "{held:?}");
    }

    #[test]
    fn a_hold_names_few_of_many_broken_files() {
        let many: Vec<String> = (0..1_500).map(|n| format!("apps/{n:04}/{}.yaml", "x".repeat(90))).collect();
        let why = PruneHold::Quarantine(many).to_string();
        assert!(why.starts_with("apps/0000/") && why.contains(" and 1495 more can't be applied"), "{why}");
        assert!(why.len() < 1_000, "{} bytes", why.len());
    }

    #[test]
    fn only_what_nothing_ties_to_the_head_is_unrelated() {
        use Relation::{Related, Unknown, Unrelated};
        for (base, object, allowed) in [
            (Some(Related), Related, true),
            (Some(Related), Unrelated, true),
            (Some(Unrelated), Related, true),
            (Some(Unrelated), Unrelated, false),
            (Some(Unknown), Unknown, false),
            (None, Related, true),
            (None, Unrelated, false),
            (None, Unknown, false),
        ] {
            let lineage = lineage(base.map(|relation| ("base", relation)), object);
            let objects = objects(1);
            let absent: BTreeMap<_, _> = objects.iter().map(|object| (object, "c1")).collect();
            let (quarantined, incomplete) = (Vec::new(), None);
            let evidence = Evidence {
                owned: 9,
                at_first_hold: None,
                absent,
                quarantined,
                incomplete,
                lost_protected: 0,
                empty: false,
                released: false,
                lineage: &lineage,
                policy: Some(PrunePolicy::default()),
            };
            assert_eq!(goes(&prune(&evidence)), allowed, "{base:?} {object:?}");
        }
    }

    #[test]
    fn removals_are_in_reverse_order() {
        let Prune::Remove(order) = decide(9, 3, |_| {}) else { panic!("allowed") };
        let names: Vec<_> = order.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["p0002", "p0001", "p0000"]);
    }
}
