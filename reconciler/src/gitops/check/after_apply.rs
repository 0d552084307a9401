//! Expected state once a commit is applied, as far as it is known yet. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::kinds::Resource;
use schema::manifest::ManifestFile;
use schema::manifest::limits::VIOLATIONS_MAX;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::{Table, VersionedValue};
use schema::violation::{OwnedStep, Rule, Violation, field_path, rules};

use super::declaration::{Declaration, LiveObject, ReservedAddresses, problem};
use crate::gitops::diff::dotted;
use crate::gitops::prune::is_protected;

/// Objects of a commit next to the live ones. Files may still be put into quarantine: their objects then stay as
/// they are live.
pub struct Scene<'a> {
    pub(super) source: &'a str,
    /// Declarations in the order of objects, a single one per object.
    pub(super) declarations: &'a [Declaration<'a>],
    pub(super) live: &'a Table<ObjectRef, Object>,
    /// Files in quarantine, with the violations found before.
    pub(in crate::gitops) quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// Findings since then.
    found: Findings,
    /// Live objects of the source that no document names, by the file they came from.
    pub(super) absent_of: BTreeMap<&'a str, Vec<&'a ObjectRef>>,
    /// Absent objects that are removed unless their file is quarantined.
    removed: BTreeSet<&'a ObjectRef>,
    /// Files of the objects that violations mention, including objects whose document can't be read.
    mentioned: BTreeMap<String, Arc<str>>,
    /// Files with errors of their own.
    pub(super) with_errors: &'a [(&'a Arc<str>, &'a ManifestFile)],
}

/// A problem with a field.
pub(super) struct Fault<'f> {
    pub(super) rule: &'static Rule,
    pub(super) path: &'f [OwnedStep],
    pub(super) message: &'f str,
    pub(super) help: &'f str,
}

/// An object in its expected state.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExpectedObject<'a> {
    /// Declared by this document.
    Wanted(&'a Declaration<'a>),
    /// Unchanged from its live state.
    Stays(&'a VersionedValue<Object>),
}

