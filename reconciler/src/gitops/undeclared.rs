//! Live objects of a source that no document names, from one run to the next. Pure.
//!
//! Reads documents and live objects, decides whose relation to the head a prune will ask for: the same
//! as [`super::check::homes_in_question`], but what did not change since the last time is not looked
//! up again, and nothing is sorted: that is done at each change, beside the plan itself.

use std::collections::BTreeSet;

use imbl::ordmap::DiffItem;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;

use super::load::{ManifestFile, Manifests};
use super::truncated::{Homes, homes};

/// So many objects are looked for in the file that they came from.
const FEW: usize = 256;

/// What was found the last time, and in what.
#[derive(Debug, Default)]
pub(super) struct Undeclared {
    manifests: Manifests,
    live: Table<ObjectRef, Object>,
    objects: BTreeSet<ObjectRef>,
}

impl Undeclared {
    /// Brings it up to date. `source` is the same each time.
    pub(super) fn update(&mut self, source: &str, manifests: &Manifests, live: &Table<ObjectRef, Object>) {
        let mut doubtful = std::mem::take(&mut self.objects);
        for item in self.manifests.diff(manifests) {
            if let DiffItem::Remove(_, old) | DiffItem::Update { old: (_, old), .. } = item {
                doubtful.extend(old.documents.iter().map(|draft| draft.reference.clone()));
            }
        }
        for item in self.live.diff(live) {
            if let DiffItem::Add(object, _) | DiffItem::Update { new: (object, _), .. } = item {
                doubtful.insert(object.clone());
            }
        }
        // Nearly all are where they were. Of many, each in a file of many, to look all up at once is less.
        let few = doubtful.len() <= FEW;
        doubtful.retain(|object| {
            let Some(found) = live.get(object) else { return false };
            let from = &found.value.provenance;
            let is_it = |file: &ManifestFile| file.documents.iter().any(|draft| draft.reference == *object);
            let is_there = || manifests.get(from.file.as_str()).is_some_and(|file| is_it(file));
            from.source == source && !(few && is_there())
        });
        if !doubtful.is_empty() {
            for draft in manifests.values().flat_map(|file| &file.documents) {
                doubtful.remove(&draft.reference);
            }
        }
        *self = Self { manifests: manifests.clone(), live: live.clone(), objects: doubtful };
    }

    /// Where they were, and in which commits.
    pub(super) fn homes(&self) -> Homes {
        let found = self.objects.iter().filter_map(|object| self.live.get(object));
        homes(found.map(|live| &live.value.provenance))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use schema::codec::decode;
    use schema::snapshot::Versioned;

    use super::super::check::homes_in_question;
    use super::super::load::parse;
    use super::*;

    fn pod(number: u8) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\nspec: {{containers: [{{name: a, image: b}}]}}\n"
        )
    }

    /// A file that holds these pods.
    fn file(path: &str, pods: &[u8]) -> Arc<ManifestFile> {
        let documents: Vec<String> = pods.iter().map(|number| pod(*number)).collect();
        Arc::new(parse(path, documents.join("---\n").as_bytes()))
    }

    fn live(number: u8, file: u8, source: &str, commit: u8) -> (ObjectRef, Arc<Versioned<Object>>) {
        let value: Object = decode(
            format!(
                r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "p{number}", "namespace": "default"}},
                    "spec": {{"containers": []}}, "hash": "", "generation": 1, "provenance": {{"source": "{source}",
                    "commit": "c{commit}", "author": "", "file": "{file}.yaml", "line": 1}}}}"#
            )
            .as_bytes(),
        )
        .unwrap();
        (value.reference(), Arc::new(Versioned { value, create_revision: 1, mod_revision: 1 }))
    }

    #[derive(Debug, Clone)]
    enum Turn {
        File(u8, Vec<u8>),
        NoFile(u8),
        Live(u8, u8, bool, u8),
        NotLive(u8),
    }

    fn turn() -> impl Strategy<Value = Turn> {
        prop_oneof![
            (0..3_u8, proptest::collection::vec(0..5_u8, 0..3))
                .prop_map(|(file, pods)| Turn::File(file, pods)),
            (0..3_u8).prop_map(Turn::NoFile),
            (10..250_u8).prop_map(Turn::NoFile),
            (10..250_u8).prop_map(Turn::NotLive),
            (0..5_u8, 0..3_u8, any::<bool>(), 0..4_u8).prop_map(|(p, f, own, c)| Turn::Live(p, f, own, c)),
            (0..5_u8).prop_map(Turn::NotLive),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_always_as_if_all_were_looked_at(turns in proptest::collection::vec((turn(), any::<bool>()), 1..40)) {
            // So many that the maps have more than one leaf, which all others share from look to look.
            let (mut manifests, mut there) = (Manifests::new(), Table::new());
            for number in 10..250_u8 {
                let path = format!("{number}.yaml");
                manifests.insert(Arc::from(&*path), file(&path, &[number]));
                let (object, live) = live(number, number, "main", 0);
                there.insert(object, live);
            }
            let mut undeclared = Undeclared::default();
            for (turn, looks) in turns {
                match turn {
                    Turn::File(name, pods) => {
                        let path = format!("{name}.yaml");
                        manifests.insert(Arc::from(&*path), file(&path, &pods));
                    }
                    Turn::NoFile(name) => {
                        manifests.remove(format!("{name}.yaml").as_str());
                    }
                    Turn::Live(number, file, own, commit) => {
                        let (object, live) = live(number, file, if own { "main" } else { "other" }, commit);
                        there.insert(object, live);
                    }
                    Turn::NotLive(number) => {
                        there.remove(&live(number, 0, "main", 0).0);
                    }
                }
                if looks {
                    undeclared.update("main", &manifests, &there);
                    prop_assert_eq!(undeclared.homes(), homes_in_question("main", &manifests, &there));
                }
            }
        }
    }
}
