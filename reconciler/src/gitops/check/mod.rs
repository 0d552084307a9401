//! Checks across files and sources: ownership of objects, and whether objects fit together. Pure.
//!
//! Reads parsed files and the live objects, decides which documents are wanted, in which order, and which files are
//! quarantined. An existing owner keeps what it has; the error is the newcomer's. A file in quarantine keeps its
//! live objects, so no finding of these checks ever removes one.

mod after_apply;
mod other_faults;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use schema::kinds::cluster::PodSecurity;
use schema::kinds::{Kind, Resource};
use schema::manifest::ManifestFile;
use schema::meta::{ObjectMeta, ObjectRef};
use schema::object::{Object, short_commit};
use schema::records::{AllowedObjects, PodSecurityRecord};
use schema::snapshot::Table;
use schema::violation::{Finding, Findings, Path, Violation};

use super::load::Manifests;
use super::load::truncated::{Homes, homes};
use after_apply::ExpectedObject;
use declaration::problem;

pub(super) use cycles::removed;
pub(crate) use declaration::warn as warn_of_addresses;

pub use after_apply::Scene;
pub use declaration::{Declaration, LiveObject, ReservedAddresses};

mod cycles;
mod declaration;
#[cfg(test)]
mod external_ip_tests;
#[cfg(test)]
mod link_tests;
mod links;
mod owners;
#[cfg(test)]
mod tests;

/// Limits on a commit that do not depend on its own files.
#[derive(Debug, Clone, Default)]
pub struct CommitLimits {
    /// Restrictions on pods of the Cluster object, and those that commits replaced.
    pub pod_security: Vec<PodSecurityRecord>,
    /// Objects that the source may hold.
    pub allow: AllowedObjects,
    /// Addresses that no service may take as an external IP.
    pub reserved: ReservedAddresses,
}

/// Result of the checks: objects to apply and files to quarantine.
#[derive(Debug, Default)]
pub struct CheckResult<'a> {
    /// Objects of files without errors, in the order in which they are applied: by kind, and dependencies before
    /// their dependents.
    pub wanted: Vec<(&'a ObjectRef, Declaration<'a>)>,
    /// Files that can't be applied, with all their violations.
    pub quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// Warnings and notes of the checks across objects; they block nothing.
    pub remarks: Vec<Violation>,
}

/// Documents of a source with the live objects, before their content is checked.
pub struct Documents<'a> {
    /// Declarations in the order of objects, a single one per object.
    declarations: Vec<Declaration<'a>>,
    /// Live objects of the source that no document names, not even in a quarantined file.
    pub absent: Vec<LiveObject<'a>>,
    /// Files that can't be applied, with all their violations.
    quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// Files with errors of their own, which may hold more than their documents.
    with_errors: Vec<(&'a Arc<str>, &'a ManifestFile)>,
    /// Number of files meant to be manifests.
    pub manifest_files: usize,
}

