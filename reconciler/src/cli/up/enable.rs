//! `minik8s trust enable`: gives a cluster of an earlier version, which has no certificates, its authority.
//!
//! Reads the locks of this machine's daemons, `up.json`, and in an etcd of the user's who is alive; writes the certificates
//! of this machine and of that etcd, and prints what is left to do. Starts nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use reqwest::Url;
use schema::keys::{Key, prefix};
use schema::store::etcd::{Access, EtcdStore};
use schema::store::{Listing, Store as _, StoreError};
use schema::trust::{Identity, Role};

use super::certificates::{self, known_name, shown_to_etcd};
use super::record::UpRecord;
use super::state::StateDir;
use crate::args::{EnableArgs, EtcdLogin, LifetimeArgs};
use crate::cli::output::{note, write_lines};
use crate::config::{DEFAULT_STATE_DIR, reconciler_name};
use crate::{state_dir, trust};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longest wait for etcd.
const ETCD_MAX: Duration = Duration::from_secs(3);
/// Folder on etcd's machines to which the printed commands copy its certificate.
const ETCD_FOLDER: &str = "/etc/etcd/minik8s";

/// An etcd of the user's.
struct UsersEtcd {
    urls: Vec<String>,
    login: EtcdLogin,
}

/// Content of an etcd that matters for the upgrade.
#[derive(Default)]
struct Survey {
    /// Daemons that live.
    alive: Vec<String>,
    /// Names of all nodes.
    nodes: Vec<String>,
}

