//! Registry logins from the pod's `imagePullSecrets`, decrypted on this node.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use schema::content_refs::Files;
use schema::image::{DOCKER_HUB, ImageName, is_docker_hub};
use schema::records::PodInstance;
use schema::secrets::format;
use schema::secrets::format::Format;
use serde::Deserialize;

use super::PodFiles;
use crate::worlds::docker::RegistryLogin;

/// Source of registry logins.
#[async_trait]
pub trait Credentials: Send + Sync + 'static {
    /// Returns the logins for an image of a pod, in the order in which to try them; an empty list means a pull
    /// without login. The error is a sentence that names what can't be read, without any content.
    async fn logins(&self, pod: &PodInstance, image: &str) -> Result<Vec<RegistryLogin>, String>;
}

#[cfg(any(test, feature = "fakes"))]
/// Credentials without any login.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCredentials;

#[cfg(any(test, feature = "fakes"))]
#[async_trait]
impl Credentials for NoCredentials {
    async fn logins(&self, _pod: &PodInstance, _image: &str) -> Result<Vec<RegistryLogin>, String> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Credentials for PodFiles {
    async fn logins(&self, pod: &PodInstance, image: &str) -> Result<Vec<RegistryLogin>, String> {
        let mut logins = Vec::new();
        for secret in &pod.spec.image_pull_secrets {
            logins.extend(logins_of(self, &pod.files, &pod.namespace, &secret.name, image).await?);
        }
        Ok(logins)
    }
}

/// Returns the logins for an image in one secret among `files`, for use in `namespace`. The error is a sentence
/// without any content.
pub async fn logins_of(
    from: &PodFiles,
    files: &Files,
    namespace: &str,
    secret: &str,
    image: &str,
) -> Result<Vec<RegistryLogin>, String> {
    let opened = from.open_secret(files, namespace, secret).await;
    let (_, plain) = opened.map_err(|error| error.to_string())?;
    let entries =
        parse(&plain).map_err(|error| format!("secret {secret} is not a registry login: {error}"))?;
    Ok(logins_for(image, &entries))
}

// Registry logins as secrets hold them, and the selection of those for an image. Pure.

/// A login and the images that it applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryEntry {
    /// Registry host, optionally with `*` for a label or part of one, optionally with a port.
    host: String,
    /// Prefix of the image's repository; empty matches all.
    path: String,
    login: RegistryLogin,
}

const FORMATS: &str = "give a Docker config.json with `auths`, or the keys registry, username and password";

fn wrong<T>(why: impl Into<String>) -> Result<T, String> {
    Err(why.into())
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// Parses the logins of one decrypted secret: a Docker `config.json`, the older `.dockercfg` (the same without
/// `auths`), or a JSON or YAML map or `key=value` lines with registry, username, password. The error never contains
/// any of the secret's content.
pub fn parse(secret: &[u8]) -> Result<Vec<RegistryEntry>, String> {
    let Ok(text) = std::str::from_utf8(secret) else {
        return wrong(format!("it is not text; {FORMATS}"));
    };
    if !text.trim_start().starts_with('{') {
        return from_keys(&texts(text).unwrap_or_else(|| lines(text)));
    }
    // The messages of serde's errors quote values, so none of them is passed on.
    if let Ok(keys) = serde_json::from_str::<BTreeMap<String, String>>(text) {
        return from_keys(&keys);
    }
    let auths = match serde_json::from_str::<DockerConfig>(text) {
        Ok(config) => config.auths,
        Err(_) => match serde_json::from_str::<BTreeMap<String, Auth>>(text) {
            Ok(auths) => auths,
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                return wrong(format!("it can't be read (line {line}, column {column}); {FORMATS}"));
            }
        },
    };
    auths.into_iter().map(|(server, auth)| docker_entry(&server, auth)).collect()
}

/// Parses a secret given as keys: those of Kubernetes' registry secrets, or registry, username and password.
pub fn from_keys(keys: &BTreeMap<String, String>) -> Result<Vec<RegistryEntry>, String> {
    for file in [".dockerconfigjson", ".dockercfg", "config.json"] {
        if let Some(config) = keys.get(file) {
            return parse(config.as_bytes());
        }
    }
    let key = |name: &str| match keys.get(name).map(|value| value.trim()).filter(|value| !value.is_empty()) {
        Some(value) => Ok(value.to_owned()),
        None => wrong(format!("it has no `{name}`; {FORMATS}")),
    };
    let auth = Auth { username: key("username")?, password: key("password")?, ..Auth::default() };
    Ok(vec![docker_entry(&key("registry")?, auth)?])
}

