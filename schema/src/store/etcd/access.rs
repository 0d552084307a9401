//! Addresses of etcd and the user to log in as.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

/// Longest password, in bytes; the rest of a larger file is ignored.
const PASSWORD_MAX_BYTES: u64 = 1_024;

/// Addresses of etcd and the user to log in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Client addresses, at least one.
    pub endpoints: Vec<String>,
    /// User and password; `None` if etcd has no authentication.
    pub login: Option<Login>,
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
        Self { endpoints: endpoints.to_vec(), login: None }
    }

    /// Creates an access as `user`, if a user and a password file are given.
    pub fn new(endpoints: Vec<String>, user: Option<String>, password_file: Option<PathBuf>) -> Self {
        let login = user.zip(password_file).map(|(user, password_file)| Login { user, password_file });
        Self { endpoints, login }
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
