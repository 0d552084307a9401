//! Checks across files and sources: who may have an object. Pure.
//!
//! Reads parsed files and the live objects, decides which documents are wanted and which files
//! are quarantined. The present owner of an object keeps it; the error is the newcomer's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::meta::ObjectRef;
use schema::object::Object;
use schema::violation::{Severity, Violation};
use schema::world::{Table, Versioned};

use super::load::{Draft, ManifestFile, Manifests};

/// What may be applied, and what not.
#[derive(Debug, Default)]
pub struct Checked<'a> {
    /// Objects of files without errors, in the order in which they are applied.
    pub wanted: Vec<(&'a ObjectRef, Claim<'a>)>,
    /// Live objects of the source that no document names, not even in a quarantined file.
    pub absent: Vec<Live<'a>>,
    /// Files that can't be applied, with everything found in them.
    pub quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// How many files mean to be manifests.
    pub manifest_files: usize,
}

/// A document that names an object.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The file.
    pub file: &'a Arc<str>,
    /// The document.
    pub draft: &'a Draft,
    /// The object as it is live, whoever owns it.
    pub live: Option<&'a Versioned<Object>>,
}

/// An object as it is live.
pub type Live<'a> = (&'a ObjectRef, &'a Versioned<Object>);

/// Checks the files of `source` against each other and against what is live.
///
/// Runs over everything at each change, so documents and live objects are sorted once and walked
/// side by side: looking each of 10,000 up in trees takes several times as long.
pub fn check<'a>(source: &str, manifests: &'a Manifests, live: &'a Table<ObjectRef, Object>) -> Checked<'a> {
    let mut checked = Checked::default();
    for (file, manifest) in manifests {
        checked.manifest_files += usize::from(manifest.is_manifest);
        if manifest.has_errors() {
            checked.quarantined.insert(Arc::clone(file), manifest.violations.clone());
        }
    }
    let claims = claims(manifests, live);
    let rivals = || claims.chunk_by(|one, next| one.draft.reference == next.draft.reference);
    for (loser, violation) in rivals().flat_map(|rivals| judge(source, rivals, manifests)) {
        checked.quarantined.entry(Arc::clone(loser)).or_default().push(violation);
    }
    checked.absent = absent(source, &claims, live);
    for (file, violation) in vanished(manifests, &checked.absent) {
        checked.quarantined.entry(file).or_default().push(violation);
    }
    for violations in checked.quarantined.values_mut() {
        violations.sort();
    }
    // The files of losers are quarantined by now, so at most one of the rivals is left.
    let may_apply = |claim: &&Claim<'a>| !checked.quarantined.contains_key(claim.file);
    let winners = rivals().filter_map(|rivals| rivals.iter().find(may_apply));
    checked.wanted = winners.map(|claim| (&claim.draft.reference, *claim)).collect();
    checked
}

/// Every document with its live object, by object; documents of one object in the order of files.
fn claims<'a>(manifests: &'a Manifests, live: &'a Table<ObjectRef, Object>) -> Vec<Claim<'a>> {
    let of_file = |(file, manifest): (&'a Arc<str>, &'a Arc<ManifestFile>)| {
        manifest.documents.iter().map(move |draft| Claim { file, draft, live: None })
    };
    let mut claims: Vec<Claim<'a>> = manifests.iter().flat_map(of_file).collect();
    claims.sort_by(|one, other| one.draft.reference.cmp(&other.draft.reference));
    let mut live = live.iter().peekable();
    for claim in &mut claims {
        let object = &claim.draft.reference;
        while live.next_if(|(id, _)| *id < object).is_some() {}
        // Left there: the next claim may be for the same object.
        claim.live = live.peek().filter(|(id, _)| *id == object).map(|(_, found)| &***found);
    }
    claims
}

/// Live objects of `source` that none of the sorted `claims` names.
fn absent<'a>(source: &str, claims: &[Claim<'_>], live: &'a Table<ObjectRef, Object>) -> Vec<Live<'a>> {
    let mut named = claims.iter().map(|claim| &claim.draft.reference).peekable();
    let mut is_named = |object: &ObjectRef| {
        while named.next_if(|id| *id < object).is_some() {}
        named.peek().is_some_and(|id| *id == object)
    };
    let absent = live.iter().filter(|(object, _)| !is_named(object));
    let absent = absent.filter(|(_, found)| found.value.provenance.source == source);
    absent.map(|(object, found)| (object, &**found)).collect()
}