/// Parses a map from keys to texts; `None` if it is something else.
fn texts(text: &str) -> Option<BTreeMap<String, String>> {
    let entries = format::entries(Format::Map, text.as_bytes()).ok()?;
    entries.into_iter().map(|(key, value)| Some((key, String::from_utf8(value).ok()?))).collect()
}

fn lines(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = pairs.filter_map(|line| line.split_once([':', '=']));
    let bare = |value: &str| {
        let quoted = |q: char| value.len() > 1 && value.starts_with(q) && value.ends_with(q);
        let inner = if quoted('"') || quoted('\'') { &value[1..value.len() - 1] } else { value };
        inner.to_owned()
    };
    pairs.map(|(key, value)| (key.trim().to_owned(), bare(value.trim()))).collect()
}

fn docker_entry(server: &str, auth: Auth) -> Result<RegistryEntry, String> {
    let (mut username, mut password) = (auth.username, auth.password);
    if !auth.auth.is_empty() {
        let trimmed = auth.auth.trim().trim_end_matches('=');
        let decoded = STANDARD_NO_PAD.decode(trimmed).or_else(|_| STANDARD.decode(auth.auth.trim()));
        let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded.as_deref().and_then(|text| text.split_once(':')) {
            Some((user, pass)) => {
                username = user.to_owned();
                // Some old tools pad with NUL bytes.
                password = pass.trim_end_matches('\0').to_owned();
            }
            None => return wrong(format!("`auth` of {server} is not user:password in base64")),
        }
    }
    if auth.identitytoken.is_empty() && (username.is_empty() || password.is_empty()) {
        return wrong(format!("{server} has no user and password; {FORMATS}"));
    }
    let bare = server.trim().trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = bare.trim_end_matches('/').split_once('/').unwrap_or((bare.trim_end_matches('/'), ""));
    // Docker itself writes its hub as `https://index.docker.io/v1/`.
    let path = ["v1", "v2"].iter().find_map(|v| path.strip_prefix(v)).map_or(path, |p| p.trim_matches('/'));
    if host.is_empty() {
        return wrong(format!("a login names no registry; {FORMATS}"));
    }
    let host = if is_docker_hub(host) { DOCKER_HUB } else { host };
    let login = RegistryLogin {
        // The engine expects its hub under the name that `docker login` writes.
        server: if host == DOCKER_HUB { "https://index.docker.io/v1/".to_owned() } else { host.to_owned() },
        username,
        password,
        identity_token: auth.identitytoken,
    };
    Ok(RegistryEntry { host: host.to_owned(), path: path.to_owned(), login })
}

/// Returns the logins for an image in the order in which to try them: the longest path first, an exact host before
/// one with `*`, else in the given order. No duplicates.
pub fn logins_for(image: &str, entries: &[RegistryEntry]) -> Vec<RegistryLogin> {
    let name = ImageName::parse(image);
    let mut fitting: Vec<&RegistryEntry> = entries.iter().filter(|entry| fits(entry, &name)).collect();
    fitting.sort_by_key(|entry| (std::cmp::Reverse(entry.path.len()), entry.host.contains('*')));
    let mut logins: Vec<RegistryLogin> = Vec::new();
    for entry in fitting {
        // A pattern names no registry; the image does.
        let server =
            if entry.host.contains('*') { name.registry.clone() } else { entry.login.server.clone() };
        let login = RegistryLogin { server, ..entry.login.clone() };
        if !logins.contains(&login) {
            logins.push(login);
        }
    }
    logins
}

