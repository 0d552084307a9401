//! Every commit that is or looks like a mass removal, against a real Git server and a real etcd: no object
//! is removed, and the source says why. The cases run side by side, each as a separate source of one
//! reconciler.
//!
//! The check reads etcd: a key that was removed and restored has another create revision. Fails without
//! any of the holds of `reconciler/src/gitops/prune.rs`, and without the quarantine in
//! `gitops/check`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use harness::{
    Context, Daemon, Etcd, Result, Slot, Trust, ensure, eventually, http_post, minik8s_binary, secs,
};
use schema::keys::{Key, prefix};
use schema::records::{RequestAnswer, SourceState, SourceStatus};

mod access;
mod cases;
mod meant;
mod site;

use access::Access;
use cases::Case;
use site::{FOLDER, OBJECTS, Site};

/// Far above the time that the slowest machine needs for all sources together.
const PATIENCE_SECONDS: u64 = 60;

/// A reconciler with a source for each repository.
struct Stage {
    etcd: Etcd,
    serve: Daemon,
    api: String,
    _access: Access,
    _slot: Slot,
}

impl Stage {
    fn open(access: fn(&Slot) -> Result<Access>, sites: &[&Site], slot: Slot) -> Result<Self> {
        let access = access(&slot)?;
        let mut sources = String::new();
        for site in sites {
            write!(
                sources,
                "- name: {}\n  repo: {}\n  path: {FOLDER}\n  poll: 1h\n",
                site.name,
                access.url(site)
            )?;
            sources.push_str(&access.credentials());
        }
        let file = slot.dir().join("sources.yaml");
        std::fs::write(&file, sources)?;
        let (trust, state) = (Trust::create(slot.dir(), &["127.0.0.1"])?, slot.dir().join("state"));
        trust.fill_reconciler(&state, "r0")?;
        let mut etcd = Etcd::new(slot.dir(), slot.port(4), slot.port(5), None, &trust)?;
        etcd.start()?;
        let socket = slot.dir().join("r0.sock");
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let mut command = vec![text(&minik8s_binary()), "serve".to_owned(), "--own-etcd".to_owned()];
        for (flag, value) in [
            ("--sources", text(&file)),
            ("--etcd", etcd.endpoint().to_owned()),
            ("--state-dir", text(&state)),
            ("--listen", format!("127.0.0.1:{}", slot.port(0))),
            ("--socket", text(&socket)),
            ("--cluster-cidr", slot.cluster_cidr()),
            ("--name", "r0".to_owned()),
        ] {
            command.extend([flag.to_owned(), value]);
        }
        let serve = Daemon::new("serve", slot.dir(), command);
        let api = format!("unix:{}", socket.display());
        let mut stage = Self { etcd, serve, api, _access: access, _slot: slot };
        stage.serve.start()?;
        Ok(stage)
    }

    fn sync(&self) -> Result<()> {
        eventually("the reconciler takes a sync", secs(20), || {
            let (code, answer) = http_post(&self.api, "/v1/sync")?;
            ensure!(code == 202, "{code}: {answer}");
            Ok(())
        })
    }

