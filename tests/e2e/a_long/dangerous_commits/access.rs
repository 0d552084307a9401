//! Access of the table's sources to their repositories.

use harness::{GitHttp, GitSsh, Result, Slot};

use super::site::Site;

/// A server of all repositories.
pub(super) enum Access {
    Http { server: GitHttp, token_file: String },
    Ssh(GitSsh),
}

impl Access {
    pub(super) fn http(slot: &Slot) -> Result<Self> {
        let token = "let-me-in";
        let file = slot.dir().join("token");
        std::fs::write(&file, token)?;
        let server = GitHttp::serve(&slot.dir().join("repositories"), slot.port(6), token)?;
        Ok(Self::Http { server, token_file: file.to_string_lossy().into_owned() })
    }

    pub(super) fn ssh(slot: &Slot) -> Result<Self> {
        Ok(Self::Ssh(GitSsh::serve(slot.dir(), slot.port(6))?))
    }

    pub(super) fn url(&self, site: &Site) -> String {
        match self {
            Access::Http { server, .. } => server.url(&format!("{}/repo.git", site.name)),
            Access::Ssh(server) => server.url(site.repo.bare()),
        }
    }

    /// Credential lines of a source in the file of sources.
    pub(super) fn credentials(&self) -> String {
        match self {
            Access::Http { token_file, .. } => format!("  tokenFile: {token_file}\n"),
            Access::Ssh(server) => {
                let (key, hosts) = (server.key("ed25519"), server.known_hosts(""));
                format!("  sshKey: {}\n  knownHosts: {}\n", key.display(), hosts.display())
            }
        }
    }
}
