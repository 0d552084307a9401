//! Targets: each forge that a source names, and each target of notifications of the Cluster object.
//!
//! Made anew from the configuration and the settings in force. Secrets are read at each delivery, and kept nowhere.

use std::collections::BTreeMap;
use std::path::Path;

use ipnet::Ipv4Net;
use schema::content_refs::{NOTIFICATIONS_NAMESPACE, SECRET_ENDING, SECRETS_FOLDER};
use schema::kinds::cluster::{Notification, NotificationChannel, NotificationEvent};
use schema::records::ClusterSettings;

use crate::git::{
    CommitStatus, GitError, Mirror, SealedCredentials, SealedNamespace, SourceConfig, status_token,
};
use crate::text_file::read_text;

/// A target with what is needed to reach it. Secrets are read at each delivery.
#[derive(Debug, Clone)]
pub struct Target {
    /// Name: `source.<source>` of a forge, else the one in the Cluster object.
    pub name: String,
    /// Kind, with its settings.
    pub kind: TargetKind,
    pub(super) own: OwnAddresses,
}

/// Name and addresses of the cluster itself, and whether messages may go to those of this machine.
#[derive(Debug, Clone, Default)]
pub struct OwnAddresses {
    /// Ranges of pods and services, which count as private.
    pub ranges: Vec<Ipv4Net>,
    /// URLs of etcd, to which nothing is sent.
    pub etcd: Vec<String>,
    /// Name of the cluster in messages.
    pub cluster_name: Option<String>,
}

/// Kind of a target.
#[derive(Debug, Clone)]
pub enum TargetKind {
    /// A forge that shows the status of a source's commits.
    CommitStatus { source: String, config: Box<SourceConfig>, status: CommitStatus },
    /// A chat, a mailbox or a webhook of the Cluster object.
    Chat {
        notification: Notification,
        /// Source that owns the Cluster object.
        source: String,
        /// Place of its secret; `None` if this reconciler does not follow that source.
        home: Option<SealedCredentials>,
    },
}

/// Messages that a target receives.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetScope {
    /// Messages about commits of one source.
    Commits { source: String },
    /// Messages about these events; about all if there are none.
    Events(Vec<NotificationEvent>),
}

impl Target {
    /// Returns the messages that the target receives.
    pub fn scope(&self) -> TargetScope {
        match &self.kind {
            TargetKind::CommitStatus { source, .. } => TargetScope::Commits { source: source.clone() },
            TargetKind::Chat { notification, .. } => TargetScope::Events(notification.on.clone()),
        }
    }

    /// Returns the word for metrics: `commit-status`, `webhook`, `slack`, `matrix` or `smtp`.
    pub fn kind_word(&self) -> &'static str {
        match &self.kind {
            TargetKind::CommitStatus { .. } => "commit-status",
            TargetKind::Chat { notification, .. } => {
                notification.channel().map_or("webhook", NotificationChannel::as_str)
            }
        }
    }

    /// Returns the words for the place of its secret.
    pub(super) fn secret_place(&self) -> String {
        match &self.kind {
            TargetKind::Chat { notification: Notification { secret_name: Some(name), .. }, .. } => {
                format!("{SECRETS_FOLDER}/{NOTIFICATIONS_NAMESPACE}/{name}{SECRET_ENDING}")
            }
            _ => "its secret".to_owned(),
        }
    }

    /// Reads the secret's values by key; of a forge, `token` and, if the source has one, `ca`. Blocks.
    ///
    /// # Errors
    /// What is missing, and the remedy, without secrets.
    pub(super) fn secrets(&self) -> Result<BTreeMap<String, String>, String> {
        let values = match &self.kind {
            TargetKind::CommitStatus { config, status, .. } => secrets_of_forge(config, status)?,
            TargetKind::Chat { notification: Notification { secret_name: None, .. }, .. } => BTreeMap::new(),
            TargetKind::Chat { notification: Notification { secret_name: Some(name), .. }, source, home } => {
                let home = home.as_ref().ok_or_else(|| {
                    format!("this reconciler does not follow source {source}, which has the secret {name}")
                })?;
                home.read(SealedNamespace::Notifications, name).map_err(|error| error.to_string())?
            }
        };
        match values.get("ca") {
            Some(ca) if !ca.contains("-----BEGIN CERTIFICATE-----") => {
                Err("its `ca` has no certificate; write certificates in PEM".to_owned())
            }
            _ => Ok(values),
        }
    }
}

fn secrets_of_forge(
    config: &SourceConfig,
    status: &CommitStatus,
) -> Result<BTreeMap<String, String>, String> {
    let token = status_token(config, status).map_err(|error| match error {
        // About the repository, whose address does not matter here.
        GitError::AuthenticationFailed { why, help, .. } => format!("{why}; {help}"),
        error => error.to_string(),
    })?;
    let mut values = BTreeMap::from([("token".to_owned(), token)]);
    if let Some(file) = &config.credentials.ca_file {
        let unreadable = |error| format!("{} cannot be read: {error}", file.display());
        values.insert("ca".to_owned(), read_text(file).map_err(unreadable)?);
    }
    Ok(values)
}