    /// Requests a sync of each repository and waits for the answers, which only a run that began later
    /// gives. A source with a broken remote or folder gives none; there, the keys at the very end
    /// are the check.
    fn looked_at(&self, sites: &[(Site, Case)]) -> Result<()> {
        let mut asked = Vec::new();
        for (site, _) in sites {
            if self.status(site)?.error.is_some() {
                continue;
            }
            let id = eventually("the reconciler takes a request", secs(20), || {
                let (code, answer) = http_post(&self.api, &format!("/v1/sync?source={}", site.name))?;
                ensure!(code == 202, "{code}: {answer}");
                let answer: serde_json::Value = serde_json::from_str(&answer)?;
                Ok(answer["requests"][0].as_str().context("an id")?.to_owned())
            })?;
            asked.push((site, id));
        }
        ensure!(asked.len() > 30, "only {} sources give answers", asked.len());
        for (site, id) in asked {
            eventually(&format!("{} is looked at", site.name), secs(PATIENCE_SECONDS), || {
                let request = self.etcd.key(Key::Request(id.clone()))?.context("no request")?;
                let answer: RequestAnswer = self.etcd.value(Key::Answer(id.clone()))?;
                ensure!(answer.request_revision == request.mod_revision, "no answer yet");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn status(&self, site: &Site) -> Result<SourceStatus> {
        self.etcd.value(Key::Source(site.name.clone()))
    }

    /// Keys of the site's namespace with their create revisions.
    fn objects(&self, site: &Site) -> Result<BTreeMap<String, i64>> {
        let in_namespace = format!("/{}/", site.name);
        let keys = self.etcd.list(prefix::OBJECTS)?.into_iter();
        Ok(keys
            .filter(|key| key.key.contains(&in_namespace))
            .map(|key| (key.key, key.create_revision))
            .collect())
    }

    fn wait(&self, site: &Site, what: &str, fits: impl Fn(&SourceStatus) -> bool) -> Result<()> {
        eventually(&format!("{}: {what}", site.name), secs(PATIENCE_SECONDS), || {
            let status = self.status(site)?;
            ensure!(fits(&status), "{}", serde_json::to_string(&status)?);
            Ok(())
        })
    }

    fn wait_synced(&self, site: &Site, what: &str, commit: &str) -> Result<()> {
        self.wait(site, what, |status| {
            status.state == SourceState::Synced && status.applied_commit.as_deref() == Some(commit)
        })
    }

    /// Waits for all twenty objects of the good commit.
    fn wait_good(&self, site: &Site) -> Result<()> {
        self.wait_synced(site, "all is well", &site.good)
    }
}

/// Runs the table over one kind of access to the repositories.
fn endure(access: fn(&Slot) -> Result<Access>) -> Result<()> {
    let slot = Slot::take()?;
    let tables =
        [cases::folders(), cases::contents(), cases::relations(), cases::histories(), cases::remotes()];
    let cases: Vec<Case> = tables.into_iter().flatten().collect();
    ensure!(cases.len() >= 40, "{} cases", cases.len());
    let root = slot.dir().join("repositories");
    let site = |(number, case): (usize, Case)| Ok((Site::create(&root, &format!("case-{number:02}"))?, case));
    let sites: Vec<(Site, Case)> = cases.into_iter().enumerate().map(site).collect::<Result<_>>()?;
    let mut stage = Stage::open(access, &sites.iter().map(|(site, _)| site).collect::<Vec<_>>(), slot)?;
    let outcome = table(&mut stage, &sites);
    if outcome.is_err() {
        eprintln!("{}", stage.serve.log_tail());
    }
    outcome
}

fn table(stage: &mut Stage, sites: &[(Site, Case)]) -> Result<()> {
    let mut before = BTreeMap::new();
    for (site, _) in sites {
        stage.wait_good(site)?;
        let objects = stage.objects(site)?;
        ensure!(objects.len() == OBJECTS, "{}: {objects:?}", site.name);
        before.insert(&site.name, objects);
    }
    let mut wrong = Vec::new();
    for (site, case) in sites {
        (case.danger)(site).with_context(|| case.name)?;
    }
    stage.sync()?;
    for (site, case) in sites {
        if let Err(error) = stage.wait(site, case.name, |status| warns(status, site, case)) {
            wrong.push(format!("{}: {error:#}", case.name));
        }
    }
    // Once more from nothing but etcd and the mirrors: a restart comes to the same result.
    stage.serve.kill()?;
    stage.serve.start()?;
    stage.looked_at(sites)?;
    for (site, case) in sites {
        let now = stage.objects(site)?;
        let lost: Vec<_> = before[&site.name].iter().filter(|(key, at)| now.get(*key) != Some(at)).collect();
        if !lost.is_empty() {
            wrong.push(format!("{}: gone or made anew: {lost:?}", case.name));
        }
    }
    ensure!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), sites.len(), wrong.join("\n"));
    let mut mended = Vec::new();
    for (site, case) in sites {
        // The objects that the case added are removed as well, so this needs the release trailer.
        let commit = site.repo.restore(&site.good, "As it was\n\nMinik8s-Allow-Prune: true");
        mended.push(commit.with_context(|| case.name)?);
    }
    stage.sync()?;
    for ((site, case), commit) in sites.iter().zip(&mended) {
        stage.wait_synced(site, case.name, commit)?;
        let now = stage.objects(site)?;
        ensure!(now == before[&site.name], "{}: {now:?}", case.name);
    }
    Ok(())
}

/// True if the status is about the dangerous commit and contains the required text, in its messages for people.
fn warns(status: &SourceStatus, site: &Site, case: &Case) -> bool {
    let is_news = status.error.is_some() || status.observed_commit.as_deref() != Some(&*site.good);
    let violations = status.quarantined.iter().flat_map(|file| &file.violations);
    let mut said: Vec<String> = violations.map(ToString::to_string).collect();
    said.extend(status.error.iter().map(|error| error.message.clone()));
    said.extend(status.held_prune.iter().map(|held| held.why.clone()));
    is_news && status.state != SourceState::Synced && said.iter().any(|text| text.contains(case.says))
}

#[test]
fn no_dangerous_commit_removes_an_object_over_http() -> Result<()> {
    endure(Access::http)
}

#[test]
fn no_dangerous_commit_removes_an_object_over_ssh() -> Result<()> {
    endure(Access::ssh)
}
