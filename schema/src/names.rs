//! Formats of names that Kubernetes validates, names of hosts in HTTP requests, and addresses of the Internet. Messages
//! about the first use Kubernetes' wording, so that a search finds them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

// Checks of the `Host` and `Origin` headers of HTTP requests.

/// Names by which an HTTP API may be addressed, besides IP addresses and `localhost`.
///
/// A browser on this machine reaches APIs on loopback, and sends a page's requests with the name of the page: without
/// this check, a page whose name was pointed at 127.0.0.1 would read them (DNS rebinding).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(BTreeSet<String>);

/// Parts of the head of a request to an API that decide whether it may be answered.
#[derive(Debug, Clone, Default)]
pub struct RequestOrigin<'a> {
    /// Values of `Host`, and the authority of the request's target, if any.
    pub hosts: Vec<&'a [u8]>,
    /// Value of `Origin`: browsers send it with each POST.
    pub origin: Option<&'a [u8]>,
    /// Value of `Content-Type`, for a POST that must be JSON: pages of others may send only other types unasked.
    pub json: Option<&'a [u8]>,
}

/// Reason for refusing a request that a browser may have sent for somebody else's page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignRequest {
    /// The host is neither an address nor a known name.
    #[error("this API does not answer to the name `{0}`")]
    Host(String),
    /// The page that sent the request is not from this API.
    #[error("the request comes from a page of `{0}`, not from this API")]
    Origin(String),
    /// The body of a POST is not declared as JSON.
    #[error("a POST needs `Content-Type: application/json`, not `{0}`")]
    ContentType(String),
}

impl ForeignRequest {
    /// Returns the HTTP status: misdirected request, forbidden, or unsupported media type.
    pub fn status(&self) -> u16 {
        match self {
            Self::Host(_) => 421,
            Self::Origin(_) => 403,
            Self::ContentType(_) => 415,
        }
    }

    /// Returns the remedy; `daemon` is the command that takes `--allow-host`.
    pub fn help(&self, daemon: &str) -> String {
        match self {
            Self::Host(name) => {
                format!("use its IP address or localhost, or start {daemon} with --allow-host {name}")
            }
            Self::Origin(_) => "call it from a program; browsers may not".to_owned(),
            Self::ContentType(_) => "send that header, as minik8s does".to_owned(),
        }
    }
}

impl HostNames {
    /// Creates the set of these names, with or without a port; neither case nor a dot at the end counts.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| host_name(&name)).collect())
    }

    /// True if `host`, as in a `Host` header with or without a port, is an IP address, `localhost` or one of the names.
    pub fn has(&self, host: &str) -> bool {
        let name = host_name(host);
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }

    /// Checks a request to an API that only programs and its own pages may use.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn check(&self, request: &RequestOrigin<'_>) -> Result<(), ForeignRequest> {
        let shown = |bytes: &[u8]| -> String {
            String::from_utf8_lossy(bytes)
                .chars()
                .take(HOST_SHOWN_CHARS)
                .flat_map(char::escape_debug)
                .collect()
        };
        let hosts = || request.hosts.iter().map(|host| String::from_utf8_lossy(host));
        if let Some(foreign) = hosts().find(|host| !self.has(host)) {
            return Err(ForeignRequest::Host(host_name(&shown(foreign.as_bytes()))));
        }
        if let Some(origin) = request.origin
            && !hosts().any(|host| is_own_origin(&String::from_utf8_lossy(origin), &host))
        {
            return Err(ForeignRequest::Origin(shown(origin)));
        }
        match request.json {
            Some(given) if !is_json(given) => Err(ForeignRequest::ContentType(shown(given))),
            _ => Ok(()),
        }
    }
}

/// True for the name of a host as in a URL, without a port: labels of letters, digits, `-` and `_`, joined by dots.
pub fn is_host_name(text: &str) -> bool {
    let fits = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= SUBDOMAIN_MAX_CHARS && text.trim_end_matches('.').split('.').all(fits)
}

/// Most characters of a stranger's header that a message repeats.
const HOST_SHOWN_CHARS: usize = 80;