impl<'a> Documents<'a> {
    /// Finds the document that declares each object.
    ///
    /// Runs over everything at each change, so documents and live objects are sorted once and walked side by side:
    /// looking each of 10,000 up in trees takes several times as long.
    pub fn from_manifests(
        source: &str,
        manifests: &'a Manifests,
        live: &'a Table<ObjectRef, Object>,
    ) -> Self {
        let mut quarantined: BTreeMap<Arc<str>, Vec<Violation>> = BTreeMap::new();
        let all = manifests.iter().map(|(file, manifest)| (file, &**manifest));
        let with_errors: Vec<_> = all.filter(|(_, manifest)| manifest.has_errors()).collect();
        for &(file, manifest) in &with_errors {
            quarantined.insert(Arc::clone(file), manifest.violations.clone());
        }
        let declarations = declarations(manifests, live);
        let rivals = owners::rivals(&declarations, manifests, live);
        let of_one = rivals.chunk_by(|one, next| one.reference == next.reference);
        for (loser, violation) in of_one.flat_map(|rivals| owners::judge(source, rivals, manifests)) {
            quarantined.entry(Arc::clone(loser)).or_default().push(violation);
        }
        let absent = absent(source, &declarations, live);
        let gone = owners::vanished(manifests, &absent);
        for (file, violation) in gone.into_iter().chain(owners::truncated(manifests, &absent)) {
            quarantined.entry(file).or_default().push(violation);
        }
        // The losers' files are quarantined by now, so at most one of the rivals is in a good file.
        let is_good = |declared: &&Declaration<'a>| !quarantined.contains_key(declared.file);
        let of_object = |rivals: &[Declaration<'a>]| *rivals.iter().find(is_good).unwrap_or(&rivals[0]);
        let of_one = declarations.chunk_by(|one, next| one.document.reference == next.document.reference);
        let declarations: Vec<Declaration<'a>> = of_one.map(of_object).collect();
        let manifest_files = manifests.values().filter(|manifest| manifest.is_manifest).count();
        Self { declarations, absent, quarantined, with_errors, manifest_files }
    }
}

/// Checks documents against each other, against the live objects, and against the limits on `commit`.
pub fn fit<'a>(
    documents: &'a Documents<'a>,
    source: &'a str,
    live: &'a Table<ObjectRef, Object>,
    limits: &CommitLimits,
    commit: &str,
) -> Scene<'a> {
    let quarantined = documents.quarantined.clone();
    let mut scene = Scene::new(source, &documents.declarations, &documents.absent, live, quarantined);
    scene.with_errors = &documents.with_errors;
    owners::allowed(&mut scene, &limits.allow);
    after_apply::reserved(&mut scene, &limits.reserved);
    check(&mut scene, &in_force_before(&limits.pod_security, commit));
    links::check(&mut scene);
    scene
}

/// Checks exclusive resources once more while removals are held: nothing leaves, and no object gets what its holder
/// keeps. Files that fall because of this are not the reason why removals are held.
pub fn recheck_staying(scene: &mut Scene<'_>) {
    links::check_staying(scene);
}

/// Completes the report and returns the result.
pub fn finish<'a>(documents: &'a Documents<'a>, mut scene: Scene<'a>) -> CheckResult<'a> {
    other_faults::report(&mut scene);
    let remarks = owners::check(&scene);
    let quarantined = scene.finish();
    let good = documents.declarations.iter().filter(|declared| !quarantined.contains_key(declared.file));
    let wanted: Vec<_> = good.copied().collect();
    CheckResult { wanted: cycles::applied(&wanted), quarantined, remarks }
}

/// Pairs every document with its live object, sorted by object; documents of one object in the order of files.
fn declarations<'a>(manifests: &'a Manifests, live: &'a Table<ObjectRef, Object>) -> Vec<Declaration<'a>> {
    let of_file = |(file, manifest): (&'a Arc<str>, &'a Arc<ManifestFile>)| {
        manifest.documents.iter().map(move |document| Declaration { file, document, live: None })
    };
    let mut declarations: Vec<Declaration<'a>> = manifests.iter().flat_map(of_file).collect();
    declarations.sort_by(|one, other| one.document.reference.cmp(&other.document.reference));
    let mut live = live.iter().peekable();
    for declared in &mut declarations {
        let object = &declared.document.reference;
        while live.next_if(|(id, _)| *id < object).is_some() {}
        // Not consumed: the next declaration may be for the same object.
        declared.live = live.peek().filter(|(id, _)| *id == object).map(|(_, found)| &***found);
    }
    declarations
}

/// Returns the live objects of `source` that none of the sorted `declarations` names.
fn absent<'a>(
    source: &str,
    declarations: &[Declaration<'_>],
    live: &'a Table<ObjectRef, Object>,
) -> Vec<LiveObject<'a>> {
    let mut named = declarations.iter().map(|declared| &declared.document.reference).peekable();
    let mut is_named = |object: &ObjectRef| {
        while named.next_if(|id| *id < object).is_some() {}
        named.peek().is_some_and(|id| *id == object)
    };
    let absent = live.iter().filter(|(object, _)| !is_named(object));
    let absent = absent.filter(|(_, found)| found.value.provenance.source == source);
    absent.map(|(object, found)| (object, &**found)).collect()
}

