//! Git over SSH: a real sshd with its own keys on loopback, which only runs `git-upload-pack`.
//!
//! The server ends with its starter, however that ends (see `Daemon`). No SSH configuration of the user or the
//! machine is read or written.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{Daemon, run};
use crate::wait::{eventually, secs};

/// A server of every repository that its user may read.
#[derive(Debug)]
pub struct GitSsh {
    dir: PathBuf,
    port: u16,
    daemon: Daemon,
}

impl GitSsh {
    /// Serves on a loopback port, with keys and settings below `dir`.
    pub fn serve(dir: &Path, port: u16) -> Result<Self> {
        let dir = dir.join("ssh");
        fs::create_dir_all(&dir)?;
        for (name, kind) in [
            ("host_ed25519", "ed25519"),
            ("host_rsa", "rsa"),
            ("host_other", "ed25519"),
            ("id_ed25519", "ed25519"),
            ("id_rsa", "rsa"),
            ("id_stranger", "ed25519"),
        ] {
            let file = dir.join(name);
            if !file.exists() {
                run("ssh-keygen", &["-q", "-N", "", "-C", "", "-t", kind, "-f", text(&file)?])?;
            }
        }
        // As root, sshd requires this directory, which its service usually creates.
        if nix::unistd::geteuid().is_root() {
            fs::create_dir_all("/run/sshd")?;
        }
        // sshd must be called by its full path.
        let config = dir.join("sshd_config").display().to_string();
        let command = ["/usr/sbin/sshd", "-D", "-e", "-f", &config].map(str::to_owned).to_vec();
        let mut server = Self { daemon: Daemon::new("sshd", &dir, command), dir, port };
        server.write_settings()?;
        server.start()?;
        Ok(server)
    }

    /// URL of a repository, by its path.
    pub fn url(&self, repository: &Path) -> String {
        format!("ssh://{}@127.0.0.1:{}{}", user(), self.port, repository.display())
    }

    /// Private key by name: `ed25519` and `rsa` are authorized, `stranger` is not.
    pub fn key(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("id_{kind}"))
    }

    /// A `known_hosts` file with the keys of this server; the variants are `known_hosts_hashed`, `_other` (another
    /// key under this name), `_empty` and `_elsewhere` (this key under another name).
    pub fn known_hosts(&self, variant: &str) -> PathBuf {
        let suffix = if variant.is_empty() { String::new() } else { format!("_{variant}") };
        self.dir.join(format!("known_hosts{suffix}"))
    }

    /// Starts or restarts it.
    pub fn start(&mut self) -> Result<()> {
        self.daemon.start()?;
        eventually("sshd answers", secs(20), || {
            TcpStream::connect(("127.0.0.1", self.port)).context("not yet").map(drop)
        })
    }

    /// Stops it.
    pub fn stop(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    fn write_settings(&self) -> Result<()> {
        let public = |name: &str| {
            let key = fs::read_to_string(self.dir.join(format!("{name}.pub")))?;
            Ok::<_, std::io::Error>(key.trim().to_owned())
        };
        let mut authorized = String::new();
        for key in ["id_ed25519", "id_rsa"] {
            let only = "restrict,command=\"git-shell -c \\\"$SSH_ORIGINAL_COMMAND\\\"\"";
            authorized += &format!("{only} {}\n", public(key)?);
        }
        fs::write(self.dir.join("authorized_keys"), authorized)?;
        let name = format!("[127.0.0.1]:{}", self.port);
        let (ed25519, rsa, other) = (public("host_ed25519")?, public("host_rsa")?, public("host_other")?);
        for (variant, lines) in [
            ("", format!("{name} {ed25519}\n{name} {rsa}\n")),
            ("hashed", format!("{name} {ed25519}\n{name} {rsa}\n")),
            ("other", format!("{name} {other}\n{name} {rsa}\n")),
            ("elsewhere", format!("127.0.0.1 {ed25519}\n[127.0.0.2]:{} {ed25519}\n", self.port)),
            ("empty", String::new()),
        ] {
            fs::write(self.known_hosts(variant), lines)?;
        }
        run("ssh-keygen", &["-q", "-H", "-f", text(&self.known_hosts("hashed"))?])?;
        let dir = self.dir.display();
        // Empty: sshd's shell runs the startup files in the home folder before each command, and those of this
        // machine may wait for each other.
        fs::create_dir_all(self.dir.join("home"))?;
        let settings = format!(
            "ListenAddress 127.0.0.1\nPort {}\nHostKey {dir}/host_ed25519\nHostKey {dir}/host_rsa\n\
             AuthorizedKeysFile {dir}/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPubkeyAuthentication yes\n\
             AllowTcpForwarding no\nX11Forwarding no\nPrintMotd no\nMaxStartups 200\n\
             SetEnv HOME={dir}/home\n",
            self.port
        );
        fs::write(self.dir.join("sshd_config"), settings)?;
        Ok(())
    }
}

fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map_or("root".into(), |user| user.name)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}
