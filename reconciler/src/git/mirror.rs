//! Bare mirror of a source: cheap to query, fetched on change, rebuilt when broken.
//!
//! Reads the remote, writes `<state>/reconciler/mirrors/<source>`. A mirror holds nothing that the remote does not:
//! losing it costs a fetch, never an object of the cluster.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::{fs, io};

use git2::{
    AutotagOption, Direction, ErrorClass, ErrorCode, FetchOptions, FetchPrune, ObjectType, Oid, ProxyOptions,
    RemoteRedirect, Repository, RepositoryInitOptions,
};

use schema::quantity::Memory;

use super::config::{Reference, SealedCredentials, SourceConfig, Transport, identity_file, user_info};
use super::content::ContentError;
use super::error::{format_help, is_of_another_user};
use super::transport::proxy::{SizeLimit, Transfer};
use super::transport::{credentials, proxy};
use super::{FirstSeen, GitError, ReadError, signatures, transport};

const NAMES_SHOWN_MAX: usize = 8;

/// File in which a mirror records the address it was fetched from, without credentials.
const ADDRESS_FILE: &str = "minik8s-address";

/// Most bytes of a mirror: hundreds of times what manifests take with all of their history.
const CLONE_MAX_BYTES: u64 = 1 << 30;

/// Mirror of one source on disk. Every call blocks.
#[derive(Debug, Clone)]
pub struct Mirror {
    config: Arc<SourceConfig>,
    directory: PathBuf,
    clone_max_bytes: u64,
}

impl Mirror {
    /// Creates a handle for the mirror of `config` below `state_dir`; neither opens nor creates the mirror.
    pub fn new(config: Arc<SourceConfig>, state_dir: &Path) -> Self {
        transport::find_authorities();
        let directory = Self::directory(state_dir, &config.name);
        Self { config, directory, clone_max_bytes: CLONE_MAX_BYTES }
    }

    #[cfg(test)]
    pub(super) fn limited_to(self, clone_max_bytes: u64) -> Self {
        Self { clone_max_bytes, ..self }
    }

    pub fn directory(state_dir: &Path, source: &str) -> PathBuf {
        state_dir.join("reconciler").join("mirrors").join(source)
    }

    /// Returns the place of the secrets for reconcilers in the repository of `home`.
    pub fn sealed(home: &SourceConfig, state_dir: &Path) -> SealedCredentials {
        SealedCredentials {
            home: Box::new(home.clone()),
            mirror: Self::directory(state_dir, &home.name),
            identity: identity_file(state_dir),
        }
    }

    pub fn config(&self) -> &SourceConfig {
        &self.config
    }

    /// True if the mirror was created before; it may still be broken.
    pub fn exists(&self) -> bool {
        self.directory.join("HEAD").exists()
    }

    /// True if the mirror was fetched from the present address before; it may still be broken.
    pub fn was_fetched(&self) -> bool {
        self.exists()
            && fs::read_to_string(self.directory.join(ADDRESS_FILE))
                .is_ok_and(|url| url == self.config.shown_url())
    }

    /// Queries the remote for the commit of the reference: the cheap step of a poll.
    pub fn ls_remote(&self) -> Result<Oid, GitError> {
        let config = &*self.config;
        if let Reference::Commit(id) = &config.reference {
            // A commit never moves; the fetch shows whether the remote has it.
            return Oid::from_str(id).map_err(|error| remote_error(config, &error));
        }
        self.check_reachable()?;
        let (callbacks, refusal) = credentials::callbacks(config);
        let translate = |error: git2::Error| refusal.take().unwrap_or_else(|| remote_error(config, &error));
        let asking = self.asking_place()?;
        let mut remote = match &asking {
            Some(place) => place.remote_anonymous(&config.url),
            None => git2::Remote::create_detached(config.url.as_str()),
        }
        .map_err(translate)?;
        let translate = |error: git2::Error| refusal.take().unwrap_or_else(|| remote_error(config, &error));
        let connection = remote
            .connect_auth(Direction::Fetch, Some(callbacks), Some(proxy_options(config)))
            .map_err(translate)?;
        let heads = connection.list().map_err(|error| remote_error(config, &error))?;
        let wanted = config.reference.full_name();
        // An annotated tag is listed twice; the second entry is the commit it points to.
        let peeled = format!("{wanted}^{{}}");
        let find = |name: &str| heads.iter().find(|head| head.name() == name).map(git2::RemoteHead::oid);
        let names = || heads.iter().map(|head| head.name().to_owned()).collect::<Vec<_>>();
        find(&peeled).or_else(|| find(&wanted)).ok_or_else(|| self.not_found(Some(&names())))
    }