/// Returns the former files and commits of absent objects: a prune needs the relation of these commits to the head.
pub fn homes_of_absent(source: &str, manifests: &Manifests, live: &Table<ObjectRef, Object>) -> Homes {
    // No order is needed here: hashing 10,000 names is faster than sorting them.
    let documents = manifests.values().flat_map(|manifest| &manifest.documents);
    let named: HashSet<&ObjectRef> = documents.map(|document| &document.reference).collect();
    let own = live.iter().map(|(object, found)| (object, &found.value.provenance));
    let own = own.filter(|(_, provenance)| provenance.source == source);
    homes(own.filter(|(object, _)| !named.contains(object)).map(|(_, provenance)| provenance))
}

// Restrictions that the Cluster object puts on every pod. Pure.

/// Help for a pod that the commit's own Cluster object would allow.
const NOT_YET: &str =
    "a commit that relaxes podSecurity must still meet what was in force before it; the next one may use it";

/// Returns the restrictions in force before `commit`: those that it replaced, or else those of the Cluster object.
pub(super) fn in_force_before<'a>(
    records: &'a [PodSecurityRecord],
    commit: &str,
) -> Vec<&'a PodSecurityRecord> {
    let of = |until: Option<&str>| records.iter().filter(|record| record.until.as_deref() == until).collect();
    let replaced: Vec<_> = of(Some(commit));
    if replaced.is_empty() { of(None) } else { replaced }
}

/// Finds pods, templates and services that violate the commit's own restrictions, or those in force before it: a
/// commit can't lift what forbids the rest of it.
fn check(scene: &mut Scene<'_>, before: &[&PodSecurityRecord]) {
    let own = policy(scene);
    let before: Vec<_> = before.iter().filter(|record| record.policy != own).collect();
    if own == PodSecurity::default() && before.is_empty() {
        return;
    }
    for declared in scene.declarations {
        let object = &declared.document.object;
        let check =
            |policy: &PodSecurity, owner: &str| forbidden(policy, owner, &object.metadata, &object.resource);
        let mut found = check(&own, "the Cluster object");
        for record in &before {
            let owner = format!("the Cluster object in force since commit {}", short_commit(&record.since));
            let mut older = check(&record.policy, &owner);
            older.retain(|older| !found.iter().any(|own| own.at == older.at));
            for finding in older.iter_mut().filter(|finding| finding.help.is_empty()) {
                finding.help(NOT_YET);
            }
            found.extend(older);
        }
        for Finding { at, rule, message, help, .. } in found {
            scene.add(declared, problem(declared, rule, declared.document.place(&at), message, help));
        }
    }
}

/// Finds what `policy` of `owner` forbids of an object.
pub(in crate::gitops) fn forbidden(
    policy: &PodSecurity,
    owner: &str,
    metadata: &ObjectMeta,
    resource: &Resource,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let spec = Path::ROOT.field("spec");
    if let Resource::Service(service) = resource {
        policy.check_service(owner, service, &spec, &mut findings);
    } else if let Some(pod) = resource.pod(metadata) {
        let template = spec.field("template");
        let of_template = template.field("spec");
        let at = if pod.at.len() > 1 { &of_template } else { &spec };
        return policy.check(owner, &metadata.namespace, pod.spec, at);
    }
    findings.into_vec()
}

/// Returns the restrictions of the expected Cluster object; of several, which the check of clashes reports, those of
/// the live one.
fn policy(scene: &Scene<'_>) -> PodSecurity {
    let of_kind = |declared: &&Declaration<'_>| declared.document.reference.kind == Kind::Cluster;
    let named = scene.declarations.iter().filter(of_kind).map(|declared| &declared.document.reference);
    let live = scene.live.keys().filter(|object| object.kind == Kind::Cluster);
    let present = named.chain(live).filter_map(|object| scene.present(object));
    let first = present.min_by_key(|present| match present {
        ExpectedObject::Stays(_) => (0, None),
        ExpectedObject::Wanted(declared) => {
            (1 + u8::from(declared.live.is_none()), Some((declared.file.clone(), declared.document.line)))
        }
    });
    match first.map(ExpectedObject::resource) {
        Some(Resource::Cluster(cluster)) => cluster.pod_security.clone(),
        _ => PodSecurity::default(),
    }
}
