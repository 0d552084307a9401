//! A repository with its access: the same story over SSH, HTTP, HTTPS or a path.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::git_http::GitHttp;
use crate::git_repo::GitRepo;
use crate::git_ssh::GitSsh;

/// Password of the HTTP servers.
const TOKEN: &str = "let-me-in";

/// A bare repository, its working clone, and the server through which the cluster reaches it.
#[derive(Debug)]
pub struct Remote {
    /// Repository to push to: `push`, `push_unrelated`, `push_commit` and `delete_branch` all force.
    pub repo: GitRepo,
    dir: PathBuf,
    door: Door,
}

#[derive(Debug)]
enum Door {
    Path,
    Http(GitHttp),
    Ssh(GitSsh),
}

impl Remote {
    /// Access by path.
    pub fn path(dir: &Path) -> Result<Self> {
        Self::new(dir, Door::Path)
    }

    /// Access by SSH on `port`.
    pub fn ssh(dir: &Path, port: u16) -> Result<Self> {
        Self::new(dir, Door::Ssh(GitSsh::serve(dir, port)?))
    }

    /// Access by HTTP with a token on `port`.
    pub fn http(dir: &Path, port: u16) -> Result<Self> {
        Self::new(dir, Door::Http(GitHttp::serve(dir, port, TOKEN)?))
    }

    /// Access by HTTPS with a token and a separate CA on `port`.
    pub fn https(dir: &Path, port: u16) -> Result<Self> {
        Self::new(dir, Door::Http(GitHttp::serve_tls(dir, port, TOKEN)?))
    }

    fn new(dir: &Path, door: Door) -> Result<Self> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("token"), TOKEN)?;
        Ok(Self { repo: GitRepo::create(dir)?, dir: dir.to_owned(), door })
    }

    /// URL of the repository.
    pub fn url(&self) -> String {
        match &self.door {
            Door::Path => self.repo.bare().display().to_string(),
            Door::Http(server) => server.url("repo.git"),
            Door::Ssh(server) => server.url(self.repo.bare()),
        }
    }

    /// Credential flags of `minik8s serve` for it.
    pub fn credentials_flags(&self) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        match &self.door {
            Door::Path => Vec::new(),
            Door::Http(server) => {
                let mut flags = vec!["--token-file".to_owned(), text(self.dir.join("token"))];
                if server.url("").starts_with("https") {
                    flags.extend(["--ca-file".to_owned(), text(server.ca_file())]);
                }
                flags
            }
            Door::Ssh(server) => vec![
                "--ssh-key".to_owned(),
                text(server.key("ed25519")),
                "--known-hosts".to_owned(),
                text(server.known_hosts("")),
            ],
        }
    }

    /// HTTP server of the repository, if it has one.
    pub fn forge(&self) -> Option<&GitHttp> {
        if let Door::Http(server) = &self.door { Some(server) } else { None }
    }

    /// SSH server of the repository, if it has one.
    pub fn sshd(&mut self) -> Option<&mut GitSsh> {
        if let Door::Ssh(server) = &mut self.door { Some(server) } else { None }
    }

    /// Hides every object of the repository (`true`), or brings them back: the references remain,
    /// and their targets can't be read.
    pub fn broken(&self, broken: bool) -> Result<()> {
        let (whole, away) = (self.repo.bare().join("objects"), self.repo.bare().join("objects.away"));
        let (from, to) = if broken { (&whole, &away) } else { (&away, &whole) };
        if !broken {
            let _ = fs::remove_dir_all(&whole);
        }
        fs::rename(from, to).with_context(|| format!("cannot move {}", from.display()))?;
        if broken { Ok(fs::create_dir(&whole)?) } else { Ok(()) }
    }
}