    /// Updates the mirror and returns the reference's commit. Rebuilds a broken mirror.
    pub fn fetch(&self, transfer: &Arc<Transfer>) -> Result<Oid, GitError> {
        self.check_reachable()?;
        let fetched = self.open().and_then(|repository| self.fetch_into(&repository, transfer));
        let broken = match fetched {
            Err(error) if error.is_mirror_broken() => error,
            other => return other,
        };
        tracing::warn!(source = self.config.name, error = %broken, "mirror broken; it is fetched again");
        self.rebuild(transfer)
    }

    /// Builds a fresh mirror next to the old one and swaps them once it is complete.
    pub fn rebuild(&self, transfer: &Arc<Transfer>) -> Result<Oid, GitError> {
        let [fresh, old] = ["new", "old"].map(|suffix| self.directory.with_extension(suffix));
        let unwritable = |error: io::Error| self.unwritable(&error.to_string());
        remove_all(&fresh).and_then(|()| remove_all(&old)).map_err(unwritable)?;
        let repository = self.init(&fresh)?;
        let fetched = self.fetch_into(&repository, transfer);
        drop(repository);
        if fetched.is_err() {
            // What arrived of it must not stay until the next try.
            let _ = remove_all(&fresh);
        }
        let head = fetched?;
        if self.directory.exists() {
            fs::rename(&self.directory, &old).map_err(unwritable)?;
        }
        fs::rename(&fresh, &self.directory).map_err(unwritable)?;
        remove_all(&old).map_err(unwritable)?;
        Ok(head)
    }

    /// Accepts commits signed by a known key, and any commit if no signature is required. `known` has commits that
    /// were accepted before, by any reconciler.
    pub fn check_commit(&self, commit: Oid, known: &FirstSeen) -> Result<(), GitError> {
        signatures::check_commit(&self.config, (&self.directory, &self.open()?), commit, known)
    }

    /// Checks the signature at the commit's own date, before it is known whether the commit was accepted before.
    pub fn check_signature(&self, commit: Oid) -> Result<(), GitError> {
        signatures::check_signature(&self.config, &self.open()?, commit, None)
    }

    /// Repacks if fetches have left too many packs; keeps everything reachable from `head` and `kept`.
    pub fn tidy(&self, head: Oid, kept: &[Oid]) -> Result<(), GitError> {
        repack_if_due(&self.open()?, head, kept);
        Ok(())
    }

    /// Opens or creates the mirror. Opened per use, because its files may change.
    pub fn open(&self) -> Result<Repository, GitError> {
        if !self.exists() {
            return self.init(&self.directory);
        }
        Repository::open_bare(&self.directory).map_err(|error| self.broken(&error))
    }

    pub fn broken(&self, error: &git2::Error) -> GitError {
        GitError::MirrorBroken { directory: self.directory.clone(), why: error.message().to_owned() }
    }

    /// Converts a failure to read the files of `commit`: either the mirror or the commit is at fault.
    pub fn unread(&self, commit: Oid, error: ReadError) -> GitError {
        match error {
            ReadError::Git(error) => self.broken(&error),
            refused => GitError::CommitUnreadable {
                url: self.config.shown_url(),
                commit: commit.to_string().chars().take(12).collect(),
                why: refused.to_string(),
            },
        }
    }