/// Runs `minik8s trust enable`. Where the cluster has its authority already, it only renews and prints.
pub async fn enable(args: &EnableArgs) -> Result<ExitCode> {
    let state = StateDir::open(&args.state_dir)?;
    let record = state.load()?;
    let etcd = users_etcd(args, record.as_ref())?;
    let survey = match &etcd {
        None => Survey::default(),
        Some(etcd) => survey(&state, etcd).await.unwrap_or_else(|error| {
            note(&format!("minik8s: {error}; make sure yourself that no daemon of the cluster runs"));
            Survey::default()
        }),
    };
    if !trust::has_authority(state.root()) {
        let alive = [alive_here(&state), survey.alive].concat();
        ensure!(
            alive.is_empty(),
            "daemons of the cluster run: {}; stop all of them first, on all machines (containers go on; what was killed \
             counts for another 15 s)",
            alive.join(", ")
        );
    }
    let (name, certificate) = sign(args, &state, record.as_ref(), etcd.as_ref())?;
    let steps = NextSteps {
        state_dir: state.root(),
        name: &name,
        is_up: record.is_some(),
        is_open: record.as_ref().is_some_and(|record| !record.listen.ip().is_loopback()),
        etcd: etcd.as_ref(),
        certificate,
        nodes: &survey.nodes,
    };
    write_lines(&steps.text())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the etcd that is not ours; `None` for the private one of `up`.
fn users_etcd(args: &EnableArgs, record: Option<&UpRecord>) -> Result<Option<UsersEtcd>> {
    let trimmed = |url: &str| url.trim().to_owned();
    if !args.etcd.is_empty() {
        let urls = args.etcd.iter().map(|url| trimmed(url)).collect();
        return Ok(Some(UsersEtcd { urls, login: args.etcd_login.clone() }));
    }
    let Some(record) = record else {
        bail!(
            "no 'minik8s up' was run on {}; name the etcd of the cluster with --etcd",
            args.state_dir.display()
        );
    };
    let urls = record.etcd.as_ref().map(|urls| urls.split(',').map(trimmed).collect());
    Ok(urls.map(|urls| UsersEtcd { urls, login: record.etcd_login.clone() }))
}

/// Finds the daemons of this machine that run.
fn alive_here(state: &StateDir) -> Vec<String> {
    let up = state.running().map(|pid| format!("'minik8s up' (process {pid})"));
    let daemons = [("reconciler", "the reconciler of this machine"), ("agent", "the agent of this machine")];
    let locked = daemons.into_iter().filter(|(folder, _)| state_dir::is_in_use(&state.root().join(folder)));
    up.into_iter().chain(locked.map(|(_, daemon)| daemon.to_owned())).collect()
}

/// Reads who is alive, and the names of all nodes.
async fn survey(state: &StateDir, etcd: &UsersEtcd) -> Result<Survey, StoreError> {
    let is_tls = etcd.urls.iter().any(|url| url.starts_with("https://"));
    let login = etcd.login.clone();
    let access = Access::new(etcd.urls.clone(), login.etcd_user, login.etcd_password_file);
    let access = access.with_tls(is_tls.then(|| shown_to_etcd(state, &etcd.login)));
    let store = Box::pin(EtcdStore::connect(&access, ETCD_MAX)).await?;
    let leads = store.get(&Key::Leader.to_string()).await?.is_some();
    let beating = names(&store.list(prefix::HEARTBEATS).await?, prefix::HEARTBEATS);
    let agents = beating.into_iter().map(|node| format!("the agent of node {node}"));
    Ok(Survey {
        alive: leads.then(|| "a reconciler, which leads".to_owned()).into_iter().chain(agents).collect(),
        nodes: names(&store.list(prefix::NODES).await?, prefix::NODES),
    })
}

/// Returns the names of nodes in keys. Whoever reached this etcd may have written others.
fn names(listing: &Listing, prefix: &str) -> Vec<String> {
    let names = listing.items.iter().filter_map(|item| item.key.strip_prefix(prefix));
    names.filter(|name| Identity::new(Role::Node, name).is_ok()).map(str::to_owned).collect()
}

/// Signs what this machine and an etcd of the user's need. Returns the reconciler's name, and the folder of that etcd's
/// certificate with the end of it.
fn sign(
    args: &EnableArgs,
    state: &StateDir,
    record: Option<&UpRecord>,
    etcd: Option<&UsersEtcd>,
) -> Result<(String, Option<(PathBuf, Timestamp)>)> {
    let (root, now) = (state.root(), Timestamp::now());
    let owner = fs::metadata(root.join("reconciler")).ok();
    let node = || record.map(|record| record.node.clone());
    let name = reconciler_name(args.name.clone().or_else(|| known_name(root)).or_else(node))?;
    let lifetimes = match record {
        Some(record) if args.lifetimes == LifetimeArgs::default() => &record.lifetimes,
        _ => &args.lifetimes,
    };
    let own = trust::server_addresses(LOOPBACK, None);
    let settings = certificates::settings(name.clone(), own.clone(), lifetimes)?;
    trust::open(root, &settings, now).context("cannot set up the certificates of the reconciler")?;
    if let Some(record) = record {
        certificates::sign(record)?;
    }
    let certificate = match etcd {
        Some(etcd) if etcd.login.etcd_ca.is_none() => {
            let hosts = etcd.urls.iter().map(|url| host(url)).collect::<Result<Vec<_>>>()?;
            let addresses: BTreeSet<String> = own.into_iter().chain(hosts).collect();
            let addresses: Vec<String> = addresses.into_iter().collect();
            let dir = trust::sign_users_etcd(root, &addresses, now);
            let dir = dir.context("cannot sign the certificate of etcd")?;
            let end = dir.certificate()?.not_after()?;
            Some((dir.path().to_owned(), end))
        }
        _ => None,
    };
    // A reconciler that runs as a user of its own must read what root wrote.
    if let Some(owner) = owner.filter(|owner| owner.uid() != nix::unistd::geteuid().as_raw()) {
        let pki = trust::pki_dir(root);
        give_to(pki.path(), &owner).with_context(|| format!("cannot give {} away", pki.path().display()))?;
    }
    Ok((name, certificate))
}

/// Name or address in a URL.
fn host(url: &str) -> Result<String> {
    let parsed = Url::parse(url).ok();
    let host = parsed.as_ref().and_then(Url::host_str).map(|host| host.trim_matches(['[', ']']).to_owned());
    host.with_context(|| format!("--etcd {url} is no URL; write it as http://HOST:PORT"))
}

/// Makes a folder with all in it that of another owner. Of links it gives away these, not what they lead to.
fn give_to(path: &Path, owner: &Metadata) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(&entry?.path(), owner)?;
        }
    }
    lchown(path, Some(owner.uid()), Some(owner.gid()))
}