/// True if a page with this `Origin` was loaded from `host`, whatever the scheme: a proxy may end TLS.
pub fn is_own_origin(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// True for an `http://` URL of another machine: whoever is on the way there reads and changes everything.
pub fn is_in_clear(url: &str) -> bool {
    let Some((scheme, rest)) = url.trim().split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host_name(authority.rsplit('@').next().unwrap_or_default());
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    scheme.eq_ignore_ascii_case("http") && !is_here
}

/// Returns the name or address in `name`, `name:port`, `address:port` or `[address]:port`, in lower case.
fn host_name(host: &str) -> String {
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// True for `application/json` with any parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

// Addresses of the Internet.

/// Addresses at which Azure, Alibaba, AWS and Google serve the metadata of a machine, beside 169.254.169.254.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Returns the IPv4 address to which an IPv6 address leads: a mapped one, or through NAT64 or 6to4. Other addresses lead
/// to themselves.
pub fn embedded_address(address: IpAddr) -> IpAddr {
    let IpAddr::V6(outer) = address else { return address };
    match (outer.to_ipv4_mapped(), outer.segments()) {
        (Some(inner), _) => inner.into(),
        (None, [0x64, 0xff9b, 0, 0, 0, 0, high, low]) | (None, [0x2002, high, low, ..]) => {
            Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into()
        }
        _ => address,
    }
}

/// True for a link-local address, in any form, and for one at which a cloud serves the metadata of a machine.
pub fn is_link_local(address: IpAddr) -> bool {
    let address = embedded_address(address);
    METADATA.contains(&address)
        || match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

/// True for an address of the Internet: not the machine, its networks, or a cloud's metadata.
pub fn is_public_address(address: IpAddr) -> bool {
    !is_link_local(address)
        && match embedded_address(address) {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                !(a == 0
                    || a >= 224
                    || address.is_private()
                    || address.is_loopback()
                    || address.is_documentation()
                    || (a == 100 && b & 0xc0 == 64)
                    || (a == 192 && b == 0 && c == 0)
                    || (a == 198 && b & 0xfe == 18))
            }
            IpAddr::V6(address) => {
                let [first, second, ..] = address.segments();
                first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0xdb8)
            }
        }
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

    #[test]
    fn only_this_machine_is_reached_in_clear() {
        for open in [
            "http://192.0.2.1:2379",
            "HTTP://etcd.lan",
            "http://[2001:db8::1]:2379/x",
            "http://127.0.0.1@10.0.0.1:2379",
            "http://127.0.0.1.evil.example",
        ] {
            assert!(is_in_clear(open), "{open}");
        }
        for fine in [
            "https://192.0.2.1:2379",
            "http://127.0.0.1:2379",
            "http://[::1]:2379",
            "http://localhost",
            "unix:///run/a",
            "192.0.2.1:2379",
        ] {
            assert!(!is_in_clear(fine), "{fine}");
        }
    }

    // Would fail with names compared by their end, with every host allowed, and with `Origin` not compared.
    #[test]
    fn an_api_answers_to_addresses_and_its_own_names_and_to_no_page_of_another() {
        let names = HostNames::new(["Api.Example.org".to_owned()]);
        for own in [
            "127.0.0.1:7070",
            "192.0.2.1",
            "[::1]:7070",
            "localhost:7070",
            "LOCALHOST",
            "api.example.org:7070",
            "API.example.org.",
        ] {
            assert!(names.has(own), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "example.org",
        ] {
            assert!(!names.has(foreign), "{foreign}");
        }
        let check = |host: &str, origin: Option<&str>, json: Option<&str>| {
            let (origin, json) = (origin.map(str::as_bytes), json.map(str::as_bytes));
            let request = RequestOrigin { hosts: vec![host.as_bytes()], origin, json };
            names.check(&request).map_or_else(|refused| refused.status(), |()| 200)
        };
        let (json, own) = (Some("application/JSON; charset=utf-8"), Some("http://127.0.0.1:7070"));
        for (host, origin, content, status) in [
            ("127.0.0.1:7070", None, None, 200),
            ("127.0.0.1:7070", own, json, 200),
            ("api.example.org", Some("https://api.example.org"), json, 200),
            ("evil.example", Some("http://evil.example"), json, 421),
            ("127.0.0.1:7070", Some("http://evil.example"), json, 403),
            ("127.0.0.1:7070", Some("http://127.0.0.1:8000"), json, 403),
            ("127.0.0.1:7070", Some("null"), json, 403),
            ("127.0.0.1:7070", own, Some("text/plain"), 415),
            ("127.0.0.1:7070", None, Some(""), 415),
        ] {
            assert_eq!(check(host, origin, content), status, "{host} {origin:?} {content:?}");
        }
        let two: [&[u8]; 2] = [b"127.0.0.1", b"evil.example\x1b"];
        let refused =
            names.check(&RequestOrigin { hosts: two.to_vec(), ..RequestOrigin::default() }).unwrap_err();
        assert_eq!(
            refused,
            ForeignRequest::Host("evil.example\\u{1b}".to_owned()),
            "each of two hosts counts"
        );
        assert!(refused.help("minik8s serve").contains("--allow-host evil.example"));
    }

    #[test]
    fn addresses_of_the_machine_its_networks_and_clouds_are_not_public() {
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:a00:1::1",
            "168.63.129.16",
            "64:ff9b::a83f:8110",
        ] {
            assert!(!is_public_address(address.parse().unwrap()), "{address}");
        }
        for address in
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "::ffff:1.1.1.1", "64:ff9b::101:101"]
        {
            assert!(is_public_address(address.parse().unwrap()), "{address}");
        }
    }
}