    /// Converts a failure to read or store the content named by volumes and secrets, which is not the commit's fault.
    pub fn no_content(&self, error: ContentError) -> GitError {
        match error {
            ContentError::Git(error) => self.broken(&error),
            other => self.unwritable(&other.to_string()),
        }
    }

    /// Opens an empty repository for queries over `http(s)://`: only its configuration keeps libgit2 from following
    /// redirects.
    fn asking_place(&self) -> Result<Option<Repository>, GitError> {
        const FOLLOW: &str = "http.followRedirects";
        if !matches!(self.config.transport()?, Transport::Http { .. }) {
            return Ok(None);
        }
        let directory = self.directory.with_extension("ask");
        if let Ok(place) = Repository::open_bare(&directory)
            && place.config().and_then(|config| config.get_bool(FOLLOW)).is_ok_and(|follow| !follow)
        {
            return Ok(Some(place));
        }
        remove_all(&directory).map_err(|error| self.unwritable(&error.to_string()))?;
        let place = self.init(&directory)?;
        let written = place.config().and_then(|mut config| config.set_bool(FOLLOW, false));
        written.map_err(|error| self.unwritable(error.message()))?;
        Ok(Some(place))
    }

    fn init(&self, directory: &Path) -> Result<Repository, GitError> {
        let mut options = RepositoryInitOptions::new();
        options.bare(true).mkpath(true).external_template(false);
        Repository::init_opts(directory, &options).map_err(|error| self.unwritable(error.message()))
    }

    fn unwritable(&self, why: &str) -> GitError {
        GitError::MirrorUnwritable { directory: self.directory.clone(), why: why.to_owned() }
    }

