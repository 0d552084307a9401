//! The server that a command queries: the socket of this machine, a reconciler elsewhere, or plain loopback.
//!
//! Reads `--server`, MINIK8S_CONFIG, the socket's presence and the user's file; decides which of them counts, and why a
//! connection failed for good.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use jiff::Timestamp;
use nix::unistd::{AccessFlags, access};
use reqwest::Url;
use schema::trust::{Certificate, Credentials, KeyPair, Role, TrustError, TrustReader, bundle_from_pem};
use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::output::print_error;
use crate::config::{DEFAULT_SOCKET, DEFAULT_STATE_DIR};
use crate::outgoing::{self, CommandClient};
use crate::text_file::read_text;
use crate::trust::pki_dir;

/// Path of a person's file, below the home folder.
const USER_FILE: &str = ".config/minik8s/user.json";
/// Environment variable that names another file.
const USER_FILE_VARIABLE: &str = "MINIK8S_CONFIG";

/// File with which a person reaches the cluster, as `minik8s user add` writes it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UserFile {
    /// URLs of the reconcilers' APIs.
    pub(super) servers: Vec<String>,
    /// Trusted authorities (PEM).
    pub(super) authorities: String,
    /// The person's certificate (PEM).
    pub(super) certificate: String,
    /// Private key of that certificate (PEM).
    pub(super) key: String,
}

impl UserFile {
    fn credentials(&self) -> Result<Credentials, TrustError> {
        let certificate = Certificate::from_pem(&self.certificate)?;
        let authorities = bundle_from_pem(&self.authorities)?;
        Credentials::new(&KeyPair::from_pem(&self.key)?, certificate, authorities, Default::default())
    }
}

/// Server that a command queries.
pub(super) enum Server {
    /// Unix socket of the reconciler on this machine, which knows users by their ids.
    Socket(PathBuf),
    /// Reconciler that knows a person by the certificate in a file.
    Tls { url: Url, file: PathBuf, trust: TrustReader },
    /// Loopback without TLS: a tunnel, or a proxy.
    Plain(Url),
}

impl Server {
    /// Finds the server at an address, or without one the server that this user most likely means.
    ///
    /// # Errors
    /// The address is wrong, or its certificate is missing, damaged or has ended.
    pub(super) fn find(given: Option<&str>) -> Result<Self, CliError> {
        let home = std::env::home_dir().map(|home| home.join(USER_FILE));
        let surroundings = Surroundings {
            named_file: std::env::var_os(USER_FILE_VARIABLE)
                .filter(|file| !file.is_empty())
                .map(PathBuf::from),
            home_file: home.filter(|file| file.exists()),
            has_socket: access(DEFAULT_SOCKET, AccessFlags::W_OK).is_ok(),
        };
        match choose(given.filter(|given| !given.is_empty()), surroundings)? {
            Choice::Socket(path) => Ok(Self::Socket(path)),
            Choice::Plain(url) => Ok(Self::Plain(url)),
            Choice::File { url, file } => {
                let text = read_text(&file).map_err(|error| unusable(&file, &error.to_string()))?;
                if is_open(&file) {
                    let file = file.display();
                    print_error(&format!(
                        "other users may read the private key in {file}; run 'chmod 600 {file}'"
                    ));
                }
                Self::of_file(url, file, &text, Timestamp::now())
            }
        }
    }

