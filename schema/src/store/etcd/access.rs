//! Where etcd is, and as which user it is asked.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

/// Longest password, in bytes; what is longer is another file.
const PASSWORD_MAX_BYTES: u64 = 1_024;

/// Where etcd is, and as which user it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Client addresses, at least one.
    pub endpoints: Vec<String>,
    /// None where etcd has no authentication.
    pub login: Option<Login>,
}

/// A user of etcd. Where etcd's authentication is off, no client logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Name.
    pub user: String,
    /// File with the password in its first line; read for each connection, so that it can be changed.
    pub password_file: PathBuf,
}

impl Access {
    /// Without a login.
    pub fn anonymous(endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), login: None }
    }

    /// As `user`, if one is given with a password.
    pub fn new(endpoints: Vec<String>, user: Option<String>, password_file: Option<PathBuf>) -> Self {
        let login = user.zip(password_file).map(|(user, password_file)| Login { user, password_file });
        Self { endpoints, login }
    }
}

impl Login {
    /// User and password.
    pub(super) fn read(&self) -> io::Result<(String, String)> {
        let mut text = String::new();
        File::open(&self.password_file)?.take(PASSWORD_MAX_BYTES).read_to_string(&mut text)?;
        Ok((self.user.clone(), text.lines().next().unwrap_or_default().to_owned()))
    }
}
