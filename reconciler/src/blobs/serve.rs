//! Opens content for an agent. Blocking.
//!
//! Reads the snapshot, the store and the mirrors; writes missing content to the store. Serves only content that a
//! live object or pod refers to.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use git2::{Oid, Repository};
use schema::content_refs::{BlobKind, BlobRef, Files, is_digest, parse_object_path};
use schema::control::lock;
use schema::manifest::values_of;
use schema::meta::ObjectRef;
use schema::object::Provenance;
use schema::snapshot::Snapshot;

use super::{BlobStore, sweep};
use crate::git::content::{self, CommitTree, ContentError, ContentTree as _};

#[derive(Debug, thiserror::Error)]
pub enum BlobsError {
    #[error("{0:?} is not a digest")]
    Digest(String),
    #[error("nothing in this cluster refers to {0}")]
    Unreferred(String),
    #[error("this reconciler does not have {0}")]
    Absent(String),
    #[error("cannot read {digest}: {source}")]
    Read { digest: String, source: io::Error },
}

#[derive(Debug, Clone)]
pub struct Blobs {
    store: BlobStore,
    mirrors: PathBuf,
    /// Held while an archive is built, one at a time: libgit2 holds each file in memory whole.
    making: Arc<Mutex<()>>,
}

impl Blobs {
    /// Creates a reader of content below the state directory. No I/O.
    pub fn new(state_dir: &Path) -> Self {
        let mirrors = state_dir.join("reconciler").join("mirrors");
        Self { store: BlobStore::new(state_dir), mirrors, making: Arc::default() }
    }

    pub fn open(&self, snapshot: &Snapshot, digest: &str) -> Result<(File, u64), BlobsError> {
        if !is_digest(digest) {
            return Err(BlobsError::Digest(digest.to_owned()));
        }
        let found =
            sweep::all_files(snapshot).flat_map(|files| files.values()).find(|blob| blob.digest == digest);
        let blob = found.ok_or_else(|| BlobsError::Unreferred(digest.to_owned()))?;
        let failed = |source| BlobsError::Read { digest: digest.to_owned(), source };
        if let Some(file) = self.store.open_verified(blob).map_err(failed)? {
            return Ok((file, blob.size));
        }
        // Many agents may ask at once: the next one finds the archive that the first one made.
        let _making = lock(&self.making);
        if let Some(file) = self.store.open(blob).map_err(failed)? {
            return Ok((file, blob.size));
        }
        self.rebuild(snapshot, blob);
        let file = self.store.open(blob).map_err(failed)?;
        file.map(|file| (file, blob.size)).ok_or_else(|| BlobsError::Absent(digest.to_owned()))
    }

    /// Rebuilds content from the mirror: a commit's content at a path never changes.
    fn rebuild(&self, snapshot: &Snapshot, blob: &BlobRef) {
        for origin in origins(snapshot, blob) {
            // A source's name is a file name, so the path leads to a mirror and nowhere else.
            let Ok(repository) = Repository::open_bare(self.mirrors.join(origin.source)) else { continue };
            let Ok(commit) = Oid::from_str(origin.commit) else { continue };
            match self.make(&repository, commit, (origin.path, blob.kind)) {
                Ok(made) if made.digest == blob.digest => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(path = origin.path, %error, "content not rebuilt"),
            }
        }
    }

    fn make(
        &self,
        repository: &Repository,
        commit: Oid,
        (path, kind): (&str, BlobKind),
    ) -> Result<BlobRef, ContentError> {
        let tree = CommitTree { repository, commit };
        let Some((file, object)) = parse_object_path(path).filter(|_| kind == BlobKind::Object) else {
            let found = content::find(&tree, path)?;
            return self.store.make(&tree, &found, path, kind == BlobKind::Secret);
        };
        let found = content::find(&tree, file)?;
        let values = tree.read(&found.entry, |text| values_of(file, text, &object))?;
        self.store.make_from_values(&values.ok_or_else(|| ContentError::Absent(path.to_owned()))?, path)
    }
}

/// True if the content with this digest is for a node: named by its pods, its orders, the token of a function, or the
/// settings.
pub fn is_named_for(snapshot: &Snapshot, node: &str, digest: &str) -> bool {
    let pods = snapshot.bindings_of(node).map(|(_, binding)| &binding.value.pod.files);
    let jobs = snapshot.jobs.iter().filter(|((of, _), _)| of == node);
    let jobs = jobs.flat_map(|(_, order)| sweep::job_files(&order.value));
    let tokens =
        snapshot.functions.values().filter_map(|function| Some(&function.value.token.as_ref()?.files));
    let logins = snapshot.settings.values().map(|settings| &settings.value.logins);
    let files = pods.chain(jobs).chain(tokens).chain(logins).flat_map(Files::values);
    let builds = snapshot.builds.iter().filter(|((of, _), _)| of == node);
    let builds = builds.map(|(_, order)| &order.value.source);
    let identity = snapshot.settings.values().filter_map(|settings| settings.value.identity.as_ref());
    files.chain(builds).chain(identity).any(|blob| blob.digest == digest)
}

