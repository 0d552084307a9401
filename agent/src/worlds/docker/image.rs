//! Images on the node and their names for Docker, registry logins, and the progress of pulls.

use std::collections::BTreeMap;
use std::fmt;

use schema::codec::content_hash;
use schema::image::{ImageName, ImageReference};

/// An image on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFacts {
    pub id: String,
    /// `USER` of the image; empty is root.
    pub user: String,
    /// `repository@sha256:…` of each registry that has the image.
    pub repo_digests: Vec<String>,
    /// Bytes on disk, including layers shared with other images.
    pub size_bytes: u64,
    pub labels: BTreeMap<String, String>,
    /// True if builds on the image run its `ONBUILD` instructions.
    pub has_triggers: bool,
}

/// A row of the list of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredImage {
    pub id: String,
    /// `repository:tag`.
    pub tags: Vec<String>,
    /// `repository@sha256:…`.
    pub digests: Vec<String>,
    pub size_bytes: u64,
}

/// A login at a registry. Its `Debug` shows no password.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistryLogin {
    /// The registry as Docker expects it: host, with an optional port.
    pub server: String,
    /// The user; empty with a token.
    pub username: String,
    /// The password or access token.
    pub password: String,
    /// Identity token in place of user and password; empty if there is none.
    pub identity_token: String,
}