    /// Uses a user's file: its first server, unless there is a URL.
    fn of_file(url: Option<Url>, file: PathBuf, text: &str, now: Timestamp) -> Result<Self, CliError> {
        let content: UserFile =
            serde_json::from_str(text).map_err(|error| unusable(&file, &error.to_string()))?;
        let credentials = content.credentials().map_err(|error| unusable(&file, &error.to_string()))?;
        let end = credentials.certificate().not_after().map_err(|e| unusable(&file, &e.to_string()))?;
        if end <= now {
            let (identity, file) = (credentials.identity(), file.display());
            return Err(CliError::NotReached(format!(
                "the certificate of {identity} in {file} ended at {end}; 'minik8s user add {}' on a reconciler \
                 creates a new file",
                identity.name()
            )));
        }
        let first = content.servers.first();
        let url = match (url, first.map(|first| first.parse::<Url>())) {
            (Some(url), _) => url,
            (None, Some(Ok(first))) if first.scheme() == "https" => first,
            (None, _) => return Err(unusable(&file, "its first server is not https://HOST:PORT")),
        };
        Ok(Self::Tls { url, file, trust: TrustReader::fixed(credentials) })
    }

    /// URL with which requests begin.
    pub(super) fn url(&self) -> Result<Url, CliError> {
        match self {
            Self::Socket(_) => Url::parse(outgoing::SOCKET_URL)
                .map_err(|error| CliError::Usage(format!("{}: {error}", outgoing::SOCKET_URL))),
            Self::Tls { url, .. } | Self::Plain(url) => Ok(url.clone()),
        }
    }

    /// Client for this server.
    pub(super) fn client(&self, connect: Duration) -> CommandClient {
        match self {
            Self::Socket(path) => CommandClient::through_socket(path.clone()),
            Self::Tls { trust, .. } => {
                CommandClient::over_tcp(Some(trust.clone()), Role::Reconciler, connect)
            }
            Self::Plain(_) => CommandClient::over_tcp(None, Role::Reconciler, connect),
        }
    }

    /// Credentials for other daemons: the person's, or the reconciler's on this machine for those who may read them.
    pub(super) fn trust(&self) -> Result<TrustReader, TrustError> {
        let state_dir = match self {
            Self::Tls { trust, .. } => return Ok(trust.clone()),
            Self::Socket(path) => state_dir_of(path),
            Self::Plain(_) => None,
        };
        let unknown = || {
            TrustError::Content(format!(
                "the certificate for the cluster of {self} is not known; give --server an https address or the socket in \
                 the state directory"
            ))
        };
        Credentials::load(&pki_dir(state_dir.ok_or_else(unknown)?)).map(TrustReader::fixed)
    }

    /// True if the server is that of this machine, at the socket that commands use without --server.
    pub(super) fn is_usual(&self) -> bool {
        matches!(self, Self::Socket(path) if path == Path::new(DEFAULT_SOCKET))
    }

    /// True for the socket that commands use without --server.
    pub(super) fn is_default_socket(address: &str) -> bool {
        address.strip_prefix("unix://") == Some(DEFAULT_SOCKET)
    }

    /// Explains a failure that lasts until somebody changes something; `None` if a retry may help. `why` is the innermost
    /// error.
    pub(super) fn lasting_failure(&self, kind: Option<ErrorKind>, why: &str) -> Option<String> {
        match self {
            Self::Socket(path) if kind == Some(ErrorKind::PermissionDenied) => Some(format!(
                "no permission to use {}: you are not in the group minik8s; run as root, or let root run 'usermod -aG \
                 minik8s USER' and log in again, or name a file of 'minik8s user add NAME' in {USER_FILE_VARIABLE}",
                path.display()
            )),
            Self::Tls { url, file, .. } => tls_failure(url, file, why),
            Self::Socket(_) | Self::Plain(_) => None,
        }
    }

    /// Explains a failure that may pass.
    pub(super) fn passing_failure(&self, is_connected: bool, why: String) -> String {
        match self {
            Self::Socket(path) if !path.exists() => {
                format!("no such socket (elsewhere, save a file of 'minik8s user add NAME' as ~/{USER_FILE})")
            }
            // TLS 1.3 refuses a client after the client's part of the handshake.
            Self::Tls { .. } if is_connected => {
                format!("{why}; it also ends connections of users who were removed, or have a newer file")
            }
            _ => why,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{}", path.display()),
            Self::Tls { url, .. } | Self::Plain(url) => f.write_str(url.as_str().trim_end_matches('/')),
        }
    }
}