/// Matches as Kubernetes does: equal ports, the same number of labels, label by label, the path up to a `/`.
fn fits(entry: &RegistryEntry, image: &ImageName) -> bool {
    let port = |host: &str| host.rsplit_once(':').map(|(_, port)| port.to_owned());
    let labels = |host: &str| {
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        host.split('.').map(str::to_ascii_lowercase).collect::<Vec<_>>()
    };
    let (pattern, host) = (labels(&entry.host), labels(&image.registry));
    let in_path = entry.path.is_empty()
        || image
            .repository
            .strip_prefix(&entry.path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    port(&entry.host) == port(&image.registry)
        && pattern.len() == host.len()
        && pattern.iter().zip(&host).all(|(pattern, label)| glob(pattern, label))
        && in_path
}

/// Matches a pattern in which `*` stands for any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && glob(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(servers: &[&str]) -> Vec<RegistryEntry> {
        let auths: Vec<String> = servers
            .iter()
            .map(|server| {
                let auth = STANDARD.encode(format!("{server}:pw"));
                format!("{server:?}: {{\"auth\": {auth:?}}}")
            })
            .collect();
        parse(format!("{{\"auths\": {{{}}}}}", auths.join(",")).as_bytes()).unwrap()
    }

    /// Returns the users of the selected logins. The user is the entry's own name, so it shows which entry was
    /// selected.
    fn users(image: &str, servers: &[&str]) -> Vec<String> {
        logins_for(image, &config(servers)).into_iter().map(|login| login.username).collect()
    }

    #[test]
    fn images_get_the_logins_of_their_registry_longest_path_first() {
        // Names with `:` would end the user in `auth`, so ports have a separate test.
        for (image, servers, expected) in [
            ("reg.example/app:1", vec!["reg.example", "other.example"], vec!["reg.example"]),
            (
                "reg.example/team/app",
                vec!["reg.example", "reg.example/team"],
                vec!["reg.example/team", "reg.example"],
            ),
            ("reg.example/teams/app", vec!["reg.example/team"], vec![]),
            ("reg.example/team/sub/app@sha256:ab", vec!["reg.example/team/"], vec!["reg.example/team/"]),
            ("busybox", vec!["docker.io"], vec!["docker.io"]),
            ("team/app:1", vec!["index.docker.io/v1/"], vec!["index.docker.io/v1/"]),
            ("docker.io/team/app", vec!["registry-1.docker.io/team"], vec!["registry-1.docker.io/team"]),
            ("busybox", vec!["reg.example"], vec![]),
            (
                "a.reg.example/app",
                vec!["*.reg.example", "a.reg.example"],
                vec!["a.reg.example", "*.reg.example"],
            ),
            ("a.b.reg.example/app", vec!["*.reg.example"], vec![]),
            ("prod-eu.reg.example/app", vec!["prod-*.reg.example"], vec!["prod-*.reg.example"]),
            ("reg.example:5000/app", vec!["reg.example"], vec![]),
        ] {
            assert_eq!(users(image, &servers), expected, "{image} {servers:?}");
        }
    }

    #[test]
    fn ports_have_to_be_equal_and_schemes_do_not_count() {
        let secret = br#"{"auths": {"https://127.0.0.1:5000": {"username": "u", "password": "p"}}}"#;
        let entries = parse(secret).unwrap();
        assert_eq!(logins_for("127.0.0.1:5000/app:1", &entries)[0].server, "127.0.0.1:5000");
        assert!(logins_for("127.0.0.1:5001/app:1", &entries).is_empty());
        assert!(logins_for("127.0.0.1/app:1", &entries).is_empty());
    }

    #[test]
    fn all_formats_give_the_same_login() {
        let inner = r#"{"auths":{"h:1":{"auth":"dTpwOndpdGg="}}}"#;
        let wrapped = serde_json::json!({".dockerconfigjson": inner}).to_string();
        for secret in [
            inner,
            r#"{"h:1":{"auth":"dTpwOndpdGg"}}"#,
            r#"{"h:1":{"username":"u","password":"p:with"}}"#,
            r#"{"registry":"h:1","username":"u","password":"p:with"}"#,
            "# a note\nregistry: h:1\nusername: u\npassword: \"p:with\"\n",
            "registry=h:1\nusername=u\npassword='p:with'",
            wrapped.as_str(),
        ] {
            let logins =
                logins_for("h:1/app", &parse(secret.as_bytes()).unwrap_or_else(|e| panic!("{secret}: {e}")));
            assert_eq!(logins.len(), 1, "{secret}");
            assert_eq!(
                (logins[0].username.as_str(), logins[0].password.as_str()),
                ("u", "p:with"),
                "{secret}"
            );
        }
    }

    #[test]
    fn what_is_no_login_says_what_to_give_and_nothing_of_what_is_in_it() {
        for secret in [
            "hunter2",
            "registry: h\nusername: u",
            r#"{"auths": {"h": {"auth": "hunter2"}}}"#,
            r#"{"auths": {"h": {"username": "u"}}}"#,
            r#"{"auths": {"": {"username": "u", "password": "hunter2"}}}"#,
            r#"{"auths": "hunter2"}"#,
            "{hunter2",
        ] {
            let error = parse(secret.as_bytes()).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
        }
        assert!(parse(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn no_entry_shows_its_password() {
        let text = format!("{:?}", config(&["reg.example"]));
        assert!(text.contains("reg.example") && !text.contains("pw"), "{text}");
    }
}
