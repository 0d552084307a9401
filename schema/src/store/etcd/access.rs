//! Addresses of etcd, and what a client shows it.

use std::fs::File;
use std::io;
use std::io::Read as _;
use std::path::PathBuf;

use crate::trust::TlsFiles;

/// Longest password, in bytes; the rest of a larger file is ignored.
const PASSWORD_MAX_BYTES: u64 = 1_024;

/// Addresses of etcd and the user to log in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Client addresses, at least one.
    pub endpoints: Vec<String>,
    /// User and password; `None` if etcd has no authentication, or knows clients by their certificates.
    pub login: Option<Login>,
    /// Certificates for endpoints with `https`.
    pub tls: Option<TlsFiles>,
    /// Set if a new connection tries the first endpoint first, which is on this machine; else clients spread over all.
    pub prefers_first: bool,
}

/// A user of etcd. If etcd's authentication is off, no client logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Name of the user.
    pub user: String,
    /// File with the password in its first line; read for each connection, so that it can be changed.
    pub password_file: PathBuf,
}

impl Access {
    /// Creates an access without a login.
    pub fn anonymous(endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), login: None, tls: None, prefers_first: false }
    }

    /// Creates an access as `user`, if a user and a password file are given.
    pub fn new(endpoints: Vec<String>, user: Option<String>, password_file: Option<PathBuf>) -> Self {
        let login = user.zip(password_file).map(|(user, password_file)| Login { user, password_file });
        Self { endpoints, login, tls: None, prefers_first: false }
    }

    /// Adds certificates.
    pub fn with_tls(self, tls: Option<TlsFiles>) -> Self {
        Self { tls, ..self }
    }
}

impl Login {
    /// Reads user and password.
    pub(super) fn read(&self) -> io::Result<(String, String)> {
        let mut text = String::new();
        File::open(&self.password_file)?.take(PASSWORD_MAX_BYTES).read_to_string(&mut text)?;
        Ok((self.user.clone(), text.lines().next().unwrap_or_default().to_owned()))
    }
}
