//! Parser of image references: `[registry[:port]/]repository[:tag][@digest]`.

use std::fmt;

/// The registry of a reference that names none.
pub const DOCKER_HUB: &str = "docker.io";

/// A reference with Docker's defaults filled in. Two spellings of one image are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName {
    /// Host, with an optional port; [`DOCKER_HUB`] by default.
    pub registry: String,
    /// Path in the registry; `library/` is added on Docker Hub.
    pub repository: String,
    /// `latest` without tag and digest; `None` with a digest, which alone counts.
    pub tag: Option<String>,
    /// `sha256:…`.
    pub digest: Option<String>,
}

impl ImageName {
    /// Parses a reference. Never fails: an invalid one gives a name that no image has.
    pub fn parse(reference: &str) -> Self {
        let (rest, digest) = match reference.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
            None => (reference, None),
        };
        let (name, tag) = split_tag(rest);
        let (registry, path) = match name.split_once('/') {
            Some((host, path)) if is_host(host) => (host, path),
            _ => (DOCKER_HUB, name),
        };
        let registry = if is_docker_hub(registry) { DOCKER_HUB } else { registry };
        let repository = if registry == DOCKER_HUB && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let tag = match &digest {
            Some(_) => None,
            None => Some(tag.unwrap_or("latest").to_owned()),
        };
        Self { registry: registry.to_owned(), repository, tag, digest }
    }

    /// True for the same repository, whatever tag or digest.
    pub fn same_repository(&self, other: &Self) -> bool {
        (&self.registry, &self.repository) == (&other.registry, &other.repository)
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => Ok(()),
        }
    }
}

/// True for every name of Docker Hub's registry that people write into manifests and logins.
pub fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com")
}

/// The reference to request from Docker, for exactly one image. Without a tag Docker would pull every tag of the
/// repository; a tag next to a digest has no meaning, yet some versions look it up.
pub(super) fn pull_reference(reference: &str) -> String {
    match reference.split_once('@') {
        Some((rest, digest)) => format!("{}@{digest}", split_tag(rest).0),
        None if split_tag(reference).1.is_none() => format!("{reference}:latest"),
        None => reference.to_owned(),
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

/// Splits a reference without digest into name and tag; a colon before the last slash is the registry's port.
pub(super) fn split_tag(name: &str) -> (&str, Option<&str>) {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last..].split_once(':') {
        Some((path, tag)) => (&name[..last + path.len()], Some(tag)),
        None => (name, None),
    }
}

/// Docker's own rule for a host as opposed to the first part of a path.
fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|b| b.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_image_are_one_name() {
        for (reference, name) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("index.docker.io/team/app", "docker.io/team/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("127.0.0.1:5000/team/app:2", "127.0.0.1:5000/team/app:2"),
            ("reg.example:5000/app:2@sha256:ab", "reg.example:5000/app@sha256:ab"),
            ("app@sha256:ab", "docker.io/library/app@sha256:ab"),
        ] {
            assert_eq!(ImageName::parse(reference).to_string(), name, "{reference}");
        }
    }

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
}