impl RegistryLogin {
    /// Returns a hash that equal logins share.
    pub fn fingerprint(&self) -> String {
        content_hash(&(&self.server, &self.username, &self.password, &self.identity_token))
    }
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryLogin")
            .field("server", &self.server)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Progress of a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullProgress {
    layers: BTreeMap<String, Layer>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Layer {
    /// Set while the layer is in Docker's queue and nothing of it has been downloaded.
    waits: bool,
    /// Set once the layer is downloaded, extracted or not.
    fetched: bool,
    done: bool,
    current: u64,
    total: u64,
}

impl PullProgress {
    /// Adds a message of Docker: layer, status, bytes downloaded and in total.
    pub fn note(&mut self, layer: &str, status: &str, bytes: Option<(u64, u64)>) {
        // In other messages a tag or nothing is in place of the layer's id.
        let of_layer = matches!(
            status,
            "Pulling fs layer"
                | "Waiting"
                | "Downloading"
                | "Verifying Checksum"
                | "Download complete"
                | "Extracting"
                | "Pull complete"
                | "Already exists"
        );
        if !of_layer {
            return;
        }
        let layer = self.layers.entry(layer.to_owned()).or_default();
        layer.waits = status == "Waiting";
        layer.fetched |= matches!(status, "Download complete" | "Pull complete" | "Already exists");
        if let (Some((current, total)), "Downloading") = (bytes, status) {
            (layer.current, layer.total) = (current, total);
        }
        if matches!(status, "Verifying Checksum" | "Download complete" | "Extracting") {
            layer.current = layer.total;
        }
        layer.done |= matches!(status, "Pull complete" | "Already exists");
    }

    /// True if every missing layer is in Docker's own queue, behind layers of other pulls.
    pub fn is_queued(&self) -> bool {
        let mut left = self.layers.values().filter(|layer| !layer.fetched).peekable();
        left.peek().is_some() && left.all(|layer| layer.waits)
    }
}

impl fmt::Display for PullProgress {
    /// `12 of 40 MiB, 3 of 7 layers`; the total lacks layers that have not begun.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |part: fn(&Layer) -> u64| self.layers.values().map(part).sum::<u64>();
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let done = self.layers.values().filter(|layer| layer.done).count();
        let (current, total) = (mib(sum(|l| l.current)), mib(sum(|l| l.total)));
        write!(f, "{current} of {total} MiB, {done} of {} layers", self.layers.len())
    }
}

/// The reference to request from Docker, for exactly one image. Without a tag Docker would pull every tag of the
/// repository; a tag next to a digest has no meaning, yet some versions look it up.
pub(super) fn pull_reference(reference: &str) -> String {
    match ImageReference::split(reference) {
        ImageReference { name, digest: Some(digest), .. } => format!("{name}@{digest}"),
        ImageReference { tag: None, .. } => format!("{reference}:latest"),
        _ => reference.to_owned(),
    }
}

/// Finds the repo digest that belongs to the repository of `reference`.
pub fn repo_digest<'a>(reference: &str, digests: &'a [String]) -> Option<&'a str> {
    let wanted = ImageName::parse(reference);
    let of_repository = digests.iter().map(|digest| (digest, ImageName::parse(digest)));
    let mut of_repository = of_repository.filter(|(_, name)| name.same_repository(&wanted)).peekable();
    let first = of_repository.peek().map(|(digest, _)| digest.as_str());
    let exact = of_repository.find(|(_, name)| wanted.digest.is_some() && name.digest == wanted.digest);
    exact.map(|(digest, _)| digest.as_str()).or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_is_asked_for_one_image_and_a_digest_wins_over_a_tag() {
        for (reference, asked) in [
            ("app", "app:latest"),
            ("host:5000/app", "host:5000/app:latest"),
            ("app:1", "app:1"),
            ("host:5000/app:1@sha256:ab", "host:5000/app@sha256:ab"),
            ("app@sha256:ab", "app@sha256:ab"),
        ] {
            assert_eq!(pull_reference(reference), asked);
        }
    }

    #[test]
    fn the_repo_digest_is_that_of_the_repository_asked_for() {
        let digests = ["other/app@sha256:1".to_owned(), "h:1/app@sha256:2".into(), "h:1/app@sha256:3".into()];
        assert_eq!(repo_digest("h:1/app:latest", &digests), Some("h:1/app@sha256:2"));
        assert_eq!(repo_digest("h:1/app:9@sha256:3", &digests), Some("h:1/app@sha256:3"));
        assert_eq!(repo_digest("app", &digests), None);
    }

    #[test]
    fn progress_is_reported_in_mebibytes_and_layers() {
        let mut progress = PullProgress::default();
        progress.note("1.0", "Pulling from team/app", None);
        for layer in ["a", "b", "c"] {
            progress.note(layer, "Pulling fs layer", None);
        }
        progress.note("a", "Already exists", None);
        progress.note("b", "Downloading", Some((12 << 20, 30 << 20)));
        progress.note("c", "Downloading", Some((5 << 20, 10 << 20)));
        progress.note("c", "Download complete", None);
        // Extraction counts other bytes.
        progress.note("c", "Extracting", Some((1, 2)));
        assert_eq!(progress.to_string(), "22 of 40 MiB, 1 of 3 layers");
    }

    #[test]
    fn a_pull_is_queued_when_all_that_is_missing_waits() {
        let queued = |notes: &[(&str, &str)]| {
            let mut progress = PullProgress::default();
            notes.iter().for_each(|(layer, status)| progress.note(layer, status, None));
            progress.is_queued()
        };
        assert!(!queued(&[]), "the registry has not said what there is");
        assert!(!queued(&[("a", "Pulling fs layer")]));
        assert!(queued(&[("a", "Pulling fs layer"), ("a", "Waiting"), ("b", "Already exists")]));
        // A downloaded layer is extracted after those before it.
        assert!(queued(&[("a", "Waiting"), ("b", "Download complete")]));
        assert!(!queued(&[("a", "Waiting"), ("b", "Downloading")]));
        assert!(!queued(&[("a", "Waiting"), ("a", "Downloading")]));
        assert!(!queued(&[("a", "Download complete"), ("b", "Pull complete")]), "nothing is left to fetch");
    }

    #[test]
    fn a_login_does_not_show_its_password() {
        let login = RegistryLogin {
            server: "h".into(),
            username: "u".into(),
            password: "s3cret".into(),
            identity_token: "t0ken".into(),
        };
        let text = format!("{login:?} {login:#?}");
        assert!(text.contains("\"u\"") && !text.contains("s3cret") && !text.contains("t0ken"), "{text}");
    }
}