/// Commits whose relation to the head a prune will ask for: those that set what is absent.
pub fn commits_in_question(
    source: &str,
    manifests: &Manifests,
    live: &Table<ObjectRef, Object>,
) -> BTreeSet<String> {
    let absent = absent(source, &claims(manifests, live), live);
    absent.into_iter().map(|(_, found)| found.value.provenance.commit.clone()).collect()
}

/// The claims that lose, and why.
fn judge<'a>(source: &str, rivals: &[Claim<'a>], manifests: &Manifests) -> Vec<(&'a Arc<str>, Violation)> {
    let owner = rivals[0].live.map(|live| &live.value);
    if let Some(other) =
        owner.map(|object| &object.provenance).filter(|provenance| provenance.source != source)
    {
        let message = format!("source `{}` owns it ({}:{})", other.source, other.file, other.line);
        let help = format!("remove it here, or from source `{}` first", other.source);
        return rivals
            .iter()
            .map(|claim| (claim.file, violation(claim, "owned-by-other-source", &message, &help)))
            .collect();
    }
    let home = owner.map(|object| object.provenance.file.as_str());
    // Nearly all: nobody else wants it.
    if rivals.len() == 1 && home.is_none_or(|home| home == &**rivals[0].file) {
        return Vec::new();
    }
    // A home that can't be read may still hold the object: nobody takes it over meanwhile.
    if let Some(home) = home.filter(|home| is_unreadable(home, manifests)) {
        let strangers = rivals.iter().filter(|claim| &**claim.file != home);
        let message = format!("the object belongs to {home}, which can't be read at this commit");
        let help = format!("mend {home} first");
        return strangers
            .map(|claim| (claim.file, violation(claim, "owner-unreadable", &message, &help)))
            .collect();
    }
    if rivals.len() == 1 {
        return Vec::new();
    }
    let at_home = |claim: &Claim<'_>| home == Some(&**claim.file);
    let Some(winner) = rivals.iter().min_by_key(|claim| (!at_home(claim), claim.file, claim.draft.line))
    else {
        return Vec::new();
    };
    let message = format!("the same object is at {}:{}", winner.file, winner.draft.line);
    let losers = rivals.iter().filter(|claim| !std::ptr::eq(*claim, winner));
    losers
        .map(|claim| (claim.file, violation(claim, "duplicate-object", &message, "keep one of the two")))
        .collect()
}

