//! A mailbox: Debian's aiosmtpd, which requires STARTTLS and a login, and keeps each message as a file. Its dice refuse
//! some messages for now, and cut connections before or after they keep one.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use harness::{Cluster, Context, Daemon, Result, ensure, eventually, run, secs};
use serde::Deserialize;

use super::dice::{BAD, Dice};

const SERVER: &str = include_str!("mail.py");
/// Debian's Python, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";
const MODULE: &str = "/usr/lib/python3/dist-packages/aiosmtpd";

/// A message as it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Mail {
    /// `Message-ID` with its brackets.
    pub(super) id: String,
    pub(super) from: String,
    pub(super) to: Vec<String>,
    pub(super) subject: String,
    pub(super) text: String,
}

/// The server.
#[derive(Debug)]
pub(super) struct Mailbox {
    daemon: Daemon,
    folder: PathBuf,
    port: u16,
}

impl Mailbox {
    /// Starts it on the port of the slot, for this user and password.
    pub(super) fn start(
        cluster: &Cluster,
        port: u16,
        (user, password): (&str, &str),
        dice: &Dice,
    ) -> Result<Self> {
        ensure!(
            Path::new(MODULE).exists(),
            "there is no aiosmtpd; install it (Debian: 'apt-get install python3-aiosmtpd')"
        );
        let (folder, port) = (cluster.dir("mail"), cluster.slot().port(port));
        fs::create_dir_all(&folder)?;
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        fs::write(at("mail.py"), SERVER)?;
        fs::write(at("login"), format!("{user}\n{password}\n"))?;
        let (key, certificate) = (at("tls.key"), at("tls.crt"));
        let mut openssl =
            vec!["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mail.test"];
        openssl.extend(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &certificate]);
        run("openssl", &openssl)?;
        let dice = [BAD, u64::from(dice.patience()), dice.seed()].map(|number| number.to_string());
        let mut command: Vec<String> =
            [PYTHON, &at("mail.py"), &port.to_string(), &at("")].map(str::to_owned).into();
        command.extend(dice);
        let mut daemon = Daemon::new("mail", &cluster.dir(""), command);
        daemon.start()?;
        let mailbox = Self { daemon, folder, port };
        eventually("the mail server listens", secs(20), || Ok(TcpStream::connect(("127.0.0.1", port))?))
            .with_context(|| mailbox.daemon.log_tail())?;
        Ok(mailbox)
    }

    /// URL for the secret.
    pub(super) fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}", self.port)
    }

    /// Certificate of the server, self-signed, in PEM.
    pub(super) fn ca(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("tls.crt"))?)
    }

    /// Messages kept so far, in order, repeats included.
    pub(super) fn kept(&self) -> Result<Vec<Mail>> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&self.folder)?.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
        files.sort();
        files.iter().map(|file| -> Result<Mail> { Ok(serde_json::from_slice(&fs::read(file)?)?) }).collect()
    }

    /// Checks that all messages were as documented, and that no `Message-ID` stood for two messages.
    pub(super) fn is_content(&self) -> Result<()> {
        let complaints = fs::read_to_string(self.folder.join("complaints")).unwrap_or_default();
        ensure!(complaints.is_empty(), "mail: {complaints}");
        let mut first: BTreeMap<String, Mail> = BTreeMap::new();
        for mail in self.kept()? {
            let known = first.entry(mail.id.clone()).or_insert_with(|| mail.clone());
            ensure!(*known == mail, "one Message-ID, two messages: {known:?} and {mail:?}");
        }
        Ok(())
    }
}
