//! Image references: `[registry[:port]/]path[:tag][@digest]`, the grammar of the distribution project.

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
    let (name_and_tag, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return invalid("the digest after `@` must be `sha256:` and 64 hex digits");
    }
    // A colon before the last slash is the registry's port.
    let last_slash = name_and_tag.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match name_and_tag[last_slash..].split_once(':') {
        Some((last, tag)) => (&name_and_tag[..last_slash + last.len()], Some(tag)),
        None => (name_and_tag, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return invalid("the tag after `:` must be 1 to 128 letters, digits, '_', '.' or '-'");
    }
    let path = match name.split_once('/') {
        Some((registry, path)) if is_registry_like(registry) => {
            if !is_registry(registry) {
                return invalid("the registry before the first `/` must be a host name, maybe with a port");
            }
            path
        }
        _ => name,
    };
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return invalid("the repository name must be lowercase");
    }
    if path.len() > 255 || !path.split('/').all(is_component) {
        return invalid(
            "the repository name must consist of lower case letters and digits, separated by '.', '_', '__', '-' or '/'",
        );
    }
    Ok(())
}

/// True if the first part is a registry by Docker's rule: it has a dot, a colon or upper case, or is `localhost`.
fn is_registry_like(part: &str) -> bool {
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
        return port_fits && address.parse::<std::net::Ipv6Addr>().is_ok();
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