impl<'a> ExpectedObject<'a> {
    pub(super) fn resource(self) -> &'a Resource {
        match self {
            ExpectedObject::Wanted(declared) => &declared.document.object.resource,
            ExpectedObject::Stays(live) => &live.value.resource,
        }
    }
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        source: &'a str,
        declarations: &'a [Declaration<'a>],
        absent: &[LiveObject<'a>],
        live: &'a Table<ObjectRef, Object>,
        quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    ) -> Self {
        // An unreadable file already holds every removal, so absent objects stay. Files that these checks
        // quarantine come too late for that: a finding must not take back its own cause.
        let held = !quarantined.is_empty();
        let goes = |(_, live): &&LiveObject<'a>| !held && !is_protected(&live.value.metadata);
        let removed = absent.iter().filter(goes).map(|(object, _)| *object).collect();
        let mut absent_of: BTreeMap<&str, Vec<&ObjectRef>> = BTreeMap::new();
        for (object, live) in absent {
            absent_of.entry(&live.value.provenance.file).or_default().push(object);
        }
        let mut mentioned = BTreeMap::new();
        for (file, violation) in quarantined.iter().flat_map(|(file, all)| all.iter().map(move |v| (file, v)))
        {
            if let Some(object) = &violation.object {
                mentioned.insert(object.clone(), Arc::clone(file));
            }
        }
        Self {
            source,
            declarations,
            live,
            quarantined,
            found: Findings::default(),
            absent_of,
            removed,
            mentioned,
            with_errors: &[],
        }
    }

    /// Returns the document of an object, in a good file or not.
    pub(super) fn declared(&self, object: &ObjectRef) -> Option<&'a Declaration<'a>> {
        let at =
            self.declarations.binary_search_by(|declared| declared.document.reference.cmp(object)).ok()?;
        Some(&self.declarations[at])
    }

    pub(super) fn is_quarantined(&self, declared: &Declaration<'_>) -> bool {
        self.quarantined.contains_key(declared.file)
    }

    /// Returns the object in its expected state; `None` if it will be absent.
    pub(super) fn present(&self, object: &ObjectRef) -> Option<ExpectedObject<'a>> {
        match self.declared(object).filter(|declared| !self.is_quarantined(declared)) {
            Some(declared) => Some(ExpectedObject::Wanted(declared)),
            None => self
                .live
                .get(object)
                .filter(|live| self.stays(object, live))
                .map(|l| ExpectedObject::Stays(l)),
        }
    }

    /// Returns the object in its state if every file could be applied as it is.
    pub(super) fn intended(&self, object: &ObjectRef) -> Option<ExpectedObject<'a>> {
        if let Some(declared) = self.declared(object) {
            return Some(ExpectedObject::Wanted(declared));
        }
        let live = self.live.get(object)?;
        let is_own = live.value.provenance.source == self.source && !is_protected(&live.value.metadata);
        // An unreadable document names it, so it does not leave.
        let stays = !is_own || self.quarantined_home(object).is_some();
        stays.then_some(ExpectedObject::Stays(live))
    }

    /// Iterates over all violations in quarantined files.
    pub(super) fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.quarantined.values().flatten().chain(self.found.all())
    }

    /// True if no document names the object, its source had it, and no annotation protects it.
    pub(super) fn is_due_for_removal(&self, object: &ObjectRef) -> bool {
        let live = self.live.get(object).filter(|live| !is_protected(&live.value.metadata));
        let home = live.map(|live| live.value.provenance.file.as_str());
        home.and_then(|home| self.absent_of.get(home)).is_some_and(|absent| absent.contains(&object))
    }

    /// Keeps every live object, because removals are held.
    pub(super) fn nothing_leaves(&mut self) {
        self.removed.clear();
    }

    fn stays(&self, object: &ObjectRef, live: &VersionedValue<Object>) -> bool {
        !self.removed.contains(object) || self.quarantined.contains_key(live.value.provenance.file.as_str())
    }

    /// Returns the quarantined file that has the object, even if only by the name of an unreadable document.
    pub(super) fn quarantined_home(&self, object: &ObjectRef) -> Option<&str> {
        if let Some(declared) = self.declared(object).filter(|declared| self.is_quarantined(declared)) {
            return Some(declared.file);
        }
        self.mentioned.get(&object.to_string()).map(|file| &**file)
    }

    /// Returns a file that can't be read and may hold the object, by a word of its text.
    pub(super) fn possible_home(&self, object: &ObjectRef) -> Option<&str> {
        let mut files = self.with_errors.iter();
        files.find(|(_, manifest)| manifest.words.contains(&object.name)).map(|(file, _)| &***file)
    }

    /// Records a problem with a field of a document. Returns true if this put its file into quarantine.
    pub(super) fn blame(&mut self, declared: &Declaration<'a>, fault: &Fault<'_>) -> bool {
        let Fault { rule, path, message, help } = fault;
        let message = format!("{}: {message}", dotted(path));
        self.add(declared, problem(declared, rule, declared.document.place(path), message, *help))
    }

    /// Records a violation of a document. Returns true if this put its file into quarantine.
    pub(super) fn add(&mut self, declared: &Declaration<'a>, violation: Violation) -> bool {
        let newly = !self.quarantined.contains_key(declared.file);
        if newly {
            self.quarantined.insert(Arc::clone(declared.file), Vec::new());
        }
        self.found.add(declared.file, violation);
        newly
    }

    /// Returns the files in quarantine, with all reported violations.
    pub(super) fn finish(self) -> BTreeMap<Arc<str>, Vec<Violation>> {
        self.found.join(self.quarantined)
    }
}

// Bounded findings of the checks across objects: one file of a megabyte may name a hundred thousand missing
// objects. Pure.

/// Limit on findings kept over all files. Above it, each file still gets one: the reason for its quarantine.
const KEPT_MAX: usize = 250_000;

/// Violations by file.
#[derive(Debug, Default)]
pub(super) struct Findings {
    files: BTreeMap<Arc<str>, FileFindings>,
    kept: usize,
}

#[derive(Debug, Default)]
struct FileFindings {
    kept: Vec<Violation>,
    left_out: usize,
}

impl FileFindings {
    /// Keeps the first `most`, without duplicates. Returns the number removed.
    fn cut(&mut self, most: usize) -> usize {
        let before = self.kept.len();
        self.kept.sort_by(|one, other| order(one).cmp(&order(other)));
        self.kept.dedup();
        self.left_out += self.kept.len().saturating_sub(most);
        self.kept.truncate(most);
        before - self.kept.len()
    }
}

/// Orders errors first, then by place.
fn order(violation: &Violation) -> impl Ord + '_ {
    (violation.severity, violation)
}

