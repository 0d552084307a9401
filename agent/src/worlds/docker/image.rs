//! Images: what is on the node, what a pull needs and how far it is.

use std::collections::BTreeMap;
use std::fmt;

/// An image on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFacts {
    pub id: String,
    /// `USER` of the image; empty is root.
    pub user: String,
    /// `repository@sha256:…` of the registries that it came from.
    pub repo_digests: Vec<String>,
    /// Bytes on disk, layers that it shares with others included.
    pub size_bytes: u64,
}

/// One row of the list of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredImage {
    pub id: String,
    /// `repository:tag`.
    pub tags: Vec<String>,
    /// `repository@sha256:…`.
    pub digests: Vec<String>,
    pub size_bytes: u64,
}

/// A user of a registry. Its `Debug` shows no password.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistryLogin {
    /// The registry, as Docker wants it: host and maybe port.
    pub server: String,
    /// The user; empty with a token.
    pub username: String,
    /// The password, or access token.
    pub password: String,
    /// An identity token in place of user and password; empty if there is none.
    pub identity_token: String,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryLogin")
            .field("server", &self.server)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// How far a pull is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullProgress {
    layers: BTreeMap<String, Layer>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Layer {
    /// Docker's queue has it, and nothing of it has come yet.
    waits: bool,
    /// It is here, in its place or not yet.
    fetched: bool,
    done: bool,
    current: u64,
    total: u64,
}

impl PullProgress {
    /// Takes one message of Docker in: layer, its word, bytes of how many.
    pub fn note(&mut self, layer: &str, status: &str, bytes: Option<(u64, u64)>) {
        // Other messages carry the tag or nothing where a layer's id stands.
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

    /// All that is not here yet has its place in Docker's own queue, behind layers of other pulls.
    pub fn is_queued(&self) -> bool {
        let mut left = self.layers.values().filter(|layer| !layer.fetched).peekable();
        left.peek().is_some() && left.all(|layer| layer.waits)
    }
}

impl fmt::Display for PullProgress {
    /// `12 of 40 MiB, 3 of 7 layers`; of layers not begun the size is not known yet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |part: fn(&Layer) -> u64| self.layers.values().map(part).sum::<u64>();
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let done = self.layers.values().filter(|layer| layer.done).count();
        let (current, total) = (mib(sum(|l| l.current)), mib(sum(|l| l.total)));
        write!(f, "{current} of {total} MiB, {done} of {} layers", self.layers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Fetched, it is put in its place after those before it.
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