    /// Checks what can be checked without connecting: libgit2 takes a missing path for an odd URL.
    fn check_reachable(&self) -> Result<(), GitError> {
        let config = &*self.config;
        credentials::check(config)?;
        if config.transport()? != Transport::Local {
            return Ok(());
        }
        let path = config.url.strip_prefix("file://").unwrap_or(&config.url);
        let nothing = |why: String| GitError::NotARepository { url: config.shown_url(), why };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(nothing("it is not a folder".to_owned())),
            Err(error) => Err(nothing(error.to_string())),
        }
    }

    fn fetch_into(&self, repository: &Repository, transfer: &Arc<Transfer>) -> Result<Oid, GitError> {
        let commit = match &self.config.reference {
            Reference::Commit(id) => self.fetch_commit(repository, id, transfer)?,
            named => self.fetch_named(repository, &named.full_name(), transfer)?,
        };
        // Only a hint for the next start: without it the remote is queried first.
        let _ = fs::write(repository.path().join(ADDRESS_FILE), self.config.shown_url());
        Ok(commit)
    }

    fn fetch_named(
        &self,
        repository: &Repository,
        name: &str,
        transfer: &Arc<Transfer>,
    ) -> Result<Oid, GitError> {
        // The same name on both sides: libgit2's local transport compares by name to determine what is missing.
        self.transfer(repository, &[format!("+{name}:{name}")], transfer)?;
        let reference = match repository.find_reference(name) {
            Ok(reference) => reference,
            Err(error) if error.code() == ErrorCode::NotFound => return Err(self.not_found(None)),
            Err(error) => return Err(self.broken(&error)),
        };
        match reference.peel(ObjectType::Commit) {
            Ok(commit) => Ok(commit.id()),
            // A tag may point to a file or folder: neither a fetch nor a fresh mirror makes a commit of it.
            Err(error) if matches!(error.code(), ErrorCode::Peel | ErrorCode::InvalidSpec) => {
                Err(self.not_a_commit())
            }
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Takes the commit from the mirror, else fetches all branches and tags: not every server serves a bare commit
    /// id.
    fn fetch_commit(
        &self,
        repository: &Repository,
        id: &str,
        transfer: &Arc<Transfer>,
    ) -> Result<Oid, GitError> {
        let wanted = Oid::from_str(id).map_err(|error| remote_error(&self.config, &error))?;
        if repository.find_commit(wanted).is_err() {
            let all = ["+refs/heads/*:refs/heads/*".to_owned(), "+refs/tags/*:refs/tags/*".to_owned()];
            self.transfer(repository, &all, transfer)?;
        }
        match repository.find_commit(wanted) {
            Ok(_) => Ok(wanted),
            Err(error) if error.code() == ErrorCode::NotFound => Err(self.not_found(None)),
            Err(error) => Err(self.broken(&error)),
        }
    }

    fn transfer(
        &self,
        repository: &Repository,
        refspecs: &[String],
        transfer: &Arc<Transfer>,
    ) -> Result<(), GitError> {
        let config = &*self.config;
        let (mut callbacks, refusal) = credentials::callbacks(config);
        let (packets, messages) = (Arc::clone(transfer), Arc::clone(transfer));
        let limit = Rc::new(SizeLimit::of(repository.path(), self.clone_max_bytes));
        let [of_packets, of_messages] = [(); 2].map(|()| Rc::clone(&limit));
        callbacks.transfer_progress(move |progress| {
            packets.record_progress() && of_packets.fits(progress.received_bytes(), progress.total_objects())
        });
        callbacks.sideband_progress(move |text| {
            messages.record_progress() && of_messages.fits_message(text.len())
        });
        let mut options = FetchOptions::new();
        options.remote_callbacks(callbacks);
        // A token is for one host, so redirects are not followed. A missing reference is an error, so none is pruned.
        options.proxy_options(proxy_options(config)).follow_redirects(RemoteRedirect::None);
        options.prune(FetchPrune::Off).download_tags(AutotagOption::None).update_fetchhead(false);
        let mut remote =
            repository.remote_anonymous(&config.url).map_err(|error| remote_error(config, &error))?;
        remote.fetch(refspecs, Some(&mut options), None).map_err(|error| match refusal.take() {
            Some(refused) => refused,
            None if limit.is_exceeded.get() => self.too_large(repository, &limit),
            // A broken remote yields the same classes: then a fresh mirror fails too, and the error is the remote's.
            None if self.is_ours(repository)
                && (is_mirror_fault(&error) || self.concerns_this_mirror(&error)) =>
            {
                self.broken(&error)
            }
            None => remote_error(config, &error),
        })
    }

    /// Builds the error for a remote that sends too much. A mirror that has outgrown its limit is fetched anew: it may
    /// hold what the remote no longer has.
    fn too_large(&self, repository: &Repository, limit: &SizeLimit) -> GitError {
        if limit.kept > 0 && !limit.is_by_disk && self.is_ours(repository) {
            return self.broken(&git2::Error::from_str("it has outgrown its limit"));
        }
        let (url, most) = (self.config.shown_url(), Memory { bytes: self.clone_max_bytes }.readable());
        match limit.is_by_disk {
            true => GitError::NoSpace { url, directory: self.directory.clone() },
            false => GitError::TooLarge { url, most },
        }
    }

    fn is_ours(&self, repository: &Repository) -> bool {
        repository.path().canonicalize().ok() == self.directory.canonicalize().ok()
    }

    /// True if the error concerns a file of this mirror, such as a lock that a crash left.
    fn concerns_this_mirror(&self, error: &git2::Error) -> bool {
        error.message().contains(&*self.directory.to_string_lossy())
    }

    fn not_a_commit(&self) -> GitError {
        let (url, reference) = (self.config.shown_url(), self.config.reference.to_string());
        let known = " that names a commit (it names a file or a folder)".to_owned();
        GitError::ReferenceNotFound { url, reference, known }
    }

    /// Builds the error for a missing reference; `names` are the existing references, if known.
    fn not_found(&self, names: Option<&[String]>) -> GitError {
        let config = &*self.config;
        let (url, reference) = (config.shown_url(), config.reference.to_string());
        // The owner of an empty repository pushes later; a name missing among others is mistyped.
        if names.is_some_and(<[String]>::is_empty) {
            return GitError::NoCommit { url, reference };
        }
        let prefix = match config.reference {
            Reference::Tag(_) => "refs/tags/",
            Reference::Branch(_) | Reference::Commit(_) => "refs/heads/",
        };
        let known = names.map_or_else(String::new, |names| {
            let short =
                names.iter().filter_map(|name| name.strip_prefix(prefix)).filter(|n| !n.ends_with("^{}"));
            let mut names: Vec<&str> = short.take(NAMES_SHOWN_MAX + 1).collect();
            if names.len() > NAMES_SHOWN_MAX {
                names[NAMES_SHOWN_MAX] = "…";
            }
            if names.is_empty() {
                "; it has none".to_owned()
            } else {
                format!("; it has: {}", names.join(", "))
            }
        });
        GitError::ReferenceNotFound { url, reference, known }
    }
}

fn proxy_options(config: &SourceConfig) -> ProxyOptions<'static> {
    let mut options = ProxyOptions::new();
    if let Some(proxy) = proxy::from_environment(config) {
        options.url(&proxy);
    }
    options
}