/// Steps that are left after the command.
struct NextSteps<'a> {
    state_dir: &'a Path,
    name: &'a str,
    /// Set if `up` runs the daemons of this machine.
    is_up: bool,
    /// Set if the other machines reach that reconciler.
    is_open: bool,
    /// The etcd that is not ours.
    etcd: Option<&'a UsersEtcd>,
    /// Folder of the certificate for it, and the end of that; `None` if etcd has one of another authority.
    certificate: Option<(PathBuf, Timestamp)>,
    nodes: &'a [String],
}

impl NextSteps<'_> {
    fn text(&self) -> String {
        let pki = trust::pki_dir(self.state_dir);
        let mut text =
            format!("reconciler-{} has the cluster's authority, in {}\n", self.name, pki.path().display());
        let Some(etcd) = self.etcd else {
            let _ = writeln!(text, "start this machine again; its etcd then asks for certificates:");
            let _ = writeln!(text, "  {}", self.start("private"));
            return text;
        };
        let given = etcd.urls.join(",");
        let urls = if self.certificate.is_some() { given.replace("http://", "https://") } else { given };
        let mut number = 1..;
        let mut step = |text: &mut String, what: &str| {
            let _ = writeln!(text, "\n{}. {what}", number.next().unwrap_or_default());
        };
        if let Some((folder, end)) = &self.certificate {
            step(&mut text, "Give etcd its certificate. On each of its machines, as root:");
            etcd_step(&mut text, &folder.display().to_string(), *end);
        }
        step(&mut text, "Start this reconciler where the other machines reach it:");
        let _ = writeln!(text, "     {}", self.start(&urls));
        step(
            &mut text,
            "Each of these commands prints another one. Run that on the machine with this name; containers, rules and \
             names stay. Other reconcilers join likewise ('minik8s token create --reconciler NAME').",
        );
        for node in self.nodes {
            let _ = writeln!(text, "     minik8s token create --node {node}");
        }
        if self.nodes.is_empty() {
            text.push_str("     minik8s token create --node NAME\n");
        }
        if self.certificate.is_some() {
            step(&mut text, "Once all nodes are Ready, let etcd refuse each of them the keys of others:");
            let files = pki.tls_files();
            let _ = writeln!(
                text,
                "     etcdctl --endpoints={urls} --cacert={} --cert={} --key={} auth enable",
                files.authorities.display(),
                files.certificate.display(),
                files.key.display()
            );
        }
        text
    }

    /// Command that starts this reconciler with an etcd.
    fn start(&self, etcd: &str) -> String {
        let state_dir = match self.state_dir == Path::new(DEFAULT_STATE_DIR) {
            true => String::new(),
            false => format!(" --state-dir {}", self.state_dir.display()),
        };
        match (self.is_up, self.etcd) {
            (true, None) => format!("minik8s up{state_dir}"),
            (true, Some(_)) if self.is_open => format!("minik8s up --etcd {etcd}{state_dir}"),
            (true, Some(_)) => format!("minik8s up --etcd {etcd} --advertise ADDRESS{state_dir}"),
            (false, _) => format!(
                "minik8s serve --name {} --etcd {etcd} --listen 0.0.0.0:7070{state_dir} --repo URL",
                self.name
            ),
        }
    }
}

