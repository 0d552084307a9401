//! Plans the settings that agents read: the Cluster object and the cluster's identity next to it. Reads that
//! object, writes `settings`.
//!
//! Without an object, the defaults are written. A lost etcd has no object until Git is applied again: until then
//! nothing is written, and agents keep their settings.

use schema::content_refs::{ContentRef, Files, find_content, find_secret};
use schema::keys::Key;
use schema::kinds::cluster::{ClusterSpec, cluster_reference};
use schema::records::ClusterSettings;

use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::Writes;
use crate::controllers::{Observed, all_sources_applied};

/// Returns the write to `settings`.
pub(super) fn plan(seen: &Observed) -> Writes {
    let snapshot = &seen.snapshot;
    let mut out = Writes::default();
    let of_object = Key::Object(cluster_reference());
    let unreadable = |key: &Key| snapshot.malformed.contains_key(&key.to_string());
    if unreadable(&Key::Settings) {
        let kind = NoteKind::Unreadable { key: Key::Settings.to_string() };
        out.note(Note::about_key(&Key::Settings, kind));
        return out;
    }
    // The workloads controller reports it.
    if unreadable(&of_object) {
        return out;
    }
    let (object, present) = (snapshot.cluster_object(), snapshot.settings.get(&()));
    if object.is_some() || present.is_some() || all_sources_applied(snapshot, &seen.settings.sources) {
        let generation = object.map_or(0, |object| object.value.generation);
        let files = object.map(|object| &object.value.files);
        let identity = files.and_then(|files| find_content(files, &ContentRef::ClusterIdentity));
        let wanted = ClusterSettings {
            generation,
            spec: ClusterSpec::clone(&snapshot.cluster()),
            source: object
                .map_or(&seen.settings.first_source, |object| &object.value.provenance.source)
                .clone(),
            identity: identity.map(|(_, blob)| blob.clone()),
            logins: files.map(|files| logins(&snapshot.cluster(), files)).unwrap_or_default(),
        };
        out.put_if_changed(Key::Settings, present, &wanted, Reason::SettingsPublished);
    }
    out
}

/// Returns the object's files that hold the login secrets it names.
fn logins(cluster: &ClusterSpec, files: &Files) -> Files {
    let found = cluster.logins().filter_map(|secret| find_secret(files, &secret.name));
    found.map(|(path, blob)| (path.to_owned(), blob.clone())).collect()
}

#[cfg(test)]
mod tests {
    use schema::kinds::Resource;
    use schema::kinds::cluster::CLUSTER_NAME;
    use schema::object::Object;
    use schema::records::SourceState;
    use schema::testing::{SnapshotBuilder, object_of, source_status};

    use super::*;
    use crate::controllers::testing::seen;

    fn cluster(generation: u64) -> Object {
        let mut spec = ClusterSpec::default();
        spec.dns.zone = "mini.lan".to_owned();
        Object { generation, ..object_of(CLUSTER_NAME, spec) }
    }

    fn key() -> Key {
        Key::Object(cluster(1).reference())
    }

    fn published(generation: u64) -> ClusterSettings {
        let Resource::Cluster(spec) = cluster(generation).resource else { panic!("a Cluster") };
        let (spec, source) = (ClusterSpec::clone(&spec), "main".to_owned());
        ClusterSettings { generation, spec, source, ..ClusterSettings::default() }
    }

    fn planned(builder: &SnapshotBuilder) -> (String, Option<ClusterSettings>) {
        let plan = plan(&seen(&builder.snapshot));
        let value = plan.writes.first().map(|write| match &write.change {
            crate::controllers::Change::Put(value) => schema::codec::decode(value).unwrap(),
            crate::controllers::Change::Delete => panic!("{plan}"),
        });
        (plan.to_string(), value)
    }

    #[test]
    fn what_the_object_says_is_published_and_written_once() {
        let builder = SnapshotBuilder::new().put(&key(), &cluster(1));
        let (text, value) = planned(&builder);
        assert_eq!(text, "put settings if absent: the settings of the Cluster object, defaults filled in\n");
        assert_eq!(value, Some(published(1)));
        let builder = builder.put(&Key::Settings, &published(1));
        assert_eq!(planned(&builder).0, "");
        assert_eq!(planned(&builder.put(&key(), &cluster(2))).1, Some(published(2)));
    }

    // Seen red without the condition: the defaults of an etcd that was lost went to all nodes.
    #[test]
    fn without_an_object_the_defaults_hold_once_git_was_applied() {
        let lost = SnapshotBuilder::new();
        assert_eq!(planned(&lost).0, "");
        let applied = lost.put(&Key::Source("main".to_owned()), &source_status(SourceState::Synced));
        let defaults = ClusterSettings { source: "main".to_owned(), ..ClusterSettings::default() };
        assert_eq!(planned(&applied).1, Some(defaults.clone()));
        let removed = SnapshotBuilder::new().put(&Key::Settings, &published(1));
        assert_eq!(planned(&removed).1, Some(defaults));
    }

    #[test]
    fn what_cannot_be_read_is_not_gone() {
        let builder = SnapshotBuilder::new().put(&Key::Settings, &published(1)).garbage(&key());
        assert_eq!(planned(&builder), (String::new(), None));
        let builder = SnapshotBuilder::new().put(&key(), &cluster(1)).garbage(&Key::Settings);
        assert!(planned(&builder).0.starts_with("note Cluster/cluster Unreadable"));
    }
}