/// Files that live objects came from, and that are still there but say nothing any more: cut short
/// or emptied by mistake. Whoever means it removes the file.
fn vanished(manifests: &Manifests, absent: &[Live<'_>]) -> Vec<(Arc<str>, Violation)> {
    let mut found = Vec::new();
    for (object, live) in absent {
        let home = manifests.get_key_value(&*live.value.provenance.file);
        let Some((file, _)) = home.filter(|(_, manifest)| !manifest.is_manifest) else { continue };
        let violation = Violation {
            file: file.to_string(),
            line: 0,
            column: 0,
            severity: Severity::Error,
            rule: "manifest-vanished".to_owned(),
            message: format!("the file held {object} and is no manifest any more"),
            help: "put it back, or remove the file if the object is to go".to_owned(),
            object: Some(object.to_string()),
        };
        found.push((Arc::clone(file), violation));
    }
    found
}

fn is_unreadable(file: &str, manifests: &Manifests) -> bool {
    manifests.get(file).is_some_and(|manifest| manifest.has_errors())
}

fn violation(claim: &Claim<'_>, rule: &str, message: &str, help: &str) -> Violation {
    Violation {
        file: claim.file.to_string(),
        line: claim.draft.line,
        column: 1,
        severity: Severity::Error,
        rule: rule.to_owned(),
        message: format!("{}: {message}", claim.draft.reference),
        help: help.to_owned(),
        object: Some(claim.draft.reference.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use schema::object::Provenance;
    use schema::world::Versioned;

    use super::*;
    use crate::gitops::load::parse;

    fn pod(name: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: m, image: i}}]}}\n"
        )
    }

    fn load(files: &[(&str, String)]) -> Manifests {
        files.iter().map(|(path, text)| (Arc::from(*path), Arc::new(parse(path, text.as_bytes())))).collect()
    }

    /// `(name, source, file)`.
    fn live(objects: &[(&str, &str, &str)]) -> Table<ObjectRef, Object> {
        let mut table = Table::new();
        for (name, source, file) in objects {
            let parsed = parse("x.yaml", pod(name).as_bytes());
            let draft = (*parsed.documents[0].object).clone();
            let (source, file) = ((*source).to_owned(), (*file).to_owned());
            let value = draft.into_object(Provenance { source, file, line: 1, ..Provenance::default() }, 1);
            table.insert(
                value.reference(),
                Arc::new(Versioned { value, create_revision: 1, mod_revision: 1 }),
            );
        }
        table
    }

    /// `(files, live objects, files wanted with their objects, quarantined files with their rules)`.
    type Row<'a> = (&'a [(&'a str, String)], &'a [(&'a str, &'a str, &'a str)], &'a [&'a str], &'a [&'a str]);

    fn check_row((files, objects, wanted, quarantined): Row<'_>) {
        let (manifests, live) = (load(files), live(objects));
        let checked = check("main", &manifests, &live);
        let found: Vec<_> =
            checked.wanted.iter().map(|(o, claim)| format!("{}:{}", claim.file, o.name)).collect();
        assert_eq!(found, wanted, "{files:?}");
        let rules = |violations: &Vec<Violation>| {
            violations.iter().map(|v| v.rule.clone()).collect::<Vec<_>>().join(",")
        };
        let found: Vec<_> =
            checked.quarantined.iter().map(|(file, v)| format!("{file}:{}", rules(v))).collect();
        assert_eq!(found, quarantined, "{files:?}");
    }

    #[test]
    fn the_first_of_two_new_files_has_the_object() {
        let both = [("a.yaml", pod("x")), ("b.yaml", pod("x"))];
        check_row((&both, &[], &["a.yaml:x"], &["b.yaml:duplicate-object"]));
    }

    #[test]
    fn the_present_file_of_an_object_keeps_it() {
        let both = [("a.yaml", pod("x")), ("b.yaml", pod("x"))];
        check_row((&both, &[("x", "main", "b.yaml")], &["b.yaml:x"], &["a.yaml:duplicate-object"]));
    }

    #[test]
    fn an_object_twice_in_one_file_quarantines_it_with_all_it_holds() {
        let twice =
            [("a.yaml", format!("{}---\n{}---\n{}", pod("x"), pod("y"), pod("x"))), ("b.yaml", pod("z"))];
        check_row((&twice, &[], &["b.yaml:z"], &["a.yaml:duplicate-object"]));
    }

    #[test]
    fn an_object_may_move_to_another_file() {
        let moved = [("b.yaml", pod("x"))];
        check_row((&moved, &[("x", "main", "a.yaml")], &["b.yaml:x"], &[]));
    }

    #[test]
    fn nobody_takes_an_object_from_a_file_that_cannot_be_read() {
        let broken = [("a.yaml", "kind: Pod\nspec: [".to_owned()), ("b.yaml", pod("x"))];
        let (manifests, live) = (load(&broken), live(&[("x", "main", "a.yaml")]));
        let checked = check("main", &manifests, &live);
        assert!(checked.wanted.is_empty());
        assert_eq!(checked.quarantined.keys().map(|file| &**file).collect::<Vec<_>>(), ["a.yaml", "b.yaml"]);
        assert_eq!(checked.quarantined["b.yaml"][0].rule, "owner-unreadable");
    }

    #[test]
    fn an_object_of_another_source_is_refused() {
        let files = [("a.yaml", pod("x")), ("b.yaml", pod("y"))];
        let row: Row<'_> =
            (&files, &[("x", "other", "z.yaml")], &["b.yaml:y"], &["a.yaml:owned-by-other-source"]);
        check_row(row);
    }

    #[test]
    fn a_file_that_stops_being_a_manifest_is_no_removal() {
        let emptied = [("a.yaml", String::new()), ("b.yaml", pod("y"))];
        let row: Row<'_> =
            (&emptied, &[("x", "main", "a.yaml")], &["b.yaml:y"], &["a.yaml:manifest-vanished"]);
        check_row(row);
        let of_another = [("x", "other", "a.yaml")];
        check_row((&emptied, &of_another, &["b.yaml:y"], &[]));
    }
}