impl Findings {
    pub(super) fn add(&mut self, file: &Arc<str>, violation: Violation) {
        let of_file = self.files.entry(Arc::clone(file)).or_default();
        if self.kept >= KEPT_MAX && !of_file.kept.is_empty() {
            of_file.left_out += 1;
            return;
        }
        of_file.kept.push(violation);
        self.kept += 1;
        // Not at each addition, so that everything is sorted only a few times.
        if of_file.kept.len() >= 2 * VIOLATIONS_MAX {
            self.kept -= of_file.cut(VIOLATIONS_MAX);
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Violation> {
        self.files.values().flat_map(|of_file| &of_file.kept)
    }

    /// Merges the findings into earlier violations, in the order of places. A file's own violations come first if
    /// there are more than are reported.
    pub(super) fn join(
        mut self,
        mut own: BTreeMap<Arc<str>, Vec<Violation>>,
    ) -> BTreeMap<Arc<str>, Vec<Violation>> {
        for (file, violations) in &mut own {
            let mut of_file = self.files.remove(file).unwrap_or_default();
            // A file without own errors is here because of these findings, and has room for them.
            of_file.cut(VIOLATIONS_MAX.saturating_sub(violations.len()));
            violations.append(&mut of_file.kept);
            if of_file.left_out > 0 {
                let message =
                    format!("{} more violations across objects of this file are not shown", of_file.left_out);
                violations.push(Violation::new(&rules::MORE_VIOLATIONS, &**file, (0, 0), message));
            }
            violations.sort();
        }
        own
    }
}

/// Reports external IPs that belong to the cluster itself.
pub(super) fn reserved(scene: &mut Scene<'_>, reserved: &ReservedAddresses) {
    for declared in scene.declarations {
        let Resource::Service(service) = &declared.document.object.resource else { continue };
        for (index, text) in service.external_ips.iter().enumerate() {
            let owner = text.parse().ok().and_then(|address| reserved.owner(address));
            let Some(owner) = owner else { continue };
            let mut at = field_path(&["spec", "externalIPs"]);
            at.push(OwnedStep::Index(index));
            let message = &format!("Forbidden: {text} {owner}");
            let help = "choose an address that is routed to a node without being its own";
            scene.blame(declared, &Fault { rule: &rules::RESERVED_ADDRESS, path: &at, message, help });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(line: u32, message: &str) -> Violation {
        Violation::new(&rules::DANGLING_TARGET, "a.yaml", (line, 1), message)
    }

    /// Seen red without a bound per file, and with one that kept the first that came.
    #[test]
    fn of_very_many_the_first_are_reported_and_how_many_are_not() {
        let (file, mut findings): (Arc<str>, _) = (Arc::from("a.yaml"), Findings::default());
        for line in (1..=104_896).rev() {
            findings.add(&file, violation(line, "there is no Pod/default/x"));
        }
        assert!(findings.kept < 2 * VIOLATIONS_MAX);
        let own = vec![violation(7, "its own"); 10];
        let all = findings.join(BTreeMap::from([(Arc::clone(&file), own)]));
        let all = &all["a.yaml"];
        assert_eq!(all.len(), VIOLATIONS_MAX + 1);
        assert_eq!(all[0].message, "103906 more violations across objects of this file are not shown");
        assert_eq!((all[1].line, all[VIOLATIONS_MAX].line), (1, 990));
    }

    /// Seen red without the bound on all files.
    #[test]
    fn of_very_many_files_each_is_shown_one() {
        let mut findings = Findings::default();
        let files: Vec<Arc<str>> = (0..700).map(|number| Arc::from(format!("{number:03}.yaml"))).collect();
        for file in &files {
            for line in 1..=900 {
                findings.add(file, violation(line, "there is no Pod/default/x"));
            }
        }
        assert!(findings.kept <= KEPT_MAX + files.len());
        let all = findings.join(files.iter().map(|file| (Arc::clone(file), Vec::new())).collect());
        assert_eq!(all["000.yaml"].len(), 900);
        let last: Vec<&str> = all["699.yaml"].iter().map(|one| one.rule.as_str()).collect();
        assert_eq!(last, ["more-violations", "dangling-target"]);
    }

    /// Seen red without `dedup`.
    #[test]
    fn what_is_found_twice_is_reported_once() {
        let (file, mut findings): (Arc<str>, _) = (Arc::from("a.yaml"), Findings::default());
        (0..5000).for_each(|number| findings.add(&file, violation(number % 2, "the same")));
        let all = findings.join(BTreeMap::from([(file, Vec::new())]));
        assert_eq!(all["a.yaml"].len(), 2);
    }
}
