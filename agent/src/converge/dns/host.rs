//! The machine's own resolver: `resolv.conf`, the copy of its former content, and systemd-resolved.
//!
//! The former content is on disk before anything is changed, and stays there until it is restored.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use std::{fs, io};

use schema::control::DiskRecord;
use tokio::process::Command;

use super::plan::{DOMAINS_MAX, LinkConfig, ResolvedState, SavedFile};
use super::resolv::{self, Machine, RESOLVED_LIST};

/// Program that reads and sets systemd-resolved.
pub(super) const RESOLVECTL: &str = "resolvectl";

/// Settings that are off for our link, whatever holds for other links: our server is queried for its own names
/// only, in plain text, and signs nothing.
pub(super) const OFF: [&str; 3] = ["default-route", "dnsovertls", "dnssec"];

/// Longest time for one run of `resolvectl`.
const RESOLVECTL_MAX: Duration = Duration::from_secs(5);

/// `resolv.conf` and the saved copy of it.
#[derive(Debug, Clone)]
pub struct MachineFiles {
    path: PathBuf,
    kept: DiskRecord,
}

impl MachineFiles {
    /// Manages the file at `path`; its former content is saved in the agent's directory.
    pub fn new(agent_dir: &Path, path: &Path) -> Self {
        let kept = DiskRecord::new(agent_dir.join("resolv-conf.json"));
        Self { path: path.to_owned(), kept }
    }

    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns the machine's name server configuration, the saved copy of the file, and the target of its symbolic
    /// link. Files that can't be read count as empty.
    pub fn read(&self) -> (Machine, Option<SavedFile>, Option<String>) {
        let former = self.former();
        let machine = Machine {
            text: fs::read_to_string(&self.path).unwrap_or_default(),
            former: former.as_ref().map(|former| former.text.clone()),
            resolved: fs::read_to_string(RESOLVED_LIST).ok(),
        };
        let link = fs::read_link(&self.path).ok().map(|to| to.to_string_lossy().into_owned());
        (machine, former, link)
    }

    fn former(&self) -> Option<SavedFile> {
        self.kept.read().ok().flatten()
    }

    /// Saves the former content, then writes the file.
    pub fn write(&self, keep: Option<&SavedFile>, text: &str) -> io::Result<()> {
        if let Some(former) = keep {
            self.kept.write(former)?;
        }
        replace_file(&self.path, text, None)
    }

    /// Restores the former content.
    pub fn restore(&self, former: &SavedFile) -> io::Result<()> {
        replace_file(Path::new(&former.path), &former.text, former.link.as_deref())?;
        self.forget()
    }

    /// Removes the saved copy.
    pub fn forget(&self) -> io::Result<()> {
        self.kept.remove()
    }

    /// Restores the former content for `reset`, unless others have changed the file since; returns its path if
    /// restored. The path is the saved one, not one given to this process.
    pub fn undo(agent_dir: &Path, instance: &str) -> io::Result<Option<String>> {
        let files = Self::new(agent_dir, Path::new(""));
        let Some(former) = files.former() else { return Ok(None) };
        let now = fs::read_to_string(&former.path).unwrap_or_default();
        if !resolv::is_written_by(&now, instance) {
            return Ok(None);
        }
        files.restore(&former)?;
        Ok(Some(former.path))
    }
}

/// Replaces the file as a whole; in a container it is a mount, which can only be written to. No `DiskRecord`: every
/// program of the machine reads this file, and it may be a link.
fn replace_file(path: &Path, text: &str, link: Option<&str>) -> io::Result<()> {
    let temporary = path.with_extension("minik8s");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match link {
        Some(link) => symlink(link, &temporary)?,
        None => replace_text(&temporary, text)?,
    }
    match fs::rename(&temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            fs::remove_file(&temporary)?;
            fs::write(path, text)
        }
        other => other,
    }
}

fn replace_text(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Returns the link to which systemd-resolved ties the cluster's names: the instance's tunnel. systemd-resolved
/// uses no link without carrier, and the bridge has none while there is no pod.
pub fn link(instance: &str) -> String {
    crate::packet_rules::chain::Names::for_instance(instance).tunnel
}

/// Reads the configuration of a link from systemd-resolved.
pub(super) async fn link_config(program: &str, link: &str) -> ResolvedState {
    let ask = async {
        let servers = words(&run(program, &["dns", link]).await?);
        let domains = words(&run(program, &["domain", link]).await?).into_iter().collect();
        let mut switches = BTreeSet::new();
        for switch in OFF {
            let value = words(&run(program, &[switch, link]).await?);
            if value.first().is_some_and(|value| value != "no") {
                switches.insert(switch);
            }
        }
        io::Result::Ok(LinkConfig { servers, domains, switches })
    };
    match ask.await {
        Ok(split) => ResolvedState::Configured(split),
        // resolvectl comes with systemd-resolved: if it is missing, there is nothing to wait for.
        Err(error) if error.kind() == io::ErrorKind::NotFound => ResolvedState::NotQueried,
        Err(error) => ResolvedState::Unresponsive(error.to_string()),
    }
}

/// Returns the words after `Link 5 (mk8s0):`.
fn words(text: &str) -> Vec<String> {
    let rest = text.split_once("):").map(|(_, rest)| rest).unwrap_or_default();
    rest.split_whitespace().map(str::to_owned).collect()
}

/// Makes systemd-resolved query these servers for these domains, and for nothing else; `now` is its current
/// configuration.
pub(super) async fn set_link_config(
    program: &str,
    link: &str,
    now: &LinkConfig,
    split: &LinkConfig,
) -> io::Result<()> {
    // A link with a server and nothing else is queried for everything: the server comes last.
    for switch in OFF {
        run(program, &[switch, link, "no"]).await?;
    }
    // systemd-resolved counts the outgoing domains until the new ones are in, and with too many it keeps none. So
    // the domains that stay are set first, and their names resolve all the time.
    if now.domains.union(&split.domains).count() > DOMAINS_MAX {
        let stay: BTreeSet<String> = now.domains.intersection(&split.domains).cloned().collect();
        set_domains(program, link, &stay).await?;
    }
    set_domains(program, link, &split.domains).await?;
    let servers = split.servers.iter().map(String::as_str);
    run(program, &["dns", link].into_iter().chain(servers).collect::<Vec<_>>()).await.map(drop)
}

/// Sets the domains of the link; an empty set is passed as an empty word.
async fn set_domains(program: &str, link: &str, domains: &BTreeSet<String>) -> io::Result<()> {
    let none = [""].into_iter().filter(|_| domains.is_empty());
    let words = ["domain", link].into_iter().chain(domains.iter().map(String::as_str)).chain(none);
    run(program, &words.collect::<Vec<_>>()).await.map(drop)
}

/// Removes the link's configuration from systemd-resolved.
pub async fn revert_link(link: &str) -> io::Result<()> {
    run(RESOLVECTL, &["revert", link]).await.map(drop)
}

async fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(RESOLVECTL_MAX, command.output()).await;
    let output = output.map_err(|_| io::Error::other("resolvectl does not answer"))?;
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot run resolvectl: {error}"));
    let output = output.map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // Not all arguments: there may be 256 domains.
        false => Err(io::Error::other(format!(
            "resolvectl {}: {}",
            arguments[..arguments.len().min(3)].join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}
