//! Image references: `[registry[:port]/]repository[:tag][@digest]`, the grammar of the distribution project. Splits,
//! checks and normalises them, for both daemons. Pure.

use std::fmt;
use std::net::Ipv6Addr;

/// The registry of a reference that names none.
pub const DOCKER_HUB: &str = "docker.io";

/// The parts of a reference as written, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageReference<'a> {
    /// Registry and repository together.
    pub name: &'a str,
    /// Host, with an optional port.
    pub registry: Option<&'a str>,
    /// Path in the registry.
    pub repository: &'a str,
    /// Text after the last colon of the name.
    pub tag: Option<&'a str>,
    /// `sha256:…`.
    pub digest: Option<&'a str>,
}

impl<'a> ImageReference<'a> {
    /// Splits a reference. Never fails: the parts of an invalid one are invalid.
    pub fn split(reference: &'a str) -> Self {
        let (name_and_tag, digest) = match reference.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (reference, None),
        };
        // A colon before the last slash is the registry's port.
        let last = name_and_tag.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match name_and_tag[last..].split_once(':') {
            Some((path, tag)) => (&name_and_tag[..last + path.len()], Some(tag)),
            None => (name_and_tag, None),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((host, path)) if is_host(host) => (Some(host), path),
            _ => (None, name),
        };
        Self { name, registry, repository, tag, digest }
    }
}

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
        let ImageReference { registry, repository, tag, digest, .. } = ImageReference::split(reference);
        let registry = registry.filter(|host| !is_docker_hub(host)).unwrap_or(DOCKER_HUB);
        let repository = if registry == DOCKER_HUB && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        let tag = digest.is_none().then(|| tag.unwrap_or("latest").to_owned());
        Self { registry: registry.to_owned(), repository, tag, digest: digest.map(str::to_owned) }
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

/// Checks an image reference. The error describes the problem.
pub(crate) fn check(image: &str) -> Result<(), String> {
    let invalid = |why: &str| Err(format!("Invalid value: `{image}`: {why}"));
    if image.is_empty() {
        return Err("Required value: the image is empty".to_owned());
    }
    if image.trim() != image || image.contains(char::is_whitespace) {
        return invalid("must not have spaces");
    }
    if image.contains("://") {
        return invalid("an image reference has no scheme such as `https://`");
    }
    let ImageReference { registry, repository, tag, digest, .. } = ImageReference::split(image);
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return invalid("the digest after `@` must be `sha256:` and 64 hex digits");
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return invalid("the tag after `:` must be 1 to 128 letters, digits, '_', '.' or '-'");
    }
    if registry.is_some_and(|registry| !is_registry(registry)) {
        return invalid("the registry before the first `/` must be a host name, optionally with a port");
    }
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return invalid("the repository name must be lowercase");
    }
    if repository.len() > 255 || !repository.split('/').all(is_component) {
        return invalid(
            "the repository name must consist of lower case letters and digits, separated by '.', '_', '__', '-' or '/'",
        );
    }
    Ok(())
}

/// True if the first part is a registry by Docker's rule: it has a dot, a colon or upper case, or is `localhost`.
fn is_host(part: &str) -> bool {
    part.contains(['.', ':', '['])
        || part == "localhost"
        || part.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_registry(text: &str) -> bool {
    let after_bracket = text.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match text[after_bracket..].rsplit_once(':') {
        Some((host, port)) => (&text[..after_bracket + host.len()], Some(port)),
        None => (text, None),
    };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return port_fits && address.parse::<Ipv6Addr>().is_ok();
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    port_fits && host.split('.').all(is_label)
}

/// `[a-z0-9]+` joined by `.`, `_`, `__` or dashes.
fn is_component(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |end: Option<u8>| end.is_some_and(is_alphanumeric);
    ends(text.bytes().next())
        && ends(text.bytes().next_back())
        && text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, digits)) = text.split_once(':') else { return false };
    let wanted = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    digits.len() == wanted && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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
    fn image_references_are_read_as_docker_reads_them() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        for good in [
            "nginx",
            "nginx:1.25-alpine",
            "library/nginx",
            "localhost:5000/a/b:v1",
            "registry.example.com/team/app_x:V1.2",
            "127.0.0.1:5000/a",
            "[::1]:5000/a",
            "a--b/c__d.e",
            "localhost/a",
            digest.as_str(),
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            " nginx",
            "Nginx",
            "nginx:",
            "nginx:a:b",
            "a/B",
            "https://a/b",
            "a@sha256:12",
            "a//b",
            "-a",
            "a___b",
            "reg.io:99999/a",
            "/a",
            "a/",
            "a@",
            "x:y/z",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