/// True if others than its owner may read or change a file.
fn is_open(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.mode() & 0o077 != 0)
}

/// State directory of the reconciler that listens on a socket, if that is in its usual place.
fn state_dir_of(socket: &Path) -> Option<&Path> {
    if socket == Path::new(DEFAULT_SOCKET) {
        return Some(Path::new(DEFAULT_STATE_DIR));
    }
    let is_usual = socket.ends_with("run/api.sock") || socket.ends_with("reconciler/api.sock");
    if is_usual { socket.parent()?.parent() } else { None }
}

fn unusable(file: &Path, why: &str) -> CliError {
    CliError::NotReached(format!(
        "cannot use the certificate in {}: {why}; 'minik8s user add NAME' on a reconciler creates such a file",
        file.display()
    ))
}

fn tls_failure(url: &Url, file: &Path, why: &str) -> Option<String> {
    let (server, file) = (url.as_str().trim_end_matches('/'), file.display());
    if why.contains("certificate has expired") || why.contains("certificate is not yet valid") {
        return Some(format!(
            "the certificate of {server} is not valid at this time ({why}); compare the clocks of both machines, and see \
             whether the reconciler can write its certificate"
        ));
    }
    if why.contains("certificate of the other side") {
        return Some(format!(
            "{server} belongs to another cluster than {file}, has replaced its authority since ('minik8s trust rotate'), or \
             is not what it claims to be ({why}); name another server with --server, or create a new file with 'minik8s \
             user add NAME' on a reconciler"
        ));
    }
    if why.contains("answered in place of") || why.contains("was revoked") {
        return Some(format!("{server} is not to be trusted as a reconciler: {why}; check --server"));
    }
    why.contains(" alert ").then(|| {
        format!(
            "{server} refuses the certificate in {file} ({why}); create a new file with 'minik8s user add NAME' on a \
             reconciler of this cluster"
        )
    })
}

/// Facts of the machine on which the choice depends.
struct Surroundings {
    /// File that MINIK8S_CONFIG names.
    named_file: Option<PathBuf>,
    /// The user's own file, if it exists.
    home_file: Option<PathBuf>,
    /// Set if the default socket exists, and this user may use it.
    has_socket: bool,
}

/// Way to a server.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Socket(PathBuf),
    Plain(Url),
    /// With the certificate in a file, and to its first server if there is no URL.
    File {
        url: Option<Url>,
        file: PathBuf,
    },
}

/// Chooses by precedence: the address, MINIK8S_CONFIG, this machine's socket, the user's own file.
fn choose(given: Option<&str>, surroundings: Surroundings) -> Result<Choice, CliError> {
    let Surroundings { named_file, home_file, has_socket } = surroundings;
    if let Some(given) = given {
        return address(given, named_file.or(home_file));
    }
    Ok(match (named_file, home_file) {
        (Some(file), _) => Choice::File { url: None, file },
        (None, Some(file)) if !has_socket => Choice::File { url: None, file },
        _ => Choice::Socket(DEFAULT_SOCKET.into()),
    })
}

fn address(given: &str, file: Option<PathBuf>) -> Result<Choice, CliError> {
    let wrong = |why: &str| {
        CliError::Usage(format!(
            "--server {given}: {why}; write it as unix://{DEFAULT_SOCKET}, https://HOST:PORT, or http:// on loopback"
        ))
    };
    if let Some(path) = given.strip_prefix("unix://") {
        return match path.starts_with('/') {
            true => Ok(Choice::Socket(path.into())),
            false => Err(wrong("the path is not absolute")),
        };
    }
    let url: Url = outgoing::with_scheme(given).parse().map_err(|_| wrong("not an address"))?;
    match (url.scheme(), file) {
        ("http", _) if is_loopback(&url) => Ok(Choice::Plain(url)),
        ("http", _) => Err(wrong("everything but loopback needs TLS")),
        ("https", Some(file)) => Ok(Choice::File { url: Some(url), file }),
        ("https", None) => Err(CliError::Usage(format!(
            "--server {given} needs a certificate: create a file with 'minik8s user add NAME' on a reconciler, and save \
             it as ~/{USER_FILE} or name it in {USER_FILE_VARIABLE}"
        ))),
        _ => Err(wrong("unknown scheme")),
    }
}

