//! Secrets for reconcilers, stored in a source's repository and encrypted to this reconciler: credentials of another
//! source, `secrets/.sources/NAME.age`, and of targets of notifications, `secrets/.notifications/NAME.age`.
//!
//! Reads that source's mirror and this reconciler's identity at each use, and keeps nothing. The secret is bound
//! like those of pods: to its namespace, which no pod can have, and to its name. So one of one namespace is none of the
//! other.

use std::collections::BTreeMap;

use git2::{Oid, Repository};
use schema::content_refs::{
    LIMITS, NOTIFICATIONS_NAMESPACE, SECRET_ENDING, SECRETS_FOLDER, SOURCES_NAMESPACE, is_ciphertext,
    normalize_path,
};
use schema::kinds::cluster::NOTIFICATION_SECRET_KEYS;
use schema::secrets::format;

use crate::crypt;
use crate::git::config::{Reference, SealedCredentials};
use crate::git::{FirstSeen, signatures};
use crate::text_file::read_text;

/// Namespace of secrets for reconcilers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealedNamespace {
    /// Credentials of a source, by its name.
    Sources,
    /// Credentials of targets of notifications, by the name in `secretName`.
    Notifications,
}

impl SealedNamespace {
    fn name(self) -> &'static str {
        match self {
            Self::Sources => SOURCES_NAMESPACE,
            Self::Notifications => NOTIFICATIONS_NAMESPACE,
        }
    }

    /// Keys that its secrets may have.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Sources => &["token", "username", "sshKey", "knownHosts", "statusToken"],
            Self::Notifications => &NOTIFICATION_SECRET_KEYS,
        }
    }

    /// Line of a secret in place of a value without a key.
    fn example(self) -> &'static str {
        match self {
            Self::Sources => "token: …",
            Self::Notifications => "url: https://…",
        }
    }
}

/// Reason why there are no credentials, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {help}")]
pub struct CredentialsError {
    pub(super) why: String,
    pub(super) help: String,
}

fn missing<T>(why: String, help: impl Into<String>) -> Result<T, CredentialsError> {
    Err(CredentialsError { why, help: help.into() })
}

impl SealedCredentials {
    /// Reads the values of a secret by key. Blocks.
    pub fn read(
        &self,
        namespace: SealedNamespace,
        name: &str,
    ) -> Result<BTreeMap<String, String>, CredentialsError> {
        let seal = format!("'minik8s secrets seal {name} -n {} --from FILE' writes it", namespace.name());
        let (path, ciphertext) = self.ciphertext(namespace, name, &seal)?;
        if !is_ciphertext(&ciphertext) {
            let help = "seal it, and change its values before you push it";
            return missing(format!("{path} is not encrypted: {help}"), seal);
        }
        let text = read_text(&self.identity).map_err(|error| CredentialsError {
            why: format!("{} cannot be read: {error}", self.identity.display()),
            help: "let this user read it, or restart the reconciler, which creates it".to_owned(),
        })?;
        let identities = crypt::identities(&text, &self.identity)
            .or_else(|error| missing(format!("{error:#}"), "restore its content"))?;
        let plain = match crypt::decrypt(&ciphertext, &identities) {
            Ok(Some(plain)) => plain,
            Ok(None) => {
                let own = identities[0].to_public();
                let why = format!("{path} is not encrypted to this reconciler ({own})");
                let help = format!("'minik8s secrets recipients add NAME {own} --reconciler', then {seal}");
                return missing(why, help);
            }
            Err(error) => return missing(format!("{path} cannot be decrypted: {error:#}"), seal),
        };
        let (header, values) =
            format::split(&plain).or_else(|why| missing(format!("{path} {why}"), seal.as_str()))?;
        if header.namespace != namespace.name() || header.name != name {
            let why = format!("{path} is for {}/{}", header.namespace, header.name);
            return missing(why, seal);
        }
        let entries = format::entries(header.format, values)
            .or_else(|why| missing(format!("{path} {why}"), seal.as_str()))?;
        let text = |(key, value): (String, Vec<u8>)| match String::from_utf8(value) {
            Ok(value) if namespace.keys().contains(&key.as_str()) => Ok((key, value)),
            _ if key == format::WHOLE => missing(
                format!("{path} has a value without a known key"),
                format!("write `{}`; {seal}", namespace.example()),
            ),
            _ => {
                let why = format!("{path} has an unknown key `{key}`, or its value is not text");
                missing(why, format!("it may have only {}; {seal}", namespace.keys().join(", ")))
            }
        };
        entries.into_iter().map(text).collect()
    }