/// Returns the targets of the configured sources and of the settings in force.
pub fn targets(
    sources: &[SourceConfig],
    settings: Option<&ClusterSettings>,
    state_dir: &Path,
    own: &OwnAddresses,
) -> Vec<Target> {
    let target = |name, kind| Target { name, kind, own: own.clone() };
    let forges = sources.iter().filter_map(|config| {
        let status = config.commit_status.clone()?;
        let (source, name) = (config.name.clone(), format!("source.{}", config.name));
        Some(target(name, TargetKind::CommitStatus { source, config: Box::new(config.clone()), status }))
    });
    let chats = settings.into_iter().flat_map(|settings| {
        let home = sources.iter().find(|config| config.name == settings.source);
        let home = home.map(|config| Mirror::sealed(config, state_dir));
        settings.spec.notifications.iter().map(move |notification| {
            let (source, home) = (settings.source.clone(), home.clone());
            let kind = TargetKind::Chat { notification: notification.clone(), source, home };
            target(notification.name.clone(), kind)
        })
    });
    forges.chain(chats).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, slice};

    use schema::kinds::cluster::NotificationSlack;

    use super::*;
    use crate::git::{CommitStatusFields, Forge};

    fn source(name: &str) -> SourceConfig {
        SourceConfig::branch(name, &format!("https://git.example/kim/{name}.git"), "main")
    }

    fn with_status(name: &str) -> SourceConfig {
        let mut config = source(name);
        let given = CommitStatusFields {
            forge: Some(Forge::Gitea),
            api: Some("https://git.example".to_owned()),
            ..CommitStatusFields::default()
        };
        config.commit_status = Some(CommitStatus::new(given, &config.url).unwrap());
        config
    }

    fn settings() -> ClusterSettings {
        let mut settings = ClusterSettings { source: "apps".to_owned(), ..ClusterSettings::default() };
        settings.spec.notifications = vec![Notification {
            name: "ops".to_owned(),
            on: vec![NotificationEvent::Node],
            secret_name: Some("ops".to_owned()),
            slack: Some(NotificationSlack {}),
            ..Notification::default()
        }];
        settings
    }

    #[test]
    fn forges_receive_their_sources_commits_and_chats_their_events() {
        let found = targets(
            &[source("base"), with_status("apps")],
            Some(&settings()),
            Path::new("/state"),
            &OwnAddresses::default(),
        );
        let of = |target: &Target| (target.name.clone(), target.kind_word(), target.scope());
        let wanted = [
            ("source.apps".to_owned(), "commit-status", TargetScope::Commits { source: "apps".to_owned() }),
            ("ops".to_owned(), "slack", TargetScope::Events(vec![NotificationEvent::Node])),
        ];
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), wanted);
        let TargetKind::Chat { home: Some(home), .. } = &found[1].kind else { panic!("no home") };
        assert_eq!(
            (home.home.name.as_str(), home.mirror.as_path()),
            ("apps", &*Mirror::directory(Path::new("/state"), "apps"))
        );
        assert!(targets(&[source("base")], None, Path::new("/state"), &OwnAddresses::default()).is_empty());
    }

    // Would fail if another source's secrets could stand in.
    #[test]
    fn a_secret_is_read_only_from_the_source_of_the_cluster_object() {
        let found =
            targets(&[source("base")], Some(&settings()), Path::new("/state"), &OwnAddresses::default());
        let why = found[0].secrets().unwrap_err();
        assert!(why.contains("does not follow source apps"), "{why}");
    }

    #[test]
    fn a_forge_gets_the_sources_token_and_ca_as_they_are_now() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = with_status("apps");
        config.credentials.token_file = Some(dir.path().join("token"));
        let own = OwnAddresses::default();
        let secrets =
            |config: &SourceConfig| targets(slice::from_ref(config), None, dir.path(), &own)[0].secrets();
        let why = secrets(&config).unwrap_err();
        assert!(why.contains("cannot be read") && !why.contains("refused access"), "{why}");
        fs::write(dir.path().join("token"), "canary\n").unwrap();
        assert_eq!(secrets(&config).unwrap(), BTreeMap::from([("token".to_owned(), "canary".to_owned())]));
        config.credentials.ca_file = Some(dir.path().join("ca"));
        fs::write(dir.path().join("ca"), "none").unwrap();
        let why = secrets(&config).unwrap_err();
        assert!(why.contains("`ca` has no certificate") && !why.contains("canary"), "{why}");
    }
}