fn etcd_step(text: &mut String, folder: &str, end: Timestamp) {
    let _ = write!(
        text,
        "     install -d -o etcd -m 700 {ETCD_FOLDER}\n     \
         install -o etcd -m 400 {folder}/*.pem {ETCD_FOLDER}/\n   \
         Then start it again with https:// in --listen-client-urls and --advertise-client-urls, and with\n     \
         --client-cert-auth=true\n     --trusted-ca-file={ETCD_FOLDER}/authorities.pem\n     \
         --cert-file={ETCD_FOLDER}/certificate.pem\n     --key-file={ETCD_FOLDER}/key.pem\n     \
         --enable-grpc-gateway=false\n   \
         The certificate ends on {end:.0}. Before that, run this command again, and the two above.\n"
    );
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use clap::Parser as _;
    use schema::control::{LockOutcome, lock_file};
    use schema::testing::at;
    use schema::trust::TrustDir;

    use super::*;
    use crate::args::{Cli, Command, TrustArgs, TrustCommand, UpArgs};

    fn typed(state_dir: &Path, flags: &[&str]) -> EnableArgs {
        let state_dir = state_dir.to_str().unwrap();
        let line = ["minik8s", "trust", "enable", "--state-dir", state_dir];
        match Cli::try_parse_from(line.iter().chain(flags)).unwrap().command {
            Command::Trust(TrustArgs { command: TrustCommand::Enable(args) }) => args,
            other => panic!("{other:?}"),
        }
    }

    fn up(line: &str) -> UpArgs {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Up(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn record(state_dir: &Path, flags: &str) -> UpRecord {
        let line = format!("minik8s up --repo /r.git --node n1 --state-dir {} {flags}", state_dir.display());
        UpRecord::merge(&up(&line), None).unwrap()
    }

    #[test]
    fn a_private_etcd_needs_nothing_but_the_next_up() {
        let dir = tempfile::tempdir().unwrap();
        let (state, record) = (StateDir::open(dir.path()).unwrap(), record(dir.path(), ""));
        let args = typed(dir.path(), &["--name", "r1"]);
        assert!(users_etcd(&args, Some(&record)).unwrap().is_none());
        let (name, certificate) = sign(&args, &state, Some(&record), None).unwrap();
        assert_eq!((name.as_str(), certificate), ("r1", None));
        assert!(trust::etcd_pki_dir(dir.path()).is_filled());
        let nodes = [];
        let steps = NextSteps {
            state_dir: dir.path(),
            name: &name,
            is_up: true,
            is_open: false,
            etcd: None,
            certificate: None,
            nodes: &nodes,
        };
        let text = steps.text();
        assert_eq!(up(text.lines().last().unwrap()).state_dir, dir.path());
        // The name stays, whatever it would be without a certificate.
        let again = sign(&typed(dir.path(), &[]), &state, Some(&record), None).unwrap();
        assert_eq!(again.0, "r1");
    }

    #[test]
    fn for_an_etcd_of_the_users_each_step_is_printed() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let flags = ["--etcd", "http://127.0.0.1:2379, http://[fd00::5]:2379", "--name", "r1"];
        let args = typed(dir.path(), &flags);
        let etcd = users_etcd(&args, None).unwrap();
        let (name, certificate) = sign(&args, &state, None, etcd.as_ref()).unwrap();
        let folder = TrustDir::new(&certificate.as_ref().unwrap().0);
        let addresses = folder.certificate().unwrap().addresses();
        assert_eq!(addresses, ["127.0.0.1", "::1", "fd00::5", "localhost"]);
        assert!(!trust::etcd_pki_dir(dir.path()).is_filled() && !dir.path().join("agent").exists());

        let nodes = ["web-1".to_owned(), "web-2".to_owned()];
        let certificate = Some((PathBuf::from("/pki"), at(0)));
        let steps = NextSteps {
            state_dir: Path::new(DEFAULT_STATE_DIR),
            name: &name,
            is_up: false,
            is_open: false,
            etcd: etcd.as_ref(),
            certificate,
            nodes: &nodes,
        };
        insta::assert_snapshot!(steps.text(), @r"
        reconciler-r1 has the cluster's authority, in /var/lib/minik8s/reconciler/pki

        1. Give etcd its certificate. On each of its machines, as root:
             install -d -o etcd -m 700 /etc/etcd/minik8s
             install -o etcd -m 400 /pki/*.pem /etc/etcd/minik8s/
           Then start it again with https:// in --listen-client-urls and --advertise-client-urls, and with
             --client-cert-auth=true
             --trusted-ca-file=/etc/etcd/minik8s/authorities.pem
             --cert-file=/etc/etcd/minik8s/certificate.pem
             --key-file=/etc/etcd/minik8s/key.pem
             --enable-grpc-gateway=false
           The certificate ends on 2026-01-01T00:00:00Z. Before that, run this command again, and the two above.

        2. Start this reconciler where the other machines reach it:
             minik8s serve --name r1 --etcd https://127.0.0.1:2379,https://[fd00::5]:2379 --listen 0.0.0.0:7070 --repo URL

        3. Each of these commands prints another one. Run that on the machine with this name; containers, rules and names stay. Other reconcilers join likewise ('minik8s token create --reconciler NAME').
             minik8s token create --node web-1
             minik8s token create --node web-2

        4. Once all nodes are Ready, let etcd refuse each of them the keys of others:
             etcdctl --endpoints=https://127.0.0.1:2379,https://[fd00::5]:2379 --cacert=/var/lib/minik8s/reconciler/pki/authorities.pem --cert=/var/lib/minik8s/reconciler/pki/certificate.pem --key=/var/lib/minik8s/reconciler/pki/key.pem auth enable
        ");
    }

    #[test]
    fn an_etcd_with_an_authority_of_its_own_keeps_its_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let record = record(dir.path(), "--etcd https://etcd.lan:2379 --etcd-ca /ca.pem");
        let args = typed(dir.path(), &[]);
        let etcd = users_etcd(&args, Some(&record)).unwrap();
        let (name, certificate) = sign(&args, &state, Some(&record), etcd.as_ref()).unwrap();
        assert_eq!((name.as_str(), &certificate), ("n1", &None));
        let nodes = [];
        let (state_dir, etcd) = (dir.path(), etcd.as_ref());
        let mut steps = NextSteps {
            state_dir,
            name: &name,
            is_up: true,
            is_open: false,
            etcd,
            certificate,
            nodes: &nodes,
        };
        let text = steps.text();
        assert!(!text.contains("etcdctl") && !text.contains("install"), "{text}");
        let line = text.lines().find(|line| line.contains("minik8s up")).unwrap();
        assert_eq!(up(line).etcd.as_deref(), Some("https://etcd.lan:2379"));
        assert_eq!(up(line).advertise.as_deref(), Some("ADDRESS"));
        steps.is_open = true;
        assert!(!steps.text().contains("--advertise"));
    }

    #[test]
    fn a_link_is_given_away_and_not_what_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        fs::create_dir_all(pki.join("etcd")).unwrap();
        symlink("nowhere", pki.join("etcd/link")).unwrap();
        // Would fail by looking for what the link leads to.
        give_to(&pki, &fs::metadata(dir.path()).unwrap()).unwrap();
    }

    #[test]
    fn what_runs_on_this_machine_is_found_by_its_lock_and_only_nodes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(alive_here(&state), [""; 0]);
        let own = dir.path().join("agent");
        fs::create_dir_all(&own).unwrap();
        File::create(own.join("lock")).unwrap();
        assert_eq!(alive_here(&state), [""; 0], "a lock that nobody holds");
        let LockOutcome::Locked(_held) = lock_file(&own.join("lock")).unwrap() else { panic!("busy") };
        assert_eq!(alive_here(&state), ["the agent of this machine"]);
        assert!(users_etcd(&typed(dir.path(), &[]), None).is_err(), "neither 'up' nor --etcd");

        let item = |key: &str| schema::store::KeyValue {
            key: format!("/n/{key}"),
            value: Default::default(),
            create_revision: 1,
            mod_revision: 1,
        };
        let listing = Listing { items: ["web-1", "$(reboot)", "a/b"].map(item).into(), revision: 1 };
        assert_eq!(names(&listing, "/n/"), ["web-1"]);
    }
}