    /// Returns the ciphertext from the commit that the mirror holds now, if that commit may be applied: someone who
    /// can push but not sign must not replace credentials. Tries the source's folder first, then the root.
    fn ciphertext(
        &self,
        namespace: SealedNamespace,
        name: &str,
        seal: &str,
    ) -> Result<(String, Vec<u8>), CredentialsError> {
        let from = &self.home.name;
        let help = format!("wait until source {from} is fetched, or check why it is not");
        let unread = |error: git2::Error| CredentialsError {
            why: format!("the credentials in source {from} cannot be read: {}", error.message()),
            help: help.clone(),
        };
        let repository = Repository::open_bare(&self.mirror).map_err(unread)?;
        let commit = match &self.home.reference {
            Reference::Commit(id) => Oid::from_str(id).and_then(|id| repository.find_commit(id)),
            named => repository.find_reference(&named.full_name()).and_then(|found| found.peel_to_commit()),
        };
        let commit = commit.map_err(unread)?;
        let place = (self.mirror.as_path(), &repository);
        signatures::check_commit(&self.home, place, commit.id(), &FirstSeen::new()).or_else(|error| {
            missing(format!("the credentials in source {from} are not used: {error}"), help.as_str())
        })?;
        let tree = commit.tree().map_err(unread)?;
        let below = format!("{SECRETS_FOLDER}/{}/{name}{SECRET_ENDING}", namespace.name());
        for path in [normalize_path(&format!("{}/{below}", self.home.path)), below.clone()] {
            let Ok(entry) = tree.get_path(path.as_ref()) else { continue };
            let (size, _) = repository.odb().and_then(|odb| odb.read_header(entry.id())).map_err(unread)?;
            if size as u64 > LIMITS.secret_bytes {
                let why = format!("{path} of source {from} has more than {} KiB", LIMITS.secret_bytes / 1024);
                return missing(why, "it holds a token or a key and little else: seal it again");
            }
            let blob = repository.find_blob(entry.id()).map_err(unread)?;
            return Ok((path, blob.content().to_vec()));
        }
        missing(format!("source {from} has no {below}"), seal)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use age::x25519::Identity;

    use super::*;
    use crate::git::{SignaturePolicy, SourceConfig};

    /// Builds a mirror with this file in both namespaces, and the reader's identity.
    fn world(dir: &Path, ciphertext: &[u8], own: &Identity) -> SealedCredentials {
        let mirror = dir.join("mirror");
        let repository = Repository::init_bare(&mirror).unwrap();
        let blob = repository.blob(ciphertext).unwrap();
        let mut tree = repository.find_tree(repository.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let mut update = git2::build::TreeUpdateBuilder::new();
        update.upsert("secrets/.sources/apps.age", blob, git2::FileMode::Blob);
        update.upsert("secrets/.notifications/apps.age", blob, git2::FileMode::Blob);
        tree = repository.find_tree(update.create_updated(&repository, &tree).unwrap()).unwrap();
        let who = git2::Signature::now("a", "a@b").unwrap();
        repository.commit(Some("refs/heads/main"), &who, &who, "One", &tree, &[]).unwrap();
        let identity = dir.join("identity");
        fs::write(&identity, crypt::written(std::slice::from_ref(own), "own")).unwrap();
        let mut home = Box::new(SourceConfig::branch("main", "/srv/main.git", "main"));
        home.path = "clusters/lab".to_owned();
        SealedCredentials { home, mirror, identity }
    }

    #[test]
    fn they_are_read_by_whom_and_for_what_they_were_sealed() {
        let (own, other) = (Identity::generate(), Identity::generate());
        let read = |plain: &str, to: &Identity, source: &str| {
            let dir = tempfile::tempdir().unwrap();
            let ciphertext = crypt::encrypt(plain.as_bytes(), &[to.to_public()]).unwrap();
            world(dir.path(), &ciphertext, &own)
                .read(SealedNamespace::Sources, source)
                .map_err(|missing| missing.why + "; " + &missing.help)
        };
        let good = "namespace: .sources\nname: apps\n---\ntoken: canary\nusername: ada\n";
        let values = read(good, &own, "apps").unwrap();
        assert_eq!((values["token"].as_str(), values["username"].as_str()), ("canary", "ada"));
        let (pods, typo) = (good.replace(".sources", "shop"), good.replace("token", "tokne"));
        for (plain, to, source, part) in [
            (good, &other, "apps", "recipients add NAME age1"),
            (good, &own, "base", "has no secrets/.sources/base.age"),
            (&pods, &own, "apps", "is for shop/apps"),
            (&typo, &own, "apps", "`tokne`"),
            ("token: canary\n", &own, "apps", "has no header"),
        ] {
            let reported = read(plain, to, source).unwrap_err();
            assert!(reported.contains(part) && !reported.contains("canary"), "{reported}");
        }
    }

    // Would fail if the namespace in the header were not compared, or if both had the same keys.
    #[test]
    fn a_secret_of_one_namespace_is_none_of_the_other() {
        use SealedNamespace::{Notifications, Sources};
        let own = Identity::generate();
        let read = |plain: &str, namespace| {
            let dir = tempfile::tempdir().unwrap();
            let ciphertext = crypt::encrypt(plain.as_bytes(), &[own.to_public()]).unwrap();
            world(dir.path(), &ciphertext, &own).read(namespace, "apps").map_err(|error| error.to_string())
        };
        let (source, target) = (
            "namespace: .sources\nname: apps\n---\ntoken: canary\nstatusToken: bird\n",
            "namespace: .notifications\nname: apps\n---\nurl: https://a\nkey: canary\n",
        );
        assert_eq!(read(source, Sources).unwrap()["statusToken"], "bird");
        assert_eq!(read(target, Notifications).unwrap()["key"], "canary");
        for (plain, namespace, part) in [
            (source, Notifications, "is for .sources/apps"),
            (target, Sources, "is for .notifications/apps"),
            (&target.replace(".notifications", ".sources"), Sources, "`key`"),
            (&source.replace(".sources", ".notifications"), Notifications, "seal apps -n .notifications"),
        ] {
            let reported = read(plain, namespace).unwrap_err();
            assert!(reported.contains(part) && !reported.contains("canary"), "{reported}");
        }
    }

    // Would fail with the words of the age crate, or if a single value were only an unknown key.
    #[test]
    fn plain_text_and_a_value_without_a_key_are_said_to_be_that() {
        let own = Identity::generate();
        let read = |file: &[u8]| {
            let dir = tempfile::tempdir().unwrap();
            let sealed = world(dir.path(), file, &own);
            sealed.read(SealedNamespace::Notifications, "apps").unwrap_err().to_string()
        };
        let header = "namespace: .notifications\nname: apps\n---\n";
        let plain = read(format!("{header}url: https://canary\n").as_bytes());
        assert!(
            plain.contains("apps.age is not encrypted: seal it, and change its values before"),
            "{plain}"
        );
        let single = format!("{header}https://canary\n");
        let single = read(&crypt::encrypt(single.as_bytes(), &[own.to_public()]).unwrap());
        assert!(single.contains("has a value without a known key; write `url: https://…`"), "{single}");
        assert!(!plain.contains("canary") && !single.contains("canary"));
    }

    // Seen red without the check, and with the name of a reference for a commit.
    #[test]
    fn they_are_read_from_the_commit_that_the_source_follows_and_only_if_it_may_be_applied() {
        let (dir, own) = (tempfile::tempdir().unwrap(), Identity::generate());
        let plain = b"namespace: .sources\nname: apps\n---\ntoken: canary\n";
        let ciphertext = crypt::encrypt(plain, &[own.to_public()]).unwrap();
        let mut sealed = world(dir.path(), &ciphertext, &own);
        let repository = Repository::open_bare(&sealed.mirror).unwrap();
        let first = repository.refname_to_id("refs/heads/main").unwrap();
        sealed.home.reference = Reference::Commit(first.to_string());
        assert!(
            sealed.read(SealedNamespace::Sources, "apps").is_ok_and(|values| values["token"] == "canary")
        );

        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
        let signers = dir.path().join("signers");
        fs::write(&signers, format!("a@b {key}\n")).unwrap();
        sealed.home.signatures = SignaturePolicy::from_files(Some(signers), None);
        for reference in [sealed.home.reference.clone(), Reference::Branch("main".to_owned())] {
            sealed.home.reference = reference;
            let why = sealed.read(SealedNamespace::Sources, "apps").unwrap_err().why;
            assert!(why.contains("it is not signed"), "{why}");
        }
    }
}