/// True if no other machine can be meant.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use jiff::SignedDuration;
    use schema::trust::{Authority, LeafRequest};

    use super::*;

    fn chosen(given: Option<&str>, named: bool, home: bool, has_socket: bool) -> Result<Choice, String> {
        let surroundings = Surroundings {
            named_file: named.then(|| "/named.json".into()),
            home_file: home.then(|| "/home.json".into()),
            has_socket,
        };
        choose(given, surroundings).map_err(|error| error.to_string())
    }

    fn file(url: Option<&str>, file: &str) -> Choice {
        Choice::File { url: url.map(|url| url.parse().unwrap()), file: file.into() }
    }

    #[test]
    fn without_an_address_the_named_file_comes_before_the_socket_and_the_socket_before_the_own_file() {
        let socket = Choice::Socket("/run/minik8s/api.sock".into());
        assert_eq!(chosen(None, true, true, true).unwrap(), file(None, "/named.json"));
        assert_eq!(chosen(None, false, true, true).unwrap(), socket);
        assert_eq!(chosen(None, false, true, false).unwrap(), file(None, "/home.json"));
        // So that the error names the socket that `minik8s up` will make.
        assert_eq!(chosen(None, false, false, false).unwrap(), socket);
    }

    #[test]
    fn an_address_is_a_socket_a_server_with_a_certificate_or_plain_loopback() {
        let given = |given| chosen(Some(given), false, true, true);
        assert_eq!(given("unix:///tmp/a.sock"), Ok(Choice::Socket("/tmp/a.sock".into())));
        assert_eq!(given("https://r1:7070"), Ok(file(Some("https://r1:7070"), "/home.json")));
        for plain in ["http://127.0.0.1:7070", "localhost:7070", "http://[::1]:7070"] {
            let url = outgoing::with_scheme(plain).parse().unwrap();
            assert_eq!(given(plain), Ok(Choice::Plain(url)), "{plain}");
        }
        for (wrong, why) in [
            ("unix://a.sock", "not absolute"),
            ("http://10.0.0.5:7070", "needs TLS"),
            ("http://127.0.0.1.example.org", "needs TLS"),
            ("r1:7070", "needs TLS"),
            ("ftp://r1", "unknown scheme"),
            ("http://", "not an address"),
        ] {
            let error = given(wrong).unwrap_err();
            assert!(error.contains(why) && error.contains(wrong), "{wrong}: {error}");
        }
        let error = chosen(Some("https://r1:7070"), false, false, true).unwrap_err();
        assert!(error.contains("minik8s user add") && error.contains("MINIK8S_CONFIG"), "{error}");
    }

    fn start() -> Timestamp {
        Timestamp::from_second(2_000_000_000).unwrap()
    }

    /// Text of ada's file, valid for an hour from the start.
    fn user_file(servers: &[&str]) -> String {
        let (now, hour) = (start(), SignedDuration::from_hours(1));
        let (authority, key) = (Authority::create(hour, now).unwrap(), KeyPair::generate().unwrap());
        let (identity, public) = ("user-ada".parse().unwrap(), key.public_key().unwrap());
        let leaf = LeafRequest { identity: &identity, key: &public, addresses: &[], lifetime: hour };
        let content = UserFile {
            servers: servers.iter().map(ToString::to_string).collect(),
            authorities: authority.certificate().to_pem().unwrap(),
            certificate: authority.sign(&leaf, now).unwrap().to_pem().unwrap(),
            key: key.to_pem().unwrap(),
        };
        serde_json::to_string(&content).unwrap()
    }

    #[test]
    fn a_users_file_leads_to_its_first_server_until_its_certificate_ends() {
        let text = user_file(&["https://r1:7070", "https://r2:7070"]);
        let early = start() + SignedDuration::from_mins(59);
        let of_file = |url: Option<&str>, text: &str, now| {
            let url = url.map(|url| url.parse().unwrap());
            let found = Server::of_file(url, "/ada.json".into(), text, now);
            found.map(|server| server.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(of_file(None, &text, early), Ok("https://r1:7070".to_owned()));
        assert_eq!(of_file(Some("https://r9:1"), &text, early), Ok("https://r9:1".to_owned()));
        let ended = of_file(None, &text, early + SignedDuration::from_mins(1)).unwrap_err();
        assert!(ended.contains("/ada.json ended at") && ended.contains("'minik8s user add ada'"), "{ended}");
        for text in [&user_file(&[]), &user_file(&["http://r1:7070"]), "{}", ""] {
            let error = of_file(None, text, early).unwrap_err();
            assert!(error.contains("cannot use the certificate in /ada.json"), "{error}");
        }
    }

    #[test]
    fn a_file_is_the_users_alone_only_without_rights_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("user.json");
        assert!(!is_open(&file));
        fs::write(&file, b"").unwrap();
        for (mode, expected) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_open(&file), expected, "{mode:o}");
        }
    }

    #[test]
    fn the_certificate_of_another_instance_is_not_that_of_the_usual_one() {
        for (socket, state_dir) in [
            ("/run/minik8s/api.sock", Some("/var/lib/minik8s")),
            ("/srv/two/run/api.sock", Some("/srv/two")),
            ("/srv/two/reconciler/api.sock", Some("/srv/two")),
            ("/tmp/a.sock", None),
        ] {
            assert_eq!(state_dir_of(Path::new(socket)), state_dir.map(Path::new), "{socket}");
        }
        assert!(Server::Socket(DEFAULT_SOCKET.into()).is_usual());
        assert!(!Server::Socket("/srv/two/run/api.sock".into()).is_usual());
        let plain = Server::Plain("http://127.0.0.1:7070".parse().unwrap());
        let error = plain.trust().err().map(|error| error.to_string()).unwrap();
        assert!(error.contains("http://127.0.0.1:7070 is not known"), "{error}");
    }

    #[test]
    fn a_failure_that_lasts_says_who_must_do_what() {
        let socket = Server::Socket("/run/minik8s/api.sock".into());
        let denied = std::io::Error::from(ErrorKind::PermissionDenied);
        let said = socket.lasting_failure(Some(denied.kind()), &denied.to_string()).unwrap();
        assert!(said.contains("not in the group minik8s") && said.contains("usermod -aG minik8s"), "{said}");
        assert!(said.contains("MINIK8S_CONFIG"), "{said}");
        assert_eq!(socket.lasting_failure(Some(ErrorKind::NotFound), "no such file"), None);

        let text = user_file(&["https://r1:7070"]);
        let tls = Server::of_file(None, "/ada.json".into(), &text, start()).unwrap();
        let other = "no TLS connection: certificate of the other side:";
        for (why, wanted) in [
            (format!("{other} certificate has expired"), "compare the clocks"),
            (format!("{other} self-signed certificate in certificate chain"), "another cluster"),
            ("node-n1 answered in place of a reconciler".to_owned(), "check --server"),
            ("error:0A000418:SSL routines::tlsv1 alert unknown ca:SSL alert number 48".to_owned(), "refuses"),
        ] {
            let said = tls.lasting_failure(Some(ErrorKind::Other), &why).unwrap();
            assert!(said.contains(wanted) && said.contains(&why), "{said}");
        }
        assert_eq!(tls.lasting_failure(Some(ErrorKind::ConnectionRefused), "connection refused"), None);
    }
}