struct Origin<'w> {
    source: &'w str,
    commit: &'w str,
    path: &'w str,
}

/// Finds the origins of live content: the object whose content it is, objects that use it, and templates and pods
/// of a former revision, whose object has moved on to another. A pod whose object is gone may be of any source.
fn origins<'w>(snapshot: &'w Snapshot, blob: &BlobRef) -> Vec<Origin<'w>> {
    let path_in =
        |files: &'w Files| files.iter().find(|(_, of)| of.digest == blob.digest).map(|(path, _)| path);
    let of_content = sweep::all_files(snapshot).filter_map(path_in).filter_map(|path| {
        let (_, object) = parse_object_path(path).filter(|_| blob.kind == BlobKind::Object)?;
        let Provenance { source, commit, .. } = &snapshot.objects.get(&object)?.value.provenance;
        Some(Origin { source, commit, path })
    });
    let of_objects = snapshot.objects.values().filter_map(|object| {
        let Provenance { source, commit, .. } = &object.value.provenance;
        Some(Origin { source, commit, path: path_in(&object.value.files)? })
    });
    let of_pods = snapshot.pods.values().filter_map(|pod| {
        let pod = &pod.value;
        let owner = ObjectRef {
            kind: pod.owner.kind,
            namespace: pod.namespace.clone(),
            name: pod.owner.name.clone(),
        };
        let path = path_in(&pod.files)?;
        let sources: Vec<&String> = match snapshot.objects.get(&owner) {
            Some(object) => vec![&object.value.provenance.source],
            None => snapshot.sources.keys().collect(),
        };
        Some(sources.into_iter().map(|source| Origin { source, commit: &pod.commit, path }))
    });
    let of_templates = snapshot.templates.iter().filter_map(|((workload, _), template)| {
        let source = &snapshot.objects.get(workload)?.value.provenance.source;
        let template = &template.value;
        Some(Origin { source, commit: &template.commit, path: path_in(&template.files)? })
    });
    of_content.take(1).chain(of_objects).chain(of_templates).chain(of_pods.flatten()).collect()
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::meta::NamespacedName;
    use schema::records::{
        BuildOrder, CallToken, ClusterSettings, FormerJob, FunctionRecord, JobOrder, PodInstance,
    };
    use schema::testing::{at, binding, instance, pod_spec};

    use super::*;

    fn blob(digest: &str) -> BlobRef {
        BlobRef {
            digest: digest.to_owned(),
            size: 1,
            kind: BlobKind::File,
            texts: Vec::new(),
            source: String::new(),
        }
    }

    fn files(digest: &str) -> Files {
        [(format!("{digest}.txt"), blob(digest))].into()
    }

    /// A pod, a build and a job on node `n1`, a function with a token, and settings with a login and an identity.
    fn snapshot() -> Snapshot {
        let (mut snapshot, name) = (Snapshot::default(), NamespacedName::new("default", "web"));
        let pod = PodInstance { files: files("pod"), ..instance("web", pod_spec(&["app"])) };
        snapshot.put(&Key::Binding("n1".to_owned(), name.clone()), &binding("n1", &pod), 1);
        let build = BuildOrder {
            reference: "image".to_owned(),
            function: name.clone(),
            path: "code".to_owned(),
            source: blob("build"),
            runtime: None,
            base: None,
            package_index: None,
        };
        snapshot.put(&Key::Build("n1".to_owned(), "image".to_owned()), &build, 2);
        let former: FormerJob =
            serde_json::from_value(serde_json::json!({"uid": "u0", "login": {}, "files": files("former")}))
                .unwrap();
        let job = JobOrder { former: vec![former.clone()], files: files("job"), ..former.removal(at(0)) };
        snapshot.put(&Key::Job("n1".to_owned(), name.clone()), &job, 3);
        let token = CallToken { secret: "s".to_owned(), key: "k".to_owned(), files: files("token") };
        let function = FunctionRecord { token: Some(token), ..FunctionRecord::default() };
        snapshot.put(&Key::Function(name), &function, 4);
        let settings = ClusterSettings {
            identity: Some(blob("identity")),
            logins: files("login"),
            ..ClusterSettings::default()
        };
        snapshot.put(&Key::Settings, &settings, 5);
        snapshot
    }

    #[test]
    fn content_is_for_the_nodes_that_need_it_and_for_no_other() {
        let snapshot = snapshot();
        assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
        let all = ["pod", "build", "job", "former", "token", "identity", "login", "other"];
        let of = |node| all.map(|digest| is_named_for(&snapshot, node, digest));
        assert_eq!(of("n1"), [true, true, true, true, true, true, true, false]);
        assert_eq!(of("n2"), [false, false, false, false, true, true, true, false]);
    }
}