fn remove_all(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

// Keeps a mirror from growing a pack per fetch: many packs become one.
//
// libgit2 has no `git gc`. Of the commits unreachable from the reference, only those that the caller names
// survive: after a force push, the applied commit is needed to compare histories.

/// Pack limit: above it every look-up gets slow. One fetch makes one pack.
const PACKS_MAX: usize = 50;

/// Repacks if due. A failure only costs speed: it is logged and retried after the next fetch.
pub(super) fn repack_if_due(repository: &Repository, head: Oid, kept: &[Oid]) {
    let packs = packs_of(repository);
    if packs.len() <= PACKS_MAX {
        return;
    }
    if let Err(error) = compact(repository, head, kept, &packs) {
        tracing::warn!(%error, "mirror not repacked");
    }
}

fn packs_of(repository: &Repository) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(repository.path().join("objects/pack")) else { return Vec::new() };
    let is_pack = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pack");
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_pack).collect()
}

fn compact(repository: &Repository, head: Oid, kept: &[Oid], old: &[PathBuf]) -> Result<(), git2::Error> {
    let mut walk = repository.revwalk()?;
    walk.push(head)?;
    for commit in kept.iter().filter(|commit| repository.find_commit(**commit).is_ok()) {
        walk.push(*commit)?;
    }
    let mut builder = repository.packbuilder()?;
    builder.insert_walk(&mut walk)?;
    builder.write(&repository.path().join("objects/pack"), 0)?;
    let named = builder.name()?.map(str::to_owned);
    for pack in old {
        let stem = pack.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if named.as_deref().is_some_and(|name| !stem.ends_with(name)) {
            for extension in ["idx", "pack"] {
                let _ = fs::remove_file(pack.with_extension(extension));
            }
        }
    }
    Ok(())
}

// Translation of libgit2 errors into errors of a source.

/// Translates a libgit2 error from talking to the remote.
pub(super) fn remote_error(config: &SourceConfig, error: &git2::Error) -> GitError {
    let url = config.shown_url();
    let why = cleaned(config, error.message());
    let lower = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if error.code() == ErrorCode::Owner || is_of_another_user(&why) {
        // libgit2 names the folder between quotes.
        let path = why.split('\'').nth(1).map_or("PATH", |path| path.trim_end_matches('/'));
        let help = format!(
            "make the user that runs minik8s its owner, or run 'git config --global --add safe.directory {path}' as that user"
        );
        return GitError::AuthenticationFailed { url, why, help };
    }
    if let Some(help) = format_help(&why) {
        return GitError::UnsupportedFormat { url, why, help };
    }
    // libgit2 sets the code for some of its TLS streams only.
    if error.code() == ErrorCode::Certificate || says(&["certificate is invalid"]) {
        let help =
            "give --ca-file FILE with the CA that signed the server's certificate, if it is yours".into();
        return GitError::AuthenticationFailed { url, why, help };
    }
    if says(&["redirect"]) {
        return GitError::Redirected { url };
    }
    if error.code() == ErrorCode::Auth
        || says(&["authentication", "401", "403", "permission denied", "access denied"])
    {
        let help = match config.transport() {
            Ok(Transport::Ssh) => "check --ssh-key and that its public half may read the repository",
            Ok(Transport::Http { .. }) => "check --token-file and that the token may read the repository",
            _ => "check the permissions of the path",
        };
        return GitError::AuthenticationFailed { url, why, help: help.into() };
    }
    if says(&[
        "404",
        "not found",
        "could not find repository",
        "not a git repository",
        "does not exist",
        "no such file",
    ]) {
        return GitError::NotARepository { url, why };
    }
    GitError::RemoteUnreachable { url, why }
}

