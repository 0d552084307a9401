//! Formats of names that Kubernetes validates. Messages use its wording, so that a search finds them.

use super::violation::{Findings, Path, rules};

/// Format of the names of a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameForm {
    /// A DNS label, because the name becomes a DNS name.
    Label,
    /// Labels joined by dots, at most 63 characters; upper case and `_` give a warning.
    Short,
    /// Same as `Short`, but at most 253 characters.
    Long,
    /// Same as `Short`, but at most 233 characters, because names of pods are derived from it.
    Workload,
    /// This name only, because there is at most one object.
    Only(&'static str),
}

/// Kubernetes' message for a malformed label.
pub const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
and must start and end with an alphanumeric character, at most 63 characters";

/// Maximum length of names, label values and DNS labels.
pub const NAME_MAX_CHARS: usize = 63;

/// `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, at most 63 characters.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= NAME_MAX_CHARS
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && starts_and_ends_alphanumeric(text)
}

/// DNS labels joined by dots, at most 253 characters.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Maximum length of object names that Kubernetes requires to be DNS subdomains.
pub const SUBDOMAIN_MAX_CHARS: usize = 253;

/// Maximum length of workload names: pods are called `<name>-<8 digits>-<number>`, and numbers have up to ten digits.
pub const WORKLOAD_NAME_MAX_CHARS: usize = SUBDOMAIN_MAX_CHARS - "-0123cdef-4294967295".len();

/// True for an object name in Kubernetes' most common format: DNS labels joined by dots, at most 253 characters in
/// total. A single label may be that long too.
pub fn is_subdomain_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= SUBDOMAIN_MAX_CHARS
        && text.split('.').all(|label| label.bytes().all(fits) && starts_and_ends_alphanumeric(label))
}

/// `[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?`, at most 63 characters: object names, and names of labels.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_MAX_CHARS
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && starts_and_ends_alphanumeric(text)
}

/// Checks for `name` or `prefix/name`, the format of label and annotation keys. The error describes the problem.
pub fn check_qualified_name(text: &str) -> Result<(), &'static str> {
    let (prefix, name) = match text.rsplit_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|prefix| !is_dns_subdomain(prefix)) {
        return Err(
            "the prefix part must be a lowercase DNS subdomain such as `example.com`, at most 253 characters",
        );
    }
    if !is_name(name) {
        return Err(
            "the name part must consist of alphanumeric characters, '-', '_' or '.', and must start and \
end with an alphanumeric character, at most 63 characters",
        );
    }
    Ok(())
}

/// True for a label value: a name, or empty.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// True for a port name: `[a-z0-9]`, single `-` inside, at least one letter, at most 15 characters.
pub fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_dns_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// True for a key of a secret or ConfigMap: `[-._a-zA-Z0-9]+`, at most 253 characters, and valid as a file name.
pub fn is_key(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=SUBDOMAIN_MAX_CHARS).contains(&text.len())
        && text.bytes().all(fits)
        && text != "."
        && !text.starts_with("..")
}

/// `[-._a-zA-Z][-._a-zA-Z0-9]*`.
pub fn is_env_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.bytes().all(fits) && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn starts_and_ends_alphanumeric(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

// Validation of paths in the manifest repository, as functions and jobs name them.

/// Maximum length of a path, Linux' PATH_MAX.
const PATH_MAX_BYTES: usize = 4096;

/// Help text for the path of a folder.
const FOLDER: &str =
    "put the folder into this repository and write its path from the root, for example `functions/hello`";

/// Checks that the path of a folder starts at the root of the repository and stays inside.
pub(crate) fn check(path: &str, at: &Path<'_>, findings: &mut Findings) {
    check_with_help(path, FOLDER, at, findings);
}

/// Same as `check`, with a `help` text for paths that are not folders.
pub(crate) fn check_with_help(path: &str, help: &str, at: &Path<'_>, findings: &mut Findings) {
    let why = if path.is_empty() {
        "Required value: the path is empty".to_owned()
    } else if path.len() > PATH_MAX_BYTES {
        format!("Too long: may not be more than {PATH_MAX_BYTES} bytes")
    } else if path.chars().any(char::is_control) {
        "Invalid value: must not contain control characters".to_owned()
    } else if path.starts_with(['/', '~']) || path.contains('\\') || path.contains("://") {
        format!("Invalid value: `{path}`: must be a path within the repository")
    } else if path.split('/').any(|part| part == "..") {
        format!("Invalid value: `{path}`: must not contain '..'")
    } else if path.split('/').any(|part| part == ".git") {
        format!("Invalid value: `{path}`: must not be Git's own files")
    } else {
        return;
    };
    findings.add(&rules::INVALID_PATH, at, why).help(help);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_strict_as_kubernetes() {
        for good in ["a", "web-1", "0a"] {
            assert!(is_dns_label(good), "{good}");
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "ä", long.as_str()] {
            assert!(!is_dns_label(bad), "{bad}");
        }
        for good in ["app", "app.kubernetes.io/name", "A_b.c", "example.com/x-Y"] {
            assert_eq!(check_qualified_name(good), Ok(()), "{good}");
        }
        for bad in ["", "/a", "a/", "A.com/a", "a b", "-a", "a/b/c"] {
            assert!(check_qualified_name(bad).is_err(), "{bad}");
        }
        let longest = "a".repeat(253);
        for good in ["web.v1", "a-b.c-d", longest.as_str()] {
            assert!(is_subdomain_name(good), "{good}");
        }
        for bad in ["", "a..b", ".a", "a.", "a.-b", "A", "a_b", &format!("{longest}a")] {
            assert!(!is_subdomain_name(bad), "{bad}");
        }
        assert!(is_port_name("http-1") && !is_port_name("80") && !is_port_name("a--b"));
        assert!(is_key(".env") && is_key("_1") && !is_key("..a") && !is_key("a/b") && !is_key(""));
        assert!(is_env_name("_A.b-1") && !is_env_name("1A") && !is_env_name("a=b"));
    }
}