/// True if the local mirror is at fault, not the remote.
pub(super) fn is_mirror_fault(error: &git2::Error) -> bool {
    let class = matches!(
        error.class(),
        ErrorClass::Odb
            | ErrorClass::Zlib
            | ErrorClass::Object
            | ErrorClass::Indexer
            | ErrorClass::Repository
            | ErrorClass::Reference
            | ErrorClass::Config
            | ErrorClass::Tree
            | ErrorClass::Sha1
            | ErrorClass::Filesystem
    );
    class || matches!(error.code(), ErrorCode::Locked | ErrorCode::HashsumMismatch | ErrorCode::Modified)
}

/// Joins the message into one line and masks the credentials of the address and the proxy.
fn cleaned(config: &SourceConfig, message: &str) -> String {
    let mut text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let proxy = proxy::from_environment(config);
    let of_proxy = proxy.as_deref().and_then(user_info);
    for secret in config.secret_of_url().into_iter().chain(of_proxy) {
        for part in std::iter::once(secret).chain(secret.split(':')).filter(|p| p.len() > 2) {
            text = text.replace(part, "***");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use schema::records::SourceErrorKind;

    use super::*;

    fn translate(url: &str, code: ErrorCode, class: ErrorClass, message: &str) -> GitError {
        remote_error(&SourceConfig::branch("main", url, "main"), &git2::Error::new(code, class, message))
    }

    #[test]
    fn what_libgit2_says_becomes_the_failed_act() {
        let net = |message: &str| translate("https://h/x", ErrorCode::GenericError, ErrorClass::Net, message);
        assert_eq!(net("failed to resolve address for h").kind(), SourceErrorKind::RemoteUnreachable);
        assert!(matches!(net("unexpected http status code: 404"), GitError::NotARepository { .. }));
        assert_eq!(net("unexpected http status code: 403").kind(), SourceErrorKind::AuthenticationFailed);
        let ssh = translate("git@h:x", ErrorCode::Auth, ErrorClass::Ssh, "failed to authenticate");
        assert!(ssh.to_string().contains("--ssh-key"), "{ssh}");
    }

    #[test]
    fn a_local_repository_that_can_not_be_read_is_said_with_its_remedy() {
        let local = |message: &str| {
            translate("/srv/x", ErrorCode::GenericError, ErrorClass::Config, message).to_string()
        };
        let owner = local("repository path '/srv/x/' is not owned by current user");
        assert!(owner.contains("safe.directory /srv/x'"), "{owner}");
        assert!(local("unsupported extension name extensions.refstorage").contains("--ref-format=files"));
        let sha256 = local("unknown object format 'sha256'");
        assert!(sha256.contains("SHA-256") && !sha256.contains("the network"), "{sha256}");
    }

    #[test]
    fn no_message_holds_a_credential() {
        let url = "https://user:hunter2@h/x.git";
        let message = "cannot get https://user:hunter2@h/x.git\n: refused";
        for code in [ErrorCode::GenericError, ErrorCode::Auth, ErrorCode::Certificate, ErrorCode::NotFound] {
            let text = translate(url, code, ErrorClass::Http, message).to_string();
            assert!(!text.contains("hunter2") && !text.contains('\n'), "{text}");
        }
    }
}
